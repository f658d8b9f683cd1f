"""npu_format_cast: formats round-trip, storages have the card's sizes, views and copies share the format."""

import copy
import io
import math
import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_npu
from softnpu import _C, settings
from tests.ops.families import as_chip
from tests.ops.support import gradcheck, make
from torch_npu import Format

pytestmark = pytest.mark.usefixtures("internal")

get = torch_npu.get_npu_format


def nz_elements(shape, width):
    """Blocks of 16 x C0 over the last two dimensions."""
    *batch, rows, columns = shape
    return math.prod(batch) * math.ceil(columns / width) * math.ceil(rows / 16) * 16 * width


def four_d(shape, block_n):
    n, c, h, w = shape
    return (math.ceil(n / 16) * 16 if block_n else n) * math.ceil(c / 16) * 16 * h * w


def five_d(shape, block_n):
    n, c, d, h, w = shape
    return (math.ceil(n / 16) * 16 if block_n else n) * d * math.ceil(c / 16) * 16 * h * w


FOUR, FIVE = (2, 19, 4, 5), (3, 17, 2, 4, 5)
ELEMENTS = {
    (0, FOUR): math.prod(FOUR),
    (2, FOUR): math.prod(FOUR),
    (3, FOUR): four_d(FOUR, False),
    (4, FOUR): four_d(FOUR, True),
    (29, FOUR): nz_elements(FOUR, 16),
    (27, FIVE): math.prod(FIVE),
    (30, FIVE): math.prod(FIVE),
    (32, FIVE): five_d(FIVE, False),
    (33, FIVE): five_d(FIVE, True),
    (29, FIVE): nz_elements(FIVE, 16),
}


@pytest.mark.family("A2")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("number,shape", list(ELEMENTS))
def test_round_trip(number, shape, dtype):
    x = make(*shape, dtype=dtype)
    values, before = x.cpu(), get(x)
    there = torch_npu.npu_format_cast(x, number)
    assert get(there) == number and there.shape == x.shape and there.is_contiguous()
    assert torch_npu.get_storage_size(there) == ELEMENTS[number, shape]
    assert there.untyped_storage().nbytes() == ELEMENTS[number, shape] * dtype.itemsize
    assert torch.equal(there.cpu(), values)
    back = torch_npu.npu_format_cast(there, before)
    assert get(back) == before and torch.equal(back.cpu(), values)
    assert torch_npu.get_storage_size(back) == math.prod(shape)


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "dtype,width",
    [
        (torch.int8, 32),
        (torch.bool, 32),
        (torch.float16, 16),
        (torch.bfloat16, 16),
        (torch.float32, 16),
        (torch.int32, 16),
        (torch.int64, 16),
    ],
)
@pytest.mark.parametrize("shape", [(15, 17), (16, 32), (3, 15, 33), (2, 1, 1), (0, 16)])
def test_nz_sizes_by_dtype(dtype, width, shape):
    x = make(*shape, dtype=dtype, low=0, high=100)
    nz = torch_npu.npu_format_cast(x, Format.FRACTAL_NZ)
    assert get(nz) is Format.FRACTAL_NZ
    assert torch_npu.get_storage_size(nz) == nz_elements(shape, width)
    assert torch.equal(nz.cpu(), x.cpu())


@pytest.mark.family("A2")
@pytest.mark.parametrize("shape,padded", [((10, 4), 16 * 4), ((20,), 32), ((3, 4, 5), 16 * 20)])
def test_fewer_dimensions_are_c_ch_and_chw(shape, padded):
    five = torch_npu.npu_format_cast(make(*shape), 3)
    assert get(five) == 3 and torch_npu.get_storage_size(five) == padded


def test_between_base_formats_only_the_tag_changes():
    x = make(2, 3, 4, 5)
    assert get(x) == 0
    y = torch_npu.npu_format_cast(x, 2)
    assert get(y) == 2 and y.data_ptr() == x.data_ptr() and get(x) == 2
    z = torch_npu.npu_format_cast(make(2, 2), Format.NHWC)
    assert get(z) == Format.NHWC == 1


def test_a_format_the_tensor_has_already():
    nz = torch_npu.npu_format_cast(make(8, 16), 29)
    assert torch_npu.npu_format_cast(nz, 29).data_ptr() == nz.data_ptr()
    x = make(8, 16)
    assert torch_npu.npu_format_cast(x, 2).data_ptr() == x.data_ptr()


@pytest.mark.family("A2")
def test_shapes_that_cannot_have_the_format():
    with pytest.warns(UserWarning, match="dim < 2"):
        assert get(torch_npu.npu_format_cast(make(12), 29)) == 2
    four = torch_npu.npu_format_cast(torch_npu.npu_format_cast(make(2, 2, 4, 4), 3), 2)
    assert get(four) == 0  # four dimensions are NCHW
    two = torch_npu.npu_format_cast(torch_npu.npu_format_cast(make(4, 4), 29), 0)
    assert get(two) == 2  # two are not


def test_a_tensor_stands_for_its_format():
    nz = torch_npu.npu_format_cast(make(8, 16), 29)
    assert get(torch_npu.npu_format_cast(make(15, 17), nz)) == 29
    assert get(torch_npu.npu_format_cast(nz, make(3, 3))) == 2


def test_views_and_detached_tensors_share_the_format():
    nz = torch_npu.npu_format_cast(make(15, 17), 29)
    for view in (
        nz.t(),
        nz[1:],
        nz.detach(),
        nz.data,
        nz.view(-1),
        torch_npu._C._weak_ref_tensor(nz),
    ):
        assert get(view) == 29 and torch_npu.get_storage_size(view) == 512


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t.reshape(-1),
        lambda t: t[3:, ::2],
        lambda t: torch.as_strided(t, (32, 64), (1, 32)),
    ],
    ids=["transposed", "flat", "sliced", "strided"],
)
def test_a_view_keeps_its_geometry(view):
    v = view(make(32, 64, dtype=torch.float16))
    nz = torch_npu.npu_format_cast(v, 29)
    assert get(nz) == 29 and nz.shape == v.shape and nz.stride() == v.stride()
    assert torch.equal(torch_npu.npu_format_cast(nz, 2).cpu(), v.cpu())


def test_a_flat_view_of_a_private_format_comes_back():
    five = torch_npu.npu_format_cast(make(4, 8, 6, 6), 3)
    back = torch_npu.npu_format_cast(five.reshape(4, -1), 0)
    assert get(back) == 0 and torch.equal(back.cpu(), five.cpu().reshape(4, -1))


def test_operators_give_base_formats_and_in_place_ones_keep_it():
    nz = torch_npu.npu_format_cast(make(5, 17), 29)
    assert get(nz + 1) == 2 and get(nz @ nz.t()) == 2 and get(torch.zeros_like(nz)) == 2
    expected = nz.cpu() * 2 + 1
    nz.mul_(2).add_(1)
    assert get(nz) == 29 and torch.equal(nz.cpu(), expected)
    nz.copy_(make(5, 17, seed=3))
    assert get(nz) == 29 and torch.equal(nz.cpu(), make(5, 17, seed=3).cpu())


@pytest.mark.family("A2")
def test_clone_keeps_what_the_card_keeps():
    nz = torch_npu.npu_format_cast(make(3, 16, 16), 29)
    assert get(nz.clone()) == get(nz[1:].clone()) == 29
    assert torch.equal(nz[1:].clone().cpu(), nz[1:].cpu())
    assert get(nz.transpose(1, 2).clone()) == 2
    assert get(nz.view(3, 8, 32).clone()) == 2
    odd = torch_npu.npu_format_cast(make(3, 15, 16), 29)
    assert get(odd.clone()) == 29 and get(odd[1:].clone()) == 2
    padded = torch_npu.npu_format_cast(make(2, 3, 4, 4), 3)
    assert get(padded.clone()) == 0
    full = torch_npu.npu_format_cast(make(2, 16, 4, 4), 3)
    assert get(full.clone()) == 3


def test_deep_copies_and_files_keep_the_format():
    nz = torch_npu.npu_format_cast(make(3, 5), 29)
    assert get(copy.deepcopy(nz)) == 29 and torch.equal(copy.deepcopy(nz).cpu(), nz.cpu())
    parameter = torch.nn.Parameter(nz)
    for saved in (nz, parameter, nz[1:]):
        file = io.BytesIO()
        torch.save(saved, file)
        file.seek(0)
        loaded = torch.load(file)
        assert get(loaded) == 29 and torch.equal(loaded.cpu(), saved.detach().cpu())
        assert loaded.requires_grad == saved.requires_grad
        file.seek(0)
        host = torch.load(file, map_location="cpu")
        assert host.device.type == "cpu" and torch.equal(host, saved.detach().cpu())


def test_resize_gives_up_the_format():
    nz = torch_npu.npu_format_cast(make(3, 5), 29)
    nz.resize_(100, 100)
    assert get(nz) == 2


def test_set_data_moves_the_format():
    linear = torch.nn.Linear(17, 15).npu()
    linear.weight.data = torch_npu.npu_format_cast(linear.weight.data, 29)
    assert get(linear.weight) == 29
    linear(make(2, 17)).sum().backward()
    assert get(linear.weight.grad) == 2


def test_gradients():
    x = make(3, 5, dtype=torch.float64, requires_grad=True)
    gradcheck(lambda t: torch_npu.npu_format_cast(t, 29), x)
    y = make(4, 8, requires_grad=True)
    torch_npu.npu_format_cast(y, get(y)).sum().backward()
    assert torch.equal(y.grad.cpu(), torch.ones(4, 8))


def test_forgotten_storages_leave_the_table():
    before = _C.live_storage_formats()
    kept = [torch_npu.npu_format_cast(make(3, 5), 29) for _ in range(100)]
    assert _C.live_storage_formats() == before + 100
    del kept
    assert _C.live_storage_formats() == before


@pytest.mark.family("A2")
def test_private_formats_switched_off():
    torch.npu.config.allow_internal_format = False
    with pytest.warns(UserWarning, match="allow_internal_format=False"):
        x = torch_npu.npu_format_cast(make(5, 17), 29)
    assert get(x) == 2 and torch_npu.get_storage_size(x) == 85
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert get(torch_npu.npu_format_cast(make(2, 3, 4, 4), 3)) == 0
        assert get(torch_npu.npu_format_cast(make(2, 3, 2, 4, 4), 27)) == 30


@pytest.mark.parametrize("soc,allowed", [("Ascend910B3", False), ("Ascend910A", True)])
def test_default_of_allow_internal_format(soc, allowed):
    from torch_npu.npu import _options

    _options.reset()
    with as_chip(soc):
        assert torch.npu.config.allow_internal_format is allowed


def test_customize_dtype_chooses_c0():
    x = make(15, 17, dtype=torch.int32, high=100)
    with settings.override(cann_version="9.1.0"):
        for wanted in (3, torch.int32):
            narrow = torch_npu.npu_format_cast(x, 29, customize_dtype=wanted)
            assert get(narrow) == 29
            assert torch_npu.get_storage_size(narrow) == nz_elements((15, 17), 8)
        again = torch.ops.npu._npu_format_cast.aclnn(x, 29, 3)
        assert torch_npu.get_storage_size(again) == nz_elements((15, 17), 8)
    assert torch.equal(torch_npu.npu_format_cast(narrow, 2).cpu(), x.cpu())


@pytest.mark.parametrize(
    "dtype,customize,number,width",
    [
        (torch.float16, None, 29, 16),
        (torch.int8, torch.int8, 29, 32),
        (torch.int8, torch.float16, 50, 16),
        (torch.int32, torch.float16, 52, 2),
        (torch.int32, torch.int8, 53, 4),
    ],
)
def test_ascend950_shows_c0_in_the_format(dtype, customize, number, width):
    with as_chip("Ascend950"):
        x = make(15, 17, dtype=dtype, low=0, high=9)
        nz = torch_npu.npu_format_cast(x, 29, customize_dtype=customize)
        assert get(nz) == number and torch_npu.get_storage_size(nz) == nz_elements((15, 17), width)
        assert torch.equal(nz.cpu(), x.cpu())


def test_packed_four_bits():
    with as_chip("Ascend950"):
        x = make(15, 17, dtype=torch.uint8, low=0, high=9)
        nz = torch_npu.npu_format_cast(x, 29, input_dtype=torch_npu.float4_e2m1fn_x2)
        assert get(nz) == 50 and torch_npu.get_storage_size(nz) == nz_elements((15, 17), 16)
        again = torch.ops.npu._npu_format_cast.input_dtype(x, 29, 1, torch_npu.int4)
        assert get(again) == 50


def test_ascend950_allows_less():
    with as_chip("Ascend950"):
        with pytest.warns(UserWarning, match="reverted to False"):
            torch.npu.config.allow_internal_format = True
        with pytest.raises(
            NotImplementedError, match="a base format or FRACTAL_NZ on Ascend950.*NC1HWC0"
        ):
            torch_npu.npu_format_cast(make(2, 2, 4, 4), 3)
        with pytest.raises(
            NotImplementedError, match="argument 'self' must be of more than one row"
        ):
            torch_npu.npu_format_cast(make(1, 16, dtype=torch.float16), 29)
        nz = torch_npu.npu_format_cast(make(16, 32, dtype=torch.float16), 29)
        with pytest.raises(
            NotImplementedError, match="argument 'self' must be contiguous in FRACTAL_NZ"
        ):
            torch_npu.npu_format_cast(nz.t(), 2)


def test_fake_tensors():
    with FakeTensorMode():
        x = torch.empty(15, 17, device="npu", dtype=torch.float16).t()
        for y in (
            torch_npu.npu_format_cast(x, 29),
            torch.ops.npu._npu_format_cast(x, 29),
            torch.ops.npu._npu_format_cast.aclnn(x, 29, 5),
            torch.ops.npu._npu_format_cast.input_dtype(x, 29, 5, 5),
        ):
            assert (y.shape, y.dtype, y.stride()) == (x.shape, x.dtype, x.stride())
            assert y.device.type == "npu"


def test_compiled():
    torch._dynamo.reset()
    run = torch.compile(lambda t: torch_npu.npu_format_cast(t * 2, 29) + 1, backend="aot_eager")
    x = make(5, 17)
    assert torch.equal(run(x).cpu(), x.cpu() * 2 + 1)


def test_unknown_format():
    for number in (-1, 12, 16, 35, 47, 99):
        with pytest.raises(
            RuntimeError, match=f"'acl_format' must be one of NCHW.*received {number}"
        ):
            torch_npu.npu_format_cast(make(2, 3), number)


@pytest.mark.family("A2")
def test_no_way_between_private_formats_of_different_bases():
    nz = torch_npu.npu_format_cast(make(2, 2, 4, 4), 29)
    with pytest.raises(
        NotImplementedError, match="'acl_format' must be of the base format of FRACTAL_NZ"
    ):
        torch_npu.npu_format_cast(nz, 3)


@pytest.mark.family("A2")
@pytest.mark.parametrize("number,shape", [(27, (2, 3)), (32, (2, 3, 4, 4)), (33, (2,))])
def test_formats_of_five_dimensions(number, shape):
    with pytest.raises(
        RuntimeError, match="npu_format_cast: argument 'self' must be of 5 dimensions"
    ):
        torch_npu.npu_format_cast(make(*shape), number)


@pytest.mark.family("A2")
@pytest.mark.parametrize("number", [3, 4])
def test_formats_of_four_dimensions(number):
    with pytest.raises(RuntimeError, match="'self' must be of at most 4 dimensions"):
        torch_npu.npu_format_cast(make(2, 3, 2, 4, 4), number)


@pytest.mark.parametrize(
    "soc,number,kind,message",
    [
        ("Ascend910B3", 3, NotImplementedError, "'customize_dtype' must be None.*int32"),
        ("Ascend310P3", 3, NotImplementedError, "'customize_dtype' must be None.*int32"),
        ("Ascend950", 200, RuntimeError, "'customize_dtype' must be the number of a dtype"),
    ],
)
def test_customize_dtype_needs_its_product(soc, number, kind, message):
    with as_chip(soc), pytest.raises(kind, match=message):
        torch_npu.npu_format_cast(make(4, 4), 29, customize_dtype=number)


def test_customize_dtype_matters_to_no_cast_that_moves_nothing():
    """The card looks at it where its newer operator casts: not between base formats, not of views."""
    x = make(4, 4)
    assert torch_npu.npu_format_cast(x, 2, customize_dtype=3) is x
    part = make(8, 4)[2:6]
    nz = torch_npu.npu_format_cast(part, 29, customize_dtype=3)
    assert get(nz) == 29 and torch.equal(nz.cpu(), part.cpu())


@pytest.mark.parametrize(
    "shape,dtype,message",
    [
        ((4, 4), torch.int64, "'self' must be of dtype .*float8_e4m3fn.*int64"),
        ((0, 4), torch.float16, "'self' must be not empty for FRACTAL_NZ"),
        ((16,), torch.float16, r"'self' must be of 2 to 6 dimensions .*\(16,\)"),
        ((2, 2, 2, 2), torch.float32, "'self' must be of 2 to 3 dimensions"),
        ((3, 1, 16), torch.bfloat16, "'self' must be of more than one row"),
    ],
)
def test_what_ascend950_brings_into_nz(shape, dtype, message):
    with as_chip("Ascend950"):
        x = torch.zeros(shape, dtype=dtype, device="npu")
        with pytest.raises((RuntimeError, NotImplementedError), match=message):
            torch_npu.npu_format_cast(x, 29)
        assert torch_npu.npu_format_cast(torch.zeros(3, 1, 16, dtype=torch.int8).npu(), 29) is not x


def test_a_host_tensor_is_refused():
    with pytest.raises(RuntimeError, match="argument 'dst' must be an NPU tensor.*cpu"):
        torch_npu.npu_format_cast(make(2, 3), torch.zeros(2, 3))
    with pytest.raises(NotImplementedError, match="CPU"):
        torch_npu.npu_format_cast(torch.zeros(2, 3), 29)
