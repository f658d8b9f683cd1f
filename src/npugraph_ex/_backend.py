"""get_npu_backend and get_compiler of npugraph_ex: torchair's, with this package's configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torchair
from npugraph_ex.configs.compiler_config import CompilerConfig
from torchair.compiler import NpuFxCompiler


def _nested(call: str, config: CompilerConfig | None) -> torchair.CompilerConfig:
    config = CompilerConfig() if config is None else config
    if not isinstance(config, CompilerConfig):
        raise TypeError(
            f"{call}: compiler_config must be an npugraph_ex.CompilerConfig, received {type(config).__name__}"
        )
    return config.nested()


def get_npu_backend(
    *,
    compiler_config: CompilerConfig | None = None,
    custom_decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """A backend for torch.compile.

    Args:
        compiler_config: options, by default CompilerConfig().
        custom_decompositions: operators to take apart before compilation, as torch._decomp has them.
    """
    nested = _nested("get_npu_backend", compiler_config)
    return torchair.get_npu_backend(
        compiler_config=nested, custom_decompositions=custom_decompositions
    )


def get_compiler(compiler_config: CompilerConfig | None = None) -> NpuFxCompiler:
    """The compiler alone, for backends of one's own."""
    return torchair.get_compiler(_nested("get_compiler", compiler_config))
