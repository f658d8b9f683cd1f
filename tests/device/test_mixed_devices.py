"""Operands of different devices: PyTorch's "same device" error; 0-dim CPU scalars and CPU indices pass."""

from __future__ import annotations

import pytest
import torch

import torch_npu  # noqa: F401

SAME_DEVICE = "Expected all tensors to be on the same device"


MIXED = {
    "add": lambda a, b: a + b,
    "mm": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "in-place": lambda a, b: a.mul_(b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "linear": lambda a, b: torch.nn.functional.linear(a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "conv": lambda a, b: torch.nn.functional.conv1d(a[None], b[:, :, None]),
    "layer_norm": lambda a, b: torch.nn.functional.layer_norm(a, (2,), b[0]),
    "embedding": lambda a, b: torch.nn.functional.embedding(a.long(), b),
    "foreach": lambda a, b: torch._foreach_add([a], [b]),
}


def test_attention_with_a_mask_on_the_cpu_raises():
    q = torch.ones(1, 2, 4, 8, device="npu")
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(4, 4))


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize(
    ("first", "second"), [("npu:0", "cpu"), ("cpu", "npu:0"), ("npu:0", "npu:1")]
)
def test_mixed_devices_raise_pytorchs_error(name, first, second):
    a, b = torch.ones(2, 2, device=first), torch.ones(2, 2, device=second)
    with pytest.raises(RuntimeError, match=SAME_DEVICE) as error:
        MIXED[name](a, b)
    assert "npu:0" in str(error.value) and {"cpu", "npu:1"} & set(
        str(error.value).replace(",", " ").replace("!", " ").split()
    )
    assert (torch.ones(2, device="npu") + 1).tolist() == [2, 2]


def test_zero_dim_cpu_scalars_are_accepted():
    x = torch.ones(3, device="npu")
    scalar = torch.tensor(2.5)
    for result in (x * scalar, scalar * x, torch.where(x > 0, scalar, x) + 0, x.add(scalar) - 1):
        assert result.device == x.device and result.tolist() == [2.5, 2.5, 2.5]
    x.mul_(scalar)
    assert x.tolist() == [2.5, 2.5, 2.5]
    assert (torch.ones(3, dtype=torch.float16, device="npu") * scalar).dtype == torch.float16


def test_a_zero_dim_npu_tensor_does_not_join_cpu_tensors():
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        torch.ones(3) + torch.tensor(1.0, device="npu")


def test_a_cpu_index_is_accepted_but_not_the_reverse():
    x = torch.arange(5.0, device="npu")
    assert x[torch.tensor([3, 1])].tolist() == [3, 1]
    x[torch.tensor([0])] = 9
    assert x[torch.tensor([True, False, False, False, True])].tolist() == [9, 4]
    with pytest.raises((RuntimeError, IndexError), match="device"):
        torch.arange(5.0)[torch.tensor([1], device="npu")]


def test_a_zero_dim_cpu_tensor_is_no_output():
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        torch.tensor(1.0).add_(torch.ones((), device="npu"))
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        torch.add(torch.ones((), device="npu"), 1, out=torch.empty(()))
