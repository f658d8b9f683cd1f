"""Half-precision products of a few rows, as decoding makes them: every layout of the matrix, tails, and a bias."""

import pytest
import torch

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
