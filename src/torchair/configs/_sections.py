"""The sections of CompilerConfig, with every option that upstream documents."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import Any

from torchair.configs._options import (
    INT64_MAX,
    Anything,
    ExistingDirectory,
    ExistingFile,
    Flag,
    Function,
    Integers,
    IntRange,
    Option,
    Pattern,
    RealPath,
    Section,
    Typed,
)


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the number of processes; (0, 1) outside torch.distributed."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def timestamp() -> str:
    return datetime.now(tz=timezone.utc).strftime("%Y%m%d%H%M%S%f")


class _File(Section):
    """A file that the compiler writes if its type is set."""

    type: Option
    path: Option

    @property
    def enabled(self) -> bool:
        return self.type.raw is not None

    def full_path(self, name: str) -> str:
        folder = self.path.raw or "."
        os.makedirs(folder, exist_ok=True)
        rank, _ = rank_and_world()
        stem = f"{name}_rank_{rank}_pid_{os.getpid()}_ts_{timestamp()}"
        return os.path.join(folder, f"{stem}.{self.type.raw}")


class _GraphDump(_File):
    """Structure of each compiled graph: `type` txt, pbtxt or py; `path` the folder, by default the current one."""

    def __init__(self) -> None:
        self.type = Option(None, ["txt", "pbtxt", "py"])
        self.path = RealPath(None)
        self._seal()


class _DataDump(_File):
    """Inputs and outputs of each node of the FX graph, run eagerly; `filter` picks nodes."""

    def __init__(self) -> None:
        self.type = Option(None, ["npy"])
        self.filter = Function()
        self.path = RealPath(None)
        self._seal()


class _FxSummary(_File):
    """A table of the operators of the FX graph; `skip_compile` then runs it eagerly."""

    def __init__(self) -> None:
        self.type = Option(None, ["csv"])
        self.skip_compile = Flag(True)
        self.path = RealPath(None)
        self._seal()


class _AclGraphDebug(Section):
    """Details of captured graphs."""

    def __init__(self) -> None:
        self.disable_reinplace_inplaceable_ops_pass = Flag(False)
        self.disable_reinplace_input_mutated_ops_pass = Flag(False)
        self.disable_mempool_reuse_in_same_fx = Flag(False)
        self.enable_output_clone = Flag(False)
        self.static_capture_size_limit = IntRange(64, 1, INT64_MAX)
        self.clone_input = Flag(True)
        self.remove_cat_ops = Flag(True)
        self.force_recapture = Flag(False)
        self.capture_error_mode = Option("global", ["global", "thread_local", "relaxed"])
        self._seal()


class _Debug(Section):
    def __init__(self) -> None:
        self.graph_dump = _GraphDump()
        self.data_dump = _DataDump()
        self.fx_summary = _FxSummary()
        self.run_eagerly = Flag(False)
        self.aclgraph = _AclGraphDebug()
        self.deadlock_check = Flag(False)
        self._seal()


class _Aoe(Section):
    """Automatic tuning of operators: there is nothing to tune here."""

    def __init__(self) -> None:
        self.aoe_mode = Option(None, ["2"])
        self.work_path = ExistingDirectory("./")
        self.aoe_config_file = ExistingFile()
        self._seal()


class _ExportExperimental(Section):
    def __init__(self) -> None:
        self.enable_record_nn_module_stack = Flag(False)
        self.auto_atc_config_generated = Flag(False)
        self.enable_lite_export = Flag(False)
        self._seal()


class _Export(Section):
    def __init__(self) -> None:
        self.export_mode = Flag(False)
        self.export_path_dir = ExistingDirectory("./")
        self.export_name = Typed(None, str)
        self.weight_name = Typed(None, dict)
        self.inputs_name = Typed(None, dict, list)
        self.experimental = _ExportExperimental()
        self._seal()


class _DumpConfig(Section):
    """Inputs and outputs of operators while the compiled graph runs."""

    def __init__(self) -> None:
        self.enable_dump = Flag(False)
        self.dump_path = ExistingDirectory("./")
        self.dump_mode = Option("all", ["input", "output", "all"])
        self.quant_dumpable = Flag(False)
        self.dump_step = Pattern("", r"((\d+(-\d+)?)(\|(\d+(-\d+)?))*)?", "0|1|2-5|6")
        self.dump_layer = Pattern("", r'[0-9a-zA-Z_" /\\.]*', "Mul_1 Add1 Conv2D_1")
        self.dump_data = Option("tensor", ["tensor", "stats"])
        self.dump_config_path = ExistingFile(".json")
        self.data_dump_stage = Option("optimized", ["original", "optimized"])
        self._seal()

    def full_path(self) -> str:
        rank, world = rank_and_world()
        return os.path.join(self.dump_path.raw, f"worldsize{world}_global_rank{rank}")


class _Fusion(Section):
    def __init__(self) -> None:
        self.fusion_switch_file = ExistingFile()
        self._seal()


class _Inference(Section):
    def __init__(self) -> None:
        self.dynamic_gears_merge_policy = Option("zip", ["zip", "product"])
        self._seal()


class _Ge(Section):
    def __init__(self) -> None:
        self.enable_single_stream = Flag(False)
        self.oo_level = Option("O3", ["O1", "O3"])
        self.oo_constant_folding = Flag(None)
        self.oo_dead_code_elimination = Flag(None)
        self.export_compile_stat = Option("2", ["0", "1", "2"])
        self.aicore_num = Option(None)
        self.optimization_switch = Option(None)
        self._seal()


class _AclGraph(Section):
    def __init__(self) -> None:
        self.use_custom_pool = Anything(None)
        self._seal()


class _AclGraphExperimental(Section):
    def __init__(self) -> None:
        self._aclnn_static_shape_kernel = Flag(False)
        self._aclnn_static_shape_kernel_build_dir = Typed(None, str)
        self._aclnn_static_shape_kernel_sym_value_range = Integers(None)
        self._aclnn_static_shape_kernel_sym_index = IntRange(0, 0, INT64_MAX)
        self._super_kernel_optimize = Flag(False)
        self._super_kernel_optimize_options = Typed(None, dict)
        self._super_kernel_debug_options = Typed(None, dict)
        self._seal()


class _Experimental(Section):
    def __init__(self) -> None:
        self.cc_parallel_enable = Flag(False)
        self.keep_inference_input_mutations = Flag(True)
        self.memory_efficiency = Flag(False)
        self.frozen_parameter = Flag(False)
        self.static_model_ops_lower_limit = IntRange(None, -1, INT64_MAX)
        self.jit_compile = Option("auto", ["auto"])
        self.npu_fx_pass = Flag(False)
        self.aot_config_enable_joint_graph = Flag(False)
        self.aot_config_output_loss_index = IntRange(0, 0, INT64_MAX)
        self.topology_sorting_strategy = Option("DFS", ["BFS", "DFS", "RDFS", "StableRDFS"])
        self.enable_ref_data = Flag(False)
        self.enable_view_optimize = Flag(True)
        self.remove_noop_ops = Flag(True)
        self.tiling_schedule_optimize = Flag(False)
        self.pattern_fusion_pass = Flag(True)
        self.aclgraph = _AclGraphExperimental()
        self._seal()


def engine_options(config: Any) -> tuple[dict[str, str], dict[str, str]]:
    """(of the graph, of the process): options in the graph engine's names, kept with each converted graph."""
    yes = {True: "true", False: "false"}
    experimental, ge = config.experimental_config, config.ge_config
    order = {"BFS": "0", "DFS": "1", "RDFS": "2", "StableRDFS": "3"}
    sorting = (
        "StableRDFS" if ge.oo_level.raw == "O1" else experimental.topology_sorting_strategy.raw
    )
    local = {
        "ge.tiling_schedule_optimize": experimental.tiling_schedule_optimize.value,
        "ge.featureBaseRefreshable": experimental.memory_efficiency.value,
        "ge.topoSortingMode": order[sorting],
        "ge.jit_compile": "2",
        "ge.exec.static_model_ops_lower_limit": experimental.static_model_ops_lower_limit.value,
        "ge.enableViewOptimize": experimental.enable_view_optimize.value,
        "ge.enableRefData": experimental.enable_ref_data.value,
        "ge.frozenParameter": experimental.frozen_parameter.value,
    }
    process = {
        "ge.exec.enableEngineParallel": experimental.cc_parallel_enable.value,
        "ge.fusionSwitchFile": config.fusion_config.fusion_switch_file.value,
        "ge.aicoreNum": ge.aicore_num.value,
        "ge.enableSingleStream": yes[bool(ge.enable_single_stream)],
        "ge.oo.level": ge.oo_level.value,
        "ge.oo.constantFolding": yes.get(ge.oo_constant_folding.raw),
        "ge.oo.deadCodeElimination": yes.get(ge.oo_dead_code_elimination.raw),
        "ge.exportCompileStat": ge.export_compile_stat.value,
        "ge.optimizationSwitch": ge.optimization_switch.value,
    }
    dump = config.dump_config
    if dump.enable_dump:
        process |= {
            "ge.exec.enableDump": "1",
            "ge.exec.dumpPath": dump.full_path(),
            "ge.exec.dumpMode": dump.dump_mode.value,
            "ge.quant_dumpable": dump.quant_dumpable.value,
            "ge.exec.dumpStep": dump.dump_step.value or None,
            "ge.exec.dumpLayer": dump.dump_layer.value or None,
            "ge.exec.dumpData": dump.dump_data.value,
        }
    return _set(local), _set(process)


def _set(options: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}
