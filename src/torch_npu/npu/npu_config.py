"""Switches of the device: compile options, formats, HF32, AOE, core limits. Mirrors torch_npu/npu/npu_config.py."""

from __future__ import annotations

import enum
import os
import warnings
from collections.abc import Callable
from typing import Any

from softnpu import _C, chips
from torch_npu._errors import ErrCode, pta_error
from torch_npu.npu import _aoe, _options
from torch_npu.npu._device import checked_index, is_initialized, synchronize
from torch_npu.npu._dump import finalize_dump, init_dump, set_dump
from torch_npu.npu.streams import _BaseStream, current_stream

__all__ = [
    "are_compatible_impl_enabled",
    "finalize_dump",
    "get_device_limit",
    "get_mm_bmm_format_nd",
    "get_stream_limit",
    "init_dump",
    "is_jit_compile_false",
    "reset_stream_limit",
    "set_aoe",
    "set_compile_mode",
    "set_device_limit",
    "set_dump",
    "set_mm_bmm_format_nd",
    "set_option",
    "set_stream_limit",
    "use_compatible_impl",
]

_ALLOWED: dict[str, tuple[str, ...]] = {
    "ACL_PRECISION_MODE": ("allow_fp32_to_fp16", "must_keep_origin_dtype"),
    "ACL_OP_SELECT_IMPL_MODE": ("high_performance", "high_precision"),
    "ACL_AICORE_NUM": tuple(str(n) for n in range(1, 33)),
    "ACL_OP_DEBUG_LEVEL": ("0", "1", "2", "3", "4"),
    "ACL_OP_COMPILER_CACHE_MODE": ("disable", "enable", "force"),
    "MM_BMM_ND_ENABLE": ("enable", "disable"),
}
_DEPRECATED = ("ACL_OP_SELECT_IMPL_MODE", "ACL_OPTYPELIST_FOR_IMPLMODE")


def set_option(option: dict[str, Any]) -> None:
    """Sets compile options by name; an unknown name or value is an error and sets nothing."""
    if not isinstance(option, dict):
        raise TypeError("npu option must be a dict." + pta_error(ErrCode.PARAM))
    for name, value in option.items():
        allowed = _ALLOWED.get(name)
        if allowed is not None and str(value) not in allowed:
            raise ValueError(
                f"value of {name} should be in {list(allowed)} but got {value}"
                + pta_error(ErrCode.PARAM)
            )
        if name in _DEPRECATED:
            warnings.warn(f"{name} is deprecated and better left unset.", stacklevel=2)
    _options.set_all({name: str(value) for name, value in option.items()})


def set_compile_mode(jit_compile: bool = False) -> None:
    """Whether operators are compiled at run time; here it is only remembered."""
    if is_initialized():
        synchronize()
    _options.set_all({"jitCompile": "enable" if jit_compile else "disable"})


def is_jit_compile_false() -> bool:
    """Whether run-time compilation is off, which is the default from Atlas A2 on."""
    _C.ensure_started()
    chosen = _options.get("jitCompile")
    if chosen is None:
        return chips.current().family not in ("910A", "310P")
    return chosen == "disable"


def set_aoe(dump_path: str) -> None:
    """Turns tuning on: every distinct operator is described in a file under `dump_path`, for AOE to tune."""
    if not isinstance(dump_path, (str, os.PathLike)):
        raise TypeError("Type of dump_path is invalid." + pta_error(ErrCode.TYPE))
    try:
        os.makedirs(dump_path, mode=0o750, exist_ok=True)
    except OSError as error:
        raise OSError("Value of dump_path is invalid." + pta_error(ErrCode.SYSCALL)) from error
    _options.set_all({"autotune": "enable", "autotunegraphdumppath": os.fspath(dump_path)})
    _aoe.start(os.fspath(dump_path))


@_options.on_change("autotune")
def _autotune(value: str) -> None:
    if value != "enable":
        _aoe.stop()


def set_mm_bmm_format_nd(is_nd: bool = True) -> None:
    """Whether mm and bmm of linear layers compute in ND."""
    _options.set_all({"MM_BMM_ND_ENABLE": "enable" if is_nd else "disable"})


def get_mm_bmm_format_nd() -> bool:
    """Whether mm and bmm of linear layers compute in ND; they do by default."""
    return _options.get("MM_BMM_ND_ENABLE") != "disable"


def use_compatible_impl(is_enable: bool) -> None:
    """Whether operators follow PyTorch's own definition exactly; here they do in either case."""
    _options.set_all({"TORCH_NPU_USE_COMPATIBLE_IMPL": "1" if is_enable else "0"})


def are_compatible_impl_enabled() -> bool:
    """What `use_compatible_impl` was told; TORCH_NPU_USE_COMPATIBLE_IMPL before."""
    chosen = _options.get("TORCH_NPU_USE_COMPATIBLE_IMPL")
    return (chosen or os.environ.get("TORCH_NPU_USE_COMPATIBLE_IMPL")) == "1"


# --- objects whose attributes are switches ------------------------------------------------------------------


def _bool(name: str, value: Any) -> str:
    if not isinstance(value, bool):
        raise TypeError(
            f"{name} must be a bool, but got {type(value).__name__}" + pta_error(ErrCode.TYPE)
        )
    return "enable" if value else "disable"


class _npuConfig:
    """`torch.npu.config`."""

    @property
    def allow_internal_format(self) -> bool:
        """Whether casts may give a private format (NZ and the like); by default on products before Atlas A2."""
        chosen = _options.get("ALLOW_INTERNAL_FORMAT")
        if chosen is None:
            return chips.current().family in ("910A", "310P")
        return chosen != "disable"

    @allow_internal_format.setter
    def allow_internal_format(self, value: Any) -> None:
        if value and chips.current().family == "A5":
            warnings.warn(
                "Current device only support allow_internal_format=False, the requested value True "
                "is invalid and has been reverted to False.",
                stacklevel=2,
            )
            value = False
        _options.set_all({"ALLOW_INTERNAL_FORMAT": "enable" if value else "disable"})


class _CubeMathType(enum.IntEnum):
    """What a product may do to fp32 inputs."""

    KEEP_DTYPE = 0
    ALLOW_FP32_DOWN_PRECISION = 1
    USE_FP16 = 2
    USE_HF32 = 3
    FORCE_GRP_ACC_FOR_FP32 = 4
    USE_FP32_ADD = 4


class _allowHF32Matmul:
    """`torch.npu.matmul`: whether fp32 products round their inputs to HF32, and the cube's math type."""

    @property
    def allow_hf32(self) -> bool:
        return _options.get("ALLOW_MATMUL_HF32") == "enable"

    @allow_hf32.setter
    def allow_hf32(self, value: Any) -> None:
        _options.set_all({"ALLOW_MATMUL_HF32": _bool("allow_hf32", value)})

    @property
    def cube_math_type(self) -> _CubeMathType | None:
        value = _options.get("CUBE_MATH_TYPE")
        return None if value is None else _CubeMathType(int(value))

    @cube_math_type.setter
    def cube_math_type(self, value: Any) -> None:
        if not isinstance(value, _CubeMathType):
            raise TypeError(
                "value should be one of Enum CubeMathType when setting cube_math_type, "
                f"but got {type(value)}"
            )
        _options.set_all({"CUBE_MATH_TYPE": str(value.value)})


class _allowHF32Conv:
    """`torch.npu.conv`: whether fp32 convolutions round their inputs to HF32."""

    @property
    def allow_hf32(self) -> bool:
        return _options.get("ALLOW_CONV_HF32") != "disable"

    @allow_hf32.setter
    def allow_hf32(self, value: Any) -> None:
        _options.set_all({"ALLOW_CONV_HF32": _bool("allow_hf32", value)})


# --- core limits ------------------------------------------------------------------------------------------------

_Limits = dict[str, int]
_device_limits: dict[int, _Limits] = {}
_stream_limits: dict[tuple[int, int], _Limits] = {}


def _full() -> _Limits:
    chip = chips.current()
    return {"cube_core_num": chip.cube_cores, "vector_core_num": chip.vector_cores}


def _chosen(base: _Limits, cube_num: int, vector_num: int) -> _Limits:
    chosen = dict(base)
    for name, key, value in (
        ("cube_num", "cube_core_num", cube_num),
        ("vector_num", "vector_core_num", vector_num),
    ):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, but got {value!r}" + pta_error(ErrCode.TYPE))
        if value == -1:
            continue
        if not 1 <= value <= _full()[key]:
            raise RuntimeError(
                f"{name} must be from 1 to {_full()[key]}, but got {value}"
                + pta_error(ErrCode.VALUE)
            )
        chosen[key] = value
    return chosen


def _device_argument(device: Any) -> int:
    if isinstance(device, bool) or not isinstance(device, int):
        raise TypeError(
            f"device must be an int, but got {type(device).__name__}" + pta_error(ErrCode.TYPE)
        )
    return checked_index(device)


class _call_once_class:
    """A function that may be called once in a process."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func
        self.called = False
        self.result: Any = None
        self.__doc__ = func.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.called:
            raise RuntimeError(
                f"Function '{self.func.__name__}' has already been called, You can only set this "
                "interface once."
            )
        self.called = True
        self.result = self.func(*args, **kwargs)
        return self.result


@_call_once_class
def set_device_limit(device: int, cube_num: int = -1, vector_num: int = -1) -> None:
    """Limits how many cores of a device this process uses; -1 leaves a number as it is. Once a process."""
    index = _device_argument(device)
    _C.ensure_started()
    _device_limits[index] = _chosen(_device_limits.get(index, _full()), cube_num, vector_num)


def get_device_limit(device: int) -> _Limits:
    """How many cube and vector cores of a device this process may use."""
    index = _device_argument(device)
    _C.ensure_started()
    return dict(_device_limits.get(index, _full()))


def _stream_key(stream: Any) -> tuple[int, int]:
    if stream is None:
        raise AssertionError("stream cannot be None" + pta_error(ErrCode.PARAM))
    if not isinstance(stream, _BaseStream):
        raise AssertionError(
            f"stream should be torch_npu.npu.Stream, could not be {type(stream)}"
            + pta_error(ErrCode.TYPE)
        )
    _C.ensure_started()
    return stream.device_index, stream.stream_id


def set_stream_limit(stream: Any, cube_num: int = -1, vector_num: int = -1) -> None:
    """Limits how many cores the work of a stream uses; -1 leaves a number as it is."""
    key = _stream_key(stream)
    base = _stream_limits.get(key) or get_device_limit(key[0])
    _stream_limits[key] = _chosen(base, cube_num, vector_num)


def reset_stream_limit(stream: Any) -> None:
    """Lets a stream use what its device may use again."""
    _stream_limits.pop(_stream_key(stream), None)


def own_stream_limit() -> _Limits | None:
    """What was set for the current stream, by itself."""
    return _stream_limits.get(_stream_key(current_stream())) if _stream_limits else None


def get_stream_limit(stream: Any) -> _Limits:
    """How many cube and vector cores the work of a stream may use."""
    key = _stream_key(stream)
    return dict(_stream_limits.get(key) or get_device_limit(key[0]))
