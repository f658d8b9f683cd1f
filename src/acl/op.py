"""acl.op: single operators, compiled for the card; what runs them is machine code of the card."""

from __future__ import annotations

from acl import _absent

__all__: list[str] = []

__getattr__ = _absent.functions("acl.op", "a compiled operator")
