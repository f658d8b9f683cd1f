"""acl.mdl: offline models (.om); what runs them is machine code of the card."""

from __future__ import annotations

from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def absent(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"acl.mdl.{name}: an offline model is machine code of the card and cannot run on the host; "
            "call the operators of torch_npu instead"
        )

    return absent
