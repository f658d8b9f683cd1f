"""npugraph_ex.CompilerConfig: the options of torch.compile(backend="npugraph_ex") as attributes."""

from __future__ import annotations

import functools
from typing import Any

from torchair.configs import compiler_config as _nested
from torchair.configs._options import Flag, Option, Section
from torchair.configs.npugraphex_config import _process_kwargs_options
from torchair.npugraph_ex import INVERTED, PATHS, config_of

__all__ = ["CompilerConfig", "_process_kwargs_options"]


class CompilerConfig(Section):
    """The configuration of a backend: `npugraph_ex.get_npu_backend(compiler_config=config)`.

    Each option is an attribute under the name that `options` of torch.compile gives it. An unknown name or value raises
    and names what is allowed.
    """

    def __init__(self) -> None:
        nested = _nested.CompilerConfig()
        for name, path in PATHS.items():
            option = functools.reduce(getattr, path.split("."), nested)
            setattr(self, name, Flag(not option.raw) if name in INVERTED else option)
        self.mode = Option("npugraph_ex", ("npugraph_ex",))
        self._seal()

    def as_dict(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options by name, and those of the process, of which there are none."""
        return {name: option.raw for name, option in self.leaves()}, {}

    def nested(self) -> _nested.CompilerConfig:
        """The same options as torchair takes them."""
        return config_of(self.changed())
