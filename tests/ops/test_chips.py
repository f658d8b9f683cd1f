"""Every operator's samples as the chips besides the default one: they compute there, or are refused as upstream refuses."""

from __future__ import annotations

import pytest
import torch

from softnpu import chips
from tests.ops import refusals
from tests.ops.families import on
from tests.ops.support import make
from torch_npu._errors import BadArgument, ErrCode
from torch_npu.ops._registry import operators

FAMILIES = ("310P", "910A", "A3", "A5")
#: an operator of a group needs its ranks: tests/ops/comm starts them
NAMES = [
    name
    for name, operator in sorted(operators.items())
    if operator.samples and operator.folder != "comm"
]


def computed(name: str, family: str) -> int:
    """How many samples of the operator the chip computes; that it refuses the others is upstream's fact."""
    count = 0
    for sample in operators[name].samples:
        with on(family):
            args, kwargs = sample.inputs(make)
            try:
                found = operators[name].overload(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                refused = refusals.refusal(error)
                assert refused is not None, error
                assert refusals.is_right(chips.current(), *refused), error
                continue
        count += 1
        for result in found if isinstance(found, tuple | list) else [found]:
            # hans packs bits into what is called float
            if isinstance(result, torch.Tensor) and name != "npu_hans_encode.out":
                assert not result.is_floating_point() or not result.isnan().any()
    return count


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("operator", NAMES)
def test_computes_or_refuses_as_upstream(operator, family):
    computed(operator, family)


@pytest.mark.parametrize("family", FAMILIES)
def test_much_computes(family):
    names = ("npu_rms_norm", "npu_linear", "npu_bmmV2", "npu_dtype_cast", "npu_confusion_transpose")
    assert all(computed(name, family) for name in names)


@pytest.mark.parametrize("name", sorted(refusals.products()))
def test_no_chip_is_refused_that_upstream_lists(name):
    listed = refusals.products()[name]["chips"]
    assert operators[name].chips is None or set(listed) <= set(operators[name].chips)


def test_a_refusal_without_a_fact_is_wrong():
    chip = chips.get("Ascend310P3")
    whole = BadArgument("device", "Ascend950", chip.name, ErrCode.NOT_SUPPORT)
    assert refusals.is_right(chip, "npu_mhc_pre", whole)
    assert not refusals.is_right(chip, "npu_swiglu", whole)
    mode = BadArgument("rotary_mode", "'half'", "'interleave'", ErrCode.VALUE)
    assert refusals.is_right(chip, "npu_rotary_mul", mode)
    assert not refusals.is_right(chip, "npu_swiglu", mode)
    assert not refusals.is_right(
        chip,
        "npu_swiglu",
        BadArgument("dim", "of dtype torch.float32", "torch.float16", ErrCode.TYPE),
    )
