"""npu_rotary_mul and its gradient against rotations of single pairs in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.rope._loops import rotate
from tests.ops.support import assert_accurate, gradcheck, make

HALF = [
    ((2, 3, 5, 32), (1, 1, 5, 32)),  # BNSD
    ((2, 3, 5, 16), (2, 1, 5, 16)),
    ((2, 3, 5, 16), (2, 3, 5, 16)),
    ((2, 5, 3, 16), (1, 5, 1, 16)),  # BSND
    ((2, 5, 3, 16), (2, 5, 1, 16)),
    ((5, 2, 3, 16), (5, 1, 1, 16)),  # SBND
    ((5, 3, 16), (5, 1, 16)),  # TND
    ((5, 3, 16), (5, 3, 16)),
    ((5, 3, 16), (1, 1, 16)),
    ((1, 1, 1, 2), (1, 1, 1, 2)),
    ((0, 3, 16), (0, 1, 16)),
    ((2, 1, 3, 894), (1, 1, 3, 894)),
]
INTERLEAVE = [
    ((2, 3, 5, 16), (1, 1, 5, 16)),
    ((2, 5, 3, 16), (1, 5, 1, 16)),
    ((5, 2, 3, 16), (5, 1, 1, 16)),
    ((5, 3, 16), (5, 1, 16)),
    ((1, 8, 4), (1, 8, 4)),
]
CASES = [(x, r, "half") for x, r in HALF] + [(x, r, "interleave") for x, r in INTERLEAVE]


def inputs(shape, r_shape, dtype=torch.float32):
    return (
        make(*shape, dtype=dtype),
        make(*r_shape, dtype=dtype, seed=1),
        make(*r_shape, dtype=dtype, seed=2),
    )


def check(tensors, mode, *options):
    got = torch_npu.npu_rotary_mul(*tensors, mode, *options)
    assert got.dtype == tensors[0].dtype
    want = rotate(*(t.cpu().double() for t in tensors), mode)
    assert_accurate(got, want, rotate(*(t.cpu() for t in tensors), mode))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape,r_shape,mode", CASES)
def test_forward(shape, r_shape, mode, dtype):
    check(inputs(shape, r_shape, dtype), mode)


@pytest.mark.parametrize("mode", ["half", "interleave", "quarter", "interleave-half"])
@pytest.mark.parametrize("r_shape", [(1, 1, 1, 16), (1, 3, 5, 16), (2, 3, 5, 16), (2, 1, 5, 16)])
def test_every_mode_and_broadcast_on_ascend950(mode, r_shape):
    with on("A5"):
        check(inputs((2, 3, 5, 16), r_shape), mode)


def test_default_mode_is_half():
    tensors = inputs((2, 3, 5, 16), (1, 1, 5, 16))
    assert torch.equal(
        torch_npu.npu_rotary_mul(*tensors), torch_npu.npu_rotary_mul(*tensors, "half")
    )


def test_mixed_dtypes_round_the_angles():
    x, cos, sin = (
        make(5, 3, 16, dtype=torch.bfloat16),
        make(5, 1, 16, seed=1),
        make(5, 1, 16, seed=2),
    )
    got = torch_npu.npu_rotary_mul(x, cos, sin)
    rounded = torch_npu.npu_rotary_mul(x, cos.bfloat16(), sin.bfloat16())
    assert got.dtype == torch.bfloat16 and torch.equal(got, rounded)


def test_non_contiguous():
    x = make(16, 3, 5, 2).permute(3, 1, 2, 0)
    cos, sin = (make(16, 5, seed=s).t().reshape(5, 16).view(1, 1, 5, 16) for s in (1, 2))
    check((x, cos, sin), "half")
    check((x[..., ::2], cos[..., ::2], sin[..., ::2]), "interleave")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotate_matrix(mode, dtype):
    size = 16
    matrix = torch.zeros(size, size)
    for column, (row, sign) in enumerate(
        [(i + 8, -1) if i < 8 else (i - 8, 1) for i in range(size)]
        if mode == "half"
        else [(i + 1, -1) if i % 2 == 0 else (i - 1, 1) for i in range(size)]
    ):
        matrix[row, column] = sign
    tensors = inputs((2, 3, 5, size), (1, 1, 5, size), dtype)
    check(tensors, mode, matrix.to(tensors[0]))


def test_rotate_is_any_matrix():
    x, cos, sin = inputs((2, 3, 5, 8), (1, 1, 5, 8))
    matrix = make(8, 8)
    got = torch_npu.npu_rotary_mul(x, cos, sin, "interleave", matrix)
    x64, cos64, sin64, m64 = (t.cpu().double() for t in (x, cos, sin, matrix))
    want = x64 * cos64 + torch.einsum("bnsi,ij->bnsj", x64, m64) * sin64
    assert_accurate(got, want, want.float())


@pytest.mark.parametrize(
    "shape,r_shape,mode", [(x, r, m) for x, r, m in CASES if x[0] > 0 and x[-1] < 64]
)
def test_gradients(shape, r_shape, mode):
    small = [(*s[:-1], min(s[-1], 4)) for s in (shape, r_shape)]
    tensors = [t.requires_grad_() for t in inputs(*small, torch.float64)]
    gradcheck(lambda *t: torch_npu.npu_rotary_mul(*t, mode), *tensors)


@pytest.mark.parametrize("mode", ["quarter", "interleave-half"])
def test_gradients_on_ascend950(mode):
    tensors = [t.requires_grad_() for t in inputs((2, 1, 2, 8), (1, 1, 2, 8), torch.float64)]
    with on("A5"):
        gradcheck(lambda *t: torch_npu.npu_rotary_mul(*t, mode), *tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_backward_operator(mode, dtype):
    tensors = inputs((2, 3, 5, 16), (1, 1, 5, 16), dtype)
    grad = make(2, 3, 5, 16, dtype=dtype, seed=9)
    leaves = [t.cpu().double().requires_grad_() for t in tensors]
    rotate(*leaves, mode).backward(grad.cpu().double())
    got = torch_npu.npu_rotary_mul_backward(grad, *tensors, mode)
    for have, leaf, tensor in zip(got, leaves, tensors, strict=True):
        assert have.dtype == dtype and have.shape == tensor.shape
        assert_accurate(have, leaf.grad, leaf.grad.to(dtype))


def test_gradients_have_the_dtype_of_their_tensors():
    x, cos, sin = (
        make(5, 3, 16, dtype=torch.float16),
        make(5, 1, 16, seed=1),
        make(5, 1, 16, seed=2),
    )
    leaves = [t.requires_grad_() for t in (x, cos, sin)]
    torch_npu.npu_rotary_mul(*leaves).sum().backward()
    assert [t.grad.dtype for t in leaves] == [torch.float16, torch.float32, torch.float32]


def test_rotate_has_no_gradient():
    x, cos, sin = inputs((5, 3, 8), (5, 1, 8))
    y = torch_npu.npu_rotary_mul(x.requires_grad_(), cos, sin, "half", make(8, 8))
    with pytest.raises(NotImplementedError, match="npu_rotary_mul: argument 'rotate' must be None"):
        y.sum().backward()


def test_unknown_mode():
    with pytest.raises(RuntimeError, match="argument 'rotary_mode' must be .*'diagonal'"):
        torch_npu.npu_rotary_mul(*inputs((5, 3, 8), (5, 1, 8)), "diagonal")


@pytest.mark.family("A2")
def test_quarter_needs_ascend950():
    with pytest.raises(
        RuntimeError,
        match="npu_rotary_mul: argument 'rotary_mode' must be 'half' or 'interleave'.*'quarter'"
        ".*The rotary_mode of npu_rotary_mul should be half or interleave, but got quarter",
    ):
        torch_npu.npu_rotary_mul(*inputs((5, 3, 8), (5, 1, 8)), "quarter")


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "shape,r_shape,mode",
    [
        ((2, 3, 5, 8), (1, 3, 5, 8), "half"),
        ((2, 3, 5, 8), (1, 1, 1, 8), "half"),
        ((2, 3, 5, 8), (2, 1, 5, 8), "interleave"),
        ((2, 3, 5, 8), (1, 1, 4, 8), "half"),
        ((2, 3, 5, 8), (1, 1, 5, 4), "half"),
        ((2, 3, 8), (2, 3, 8), "interleave"),
    ],
)
def test_undocumented_broadcast(shape, r_shape, mode):
    r = make(*r_shape)
    x = torch.zeros(1, device=r.device).expand(shape)
    with pytest.raises(
        RuntimeError,
        match="argument 'r1' must be of a shape (documented for|that broadcasts to) 'self'",
    ):
        torch_npu.npu_rotary_mul(x, r, r, mode)


@pytest.mark.parametrize(
    "shape,r_shape,mode",
    [
        ((1200, 1, 3, 8), (1200, 1, 1, 8), "half"),  # B beyond 1000
        ((2, 3, 1200, 8), (2, 3, 1, 8), "half"),  # N beyond 1000
        ((40, 30, 3, 8), (40, 30, 1, 8), "half"),
        ((1, 1, 896), (1, 1, 896), "half"),
        ((5, 3, 8), (1, 3, 8), "half"),
        ((5, 3, 8), (1, 3, 8), "interleave"),
        ((40, 30, 3, 8), (1, 1, 3, 8), "interleave"),  # B * N beyond 1000
        ((1, 1, 900), (1, 1, 900), "interleave"),
    ],
)
def test_what_the_card_takes_beyond_its_page(shape, r_shape, mode):
    check(inputs(shape, r_shape), mode)


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "shape,accepted",
    [
        ((2, 4, 1, 32), True),  # S = 1: another layout
        ((2, 4, 2, 32), True),
        ((3, 6, 2, 32), False),  # aligned: B * N > 8 * S
        ((2, 2, 400, 8), True),
        ((2, 2, 80, 8), False),  # half of D fills no block of 32 bytes
        ((3, 4, 2, 84), True),
    ],
)
def test_many_heads_before_a_short_sequence(shape, accepted):
    x, cos, sin = inputs(shape, (1, 1, *shape[2:]))
    if accepted:
        check((x, cos, sin), "half")
        return
    with pytest.raises(RuntimeError, match="argument 'self' must be of .*in the layout BNSD"):
        torch_npu.npu_rotary_mul(x, cos, sin)


@pytest.mark.family("A2")
def test_many_heads_have_half_gradients():
    x = torch.zeros(40, 30, 1, 2, device=make(1).device, requires_grad=True)
    cos, sin = make(1, 1, 1, 2), make(1, 1, 1, 2, seed=2).requires_grad_()
    torch_npu.npu_rotary_mul(x, cos, sin).sum().backward()
    assert sin.grad.shape == sin.shape
    with pytest.raises(
        RuntimeError, match="npu_rotary_mul_backward: argument 'self' must be of B \\* N below 1000"
    ):
        torch_npu.npu_rotary_mul(x, cos, sin, "interleave").sum().backward()


def test_odd_size():
    with pytest.raises(RuntimeError, match="argument 'self' must be a multiple of 2 long"):
        torch_npu.npu_rotary_mul(*inputs((5, 3, 7), (5, 1, 7)))


@pytest.mark.family("A2")
def test_long_last_dimension():
    with pytest.raises(RuntimeError, match="argument 'self' must be at most 896 long"):
        torch_npu.npu_rotary_mul(*inputs((1, 1, 898), (1, 1, 898)))


def test_ranks():
    with pytest.raises(RuntimeError, match="argument 'self' must be a tensor of 3 to 4 dimensions"):
        torch_npu.npu_rotary_mul(make(5, 8), make(5, 8), make(5, 8))
    with pytest.raises(RuntimeError, match="argument 'r1' must be a tensor of 3 dimensions"):
        torch_npu.npu_rotary_mul(make(5, 3, 8), make(5, 8), make(5, 8))


def test_cos_and_sin_differ():
    with pytest.raises(RuntimeError, match="argument 'r2' must be of shape"):
        torch_npu.npu_rotary_mul(make(5, 3, 8), make(5, 1, 8), make(5, 3, 8))


def test_bad_dtype():
    x, cos, sin = inputs((5, 3, 8), (5, 1, 8))
    with pytest.raises(RuntimeError, match="argument 'r1' must be of dtype .*int64"):
        torch_npu.npu_rotary_mul(x, cos.long(), sin)


def test_rotate_dtype():
    tensors = inputs((5, 3, 8), (5, 1, 8))
    with pytest.raises(RuntimeError, match="argument 'rotate' must be of the dtype of 'self'"):
        torch_npu.npu_rotary_mul(*tensors, "half", make(8, 8, dtype=torch.float16))


def test_rotate_shape():
    with pytest.raises(
        RuntimeError, match=r"argument 'rotate' must be of shape \(8, 8\).*\(4, 4\)"
    ):
        torch_npu.npu_rotary_mul(*inputs((5, 3, 8), (5, 1, 8)), "half", make(4, 4))


def test_no_rotate_on_ascend950():
    with (
        on("A5"),
        pytest.raises(RuntimeError, match="argument 'rotate' must be None on this"),
    ):
        torch_npu.npu_rotary_mul(*inputs((5, 3, 8), (5, 1, 8)), "half", make(8, 8))


def test_old_chips():
    good = inputs((2, 3, 5, 128), (1, 1, 5, 128))
    with on("910A"):
        check(good, "half")
        with pytest.raises(
            RuntimeError, match="'rotary_mode' must be 'half', but received 'interleave'"
        ):
            torch_npu.npu_rotary_mul(*good, "interleave")
        with pytest.raises(RuntimeError, match="'self' must be a tensor of 4 dimensions"):
            torch_npu.npu_rotary_mul(*inputs((5, 3, 16), (5, 1, 16)))
        with pytest.raises(RuntimeError, match="'r1' must be of a shape documented"):
            torch_npu.npu_rotary_mul(*inputs((2, 3, 5, 128), (2, 1, 5, 128)))


@pytest.mark.parametrize("family", ["910A", "310P"])
@pytest.mark.parametrize("shape", [(2, 1, 5, 16), (2, 3, 1, 16), (1, 1, 1, 16)])
def test_old_chips_compose_what_their_kernel_cannot(family, shape):
    """op-plugin's older way: where 64 does not divide D, any shapes that broadcast; float16 rounds each product."""
    x, cos, sin = inputs((2, 3, 5, 16), shape)
    with on(family):
        check((x, cos, sin), "half")
        x, cos, sin = (t.half().cpu() for t in (x, cos, sin))
        found = torch_npu.npu_rotary_mul(x.npu(), cos.npu(), sin.npu())
    turned = torch.cat((-x[..., 8:], x[..., :8]), -1).numpy()
    expected = x.numpy() * cos.numpy() + turned * sin.numpy()
    assert torch.equal(found.cpu(), torch.from_numpy(expected))


def test_what_passed_once_is_checked_again_where_it_differs():
    x, cos, sin = (t.npu() for t in inputs((2, 3, 5, 16), (1, 1, 5, 16)))
    for _ in range(2):
        torch_npu.npu_rotary_mul(x, cos, sin)
    with pytest.raises(RuntimeError, match="rotary_mode"):
        torch_npu.npu_rotary_mul(x, cos, sin, "third")
    with pytest.raises(RuntimeError, match="r1"):
        torch_npu.npu_rotary_mul(x, cos.long(), sin.long())
    with pytest.raises(RuntimeError, match="r2"):
        torch_npu.npu_rotary_mul(x, cos, sin[:, :, :4])
    with on("310P"), pytest.raises(RuntimeError, match="rotary_mode"):
        torch_npu.npu_rotary_mul(x, cos, sin, "interleave")
