"""What upstream reads from the environment when it initializes ACL: `TORCH_ACL_INIT_CONFIG_PATH` and `ACL_OP_INIT_MODE`.

Neither changes anything on this device, which has no ACL to configure; a program that sets them wrongly fails, or is
warned, as on the card (upstream: npu_sys_ctrl.cpp, GetAclConfigJsonPath; OptionsManager.cpp, GetAclOpInitMode).
"""

from __future__ import annotations

import json
import os
import re
import warnings
from pathlib import Path

from softnpu import chips
from torch_npu._errors import ErrCode, pta_error

CONFIG = "TORCH_ACL_INIT_CONFIG_PATH"
MODE = "ACL_OP_INIT_MODE"
#: since this version of CANN a device is set lazily, and ACL's configuration names a default device
LAZY_SINCE = "8.3.RC1"


def check_environment() -> None:
    """Called once, when the device starts."""
    if (path := os.environ.get(CONFIG)) is not None:
        _check_config(path)
    if (mode := os.environ.get(MODE)) is not None:
        _check_mode(mode)


def _check_config(given: str) -> None:
    from torch_npu.npu.utils import _is_gte_cann_version

    try:
        path = Path(given).resolve()
        found = path.is_file()  # a pipe would keep the program waiting
    except OSError:  # a name that is too long
        found = False
    if not found:
        shown = given[:200].encode("utf-8", "backslashreplace").decode()
        raise RuntimeError(
            f"{CONFIG} {shown} is invalid: no such file." + pta_error(ErrCode.UNAVAIL)
        )
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RuntimeError(
            f"Failed to open user acl json {path} ({CONFIG}): {error}." + pta_error(ErrCode.UNAVAIL)
        ) from error
    try:
        config = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise RuntimeError(
            f"Failed to parse user acl json {path} ({CONFIG}): {error}."
            + pta_error(ErrCode.UNAVAIL)
        ) from error
    default = config.get("defaultDevice") if isinstance(config, dict) else None
    if not _is_gte_cann_version(LAZY_SINCE):
        if isinstance(config, dict) and "defaultDevice" in config:
            raise RuntimeError(
                f"User acl json {path} contains 'defaultDevice', which CANN before {LAZY_SINCE} has not."
                + pta_error(ErrCode.VALUE)
            )
    elif not isinstance(default, dict):
        raise RuntimeError(
            f"User acl json {path} lacks 'defaultDevice', an object with "
            f'{{"default_device": "0"}}.' + pta_error(ErrCode.VALUE)
        )
    elif default.get("default_device") != "0":
        raise RuntimeError(
            f"User acl json {path} requires 'defaultDevice.default_device' to be \"0\", "
            f"but it is {default.get('default_device')!r}." + pta_error(ErrCode.VALUE)
        )


def _check_mode(given: str) -> None:
    number = re.fullmatch(r"\s*([+-]?[0-9]{1,18})\s*", given)
    mode = int(number[1]) if number else 0  # as strtol takes other text
    if chips.current().family == "A5":
        if mode != 2:
            warnings.warn(
                f"This device only supports {MODE}=2 (no aclop), but got {mode}: 2 is taken.",
                stacklevel=2,
            )
    elif mode not in (0, 1, 2):
        warnings.warn(
            f"Get env {MODE} not in [0, 1, 2], so the default value is taken; it is {given!r}.",
            stacklevel=2,
        )
