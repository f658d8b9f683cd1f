"""A C++ extension of torch_npu: built once with what NpuExtension names, then called. The build takes about a minute."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

import torch_npu
from softnpu import kernels
from tests import ROOT
from torch_npu.utils.cpp_extension import NpuExtension, include_paths, library_paths

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    if shutil.which("g++") is None or not cpp_extension.is_ninja_available():
        pytest.skip("a C++ extension needs g++ and ninja")
    return cpp_extension.load(
        "softnpu_cpp_test",
        [str(ROOT / "tests" / "cpp" / "extension.cpp")],
        extra_include_paths=include_paths(),
        extra_cflags=["-O0", "-g0", "-std=c++20"],
        extra_ldflags=[*(f"-L{path}" for path in library_paths()), "-ltorch_npu"],
        build_directory=str(tmp_path_factory.mktemp("extension")),
    )


@contextlib.contextmanager
def torch_npu_internal_formats():
    before = torch.npu.config.allow_internal_format
    torch.npu.config.allow_internal_format = True
    try:
        yield
    finally:
        torch.npu.config.allow_internal_format = before


def test_npu_extension_names_headers_and_libraries():
    made = NpuExtension("mine", ["mine.cpp"], include_dirs=["own"], extra_compile_args=["-g"])
    assert made.include_dirs[0] == "own" and made.language == "c++"
    assert made.libraries == ["c10", "torch", "torch_cpu", "torch_python", "torch_npu"]
    assert set(include_paths()) <= set(made.include_dirs)
    assert made.extra_compile_args == ["-g"]


@slow
def test_all_headers_compile_together(tmp_path):
    """Each of them twice, so that one without an include guard fails too."""
    if shutil.which("g++") is None:
        pytest.skip("a C++ extension needs g++")
    root = Path(include_paths()[0])
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.h"))
    assert "torch_npu/csrc/framework/utils/CalcuOpUtil.h" in names and len(names) > 25
    source = tmp_path / "headers.cpp"
    source.write_text("".join(f'#include "{name}"\n' for name in 2 * names), "utf-8")
    folders = [*include_paths(), *cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    done = subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", *(f"-I{folder}" for folder in folders), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@slow
def test_an_operator_by_its_aclnn_name_on_a_stream(extension):
    x, gamma = torch.randn(4, 16, device="npu"), torch.randn(16, device="npu")
    y, rstd, in_order = extension.norm_on_stream(x, gamma, 1e-6)
    wide = x.cpu().double()
    scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert in_order and y.device.type == "npu"
    torch.testing.assert_close(
        y.cpu().double(), wide * scale * gamma.cpu().double(), atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(rstd.cpu().double(), scale, atol=1e-5, rtol=1e-5)


@slow
def test_operators_of_aten_by_aclnn_names(extension):
    a, b = torch.randn(3, device="npu"), torch.randn(3, device="npu")
    expected = a.cpu() + 2 * b.cpu()
    assert torch.equal(extension.add(a, b, 2.0).cpu(), expected)
    sum_of = a.cpu() + b.cpu()
    assert extension.add_in_place(a, b).data_ptr() == a.data_ptr()
    assert torch.equal(a.cpu(), sum_of)
    assert torch.equal(extension.by_type(a, b).cpu(), torch.maximum(a.cpu(), b.cpu()))


@slow
def test_names_and_arguments_that_fit_nothing(extension):
    x = torch.ones(2, device="npu")
    with pytest.raises(
        NotImplementedError, match="aclnnNoSuchThing: no operator.*softnpu.kernels.register"
    ):
        extension.unknown(x)
    with pytest.raises(RuntimeError, match="the 2 arguments fit none of these schemas"):
        extension.misfit(x)
    kernels.register("aclnn::aclnnNoSuchThing", lambda x: x * 5, schema="(Tensor x) -> Tensor")
    try:
        assert extension.unknown(x).tolist() == [5.0, 5.0]
    finally:
        kernels.unregister("aclnn::aclnnNoSuchThing")


@slow
def test_it_registers_an_operator_of_its_own(extension):
    x = torch.arange(6.0, device="npu").view(2, 3).t()
    assert torch.equal(torch.ops.softnpu_cpp_test.triple(x).cpu(), 3 * x.cpu())
    with pytest.raises(RuntimeError, match="OpCommand: Failing failed with error 507015"):
        extension.failing()


@slow
def test_devices_memory_formats_and_generators(extension):
    assert extension.devices() == [torch.npu.device_count(), 0, 1, 0, 107001]
    before = torch.npu.memory_allocated()
    assert extension.memory() == 107000
    assert torch.npu.memory_allocated() == before
    x = torch.ones(32, 32, device="npu", dtype=torch.float16)
    assert extension.formats(x) == [2, 2, 2]  # as the default of allow_internal_format has it
    with torch_npu_internal_formats():
        assert extension.formats(x) == [2, 29, 29]
    y = torch.randn(2, 8, device="npu")
    assert torch.equal(extension.swiglu(y), torch_npu.npu_swiglu(y))
    assert extension.seed() == 7 and extension.elapsed() >= 0


@slow
def test_the_other_documented_members_of_op_command(extension):
    x = torch.tensor([-1.0, 0.5, 2.0], device="npu")
    expected = (x.cpu().clamp(min=1.0) + 2 * x.cpu()).flip(0)
    assert torch.equal(extension.by_type_in_other_words(x, 1.0).cpu(), expected)
    assert extension.handled() == 11


@slow
def test_names_of_upstream_s_cpp_pages(extension):
    x = torch.ones(4, 6, device="npu")
    assert extension.documented_names(x) == [0, 1, True, True, 24, 15, True]
    assert torch.npu.current_device() == 0


@slow
def test_types_scalars_and_copies_of_calcu_op_util(extension):
    x = torch.arange(6.0, device="npu")
    types, scalar, copied, format_of, sizes = extension.calculated(x)
    assert types == [
        0,
        1,
        27,
        37,
        7,
        4,
    ]  # float, half, bfloat16, float8_e8m0fnu, "uint16", HiFloat8 is Byte
    assert scalar.dtype is torch.half and scalar.device.type == "npu" and scalar.item() == 2.5
    assert copied.tolist() == [2.0, 3.0, 0.0] and copied.device.type == "npu"
    assert format_of == 2 and sizes == [3, 5]
    with pytest.raises(RuntimeError, match="CANN has no type for QInt8"):
        extension.unknown_type()
    with pytest.raises(RuntimeError, match="unsupported operation"):
        extension.overlapping(x)
