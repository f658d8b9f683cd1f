"""torchair.CompilerConfig: every option of a compilation; mirrors upstream's torchair.configs.compiler_config."""

from __future__ import annotations

import warnings
from typing import Any

from torchair.configs import _sections
from torchair.configs._options import Function, Option, Section

__all__ = ["CompilerConfig"]

MODES = ("max-autotune", "reduce-overhead", "npugraph_ex")

#: options that belong to captured graphs, and say nothing in mode max-autotune
_CAPTURE_ONLY = (
    "debug.aclgraph.",
    "experimental_config.aclgraph.",
    "aclgraph_config.",
)
#: options of the graph engine, which captured graphs do not pass through
_ENGINE_ONLY = (
    "inference_config.",
    "debug.fx_summary.",
    "debug.graph_dump.",
    "export.",
    "ge_config.",
    "fusion_config.",
    "experimental_config.topology_sorting_strategy",
    "experimental_config.cc_parallel_enable",
    "experimental_config.enable_ref_data",
    "experimental_config.tiling_schedule_optimize",
    "experimental_config.enable_view_optimize",
    "experimental_config.static_model_ops_lower_limit",
)
#: options whose results a program would miss here, with the reason: they raise
_UNSUPPORTED = {
    "experimental_config.aot_config_enable_joint_graph": (
        "forward and backward are compiled apart, each when it is needed"
    ),
    "export.experimental.enable_lite_export": "only the standard operator set is exported",
}
_PLAN = "it is written on the converted graph, whose plan nothing executes here"
#: options that steer the card's machinery and change no result, by the beginning of their names: they warn
_WITHOUT_EFFECT = {
    "aoe_config.": "operators are not tuned on an emulated device",
    "debug.deadlock_check": "no task occupies cores here, so no two streams can starve each other",
    "experimental_config.aclgraph._aclnn_static_shape_kernel": "no kernels are built per shape here",
    "experimental_config.aclgraph._super_kernel": "no kernels are joined into super kernels here",
    "experimental_config.cc_parallel_enable": _PLAN,
    "experimental_config.enable_view_optimize": _PLAN,
    "experimental_config.memory_efficiency": _PLAN,
    "experimental_config.static_model_ops_lower_limit": _PLAN,
    "experimental_config.tiling_schedule_optimize": _PLAN,
    "experimental_config.topology_sorting_strategy": _PLAN,
    "fusion_config.": _PLAN,
    "ge_config.": _PLAN,
}


class CompilerConfig(Section):
    """The configuration of a backend: `torchair.get_npu_backend(compiler_config=config)`.

    Sections hold options; an unknown name or value raises and names what is allowed.

    Differs from upstream: options that steer the card's machinery (tuning, schedules, cores, tiling, kernels per shape)
    have no effect, and a backend made with them warns of it; those of the graph engine are attributes of the converted
    graph. Joint graphs and the lite operator set raise NotImplementedError.
    """

    def __init__(self) -> None:
        self.debug = _sections._Debug()
        self.aoe_config = _sections._Aoe()
        self.export = _sections._Export()
        self.dump_config = _sections._DumpConfig()
        self.fusion_config = _sections._Fusion()
        self.experimental_config = _sections._Experimental()
        self.inference_config = _sections._Inference()
        self.ge_config = _sections._Ge()
        self.aclgraph_config = _sections._AclGraph()
        self.mode = Option("max-autotune", MODES)
        self.post_grad_custom_pre_pass = Function()
        self.post_grad_custom_post_pass = Function()
        self._seal()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompilerConfig) and self.changed() == other.changed()

    __hash__ = None  # type: ignore[assignment]

    def as_dict(self) -> tuple[dict[str, str], dict[str, str]]:
        """Options in the graph engine's names: of one graph, and of the process."""
        return _sections.engine_options(self)

    @property
    def captures(self) -> bool:
        """Whether graphs are captured and replayed rather than given to the graph engine."""
        return self.mode.raw != "max-autotune"


def check_support(config: CompilerConfig) -> None:
    """Raises for options that cannot be had here, warns of those without effect, here or in this mode."""
    changed = config.changed()
    for name, reason in _UNSUPPORTED.items():
        if changed.get(name):
            raise NotImplementedError(
                f"config.{name} = {changed[name]!r} is not supported here: {reason}"
            )
    others = _other_mode(config, changed)
    idle = [f"config.{name} = {changed[name]!r}" for name in others]
    if idle:
        warnings.warn(
            f"these options have no effect in mode {config.mode.raw}: {', '.join(idle)}",
            UserWarning,
            stacklevel=3,
        )
    idle = [
        f"config.{name} = {value!r} ({reason})"
        for name, value in changed.items()
        for start, reason in _WITHOUT_EFFECT.items()
        if name.startswith(start) and name not in others
    ]
    if idle:
        warnings.warn(
            f"these options have no effect on an emulated device: {', '.join(idle)}",
            UserWarning,
            stacklevel=3,
        )


def _other_mode(config: CompilerConfig, changed: dict[str, Any]) -> list[str]:
    """The changed options that the mode does not look at."""
    names = [n for n in changed if n.startswith(_ENGINE_ONLY if config.captures else _CAPTURE_ONLY)]
    if config.captures and changed.get("debug.graph_dump.type") == "py":
        names = [name for name in names if not name.startswith("debug.graph_dump.")]
    return names


def set_by_path(config: Any, path: str, value: Any) -> None:
    """Sets `config.a.b.c` from "a.b.c"."""
    *sections, name = path.split(".")
    for section in sections:
        config = getattr(config, section)
    setattr(config, name, value)
