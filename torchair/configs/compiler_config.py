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
#: options whose machinery does not exist without the card, with the reason
_WITHOUT_EFFECT = {
    "aoe_config.aoe_mode": "operators are not tuned on an emulated device",
    "debug.deadlock_check": "no task occupies cores here, so no two streams can starve each other",
    "experimental_config.aot_config_enable_joint_graph": (
        "forward and backward are compiled apart, each when it is needed"
    ),
    "export.experimental.enable_lite_export": "only the standard operator set is exported",
}


class CompilerConfig(Section):
    """The configuration of a backend: `torchair.get_npu_backend(compiler_config=config)`.

    Sections hold options; an unknown name or value raises and names what is allowed. Options that have no meaning
    without the card raise NotImplementedError when a backend is made from them.

    Differs from upstream: options of the graph engine that choose schedules or memory plans (sorting, streams, cores,
    tiling, optimisation levels) are recorded in the converted graph and change no result here.
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
    """Raises for options without any effect here, warns of those that the mode does not look at."""
    changed = config.changed()
    for name, reason in _WITHOUT_EFFECT.items():
        if changed.get(name):
            raise NotImplementedError(
                f"config.{name} = {changed[name]!r} has no effect here: {reason}"
            )
    others = _ENGINE_ONLY if config.captures else _CAPTURE_ONLY
    idle = [
        f"config.{name} = {value!r}" for name, value in changed.items() if name.startswith(others)
    ]
    if (
        config.captures
        and "debug.graph_dump.type" in changed
        and changed["debug.graph_dump.type"] == "py"
    ):
        idle = [one for one in idle if not one.startswith("config.debug.graph_dump.")]
    if idle:
        warnings.warn(
            f"these options have no effect in mode {config.mode.raw}: {', '.join(idle)}",
            UserWarning,
            stacklevel=3,
        )


def set_by_path(config: Any, path: str, value: Any) -> None:
    """Sets `config.a.b.c` from "a.b.c"."""
    *sections, name = path.split(".")
    for section in sections:
        config = getattr(config, section)
    setattr(config, name, value)
