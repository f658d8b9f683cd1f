"""acl.mdl: offline models (.om); what runs them is machine code of the card."""

from __future__ import annotations

from acl import _absent

__all__: list[str] = []

__getattr__ = _absent.functions("acl.mdl", "an offline model")
