"""Options, formats, compile mode, AOE, attention switches."""

import json
import os

import pytest
import torch

import torch_npu

OPTIONS = {
    "ACL_PRECISION_MODE": "must_keep_origin_dtype",
    "ACL_AICORE_NUM": 16,
    "ACL_OP_DEBUG_LEVEL": "2",
    "ACL_DEBUG_DIR": "/tmp/debug",
    "ACL_OP_COMPILER_CACHE_MODE": "force",
    "ACL_OP_COMPILER_CACHE_DIR": "/tmp/cache",
    "ACL_OP_DEBUG_OPTION": "oom",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_documented_options_are_kept(name):
    assert torch_npu._C._npu_getOption(name) is None
    torch.npu.set_option({name: OPTIONS[name]})
    assert torch_npu._C._npu_getOption(name) == str(OPTIONS[name]).encode()


@pytest.mark.parametrize("name", ["ACL_OP_SELECT_IMPL_MODE", "ACL_OPTYPELIST_FOR_IMPLMODE"])
def test_deprecated_options_warn(name):
    with pytest.warns(UserWarning, match=name):
        torch.npu.set_option({name: "high_precision"})


def test_wrong_options_are_refused_and_set_nothing():
    with pytest.raises(
        RuntimeError, match="'ACL_SPEED' is not an npu option.*invalid npu option name:ACL_SPEED"
    ):
        torch.npu.set_option({"ACL_DEBUG_DIR": "x", "ACL_SPEED": "high"})
    assert torch_npu._C._npu_getOption("ACL_DEBUG_DIR") is None
    with pytest.raises(ValueError, match="ACL_AICORE_NUM should be in .* but got 33"):
        torch.npu.set_option({"ACL_AICORE_NUM": 33})
    with pytest.raises(ValueError, match="ACL_OP_DEBUG_LEVEL should be in"):
        torch.npu.set_option({"ACL_OP_DEBUG_LEVEL": "9"})
    with pytest.raises(TypeError, match="npu option must be a dict"):
        torch.npu.set_option([("ACL_DEBUG_DIR", "x")])
    with pytest.raises(RuntimeError, match="must string"):
        torch_npu._C._npu_getOption(3)
    with pytest.raises(RuntimeError, match="'color' is not an npu option"):
        torch_npu._C._npu_setOption({"color": "red"})


def test_compile_mode():
    assert torch.npu.is_jit_compile_false() is True
    torch.npu.set_compile_mode(jit_compile=True)
    assert torch.npu.is_jit_compile_false() is False
    assert torch_npu._C._npu_getOption("jitCompile") == b"enable"
    torch.npu.set_compile_mode()
    assert torch.npu.is_jit_compile_false() is True


def test_formats():
    assert torch.npu.get_mm_bmm_format_nd() is True
    torch.npu.set_mm_bmm_format_nd(False)
    assert torch.npu.get_mm_bmm_format_nd() is False
    torch.npu.set_option({"MM_BMM_ND_ENABLE": "enable"})
    assert torch.npu.get_mm_bmm_format_nd() is True
    assert torch.npu.config.allow_internal_format is False  # on Atlas A2 and A3
    torch.npu.config.allow_internal_format = True
    assert torch.npu.config.allow_internal_format is True
    torch.npu.config.allow_internal_format = False
    assert torch.npu.config.allow_internal_format is False
    assert torch_npu._C._npu_getOption("ALLOW_INTERNAL_FORMAT") == b"disable"


def test_compatible_implementation(monkeypatch):
    monkeypatch.setenv("TORCH_NPU_USE_COMPATIBLE_IMPL", "1")
    assert torch.npu.are_compatible_impl_enabled() is True
    monkeypatch.delenv("TORCH_NPU_USE_COMPATIBLE_IMPL")
    assert torch.npu.are_compatible_impl_enabled() is False
    torch.npu.use_compatible_impl(True)
    assert torch.npu.are_compatible_impl_enabled() is True
    torch.npu.use_compatible_impl(False)
    assert torch.npu.are_compatible_impl_enabled() is False


def test_aoe_describes_each_distinct_operator(tmp_path):
    folder = tmp_path / "aoe" / "deep"
    torch.npu.set_aoe(str(folder))
    a = torch.ones(2, 3, device="npu")
    for _ in range(2):
        torch.relu(a)
    torch.relu(a.half())
    torch.npu.set_option({"autotune": "disable"})
    torch.relu(torch.ones(5, device="npu"))
    found = [json.loads(f.read_text()) for f in folder.glob("relu_*.json")]
    assert sorted(f["inputs"][0]["dtype"] for f in found) == ["float16", "float32"]
    assert all(f["op"] == "aten::relu" and f["inputs"][0]["shape"] == [2, 3] for f in found)


def test_aoe_refuses_wrong_paths(tmp_path):
    with pytest.raises(TypeError, match="Type of dump_path is invalid"):
        torch.npu.set_aoe(3)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Value of dump_path is invalid"):
        torch.npu.set_aoe(os.fspath(tmp_path / "file" / "below"))


def test_attention_switches():
    before = torch.npu.flash_sdp_enabled(), torch.npu.math_sdp_enabled()
    with torch.npu.sdp_kernel(enable_flash=False, enable_math=True, enable_mem_efficient=False):
        assert torch.npu.flash_sdp_enabled() is False
        assert torch.npu.mem_efficient_sdp_enabled() is False
        assert torch.npu.math_sdp_enabled() is True
    assert (torch.npu.flash_sdp_enabled(), torch.npu.math_sdp_enabled()) == before
    torch.npu.enable_flash_sdp(False)
    assert torch.backends.cuda.flash_sdp_enabled() is False
    torch.npu.enable_flash_sdp(before[0])
    with pytest.warns(UserWarning, match="'magma' is not available"):
        assert torch.npu.preferred_linalg_library("magma") == torch._C._LinalgBackend.Default
