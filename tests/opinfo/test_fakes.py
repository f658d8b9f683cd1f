"""Shape functions beside kernels, for every operator of the database in half precision; each dtype in turn, marked slow."""

import pytest
import torch

from tests.opinfo.compare import Pair, pairs
from tests.opinfo.fakes import check

DTYPES = (torch.bfloat16, torch.float32)
PAIRS = [pair for pair in pairs() if pair.dtype in DTYPES]
EVERY = 6


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, id=pair.key, marks=() if i % EVERY == 0 else pytest.mark.slow)
        for i, pair in enumerate(PAIRS)
    ],
)
def test_results_are_as_stated(pair: Pair):
    assert check(pair).different == []


def test_gradients_are_compared_too():
    [pair] = [
        p for p in PAIRS if p.key.startswith("nn.functional.layer_norm") and p.dtype == DTYPES[0]
    ]
    assert check(pair).compared > 4
