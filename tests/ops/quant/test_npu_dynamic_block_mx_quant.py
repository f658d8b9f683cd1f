"""npu_dynamic_block_mx_quant against frexp and search, block by block."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.quant import mx
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def reference(x, dst, **options):
    """Values, and the byte of each block of 32 by 32."""
    planes = mx.f64(x).reshape(-1, *x.shape[-2:])
    values = np.zeros_like(planes)
    count = tuple(-(-s // 32) for s in planes.shape[1:])
    bytes_ = np.zeros((len(planes), *(-(-c // 2) * 2 for c in count)), np.uint8)
    for p, r, c in np.ndindex(len(planes), *count):
        place = p, slice(32 * r, 32 * r + 32), slice(32 * c, 32 * c + 32)
        byte, found = mx.block(planes[place].reshape(-1).tolist(), dst, **options)
        values[place], bytes_[p, r, c] = np.reshape(found, planes[place].shape), byte
    return values.reshape(x.shape), bytes_


@pytest.mark.parametrize("dst", [mx.E4M3, mx.E5M2, mx.E2M1, mx.E1M2])
@pytest.mark.parametrize("shape", [(40, 70), (2, 65, 4), (1, 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_and_scales(dst, shape, dtype):
    x = mx.spread(*shape, dtype=dtype)
    y, rows, columns = torch_npu.npu_dynamic_block_mx_quant(x, dst_type=dst)
    values, bytes_ = reference(x, dst)
    np.testing.assert_array_equal(mx.decode(y, dst), values)
    lead, (height, width) = shape[:-2], shape[-2:]
    assert rows.shape == (*lead, height, bytes_.shape[2] // 2, 2)
    assert columns.shape == (*lead, bytes_.shape[1] // 2, width, 2)
    rows = rows.cpu().numpy().reshape(len(bytes_), height, -1)
    columns = columns.cpu().numpy().reshape(len(bytes_), -1, width, 2)
    for r in range(height):
        np.testing.assert_array_equal(rows[:, r], bytes_[:, r // 32])
    for c in range(width):
        got = columns[:, :, c].reshape(len(bytes_), -1)
        np.testing.assert_array_equal(got, bytes_[:, :, c // 32])


@pytest.mark.parametrize("limit", [0.0, 6.0, 7.0])
@pytest.mark.parametrize("mode", ["rint", "round", "floor"])
def test_third_algorithm(limit, mode):
    x = mx.spread(70, 66)
    y, rows, _ = torch_npu.npu_dynamic_block_mx_quant(
        x, scale_alg=2, dst_type_max=limit, round_mode=mode
    )
    values, bytes_ = reference(x, mx.E2M1, alg=2, limit=limit, mode=mode)
    np.testing.assert_array_equal(mx.decode(y, mx.E2M1), values)
    np.testing.assert_array_equal(rows.cpu().numpy()[::32].reshape(3, -1), bytes_[0, :3])


def test_strides():
    x = mx.spread(40, 66).t()
    y, *_ = torch_npu.npu_dynamic_block_mx_quant(x)
    np.testing.assert_array_equal(mx.decode(y, mx.E2M1), reference(x, mx.E2M1)[0])


def test_bad_arguments():
    x = make(4, 64, dtype=torch.float16)
    for given, options, text in [
        (x.float(), {}, "'input' must be of dtype torch.float16 or torch.bfloat16"),
        (x[0], {}, "'input' must be a tensor of 2 to 3 dimensions"),
        (x, {"dst_type": 292, "scale_alg": 1}, "'scale_alg' must be 0, but received 1"),
        (x, {"scale_alg": 2, "dst_type_max": 8.0}, "'dst_type_max' must be 0.0, 6.0 or 7.0"),
        (x, {"dst_type_max": 6.0}, "'dst_type_max' must be 0 unless 'scale_alg' is 2"),
    ]:
        with pytest.raises(RuntimeError, match="npu_dynamic_block_mx_quant: argument " + text):
            torch_npu.npu_dynamic_block_mx_quant(given, **options)
