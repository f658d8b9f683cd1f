"""Tensors that say more than their storage has: storages that were resized, views that a direct call made. No kernel
touches memory by them, whichever way leads to it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_npu
from softnpu import _C

#: ours, or that of PyTorch where it makes a view first
OUTSIDE = "lies outside of its storage|are out of bounds for storage of size"
SIZE = 1024


def cut(*shape, dtype=torch.float32, left=4):
    """A tensor whose storage has only `left` bytes left."""
    tensor = torch.ones(shape, dtype=dtype, device="npu")
    tensor.untyped_storage().resize_(left)
    return tensor


CALLS = {
    "elementwise": lambda x: x.exp(),
    "elementwise in place": lambda x: x.add_(1),
    "binary": lambda x: torch.ones(SIZE, SIZE, device="npu") + x,
    "reduction": lambda x: x.sum(),
    "product": lambda x: x @ x,
    "half product": lambda x: cut(SIZE, SIZE, dtype=torch.half) @ torch.ones(SIZE, 1).half().npu(),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(3),
    "out": lambda x: torch.add(torch.ones(SIZE, SIZE, device="npu"), 1, out=x),
    "boxed out": lambda x: torch.ops.aten.sinc.out(torch.ones(SIZE, SIZE, device="npu"), out=x),
    "to the host": lambda x: x.cpu(),
    "from the host": lambda x: x.copy_(torch.ones(SIZE, SIZE)),
    "to another device": lambda x: x.to("npu:1"),
    "clone": lambda x: x.clone(),
    "cast": lambda x: x.half(),
    "cat": lambda x: torch.cat([x, x]),
    "foreach": lambda x: torch._foreach_add_([x], 1),
    "transposed": lambda x: x.t().contiguous(),
    "native kernel": lambda x: torch_npu.npu_rms_norm(x, torch.ones(SIZE, device="npu")),
    "weight of a native kernel": lambda x: torch_npu.npu_rms_norm(
        torch.ones(2, SIZE, device="npu"), cut(SIZE)
    ),
    "python kernel": lambda x: torch_npu.fast_gelu(x),
    "written argument": lambda x: torch_npu.npu_scatter_nd_update_(
        x, torch.zeros(1, 1, dtype=torch.int64, device="npu"), torch.ones(1, SIZE, device="npu")
    ),
    "attention": lambda x: F.scaled_dot_product_attention(*[cut(1, 2, 64, 64)] * 3),
    "index": lambda x: x[torch.tensor([SIZE - 1], device="npu")],
    "gather": lambda x: x.gather(0, torch.zeros(1, 1, dtype=torch.int64, device="npu")),
    "nested": lambda x: torch.nested.as_nested_tensor([x, x]),
    "printed": str,
}


@pytest.mark.parametrize("left", [4, 0], ids=["cut", "released"])
@pytest.mark.parametrize("name", CALLS)
def test_kernels_refuse_it(name, left):
    x = cut(SIZE, SIZE, left=left)
    with pytest.raises(RuntimeError, match=OUTSIDE):
        CALLS[name](x)
    assert x.shape == (SIZE, SIZE) and x.untyped_storage().nbytes() == left
    assert torch.ones(3, device="npu").sum().item() == 3  # the device works


@pytest.mark.parametrize("left", [2, 4, 20])
def test_copy_of_a_cut_tensor(left):
    """The functional copy clones the bytes of the first tensor: PyTorch asserts that they are whole elements."""
    with pytest.raises(RuntimeError, match="aten::copy: a tensor .* lies outside of its storage"):
        torch.ops.aten.copy(cut(3, 2, left=left), torch.ones(3, 2, device="npu"))


def test_copy_over_a_released_tensor():
    """Nothing of it is read: FSDP's graphs do it."""
    copied = torch.ops.aten.copy(cut(3, 2, left=0), torch.full((3, 2), 7.0, device="npu"))
    assert copied.eq(7).all()


def test_the_message_names_operator_tensor_and_storage():
    released = cut(3, 2, left=0)
    message = r"aten::sinc: a tensor of sizes \[3, 2\], strides \[2, 1\], storage offset 0 and dtype float lies outside"
    with pytest.raises(RuntimeError, match=message + r".* has 0 bytes: its memory was released"):
        torch.sinc(released)
    with pytest.raises(
        RuntimeError, match="npu_rms_norm: a tensor .* storage, which has 20 bytes$"
    ):
        torch_npu.npu_rms_norm(cut(3, 2, left=20), torch.ones(2, device="npu"))


def test_what_lies_inside_is_not_refused():
    x = torch.arange(12.0, device="npu")
    x.untyped_storage().resize_(8 * 4)
    assert x.as_strided((2, 2), (4, 1), 2).sum().item() == 2 + 3 + 6 + 7  # to the last byte
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        x.as_strided((2, 2), (4, 1), 3)
    assert x[:0].sum().item() == 0 and torch.empty(0, 5, device="npu").t().sum().item() == 0


def test_memory_comes_back():
    """As FSDP does with its parameters."""
    x = torch.ones(8, device="npu")
    x.untyped_storage().resize_(0)
    views = x.view(2, 4), x.detach()
    x.record_stream(torch.npu.current_stream())
    x.untyped_storage().resize_(32)
    x.fill_(2)
    assert [view.sum().item() for view in views] == [16, 16]
    y = torch.ones(8, device="npu")
    y.untyped_storage().resize_(0)
    assert y.resize_(16).fill_(1).sum().item() == 16
    assert torch.empty_like(cut(2, 3, left=0)).shape == torch.zeros_like(cut(2, 3, left=0)).shape


def test_in_a_gradient():
    x = torch.ones(4, 16, device="npu", requires_grad=True)
    y = torch_npu.npu_swiglu(x).sum()
    x.data.untyped_storage().resize_(4)
    with pytest.raises(RuntimeError, match=OUTSIDE):
        y.backward()


@pytest.mark.parametrize(
    ("sizes", "strides"), [([100], [1]), ([4], [2**40]), ([2, 2], [2**62, 2**62]), ([4], [8])]
)
def test_views_that_direct_calls_make(sizes, strides):
    x = torch.ones(16, device="npu")
    view = torch.ops.aten._reshape_alias(x, sizes, strides)
    with pytest.raises(RuntimeError, match=OUTSIDE):
        view.sum()
    with pytest.raises(RuntimeError, match=OUTSIDE):
        view.zero_()
    assert x.sum().item() == 16


def test_set_that_fails_leaves_the_tensor():
    storage = torch.arange(16.0, device="npu").untyped_storage()
    x = torch.ones(3, device="npu")
    for place in [(0, (2**36,), (1,)), (2**62, (4,), (1,)), (0, (2,), (-1,)), (0, (2, 2), (1,))]:
        with pytest.raises((RuntimeError, torch.OutOfMemoryError)):
            x.set_(storage, *place)
        assert x.tolist() == [1, 1, 1] and storage.nbytes() == 64
    with pytest.raises(RuntimeError, match="unequal size length"):
        x.set_(storage, 0, (2, 2), (1,))
    x.set_(storage, 0, (20,), (1,))  # the storage grows, as on the CPU
    assert storage.nbytes() == 80 and x[:16].tolist() == list(range(16))
    assert x.set_(storage, 2, (2, 3)).stride() == (3, 1) and x.storage_offset() == 2


def test_sizes_that_64_bits_do_not_hold():
    with pytest.raises(RuntimeError, match="overflow"):
        torch_npu.empty_with_swapped_memory([2**31, 2**33], dtype=torch.float32, device="npu")
    target, source = torch.ones(2, device="npu"), torch.ones(4, device="npu")
    for offset in (2**64 - 8, 12):
        with pytest.raises(RuntimeError, match="outside of the source"):
            _C.change_data_ptr(target, source, offset)
