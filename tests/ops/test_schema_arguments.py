"""What every operator refuses because its schema says so, with constraints on and off."""

from __future__ import annotations

import pytest
import torch

import torch_npu
from softnpu import settings
from tests.ops.support import make
from torch_npu.ops._registry import operators

SAMPLED = sorted(name for name, operator in operators.items() if operator.samples)


def call(operator, values):
    args, kwargs = operator.spread(values)
    return operator.overload(*args, **kwargs)


@pytest.mark.parametrize("strict", [True, False])
def test_none_for_a_required_tensor_is_named(strict):
    """One required tensor of each operator, a later one where there are several."""
    tried = 0
    for name in SAMPLED:
        operator = operators[name]
        required = [a.name for a in operator.schema.arguments if str(a.type) == "Tensor"]
        if len(required) < 2:
            continue  # without a tensor nothing tells which device is meant
        args, kwargs = operator.samples[0].inputs(make)
        values = list(operator.bind(args, kwargs))
        values[operator.arguments.index(required[-1])] = None
        with (
            settings.override(strict=strict),
            pytest.raises(
                RuntimeError, match=f"argument '{required[-1]}' must be a tensor, but received None"
            ),
        ):
            call(operator, values)
        tried += 1
    assert tried > 100


def test_a_number_that_is_no_dtype_is_named():
    with pytest.raises(RuntimeError, match="argument 'dtype' must be a torch.dtype"):
        torch.ops.npu._npu_dtype_cast_backward(make(3, 4), -1)
    assert torch.ops.npu._npu_dtype_cast_backward(make(3, 4), torch.float16).dtype == torch.float16


@pytest.mark.parametrize("mask", [[], [True, True], [True] * 4])
def test_masks_have_their_length(mask):
    arguments = (make(1, 4, 8, 8), make(1, 6, 6, 6), make(6, 4, 3, 3), [1, 1], [0, 0], [1, 1], 1)
    with pytest.raises(RuntimeError, match="argument 'output_mask' must be a list of 3 bools"):
        torch.ops.npu.npu_conv2d_backward(*arguments, mask)
    assert torch.ops.npu.npu_conv2d_backward(*arguments, [True, False, True])[1] is None


def test_findings_of_the_fuzzer():
    """Calls that ended with an internal message once, or not at all."""
    taken = torch_npu.npu_gather_sparse_index(
        make(5), torch.tensor(2, dtype=torch.int32, device="npu")
    )
    assert taken.shape == ()
    with pytest.raises(
        RuntimeError,
        match="argument 'featmap_size' must be small enough that 64 bits count the elements",
    ):
        torch_npu.npu_anchor_response_flags(make(5, 4), [6, 2**63 - 1], [8, 8], 3)
    with pytest.raises(RuntimeError, match="argument 'paddings' must be small enough"):
        torch_npu.npu_pad(make(2, 3), [2**63 - 1, 1])
    with pytest.raises(RuntimeError, match="argument 'size' must be small enough"):
        torch.ops.npu.npu_dropout_gen_mask([2**40, 2**40], 0.5, device="npu")
    with (
        settings.override(strict=False),
        pytest.raises(RuntimeError, match="mrope_section .* does not divide 64 columns"),
    ):
        positions = make(3, 5, dtype=torch.int64, low=0, high=9)
        torch_npu.npu_mrope(
            positions, make(5, 128), make(5, 64), make(9, 64), 64,
            mrope_section=[8, 12, 2**62], rotary_mode="half", cache_mode="interleave",
        )  # fmt: skip


class _Script(torch.nn.Module):
    def forward(self, x):
        return torch_npu.npu_max(x, dim=1)[0] + torch_npu.npu_swiglu(x, dim=-1).sum()


def test_scripts_call_the_operators():
    x = torch.rand(2, 8, device="npu")
    assert torch.equal(torch.jit.script(_Script())(x), _Script()(x))
