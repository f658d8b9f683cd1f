"""INF/NAN mode, saturation mode and the overflow flag."""

import pytest
import torch

import torch_npu
from softnpu import _C, settings
from tests.device.process import output


def test_inf_nan_mode_keeps_infinities():
    assert torch_npu.npu.utils.is_support_inf_nan() is True
    a = torch.tensor([65504.0]).npu().half()
    assert torch.isinf(a + a).all()
    with pytest.raises(RuntimeError, match="npu_check_overflow"):
        torch.npu.get_npu_overflow_flag()
    with pytest.warns(UserWarning, match="useless"):
        torch.npu.clear_npu_overflow_flag()


@pytest.mark.parametrize(
    "value, overflow",
    [
        (1.0, False),
        (float("inf"), True),
        (float("nan"), True),
        (torch.tensor([1.0, 2.0]), False),
        (torch.tensor([1.0, float("-inf")]), True),
        (torch.tensor([float("nan")]).npu(), True),
    ],
)
def test_check_overflow_of_a_value(value, overflow):
    assert torch_npu.npu.utils.npu_check_overflow(value) is overflow


def test_check_overflow_refuses_other_types():
    with pytest.raises(RuntimeError, match="Unsupported type str"):
        torch_npu.npu.utils.npu_check_overflow("inf")


def test_saturation_mode(saturation):
    flag = torch.npu.get_npu_overflow_flag
    assert torch_npu.npu.utils.is_support_inf_nan() is False and flag() is False
    a = torch.tensor([60000.0, -60000.0, 1.0]).npu().half()
    assert flag() is False
    assert (a + a).tolist() == [65504.0, -65504.0, 2.0] and flag() is True
    torch.npu.clear_npu_overflow_flag()
    assert flag() is False
    x = torch.full((2,), 3e38, device="npu")
    assert ((x * 10) == torch.finfo(torch.float32).max).all()
    check = torch_npu.npu.utils.npu_check_overflow
    assert (check(x), check(x)) == (True, False)


def test_a_chip_without_inf_nan_saturates_from_the_start():
    code = """
        import torch, torch_npu
        a = torch.tensor([60000.0]).npu().half()
        print(torch_npu.npu.utils.is_support_inf_nan(), (a + a).item(), torch.npu.get_npu_overflow_flag())
        print(torch.npu.is_bf16_supported(), torch.npu.get_amp_supported_dtype())
        print(torch.npu.is_jit_compile_false())
    """
    assert output(code, SOFTNPU_SOC="Ascend910A").splitlines() == [
        "False 65504.0 True",
        "False [torch.float16, torch.float32]",
        "False",
    ]


def test_only_the_operator_that_overflows_sets_the_flag():
    _C.clear_overflow_flag(0)
    _C.set_saturate(True)
    mask = torch.full((2, 2), float("-inf"), device="npu")
    scores = torch.ones(2, 2, device="npu") + mask  # infinities that the program wrote stay
    assert torch.isinf(scores).all() and not _C.overflow_flag(0)
    torch.tensor([3e38]).npu().mul_(10)
    assert _C.overflow_flag(0) and _C.overflow_operator(0) == "aten::mul_"
    _C.clear_overflow_flag(0)
    result = torch.ones(1, device="npu") / 0
    assert result.item() == torch.finfo(torch.float32).max and _C.overflow_flag(0)
    _C.clear_overflow_flag(0)
    assert torch.zeros(1, device="npu").div(0).item() == 0  # NaN becomes 0
    big = torch.full((1,), 60000.0, device="npu:1").half()
    _C.clear_overflow_flag(0)
    big + big
    assert _C.overflow_flag(1) and not _C.overflow_flag(0)
    _C.clear_overflow_flag(1)


def test_environment_is_checked(monkeypatch):
    monkeypatch.setenv("INF_NAN_MODE_ENABLE", "0")
    with pytest.raises(RuntimeError, match="INF_NAN_MODE_FORCE_DISABLE=1"):
        torch_npu.npu.utils.is_support_inf_nan()
    monkeypatch.setenv("INF_NAN_MODE_FORCE_DISABLE", "1")
    assert torch_npu.npu.utils.is_support_inf_nan() is False
    monkeypatch.setenv("INF_NAN_MODE_ENABLE", "maybe")
    with pytest.raises(RuntimeError, match="INF_NAN_MODE_ENABLE should be 0 or 1"):
        torch_npu.npu.utils.is_support_inf_nan()
    with settings.override(soc="Ascend950"):
        assert torch_npu.npu.utils.is_support_inf_nan() is True  # has no other mode


@pytest.mark.parametrize("soc", ["Ascend910A", "Ascend310P3"])
def test_operators_of_torch_npu_saturate_too(soc):
    code = """
        import torch, torch_npu
        big = torch.full((2, 4), 6e4, dtype=torch.half, device="npu")
        print((torch_npu.npu_linear(big, big[:1].contiguous(), None) == 65504).all().item())
        print((torch_npu.npu_swiglu(big) == 65504).all().item(), torch.npu.get_npu_overflow_flag())
        x = torch.full((2, 4), 6e4, dtype=torch.half, device="npu", requires_grad=True)
        y = torch_npu.npu_swiglu(x)
        print((y == 65504).all().item(), y.requires_grad, y._version)
    """
    assert output(code, SOFTNPU_SOC=soc).splitlines() == ["True", "True True", "True True 0"]


def test_a_filter_that_writes_infinities_runs_in_saturation_mode(saturation):
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]]).npu()
    kept = torch_npu.npu_top_k_top_p(logits, None, torch.tensor([2], dtype=torch.int32).npu())
    assert kept.cpu().isfinite().logical_not().tolist() == [[True, False, False, True]]
    assert not torch.npu.get_npu_overflow_flag()


def test_eight_bit_floats_pass_in_saturation_mode(saturation):
    x = torch.tensor([1.0, 2.0]).npu().to(torch.float8_e4m3fn)
    assert x.float().tolist() == [1.0, 2.0]
