"""The native rotary embeddings."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.support import DTYPES, compare, randn, views
from torch_npu.ops.rope._rotate import MODES
from torch_npu.ops.rope.npu_interleave_rope import npu_interleave_rope
from torch_npu.ops.rope.npu_rotary_mul import npu_rotary_mul, npu_rotary_mul_backward

SIZES = (4, 8, 12, 16, 20, 64, 72, 132)
SHAPES = ((1, 3, 1), (2, 3, 5), (2, 1, 1), (1, 1, 1), (1, 1, 5))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_mul(dtype, mode):
    for size in SIZES:
        x, dy = randn(2, 3, 5, size, dtype=dtype), randn(2, 3, 5, size, dtype=dtype).flip(0)
        for lead in SHAPES:
            cos, sin = randn(*lead, size, dtype=dtype), randn(*lead, size, dtype=dtype).flip(-1)
            compare(npu_rotary_mul, x, cos, sin, mode)
            compare(npu_rotary_mul_backward, dy, x, cos, sin, mode, strides=False)


@pytest.mark.parametrize("mode", MODES)
def test_strides(mode):
    cos, sin = randn(1, 4, 1, 24), randn(1, 4, 1, 24).flip(-1)
    for x in views(randn(3, 4, 5, 24)):
        compare(npu_rotary_mul, x, cos, sin, mode, strides=mode in ("half", "quarter"))
        compare(npu_rotary_mul_backward, x.flip(0), x, cos, sin, mode, strides=False)
    for angle in views(cos):
        compare(npu_rotary_mul, x, angle, sin, mode, strides=False)


def test_transposed_heads_keep_their_strides():
    x = randn(2, 5, 3, 64).transpose(1, 2)
    compare(npu_rotary_mul, x, randn(1, 1, 5, 64), randn(1, 1, 5, 64))


def test_angles_of_another_type_are_rounded_first():
    x = randn(3, 2, 16, dtype=torch.bfloat16)
    compare(npu_rotary_mul, x, randn(3, 1, 16), randn(3, 1, 16), exact=False)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_interleave_rope(dtype):
    for length in (1, 5):
        cos, sin = randn(2, 1, length, 64, dtype=dtype), randn(2, 1, length, 64, dtype=dtype).neg()
        for x in views(randn(2, 3, 5, 64, dtype=dtype)):
            compare(npu_interleave_rope, x, cos, sin, strides=False)


def test_empty_and_large():
    cos, sin = randn(1, 9, 1, 64), randn(1, 9, 1, 64).neg()
    compare(npu_rotary_mul, randn(0, 9, 2, 64), cos, sin)
    x = randn(40, 9, 12, 64)
    compare(npu_rotary_mul, x, cos, sin)
    compare(npu_rotary_mul_backward, x.flip(0), x, cos, sin)


def test_a_given_matrix_takes_the_formula():
    x, cos = randn(2, 3, 8), randn(2, 1, 8)
    want = npu_rotary_mul.as_function("kernel")(x, cos, cos, "half", torch.eye(8))
    torch.testing.assert_close(
        npu_rotary_mul.as_function("body")(x, cos, cos, "half", torch.eye(8)), want
    )
