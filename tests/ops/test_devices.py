"""Every operator on a device that is not the current one, and all of them in several threads at once."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from tests.ops.support import make
from tests.ops.test_all_operators import SAMPLES, inputs
from tests.ops.test_strides import LARGE, assert_same
from torch_npu.ops._registry import operators


def takes_tensors(name: str) -> bool:
    """A factory has its device as an argument instead."""
    return any(isinstance(v, torch.Tensor) for v in tree_flatten(inputs(name, 0))[0])


#: of the first samples, those that are quick and need no ranks
NAMES = sorted(
    n for n, i in SAMPLES
    if i == 0 and not n.startswith(LARGE) and operators[n].folder != "comm" and takes_tensors(n)
)  # fmt: skip

THREADS = 4


def random(name: str) -> bool:
    return operators[name].random


def results(name: str, device: str = "npu:0") -> list[Any]:
    """What the first sample yields there: results, then the arguments as they are left."""
    given = inputs(name, 0, functools.partial(make, device=device))
    return tree_flatten((operators[name].overload(*given[0], **given[1]), given))[0]


def on_host(values: list[Any]) -> list[Any]:
    return [v.detach().cpu() if isinstance(v, torch.Tensor) else v for v in values]


@pytest.mark.parametrize("name", NAMES)
def test_on_another_device(name):
    assert torch.npu.current_device() == 0
    torch.npu.manual_seed_all(3)
    here = results(name)
    torch.npu.manual_seed_all(3)
    there = results(name, "npu:1")
    assert torch.npu.current_device() == 0
    places = {v.device for v in there if isinstance(v, torch.Tensor) and v.device.type == "npu"}
    assert places <= {torch.device("npu:1")}
    assert_same(on_host(there), on_host(here))


@pytest.mark.parametrize("name", NAMES)
def test_operators_that_draw_say_so(name):
    """Without the tag, a graph may compute two equal calls once."""
    before = torch.npu.get_rng_state("npu:0")
    results(name)
    assert random(name) or torch.equal(torch.npu.get_rng_state("npu:0"), before)


def test_in_threads():
    """Each thread begins at another operator, so that different ones run side by side."""
    names = [n for n in NAMES if not random(n) and operators[n].chips is None]
    expected = {n: on_host(results(n)) for n in names}

    def work(first: int) -> int:
        for name in names[first:] + names[:first]:
            assert_same(on_host(results(name)), expected[name])
        return len(names)

    starts = range(0, len(names), len(names) // THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        assert set(pool.map(work, starts)) == {len(names)}
