"""Options of npugraph_ex by their short names; mirrors upstream's torchair.configs.npugraphex_config."""

from __future__ import annotations

from typing import Any

__all__: list[str] = []


def _process_kwargs_options(config: Any, kwargs: dict[str, Any]) -> None:
    """Sets `kwargs["options"]` on a configuration: of torchair by their paths, of npugraph_ex by their names."""
    from torchair.configs.compiler_config import CompilerConfig
    from torchair.npugraph_ex import set_options

    options = kwargs.get("options") or {}
    if isinstance(config, CompilerConfig):
        set_options(config, options)
        return
    for name, value in options.items():
        setattr(config, name, value)
