"""The tests of a fused optimizer whose update is that of a torch.optim one."""

import copy
from typing import Any, ClassVar

import pytest
import torch

from tests.optim._model import against_torch, assert_same, parameters, train


class LikeTorch:
    """A subclass names the two optimizers, the options to run them with, and what is refused."""

    fused: ClassVar[type]
    plain: ClassVar[type]
    good: ClassVar[list[dict[str, Any]]]
    bad: ClassVar[list[dict[str, Any]]]

    def pytest_generate_tests(self, metafunc):
        for argument, values in (("options", self.good), ("refused", self.bad)):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, values)

    def test_update_is_torchs(self, options):
        against_torch(self.fused, self.plain, options)

    def test_half_precision(self, options):
        """Parameters and states in float16, side by side with torch's optimizer on the CPU in float16."""
        ours, theirs = parameters(torch.float16), parameters(torch.float16, "cpu")
        train(self.fused(ours, **options), ours, 3)
        train(self.plain(theirs, **options, foreach=False), theirs, 3)
        assert_same(ours, theirs, 5e-3)

    def test_state_goes_over(self, options):
        """A state saved after three steps, ours or torch's, goes on to the same place."""
        theirs = parameters(torch.float64, "cpu")
        plain = self.plain(theirs, **options)
        train(plain, theirs, 3)
        saved = copy.deepcopy(plain.state_dict())
        kept = [p.detach().clone() for p in theirs]
        train(plain, theirs, 2, first=3)

        mine = parameters()
        with torch.no_grad():
            for param, value in zip(mine, kept, strict=True):
                param.copy_(value)
        fused = self.fused(mine, **options)
        fused.load_state_dict(saved)
        train(fused, mine, 1, first=3)
        again = self.fused(mine, **options)
        again.load_state_dict(fused.state_dict())
        train(again, mine, 1, first=4)
        assert_same(mine, theirs)

    def test_bad_hyperparameters(self, refused):
        with pytest.raises(ValueError, match="Invalid|requires"):
            self.fused(parameters(), **refused)
