"""get_npu_format and get_storage_size of tensors that nobody cast, and torch_npu.Format."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


@pytest.mark.parametrize("rank", range(7))
def test_format_by_rank(rank):
    x = make(*(2,) * rank)
    want = {4: torch_npu.Format.NCHW, 5: torch_npu.Format.NCDHW}.get(rank, torch_npu.Format.ND)
    assert torch_npu.get_npu_format(x) is want
    assert torch.ops.npu.get_npu_format(x) == int(want)
    assert torch_npu.get_storage_size(x) == 2**rank == torch.ops.npu.get_storage_size(x)


def test_a_view_has_what_its_storage_was_made_with():
    x = make(2, 3, 4, 5)
    for view in (x.view(6, 20), x[0], x[:, :1], x.permute(3, 2, 1, 0), x.unsqueeze(0)):
        assert torch_npu.get_npu_format(view) == 0 and torch_npu.get_storage_size(view) == 120


def test_numbers_and_names():
    numbers = {
        "UNDEFINED": -1, "NCHW": 0, "NHWC": 1, "ND": 2, "NC1HWC0": 3, "FRACTAL_Z": 4,
        "NC1HWC0_C04": 12, "HWCN": 16, "NDHWC": 27, "FRACTAL_NZ": 29, "NCDHW": 30,
        "NDC1HWC0": 32, "FRACTAL_Z_3D": 33, "NC": 35, "NCL": 47, "FRACTAL_NZ_C0_16": 50,
        "FRACTAL_NZ_C0_32": 51, "FRACTAL_NZ_C0_2": 52, "FRACTAL_NZ_C0_4": 53,
        "FRACTAL_NZ_C0_8": 54,
    }  # fmt: skip
    assert {f.name: f.value for f in torch_npu.Format} == numbers
    assert str(torch_npu.Format.ND) == "ND" and torch_npu.Format.ND == 2


@pytest.mark.parametrize("name", ["get_npu_format", "get_storage_size"])
def test_what_is_no_npu_tensor(name):
    function = getattr(torch_npu, name)
    with pytest.raises(NotImplementedError, match="CPU"):
        function(torch.zeros(2))
    with pytest.raises((RuntimeError, NotImplementedError), match="Meta|meta"):
        function(torch.zeros(2, device="meta").to_sparse())
    with pytest.raises((TypeError, RuntimeError), match="Tensor"):
        function(3)
