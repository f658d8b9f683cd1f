"""torchair.use_internal_format_weight and patch_for_hcom."""

from __future__ import annotations

import logging

import pytest
import torch

import torch_npu
import torchair
from torchair.core.utils import logger


@pytest.fixture
def internal_formats():
    before = torch.npu.config.allow_internal_format
    torch.npu.config.allow_internal_format = True
    yield
    torch.npu.config.allow_internal_format = before


@pytest.mark.usefixtures("internal_formats")
def test_weights_get_their_formats():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(16, 16, 3), torch.nn.Conv2d(16, 16, 3, groups=2), torch.nn.Linear(16, 16)
    )
    model = model.half().npu()
    before = [p.detach().clone() for p in model.parameters()]
    torchair.use_internal_format_weight(model)
    formats = [torch_npu.get_npu_format(module.weight) for module in model]
    assert formats[0] == 4 and formats[1] not in (4, 29) and formats[2] == 29
    for now, then in zip(model.parameters(), before, strict=True):
        assert torch.equal(now, then)


def test_weights_must_be_on_the_device():
    with pytest.raises(RuntimeError, match="weight of Linear must be on npu, received one on cpu"):
        torchair.use_internal_format_weight(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="model must be a Module, received int"):
        torchair.use_internal_format_weight(3)


def test_patch_for_hcom_says_that_it_is_not_needed(capsys):
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        assert torchair.patch_for_hcom() is None
    finally:
        logger.setLevel(before)
    assert "without patch_for_hcom" in capsys.readouterr().out
