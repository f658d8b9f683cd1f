"""Half-precision products of a few rows, as decoding makes them: every layout of the matrix, tails, and a bias."""

import pytest
import torch

import torchair

HALVES = [torch.bfloat16, torch.float16]


def error(value, exact):
    return (value.cpu().double() - exact).abs().max().item()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize(
    ("depth", "width"), [(256, 96), (33, 17), (1, 40), (640, 1), (15, 16), (100, 31)]
)
@pytest.mark.parametrize("layout", ["row", "column", "strided"])
def test_against_fp64(dtype, rows, depth, width, layout):
    torch.manual_seed(rows * depth + width)
    a = torch.randn(rows, depth).to(dtype)
    b = torch.randn(depth, width).to(dtype)
    on_device = {
        "row": lambda: b.npu(),
        "column": lambda: b.t().contiguous().npu().t(),
        "strided": lambda: torch.stack([b, b], -1).npu()[..., 0],
    }[layout]()
    exact = a.double() @ b.double()
    plain = error((a.float() @ b.float()).to(dtype), exact)
    assert error(a.npu() @ on_device, exact) <= 2 * plain + 1e-6
    bias = torch.randn(width).to(dtype)
    exact = exact + bias.double()
    plain = error(torch.addmm(bias.float(), a.float(), b.float()).to(dtype), exact)
    assert error(torch.addmm(bias.npu(), a.npu(), on_device), exact) <= 2 * plain + 1e-6


@pytest.mark.parametrize("dtype", HALVES)
def test_other_forms_give_the_same(dtype):
    torch.manual_seed(0)
    a, b, c = (torch.randn(*s).to("npu", dtype) for s in ((2, 24), (24, 10), (2, 10)))
    assert torch.equal(torch.addmm(c, a, b), (c.float() + a.float() @ b.float()).to(dtype))
    scaled = torch.addmm(c, a, b, beta=0.5, alpha=2)
    torch.testing.assert_close(scaled, (0.5 * c.float() + 2 * (a.float() @ b.float())).to(dtype))
    out = torch.empty(2, 10, device="npu", dtype=dtype)
    assert torch.equal(torch.mm(a, b, out=out), a @ b)
    assert torch.equal(a[:, ::2] @ b[::2], (a[:, ::2].float() @ b[::2].float()).to(dtype))


def test_empty_and_infinite():
    a = torch.zeros(2, 0, dtype=torch.bfloat16, device="npu")
    b = torch.zeros(0, 3, dtype=torch.bfloat16, device="npu")
    assert (a @ b).tolist() == [[0.0] * 3] * 2
    x = torch.tensor([[float("inf"), 1.0]], dtype=torch.float16).npu()
    y = torch.tensor([[1.0, 0.0], [1.0, float("nan")]], dtype=torch.float16).npu()
    result = (x @ y).cpu()
    assert result[0, 0] == float("inf") and result[0, 1].isnan()


def test_the_wrong_shapes_are_named():
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        torch.ones(1, 3, dtype=torch.bfloat16, device="npu") @ torch.ones(
            4, 2, dtype=torch.bfloat16, device="npu"
        )


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rows", range(1, 10))
def test_a_matrix_that_is_worth_reading(dtype, rows):
    """Large ones are read by this kernel also where the CPU multiplies the dtype itself; 1031 and 263 leave remainders."""
    a = torch.randn(rows, 1031).to(dtype)
    weight = torch.randn(263, 1031).to(dtype)
    bias = torch.randn(263).to(dtype)
    exact = a.double() @ weight.double().t()
    plain = error((a.float() @ weight.float().t()).to(dtype), exact)
    x, w = a.npu(), weight.npu()
    made = torch.nn.functional.linear(x, w)
    assert error(made, exact) <= 2 * plain + 1e-6
    assert error(x @ weight.t().contiguous().npu(), exact) <= 2 * plain + 1e-6
    with_bias = torch.addmm(bias.npu(), x, w.t())
    plain = error((exact + bias.double()).to(dtype), exact + bias.double())
    assert error(with_bias, exact + bias.double()) <= 2 * plain + 1e-6
    if rows == 1:
        assert torch.equal(torch.mv(w, x[0]), made[0])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_products_give_the_same_bits(dtype, dynamic):
    weight = torch.randn(600, 700, device="npu", dtype=dtype)

    def program(x):
        return torch.nn.functional.linear(x, weight) * 2

    compiled = torch.compile(program, backend=torchair.get_npu_backend(), dynamic=dynamic)
    for rows in (3, 8, 40):
        x = torch.randn(rows, 700, device="npu", dtype=dtype)
        assert torch.equal(compiled(x), program(x))
