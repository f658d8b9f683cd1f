"""The options of `torch.npu.set_option` and their kin: one store, and what happens when one changes.

`torch_npu._C._npu_setOption` and `_npu_getOption` read and write it, as upstream's C++ register does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from softnpu import _C, chips
from torch_npu._errors import ErrCode, pta_error

#: how products round their fp32 inputs, as csrc/torch/dispatch/launch_hooks.cpp numbers it
_KEEP, _HF32, _FP16, _HF32_OF_950 = range(4)

KNOWN = frozenset(
    {
        "ACL_AICORE_NUM",
        "ACL_DEBUG_DIR",
        "ACL_OPTYPELIST_FOR_IMPLMODE",
        "ACL_OP_COMPILER_CACHE_DIR",
        "ACL_OP_COMPILER_CACHE_MODE",
        "ACL_OP_DEBUG_LEVEL",
        "ACL_OP_DEBUG_OPTION",
        "ACL_OP_SELECT_IMPL_MODE",
        "ACL_PRECISION_MODE",
        "ALLOW_CONV_HF32",
        "ALLOW_INTERNAL_FORMAT",
        "ALLOW_MATMUL_HF32",
        "CUBE_MATH_TYPE",
        "FORCE_ACLNN_OP_LIST",
        "MM_BMM_ND_ENABLE",
        "NPU_FUZZY_COMPILE_BLACKLIST",
        "OP_HOOK_ENABLE",
        "STRONG_CONSISTENCY",
        "TORCH_NPU_USE_COMPATIBLE_IMPL",
        "autotune",
        "autotunegraphdumppath",
        "bmmv2_enable",
        "jitCompile",
        "jitCompileInit",
        "mdldumpconfigpath",
        "mdldumpswitch",
    }
)
_values: dict[str, str] = {}
_hooks: dict[str, Callable[[str], None]] = {}


def get(name: str) -> str | None:
    """The value of an option, None if it was never set or does not exist."""
    return _values.get(name)


def set_all(options: Mapping[str, str]) -> None:
    """Sets options; a name that upstream has not is an error, before any is set."""
    for name in options:
        if name not in KNOWN:
            raise RuntimeError(
                f"{name!r} is not an npu option. The options are {', '.join(sorted(KNOWN))}."
                f" (upstream: invalid npu option name:{name})" + pta_error(ErrCode.PARAM)
            )
    for name, value in options.items():
        _values[name] = str(value)
        if name in _hooks:
            _hooks[name](str(value))


def reset() -> None:
    """Forgets every option, for tests."""
    _values.clear()
    _products("")


def on_change(name: str) -> Callable[[Callable[[str], None]], Callable[[str], None]]:
    """Registers what happens when the option changes."""

    def register(hook: Callable[[str], None]) -> Callable[[str], None]:
        _hooks[name] = hook
        return hook

    return register


def _products(_: str) -> None:
    """Tells the device how fp32 products round.

    Differs from upstream: a convolution rounds to HF32 only once the program allowed it itself. On the card
    it is allowed from the start, though reading the switch says True here too.
    """
    family = chips.current().family
    hf32 = _HF32_OF_950 if family == "A5" else _HF32
    low = _FP16 if family in ("910A", "310P") else hf32
    by_cube_math_type = {"0": _KEEP, "1": low, "2": _FP16, "3": hf32, "4": _KEEP}
    matmul = by_cube_math_type.get(
        get("CUBE_MATH_TYPE") or "", hf32 if get("ALLOW_MATMUL_HF32") == "enable" else _KEEP
    )
    conv = hf32 if get("ALLOW_CONV_HF32") == "enable" else _KEEP
    _C.set_product_rounding(matmul, conv)


for _name in ("ALLOW_MATMUL_HF32", "ALLOW_CONV_HF32", "CUBE_MATH_TYPE"):
    _hooks[_name] = _products
