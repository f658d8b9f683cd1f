"""Importing this once made a collective traceable; dynamo traces collectives itself, so nothing is patched."""

from torchair.experimental import patch_for_hcom as _patch_for_hcom

__all__: list[str] = []

_patch_for_hcom()
