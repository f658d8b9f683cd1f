"""Every error code and message format of the package, in one place.

Upstream's codes are facts that programs match on (``ERR01002 OPS invalid type``); the sentences are ours.
"""

from __future__ import annotations

import enum
import os
import sys
import time


class SubModule(enum.IntEnum):
    """Which part of the package raises; the first two digits of an error code."""

    PTA = 0
    OPS = 1
    DIST = 2
    GRAPH = 3
    PROF = 4


class ErrCode(enum.Enum):
    """The last three digits of an error code and its fixed label."""

    SUCCESS = (0, "success")
    PARAM = (1, "invalid parameter")
    TYPE = (2, "invalid type")
    VALUE = (3, "invalid value")
    PTR = (4, "invalid pointer")
    INTERNAL = (5, "internal error")
    MEMORY = (6, "memory error")
    NOT_SUPPORT = (7, "feature not supported")
    NOT_FOUND = (8, "resource not found")
    UNAVAIL = (9, "resource unavailable")
    SYSCALL = (10, "system call failed")
    TIMEOUT = (11, "timeout error")
    PERMISSION = (12, "permission error")
    ACL = (100, "call acl api failed")
    HCCL = (200, "call hccl api failed")
    GE = (300, "call ge api failed")

    @property
    def code(self) -> int:
        return self.value[0]

    @property
    def label(self) -> str:
        return self.value[1]


def code_line(submodule: SubModule, code: ErrCode) -> str:
    """The line that upstream appends to its errors; empty with TORCH_NPU_COMPACT_ERROR_OUTPUT=1."""
    if os.environ.get("TORCH_NPU_COMPACT_ERROR_OUTPUT") == "1":
        return ""
    stamp = time.strftime("%Y-%m-%d-%H:%M:%S", time.localtime())
    return (
        f"\n[ERROR] {stamp} (PID:{os.getpid()}, Device:{_device()}, RankID:{_rank()}) "
        f"ERR{submodule.value:02d}{code.code:03d} {submodule.name} {code.label}"
    )


def pta_error(code: ErrCode) -> str:
    return code_line(SubModule.PTA, code)


def ops_error(code: ErrCode) -> str:
    return code_line(SubModule.OPS, code)


def dist_error(code: ErrCode) -> str:
    return code_line(SubModule.DIST, code)


def prof_error(code: ErrCode) -> str:
    return code_line(SubModule.PROF, code)


def _device() -> int:
    npu = sys.modules.get("torch_npu.npu")
    return npu.current_device() if npu is not None and npu.is_initialized() else -1


def _rank() -> int:
    dist = sys.modules.get("torch.distributed")
    ready = dist is not None and dist.is_available() and dist.is_initialized()
    return dist.get_rank() if dist is not None and ready else -1


class BadArgument(RuntimeError):
    """A documented constraint that an argument breaks; `_registry` adds the operator's name and the code."""

    def __init__(self, argument: str, expected: str, received: object, code: ErrCode) -> None:
        super().__init__(argument, expected, received, code)
        self.argument, self.expected, self.received, self.code = argument, expected, received, code

    def text(self, operator: str) -> str:
        return (
            f"{operator}: argument '{self.argument}' must be {self.expected}, "
            f"but received {self.received}"
        )


def index_error(operator: str, wrong: IndexError) -> IndexError:
    """What PyTorch says when an index that a kernel has read from its arguments is out of range, with the operator."""
    text = str(wrong)
    if not text.startswith("index ") or " out of " not in text:
        return wrong  # of a list: none that a user's data could cause
    return IndexError(
        f"{operator}: an index that its arguments hold is out of range: {text}."
        + ops_error(ErrCode.VALUE)
    )


def operator_error(operator: str, bad: BadArgument) -> RuntimeError:
    """The error a user sees: operator, argument, expected, received, upstream's code."""
    kind = NotImplementedError if bad.code is ErrCode.NOT_SUPPORT else RuntimeError
    return kind(bad.text(operator) + "." + ops_error(bad.code))
