"""npu_bmmV2 and its two gradients against einsum in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make


def reference(a, b):
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    return torch.einsum("...ik,...kj->...ij", a, b)


SHAPES = [
    ((3, 4, 5), (3, 5, 2)),
    ((4, 5), (5, 2)),
    ((2, 3, 4, 5), (5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)),
    ((1, 1, 1), (1, 1, 1)),
    ((0, 4, 5), (0, 5, 2)),
    ((2, 7, 1), (2, 1, 3)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("left,right", SHAPES)
def test_forward(dtype, left, right):
    a, b = make(*left, dtype=dtype), make(*right, dtype=dtype, seed=5)
    y = torch_npu.npu_bmmV2(a, b, [])
    assert y.dtype == dtype
    plain = torch.matmul(a.cpu(), b.cpu())
    assert_accurate(y, reference(a.cpu().double(), b.cpu().double()), plain)


def test_integers_are_exact():
    a = make(2, 3, 4, dtype=torch.int32, low=-999, high=999)
    b = make(2, 4, 5, dtype=torch.int32, low=-999, high=999)
    y = torch_npu.npu_bmmV2(a, b, [])
    assert torch.equal(y.cpu().long(), reference(a.cpu().long(), b.cpu().long()))


@pytest.mark.parametrize(
    "sizes,summed",
    [
        ([2, 3, 4, 6], ()),
        ([3, 4, 6], (0,)),
        ([4, 6], (0, 1)),
        ([2, 1, 4, 6], (1,)),
        ([1, 3, 4, 6], (0,)),
    ],
)
def test_output_sizes_sum_the_batches(sizes, summed):
    a, b = make(2, 3, 4, 5), make(2, 3, 5, 6)
    y = torch_npu.npu_bmmV2(a, b, sizes)
    want = reference(a.cpu().double(), b.cpu().double())
    want = want.sum(summed, keepdim=True) if summed else want
    want = want.reshape(sizes)
    assert_accurate(y, want, want.float())


def test_non_contiguous():
    a = make(5, 4, 3).transpose(0, 2)
    b = make(3, 6, 5)[:, ::2].mT
    y = torch_npu.npu_bmmV2(a, b, [])
    want = reference(a.cpu().double(), b.cpu().double())
    assert_accurate(y, want, want.float())


@pytest.mark.parametrize(
    "left,right,sizes",
    [
        ((3, 4, 5), (3, 5, 2), []),
        ((2, 3, 2, 3), (3, 2), []),
        ((1, 2, 3), (4, 3, 2), []),
        ((2, 3, 2, 3), (2, 3, 3, 2), [3, 2, 2]),
    ],
)
def test_gradients(left, right, sizes):
    a = make(*left, dtype=torch.float64, requires_grad=True)
    b = make(*right, dtype=torch.float64, requires_grad=True)
    gradcheck(lambda a, b: torch_npu.npu_bmmV2(a, b, sizes), a, b)


def test_named_backward_of_a_broadcast_operand():
    grad, a, b = make(2, 3, 4, 6), make(2, 3, 4, 5), make(5, 6)
    da = torch.ops.npu.npu_bmm_v2_mat1_backward(grad, a, b, [2, 3, 4, 5])
    want = torch.einsum("xyij,kj->xyik", grad.cpu().double(), b.cpu().double())
    assert_accurate(da, want, want.float())
    db = torch.ops.npu.npu_bmm_v2_mat2_backward(grad, a, b, [5, 6])
    want = torch.einsum("xyik,xyij->kj", a.cpu().double(), grad.cpu().double())
    assert_accurate(db, want, want.float(), slack=1e-5)


def test_bad_dtype():
    a = make(2, 2, 2, dtype=torch.int8, high=3)
    with pytest.raises(RuntimeError, match="npu_bmmV2: argument 'self' must be of dtype .*int8"):
        torch_npu.npu_bmmV2(a, a, [])


def test_bad_depth():
    with pytest.raises(
        RuntimeError, match=r"'mat2' must be of 5 rows \(K of 'self'\), but received 4"
    ):
        torch_npu.npu_bmmV2(make(2, 3, 5), make(2, 4, 3), [])


def test_batches_that_do_not_broadcast():
    with pytest.raises(RuntimeError, match=r"'mat2' must be of batch dimensions .*\(2,\).*\(3,\)"):
        torch_npu.npu_bmmV2(make(2, 3, 5), make(3, 5, 3), [])


def test_bad_output_sizes():
    with pytest.raises(
        RuntimeError, match=r"'output_sizes' must be empty, or \(2, 3, 4\).*\[3, 5\]"
    ):
        torch_npu.npu_bmmV2(make(2, 3, 5), make(2, 5, 4), [3, 5])


def test_bad_gradient_shape():
    with pytest.raises(
        RuntimeError, match=r"npu_bmm_v2_mat1_backward: argument 'grad' must be of shape"
    ):
        torch.ops.npu.npu_bmm_v2_mat1_backward(
            make(2, 3, 3), make(2, 3, 5), make(2, 5, 4), [2, 3, 5]
        )
