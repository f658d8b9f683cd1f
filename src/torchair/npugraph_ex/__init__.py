"""torch.npu.npugraph_ex: the captured mode with options by short names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from torchair.configs.compiler_config import CompilerConfig, check_support, set_by_path
from torchair.npugraph_ex import inference, scope
from torchair.patterns import register_replacement

__all__ = ["compile_fx", "config_of", "inference", "register_replacement", "scope"]

#: option -> where torchair.CompilerConfig has it
PATHS = {
    "force_eager": "debug.run_eagerly",
    "force_recapture": "debug.aclgraph.force_recapture",
    "use_graph_pool": "aclgraph_config.use_custom_pool",
    "reuse_graph_pool_in_same_fx": "debug.aclgraph.disable_mempool_reuse_in_same_fx",
    "capture_limit": "debug.aclgraph.static_capture_size_limit",
    "capture_error_mode": "debug.aclgraph.capture_error_mode",
    "clone_input": "debug.aclgraph.clone_input",
    "clone_output": "debug.aclgraph.enable_output_clone",
    "static_kernel_compile": "experimental_config.aclgraph._aclnn_static_shape_kernel",
    "frozen_parameter": "experimental_config.frozen_parameter",
    "remove_noop_ops": "experimental_config.remove_noop_ops",
    "remove_cat_ops": "debug.aclgraph.remove_cat_ops",
    "inplace_pass": "debug.aclgraph.disable_reinplace_inplaceable_ops_pass",
    "input_inplace_pass": "debug.aclgraph.disable_reinplace_input_mutated_ops_pass",
    "pattern_fusion_pass": "experimental_config.pattern_fusion_pass",
    "post_grad_custom_pre_pass": "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass": "post_grad_custom_post_pass",
    "dump_tensor_data": "dump_config.enable_dump",
    "data_dump_stage": "dump_config.data_dump_stage",
    "data_dump_dir": "dump_config.dump_path",
    "deadlock_check": "debug.deadlock_check",
    "super_kernel_optimize": "experimental_config.aclgraph._super_kernel_optimize",
    "super_kernel_optimize_options": "experimental_config.aclgraph._super_kernel_optimize_options",
    "super_kernel_debug_options": "experimental_config.aclgraph._super_kernel_debug_options",
    "_vllm_aclnn_static_kernel_sym_index": (
        "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_index"
    ),
    "_vllm_aclnn_static_kernel_sym_range": (
        "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range"
    ),
}
#: options whose name says the opposite of the setting behind them
INVERTED = ("inplace_pass", "input_inplace_pass", "reuse_graph_pool_in_same_fx")


def config_of(options: dict[str, Any] | None) -> CompilerConfig:
    """The configuration that a dict of options means; unknown names raise and name the known ones."""
    config = CompilerConfig()
    set_by_path(config, "mode", "npugraph_ex")
    set_options(config, options or {})
    check_support(config)
    return config


def set_options(config: CompilerConfig, options: dict[str, Any]) -> None:
    """Sets options by their short names; unknown ones raise and name the known ones."""
    for name, value in options.items():
        if name not in PATHS:
            raise ValueError(f"unknown option {name!r}, the options are {sorted(PATHS)}")
        if name in INVERTED:
            if not isinstance(value, bool):
                raise ValueError(f"{name}: expected one of [True, False], received {value!r}")
            value = not value
        set_by_path(config, PATHS[name], value)


def compile_fx(
    gm: GraphModule,
    example_inputs: Sequence[Any] | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles an ATen graph as backend "npugraph_ex" does, for backends of one's own.

    Args:
        gm: the graph that AOTAutograd made.
        example_inputs: its example inputs.
        options: as in torch.compile(backend="npugraph_ex", options=...).
    """
    from torchair.compiler import NpuFxCompiler

    return NpuFxCompiler(config_of(options))(gm, list(example_inputs or ()))
