"""CompilerConfig: every documented option, its default, what it takes, and what it refuses."""

from __future__ import annotations

import warnings

import pytest

import torchair
from torchair.configs.compiler_config import CompilerConfig, check_support
from torchair.npugraph_ex import config_of

YES_NO = [True, False]
#: option -> (default, values it takes)
OPTIONS = {
    "mode": ("max-autotune", ["max-autotune", "reduce-overhead", "npugraph_ex"]),
    "debug.run_eagerly": (False, YES_NO),
    "debug.graph_dump.type": (None, ["txt", "pbtxt", "py"]),
    "debug.data_dump.type": (None, ["npy"]),
    "debug.fx_summary.type": (None, ["csv"]),
    "debug.fx_summary.skip_compile": (True, YES_NO),
    "debug.deadlock_check": (False, YES_NO),
    "debug.aclgraph.disable_reinplace_inplaceable_ops_pass": (False, YES_NO),
    "debug.aclgraph.disable_reinplace_input_mutated_ops_pass": (False, YES_NO),
    "debug.aclgraph.disable_mempool_reuse_in_same_fx": (False, YES_NO),
    "debug.aclgraph.enable_output_clone": (False, YES_NO),
    "debug.aclgraph.clone_input": (True, YES_NO),
    "debug.aclgraph.remove_cat_ops": (True, YES_NO),
    "debug.aclgraph.static_capture_size_limit": (64, [1, 2**63 - 1]),
    "export.export_mode": (False, YES_NO),
    "export.experimental.auto_atc_config_generated": (False, YES_NO),
    "export.experimental.enable_record_nn_module_stack": (False, YES_NO),
    "dump_config.enable_dump": (False, YES_NO),
    "dump_config.dump_mode": ("all", ["input", "output", "all"]),
    "dump_config.quant_dumpable": (False, YES_NO),
    "dump_config.dump_step": ("", ["0|1", "0|3-5|10"]),
    "dump_config.dump_layer": ("", ["Add_1Mul_1 Add2"]),
    "dump_config.dump_data": ("tensor", ["tensor", "stats"]),
    "dump_config.data_dump_stage": ("optimized", ["original", "optimized"]),
    "experimental_config.cc_parallel_enable": (False, YES_NO),
    "experimental_config.keep_inference_input_mutations": (True, YES_NO),
    "experimental_config.memory_efficiency": (False, YES_NO),
    "experimental_config.frozen_parameter": (False, YES_NO),
    "experimental_config.static_model_ops_lower_limit": (None, [-1, 0, 9223372036854775807]),
    "experimental_config.jit_compile": ("auto", ["auto"]),
    "experimental_config.npu_fx_pass": (False, YES_NO),
    "experimental_config.topology_sorting_strategy": ("DFS", ["BFS", "DFS", "RDFS", "StableRDFS"]),
    "experimental_config.enable_ref_data": (False, YES_NO),
    "experimental_config.enable_view_optimize": (True, YES_NO),
    "experimental_config.remove_noop_ops": (True, YES_NO),
    "experimental_config.tiling_schedule_optimize": (False, YES_NO),
    "experimental_config.pattern_fusion_pass": (True, YES_NO),
    "inference_config.dynamic_gears_merge_policy": ("zip", ["zip", "product"]),
    "ge_config.enable_single_stream": (False, YES_NO),
    "ge_config.oo_level": ("O3", ["O1", "O3"]),
    "ge_config.oo_constant_folding": (None, YES_NO),
    "ge_config.oo_dead_code_elimination": (None, YES_NO),
    "ge_config.export_compile_stat": ("2", ["0", "1", "2"]),
    "ge_config.aicore_num": (None, ["24|48"]),
    "ge_config.optimization_switch": (None, ["AutomaticUbFusion:off"]),
}


def holder(config, path):
    *sections, name = path.split(".")
    for section in sections:
        config = getattr(config, section)
    return config, name


@pytest.mark.parametrize("path", OPTIONS)
def test_option(path):
    default, values = OPTIONS[path]
    section, name = holder(CompilerConfig(), path)
    assert getattr(section, name).raw == default
    for value in values:
        setattr(section, name, value)
        assert getattr(section, name).raw == value
        text = {True: "1", False: "0"}.get(value, str(value)) if value in YES_NO else str(value)
        assert getattr(section, name).value == text


@pytest.mark.parametrize("path", [p for p, (_, values) in OPTIONS.items() if len(values) != 1])
def test_refused_values_name_the_allowed_ones(path):
    section, name = holder(CompilerConfig(), path)
    free = (
        getattr(section, name).allowed is None and type(getattr(section, name)).__name__ == "Option"
    )
    if free:
        pytest.fail(f"{path} takes everything")
    with pytest.raises(ValueError, match=f"{name}: expected"):
        setattr(section, name, object())
    assert getattr(section, name).raw == OPTIONS[path][0]


@pytest.mark.parametrize(
    "path", ["debug.no", "debug.aclgraph.no", "ge_config.no", "no", "export.experimental.no"]
)
def test_unknown_names_are_refused_and_the_known_ones_named(path):
    section, name = holder(CompilerConfig(), path)
    with pytest.raises(ValueError, match=r"has no option no, all options are \['\w+'"):
        setattr(section, name, 1)
    with pytest.raises(AttributeError, match=r"has no option no, all options are \['\w+'"):
        getattr(section, name)


def test_sections_are_replaced_by_their_own_kind_alone():
    config = CompilerConfig()
    with pytest.raises(ValueError, match="debug: expected a _Debug, received dict"):
        config.debug = {}


def test_paths(tmp_path):
    config = CompilerConfig()
    config.debug.graph_dump.path = str(tmp_path)
    assert config.debug.graph_dump.path.raw == str(tmp_path)
    for section, name in (
        (config.dump_config, "dump_path"),
        (config.export, "export_path_dir"),
        (config.fusion_config, "fusion_switch_file"),
        (config.dump_config, "dump_config_path"),
    ):
        with pytest.raises(FileNotFoundError, match=f"{name}: expected .* exists, received '/no'"):
            setattr(section, name, "/no")
    switch = tmp_path / "switch.json"
    switch.write_text("{}")
    config.fusion_config.fusion_switch_file = str(switch)
    assert config.as_dict()[1]["ge.fusionSwitchFile"] == str(switch)


@pytest.mark.parametrize("name", ["post_grad_custom_pre_pass", "post_grad_custom_post_pass"])
def test_passes_are_callables(name):
    config = CompilerConfig()
    setattr(config, name, print)
    assert getattr(config, name).value is print
    with pytest.raises(TypeError, match=f"{name}: expected a callable or None, received int"):
        setattr(config, name, 3)


def test_engine_options():
    config = CompilerConfig()
    config.experimental_config.topology_sorting_strategy = "BFS"
    config.experimental_config.tiling_schedule_optimize = True
    config.ge_config.aicore_num = "24|48"
    config.ge_config.oo_constant_folding = False
    local, process = config.as_dict()
    assert local["ge.topoSortingMode"] == "0"
    assert local["ge.tiling_schedule_optimize"] == "1"
    assert process["ge.aicoreNum"] == "24|48"
    assert process["ge.oo.constantFolding"] == "false"
    config.ge_config.oo_level = "O1"  # sorts stably whatever the strategy
    assert config.as_dict()[0]["ge.topoSortingMode"] == "3"


def test_equality():
    one, other = CompilerConfig(), CompilerConfig()
    assert one == other
    other.debug.run_eagerly = True
    assert one != other


@pytest.mark.parametrize(
    "path",
    [
        "experimental_config.aot_config_enable_joint_graph",
        "export.experimental.enable_lite_export",
    ],
)
def test_options_that_cannot_be_had_raise(path):
    config = CompilerConfig()
    section, name = holder(config, path)
    setattr(section, name, True)
    with pytest.raises(NotImplementedError, match=f"config.{path} = True is not supported here: "):
        torchair.get_npu_backend(compiler_config=config)


@pytest.mark.parametrize(
    ("path", "value", "mode"),
    [
        ("debug.deadlock_check", True, "max-autotune"),
        ("aoe_config.aoe_mode", "2", "max-autotune"),
        ("ge_config.oo_level", "O1", "max-autotune"),
        ("ge_config.aicore_num", "24|48", "max-autotune"),
        ("experimental_config.topology_sorting_strategy", "BFS", "max-autotune"),
        ("experimental_config.tiling_schedule_optimize", True, "max-autotune"),
        ("experimental_config.aclgraph._aclnn_static_shape_kernel", True, "reduce-overhead"),
        ("experimental_config.aclgraph._super_kernel_optimize", True, "npugraph_ex"),
    ],
)
def test_options_of_the_cards_machinery_warn(path, value, mode):
    config = CompilerConfig()
    config.mode = mode
    section, name = holder(config, path)
    setattr(section, name, value)
    with pytest.warns(
        UserWarning, match=rf"no effect on an emulated device: config\.{path} = .* \(\w+"
    ):
        torchair.get_npu_backend(compiler_config=config)


def test_short_options_of_the_cards_machinery_warn():
    with pytest.warns(UserWarning, match="no effect on an emulated device: .*static_shape_kernel"):
        config_of({"static_kernel_compile": True})


def test_options_of_the_other_mode_warn():
    config = CompilerConfig()
    config.debug.aclgraph.clone_input = False
    with pytest.warns(UserWarning, match="no effect in mode max-autotune: .*clone_input = False"):
        check_support(config)
    config.mode = "reduce-overhead"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_support(config)
    config.ge_config.oo_level = "O1"
    with pytest.warns(UserWarning, match="no effect in mode reduce-overhead: .*oo_level"):
        check_support(config)
