"""HF32 and the cube's math type: switches with an effect on the numbers."""

import numpy as np
import pytest
import torch

import torch_npu
from softnpu import settings
from torch_npu.npu import CubeMathType


def hf32(values, mantissa=11):
    """To nearest at so many bits of mantissa, ties to even, by way of float64."""
    wide = values.detach().cpu().numpy().astype(np.float64)
    fraction, exponent = np.frexp(wide)
    return torch.from_numpy(
        np.ldexp(np.rint(fraction * 2 ** (mantissa + 1)) / 2 ** (mantissa + 1), exponent)
    )


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).npu()


PRODUCTS = {
    "mm": lambda a, b: a @ b,
    "addmm": lambda a, b: torch.addmm(torch.zeros(3, 3, device=a.device, dtype=a.dtype), a, b),
    "linear": lambda a, b: torch.nn.functional.linear(a, b.t()),
    "bmm": lambda a, b: torch.bmm(a[None], b[None])[0],
    "mv": lambda a, b: torch.mv(a, b[:, 0]),
    "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_matmul_rounds_its_factors_to_hf32(name):
    a, b = random(3, 7), random(7, 3)
    exact = PRODUCTS[name](a, b)
    rounded = PRODUCTS[name](hf32(a), hf32(b)).float()
    torch.npu.matmul.allow_hf32 = True
    with_hf32 = PRODUCTS[name](a, b).cpu()
    torch.testing.assert_close(with_hf32, rounded, rtol=1e-6, atol=1e-6)
    assert not torch.equal(with_hf32, exact.cpu())
    torch.npu.matmul.allow_hf32 = False
    assert torch.equal(PRODUCTS[name](a, b), exact)


def test_hf32_of_ascend950_has_a_bit_less():
    a, b = random(3, 7), random(7, 3)
    with settings.override(soc="Ascend950"):
        torch.npu.matmul.allow_hf32 = True
        found = (a @ b).cpu()
        torch.npu.matmul.allow_hf32 = False
    torch.testing.assert_close(found, (hf32(a, 10) @ hf32(b, 10)).float(), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(found, (hf32(a) @ hf32(b)).float(), rtol=1e-6, atol=1e-6)


def test_gradients_round_too_and_inputs_stay():
    a, b = random(3, 7).requires_grad_(), random(7, 3)
    kept = a.detach().clone()
    torch.npu.matmul.allow_hf32 = True
    (a @ b).sum().backward()
    expected = (torch.ones(3, 3, dtype=torch.float64) @ hf32(b).t()).float()
    torch.testing.assert_close(a.grad.cpu(), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(a.detach(), kept)


def test_half_precision_and_other_operators_are_untouched():
    a = random(5, 5)
    before = (a * a).cpu(), (a.half() @ a.half()).cpu()
    torch.npu.matmul.allow_hf32 = True
    assert torch.equal((a * a).cpu(), before[0])
    assert torch.equal((a.half() @ a.half()).cpu(), before[1])
    special = torch.tensor([[float("inf"), float("nan")]]).npu() @ torch.ones(2, 1).npu()
    assert special.isnan().all()


def test_convolution_rounds_once_allowed():
    x, w = random(1, 2, 6, 6), random(3, 2, 3, 3)
    exact = torch.nn.functional.conv2d(x, w)
    assert torch.npu.conv.allow_hf32 is True  # upstream's default answer; in effect once set
    torch.npu.conv.allow_hf32 = True
    rounded = torch.nn.functional.conv2d(x, w).cpu()
    expected = torch.nn.functional.conv2d(hf32(x), hf32(w)).float()
    torch.testing.assert_close(rounded, expected, rtol=1e-6, atol=1e-6)
    assert not torch.equal(rounded, exact.cpu())
    torch.npu.conv.allow_hf32 = False
    assert torch.equal(torch.nn.functional.conv2d(x, w), exact)


def test_aclnn_is_the_same_switch_as_conv():
    assert torch_npu.npu.aclnn.allow_hf32 is True
    torch_npu.npu.aclnn.allow_hf32 = False
    assert torch.npu.conv.allow_hf32 is False
    with torch_npu.npu.aclnn.flags(allow_hf32=True):
        assert torch_npu.npu.aclnn.allow_hf32 is True
    assert torch_npu.npu.aclnn.allow_hf32 is False
    with pytest.warns(UserWarning, match="aclnn.version"):
        assert torch_npu.npu.aclnn.version() is None


def test_cube_math_type_decides():
    a, b = random(4, 8), random(8, 4)
    exact = a @ b
    assert torch.npu.matmul.cube_math_type is None
    torch.npu.matmul.cube_math_type = CubeMathType.USE_HF32
    assert torch.npu.matmul.cube_math_type is CubeMathType.USE_HF32
    by_hf32 = a @ b
    torch.npu.matmul.cube_math_type = CubeMathType.USE_FP16
    by_fp16 = a @ b
    expected = a.half().double().cpu() @ b.half().double().cpu()
    torch.testing.assert_close(by_fp16.cpu(), expected.float(), rtol=1e-6, atol=1e-6)
    torch.npu.matmul.allow_hf32 = True
    torch.npu.matmul.cube_math_type = CubeMathType.KEEP_DTYPE
    assert torch.equal(a @ b, exact)
    assert not torch.equal(by_hf32, exact) and not torch.equal(by_fp16, exact)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="allow_hf32 must be a bool, but got int"):
        torch.npu.matmul.allow_hf32 = 1
    with pytest.raises(TypeError, match="allow_hf32 must be a bool, but got str"):
        torch.npu.conv.allow_hf32 = "yes"
    with pytest.raises(TypeError, match="allow_hf32 must be a bool"):
        torch_npu.npu.aclnn.allow_hf32 = None
    with pytest.raises(TypeError, match="CubeMathType"):
        torch.npu.matmul.cube_math_type = 3


def test_switching_back_leaves_the_dispatcher_as_it_was():
    a = random(3, 3)
    for _ in range(3):
        torch.npu.matmul.allow_hf32 = True
        torch.npu.stop_device(1)
        torch.npu.matmul.allow_hf32 = False
        torch.npu.restart_device(1)
    assert torch.equal((a @ a).cpu(), (a @ a).cpu())
