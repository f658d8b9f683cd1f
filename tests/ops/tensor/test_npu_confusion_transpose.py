"""npu_confusion_transpose and its backward against element-wise loops."""

import itertools
import math

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.support import gradcheck, make


def transposed(x, perm):
    """By the definition: out[i[perm]] = x[i]."""
    out = torch.empty([x.shape[p] for p in perm], dtype=x.dtype)
    for place in itertools.product(*map(range, x.shape)):
        out[tuple(place[p] for p in perm)] = x[place]
    return out


def reshaped(x, shape):
    return torch.tensor(x.flatten().tolist(), dtype=x.dtype).reshape(shape)


def reference(x, perm, shape, first):
    if first:
        return reshaped(transposed(x, perm), shape)
    return transposed(reshaped(x, shape), perm)


CASES = [
    ((3, 2, 2, 4), (1, 3, 0, 2), (8, 6), True),
    ((3, 2, 2, 4), (2, 0, 1), (6, 2, 4), False),
    ((4, 6), (1, 0), (24,), True),
    ((24,), (2, 0, 1), (2, 3, 4), False),
    ((0, 3), (1, 0), (3, 0), True),
    ((1, 1), (0,), (1,), False),
]


@pytest.mark.parametrize("dtype", [
    torch.float16, torch.float32, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.bfloat16,
])  # fmt: skip
def test_dtypes(dtype):
    x = torch.arange(24).reshape(2, 3, 4).to(dtype).to(make(1).device)
    out = torch_npu.npu_confusion_transpose(x, (2, 0, 1), (8, 3), True)
    want = x.cpu().to(torch.float64).permute(2, 0, 1).reshape(8, 3)
    assert out.dtype == dtype and torch.equal(out.cpu().to(torch.float64), want)


@pytest.mark.parametrize("shape,perm,to,first", CASES)
def test_values(shape, perm, to, first):
    x = make(*shape)
    out = torch_npu.npu_confusion_transpose(x, perm, to, first)
    assert torch.equal(out.cpu(), reference(x.cpu(), perm, to, first)) and out.is_contiguous()


def test_non_contiguous():
    x = make(4, 3, 2).transpose(0, 2)
    out = torch_npu.npu_confusion_transpose(x, (1, 0, 2), (6, 4), True)
    assert torch.equal(out.cpu(), reference(x.cpu(), (1, 0, 2), (6, 4), True))


@pytest.mark.parametrize("shape,perm,to,first", CASES[:4])
def test_gradients(shape, perm, to, first):
    x = make(*shape, dtype=torch.float64, requires_grad=True)
    gradcheck(lambda t: torch_npu.npu_confusion_transpose(t, perm, to, first), x)


@pytest.mark.parametrize("shape,perm,to,first", CASES[:4])
def test_named_backward_undoes_the_forward(shape, perm, to, first):
    x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape).to(make(1).device)
    out = torch_npu.npu_confusion_transpose(x, perm, to, first)
    back = torch_npu.npu_confusion_transpose_backward(out, perm, shape, not first)
    assert torch.equal(back.cpu(), x.cpu())


@pytest.mark.parametrize(
    "perm,shape,first,message",
    [
        (
            (0, 0, 1),
            (24,),
            True,
            r"'perm' must be a permutation of 3 dimensions, but received \[0, 0, 1\]",
        ),
        (
            (0, 1),
            (24,),
            True,
            r"'perm' must be a permutation of 3 dimensions, but received \[0, 1\]",
        ),
        (
            (0, 2),
            (6, 4),
            False,
            r"'perm' must be a permutation of 2 dimensions, but received \[0, 2\]",
        ),
        (
            (0, 1, 2),
            (5, 5),
            True,
            r"'shape' must be sizes whose product is 24, but received \[5, 5\]",
        ),
        (
            (0, 1, 2),
            (-1, 4),
            True,
            r"'shape' must be sizes whose product is 24, but received \[-1, 4\]",
        ),
    ],
)
def test_bad_arguments(perm, shape, first, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_confusion_transpose(make(2, 3, 4), perm, shape, first)


def test_bad_dtype():
    with (
        as_chip("Ascend910A"),
        pytest.raises(RuntimeError, match="'self' must be of dtype .*bfloat16"),
    ):
        torch_npu.npu_confusion_transpose(make(2, 3, dtype=torch.bfloat16), (1, 0), (6,), True)
    with pytest.raises(RuntimeError, match="'self' must be of dtype .*bool"):
        torch_npu.npu_confusion_transpose(make(2, 3) > 0, (1, 0), (6,), True)
