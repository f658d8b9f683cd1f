"""acl (pyACL): CANN's runtime from Python, as far as public projects call it, on the emulated devices.

Functions return CANN's error codes (0 is success), several results as a tuple that ends with the code. A value of the
wrong type raises TypeError; an address that is not memory of this process gives an error code, never a crash.
Offline models and single operators (acl.mdl, acl.op) hold machine code of the card and are not here.
"""

from __future__ import annotations

from acl import _codes, _device, mdl, op, rt, util

__all__ = [
    "finalize",
    "get_recent_err_msg",
    "get_soc_name",
    "get_version",
    "init",
    "mdl",
    "op",
    "rt",
    "util",
]


def init(config_path: str | None = None) -> int:
    """Starts ACL; a second call gives 100002, as does one after torch has started the device.

    Args:
        config_path: a JSON file with dump and profiling settings; it must exist, its settings are not read.
    """
    import os

    if config_path is not None and not isinstance(config_path, str):
        raise TypeError(
            f"acl.init: config_path must be a str, received {type(config_path).__name__}"
        )
    if config_path and not os.path.isfile(config_path):
        return _codes.INVALID_PARAM
    if _device.runtime.initialized or _device.module().started():
        _device.runtime.initialized = True
        return _codes.REPEAT_INITIALIZE
    _device.runtime.initialized, _device.runtime.finalized = True, False
    return _codes.SUCCESS


def finalize() -> int:
    """Ends ACL; without `init` it gives 100001, a second time 100037. Memory and streams stay until they are freed."""
    if not _device.runtime.initialized:
        return _codes.REPEAT_FINALIZE if _device.runtime.finalized else _codes.UNINITIALIZE
    _device.runtime.initialized, _device.runtime.finalized = False, True
    return _codes.SUCCESS


def get_soc_name() -> str:
    """The name of the chip, such as Ascend910B3."""
    from softnpu import chips

    return chips.current().name


def get_version() -> tuple[int, int, int, int]:
    """(major, minor, patch, code) of the runtime's API."""
    return rt.get_version()


def get_recent_err_msg() -> str | None:
    """The text of this thread's last error, None if there was none."""
    return getattr(_device.runtime.local, "error", None)
