"""torch_npu.profiler._ExperimentalConfig: every field, valid and wrong."""

from __future__ import annotations

import pytest

import torch_npu.profiler as prof
from torch_npu.profiler import (
    AiCMetrics,
    ExportType,
    HostSystem,
    ProfilerLevel,
    _ExperimentalConfig,
)


def test_what_is_supported():
    assert prof.supported_profiler_level() == {"Level0", "Level1", "Level2", "Level_none"}
    assert prof.supported_export_type() == {"text", "db"}
    assert len(prof.supported_ai_core_metrics()) == 9
    assert AiCMetrics.PipeUtilization in prof.supported_ai_core_metrics()
    assert prof.supported_activities() == {prof.ProfilerActivity.CPU, prof.ProfilerActivity.NPU}


def test_defaults_are_quiet(capsys):
    config = _ExperimentalConfig()
    assert config._profiler_level == ProfilerLevel.Level0
    assert config._aic_metrics == AiCMetrics.AiCoreNone
    assert config.export_type == ["text"]
    assert config._data_simplification is True
    assert config.gc_detect_threshold is None and not config.with_gc and not config.tx_enabled
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("level", [ProfilerLevel.Level1, ProfilerLevel.Level2])
@pytest.mark.parametrize("metrics", sorted(prof.supported_ai_core_metrics()))
def test_metrics_from_level1_on(capsys, level, metrics):
    assert _ExperimentalConfig(profiler_level=level, aic_metrics=metrics)._aic_metrics == metrics
    assert capsys.readouterr().out == ""


def test_metrics_below_level1_are_off(capsys):
    assert _ExperimentalConfig(aic_metrics=AiCMetrics.Memory)._aic_metrics == AiCMetrics.AiCoreNone
    assert "aic_metrics needs profiler_level" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("field", "wrong", "attribute", "value"),
    [
        ("profiler_level", "Level9", "_profiler_level", "Level0"),
        ("l2_cache", 1, "_l2_cache", False),
        ("msprof_tx", "yes", "_msprof_tx", False),
        ("mstx", None, "_mstx", False),
        ("data_simplification", 0, "_data_simplification", True),
        ("record_op_args", "x", "record_op_args", False),
        ("op_attr", 2, "_op_attr", False),
        ("gc_detect_threshold", -1, "_gc_detect_threshold", None),
        ("gc_detect_threshold", "1", "_gc_detect_threshold", None),
        ("export_type", "xml", "_export_type", ["text"]),
        ("export_type", [], "_export_type", ["text"]),
        ("export_type", 5, "_export_type", ["text"]),
        ("host_sys", "cpu", "_host_sys", []),
        ("host_sys", ["gpu"], "_host_sys", []),
        ("sys_io", 1, "_sys_io", False),
        ("sys_interconnection", "on", "_sys_interconnection", False),
    ],
)
def test_a_wrong_value_is_the_default_with_a_warning(capsys, field, wrong, attribute, value):
    config = _ExperimentalConfig(**{field: wrong})
    assert getattr(config, attribute) == value
    said = capsys.readouterr().out
    assert f"Invalid parameter {field}" in said and repr(wrong) in said


def test_wrong_metrics_at_level1(capsys):
    config = _ExperimentalConfig(profiler_level=ProfilerLevel.Level1, aic_metrics="cycles")
    assert config._aic_metrics == AiCMetrics.PipeUtilization
    assert "Invalid parameter aic_metrics" in capsys.readouterr().out


def test_level_none_switches_marks_on(capsys):
    assert _ExperimentalConfig(profiler_level=ProfilerLevel.Level_none).tx_enabled
    assert "mstx is switched on" in capsys.readouterr().out


def test_the_old_name_of_mstx():
    with pytest.warns(UserWarning, match="old name of the parameter mstx"):
        assert _ExperimentalConfig(msprof_tx=True).tx_enabled


def test_domains(capsys):
    assert _ExperimentalConfig(mstx_domain_include=["a"])._mstx_domain_include == []
    assert "with mstx only" in capsys.readouterr().out
    config = _ExperimentalConfig(
        mstx=True, mstx_domain_include=["b", "a", "a"], mstx_domain_exclude=["c"]
    )
    assert config._mstx_domain_include == ["a", "b"] and config._mstx_domain_exclude == []
    assert "mstx_domain_exclude has no effect" in capsys.readouterr().out
    assert _ExperimentalConfig(mstx=True, mstx_domain_exclude=["c"])._mstx_domain_exclude == ["c"]
    assert _ExperimentalConfig(mstx=True, mstx_domain_include=[1])._mstx_domain_include == []
    assert "expected a list of str" in capsys.readouterr().out


def test_op_attr_needs_databases(capsys):
    assert _ExperimentalConfig(op_attr=True)._op_attr is False
    assert "op_attr has an effect with export_type Db only" in capsys.readouterr().out
    assert _ExperimentalConfig(op_attr=True, export_type=ExportType.Db)._op_attr is True


def test_lists_and_zero(capsys):
    config = _ExperimentalConfig(
        export_type=["db", "text", "db"],
        host_sys=[HostSystem.MEM, HostSystem.CPU],
        gc_detect_threshold=0,
    )
    assert config.export_type == ["db", "text"] and config._host_sys == ["cpu", "mem"]
    assert config.with_gc and "every garbage collection" in capsys.readouterr().out


def test_op_attr_needs_a_level(capsys):
    config = _ExperimentalConfig(
        op_attr=True, export_type="db", profiler_level="Level_none", mstx=True
    )
    assert config._op_attr is False
    assert "op_attr has no effect with profiler_level Level_none" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [HostSystem.OSRT, HostSystem.NUMA])
def test_what_the_host_cannot_count_is_told(capsys, kind):
    assert _ExperimentalConfig(host_sys=[HostSystem.CPU, kind])._host_sys == ["cpu", kind]
    assert f"host_sys {kind!r} has no effect" in capsys.readouterr().out
