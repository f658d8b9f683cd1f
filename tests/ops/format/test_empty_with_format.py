"""empty_with_format and unsafe_empty_with_format."""

import pytest
import torch

import torch_npu
from torch_npu import Format

get = torch_npu.get_npu_format


@pytest.mark.parametrize(
    "size,number,result,elements",
    [
        ((2, 3), 2, 2, 6),
        ((15, 17), 29, 29, 512),
        ((4,), 29, 2, 4),
        ((), 29, 2, 1),
        ((2, 3, 4, 4), 2, 0, 96),
        ((2, 3, 4, 4), Format.NC1HWC0, 3, 2 * 16 * 16),
        ((2, 3, 4, 4), Format.NHWC, 1, 96),
        ((2, 3, 2, 4, 4), 2, 2, 192),
        ((2, 3, 2, 4, 4), 30, 30, 192),
        ((2, 3), 30, 2, 6),
        ((2, 3), 0, 2, 6),
        ((2, 3, 2, 4, 4), 33, 33, 2 * 16 * 16 * 16),
        ((0, 16), 29, 29, 0),
    ],
)
@pytest.mark.filterwarnings("ignore:Cannot create tensor with NZ")
def test_formats(size, number, result, elements):
    x = torch_npu.empty_with_format(size, dtype=torch.float16, device="npu", acl_format=number)
    assert x.shape == size and x.dtype == torch.float16 and x.is_contiguous()
    assert get(x) == result and torch_npu.get_storage_size(x) == elements
    x.fill_(3)
    assert (x == 3).all()


def test_defaults():
    x = torch_npu.empty_with_format((2, 3))
    assert (x.device, x.dtype, get(x)) == (torch.device("npu:0"), torch.get_default_dtype(), 2)
    assert torch_npu.empty_with_format([4, 4], device="npu:1").device.index == 1
    with torch.npu.device(1):
        assert torch_npu.empty_with_format([4, 4], device="npu").device.index == 1


@pytest.mark.parametrize("kib", [2, 64, 2048])
def test_aligned_addresses(kib):
    made = [
        torch_npu.empty_with_format((300,), device="npu", base_addr_aligned_kb=kib)
        for _ in range(3)
    ]
    for index, x in enumerate(made):
        assert x.data_ptr() % (kib * 1024) == 0
        x.fill_(index)
    assert [x.unique().tolist() for x in made] == [[0], [1], [2]]


def test_memory_counts_and_returns():
    before = torch.npu.memory_allocated()
    x = torch_npu.empty_with_format((1, 1), device="npu", acl_format=29)  # 256 elements
    y = torch_npu.empty_with_format((100,), device="npu", base_addr_aligned_kb=4)
    assert torch.npu.memory_allocated() >= before + 1024 + 4096
    del x, y
    assert torch.npu.memory_allocated() == before


def test_deterministic_memory_is_filled():
    torch.use_deterministic_algorithms(True)
    try:
        assert torch_npu.empty_with_format((10, 9), device="npu").isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.family("A2")
def test_the_unsafe_form_obeys_the_switch():
    make = torch.ops.npu.unsafe_empty_with_format
    torch.npu.config.allow_internal_format = False  # as 310P and 910A do not start
    with pytest.warns(UserWarning, match="allow_internal_format=False"):
        assert get(make((5, 17), device="npu", acl_format=29)) == 2
    assert get(make((5, 17), device="npu", acl_format=29, keep_format=True)) == 29
    torch.npu.config.allow_internal_format = True
    assert get(make((5, 17), device="npu", acl_format=29)) == 29
    # the other one gives private formats in any case
    torch.npu.config.allow_internal_format = False
    assert get(torch_npu.empty_with_format((5, 17), device="npu", acl_format=29)) == 29


@pytest.mark.parametrize(
    "options,message",
    [
        ({"device": "cpu"}, "argument 'device' must be an NPU device, but received cpu"),
        ({"pin_memory": True}, "'pin_memory' must be False: only dense CPU tensors can be pinned"),
        ({"acl_format": 12}, "'acl_format' must be one of .* received 12"),
        ({"layout": torch.sparse_coo}, "'layout' must be torch.strided.*sparse_coo"),
        ({"base_addr_aligned_kb": 0}, "'base_addr_aligned_kb' must be positive.*0"),
        ({"acl_format": 27}, "argument 'size' must be of 5 dimensions for NDHWC"),
        ({"acl_format": 1}, "argument 'size' must be of 4 dimensions for NHWC"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises((RuntimeError, NotImplementedError), match=message):
        torch_npu.empty_with_format((2, 3), **{"device": "npu", **options})


def test_bad_sizes():
    with pytest.raises(RuntimeError, match="argument 'size' must be of non-negative numbers"):
        torch_npu.empty_with_format((2, -3), device="npu")
    with pytest.raises(RuntimeError, match="argument 'size' must be of non-negative numbers"):
        torch.ops.npu.unsafe_empty_with_format((-1,), device="npu")
