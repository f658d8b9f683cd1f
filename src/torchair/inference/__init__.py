"""torchair.inference: starting faster and taking several sizes with one graph."""

from __future__ import annotations

from torchair.inference._cache import cache_compile, readable_cache
from torchair.inference._gears import set_dim_gears

__all__ = ["cache_compile", "readable_cache", "set_dim_gears"]
