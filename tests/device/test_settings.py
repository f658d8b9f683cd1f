"""The settings: every SOFTNPU_* variable, ASCEND_RT_VISIBLE_DEVICES and the banner."""

from __future__ import annotations

import pytest

from softnpu import chips, settings, torch_versions
from tests.device.process import output, run_python

GIB = 2**30


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("SOFTNPU", "0", "enabled", False),
        ("SOFTNPU", "1", "enabled", True),
        ("SOFTNPU_SOC", "Ascend310P3", "soc", "Ascend310P3"),
        ("SOFTNPU_DEVICES", "1", "devices", 1),
        ("SOFTNPU_DEVICES", "64", "devices", 64),
        ("SOFTNPU_MEMORY", "32GiB", "memory", 32 * GIB),
        ("SOFTNPU_MEMORY", "1.5 GiB", "memory", 3 * GIB // 2),
        ("SOFTNPU_MEMORY", "512MiB", "memory", GIB // 2),
        ("SOFTNPU_MEMORY", "4g", "memory", 4 * GIB),
        ("SOFTNPU_MEMORY", "1T", "memory", 1024 * GIB),
        ("SOFTNPU_MEMORY", "4194304", "memory", 4 * 2**20),
        ("SOFTNPU_CANN_VERSION", "8.2.RC1", "cann_version", "8.2.RC1"),
        ("SOFTNPU_STRICT", "0", "strict", False),
        ("SOFTNPU_QUIET", "1", "quiet", True),
        ("SOFTNPU_QUIET", "", "quiet", False),
    ],
)
def test_values(variable, text, field, value):
    found = settings.read({variable: text})
    assert getattr(found, field) == value
    others = {k: v for k, v in vars(settings.read({})).items() if k != field}
    assert others.items() <= vars(found).items()


def test_defaults_are_the_designs():
    assert settings.read({}) == settings.Settings(
        enabled=True,
        soc="Ascend910B3",
        devices=8,
        memory=None,
        cann_version=torch_versions.cann(torch_versions.stated()),
        strict=True,
        quiet=False,
    )
    assert chips.get("Ascend910B3").memory == 64 * GIB


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("SOFTNPU", "yes"),
        ("SOFTNPU", "2"),
        ("SOFTNPU_SOC", "Ascend000X"),
        ("SOFTNPU_SOC", "ascend910b3"),
        ("SOFTNPU_DEVICES", "0"),
        ("SOFTNPU_DEVICES", "-1"),
        ("SOFTNPU_DEVICES", "65"),
        ("SOFTNPU_DEVICES", "two"),
        ("SOFTNPU_MEMORY", "lots"),
        ("SOFTNPU_MEMORY", "0"),
        ("SOFTNPU_MEMORY", "-4GiB"),
        ("SOFTNPU_MEMORY", "1MiB"),
        ("SOFTNPU_MEMORY", "99999999999999999999"),
        ("SOFTNPU_MEMORY", "16777216T"),
        ("SOFTNPU_MEMORY", "9" * 70),
        ("SOFTNPU_CANN_VERSION", "new"),
        ("SOFTNPU_STRICT", "true"),
        ("SOFTNPU_QUIET", "no"),
    ],
)
def test_a_wrong_value_names_the_variable_and_the_value(variable, text):
    with pytest.raises(ValueError) as error:
        settings.read({variable: text})
    assert variable in str(error.value) and repr(text) in str(error.value)


@pytest.mark.parametrize("variable", ["SOFTNPU_MEMORY", "SOFTNPU_DEVICES"])
def test_numbers_of_any_length_are_answered(variable):
    with pytest.raises(ValueError, match=f"{variable} must be a .*, but is '9+'"):
        settings.read({variable: "9" * 10_000})
    with pytest.raises(ValueError, match="ASCEND_RT_VISIBLE_DEVICES must be device numbers"):
        settings.visible_devices({"ASCEND_RT_VISIBLE_DEVICES": "9" * 10_000})


@pytest.mark.parametrize("variable", sorted(settings._READERS))
def test_a_value_of_any_length_is_shown_in_part(variable):
    with pytest.raises(ValueError, match=variable) as error:
        settings.read({variable: "9." * 10_000})
    assert len(str(error.value)) < 800


def test_an_unknown_variable_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match=r"SOFTNPU_MEMROY is not a setting.*SOFTNPU_MEMORY"):
        settings.read({"SOFTNPU_MEMROY": "1GiB"})


def test_an_unknown_chip_lists_the_known_ones():
    with pytest.raises(ValueError, match="Ascend910B4") as error:
        settings.read({"SOFTNPU_SOC": "TPUv5"})
    assert all(name in str(error.value) for name in chips.names())


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("3", [3]),
        ("5,2", [5, 2]),
        (" 1 , 0 ", [1, 0]),
        ("1,1", [1]),
        ("", []),
        ("0,9,1", [0]),  # ends at the first device that does not exist
    ],
)
def test_visible_devices(text, devices):
    environment = {} if text is None else {"ASCEND_RT_VISIBLE_DEVICES": text}
    with settings.override(enabled=True, devices=8):
        assert settings.visible_devices(environment) == devices


def test_visible_devices_must_be_numbers():
    with pytest.raises(ValueError, match=r"ASCEND_RT_VISIBLE_DEVICES.*'0,x'"):
        settings.visible_devices({"ASCEND_RT_VISIBLE_DEVICES": "0,x"})


def test_override_lasts_for_the_block():
    before = settings.current()
    with pytest.raises(KeyError), settings.override(strict=False):
        assert not settings.strict()
        raise KeyError
    assert settings.current() is before


def test_settings_reach_the_device():
    printed = output(
        """
        import torch, torch_npu
        print(torch.npu.device_count(), torch.npu.get_device_name())
        print(torch.npu.mem_get_info("npu:1")[1], torch.npu.get_device_properties(1).total_memory)
        print(torch.ones(2, device="npu:1").sum().item())
        try:
            torch.empty(3 * 2**30, dtype=torch.uint8, device="npu")
        except torch.OutOfMemoryError:
            print("full")
        """,
        SOFTNPU_SOC="Ascend910B4",
        SOFTNPU_DEVICES="2",
        SOFTNPU_MEMORY="2GiB",
    )
    assert printed.split("\n") == ["2 Ascend910B4", f"{2 * GIB} {2 * GIB}", "2.0", "full"]


def test_softnpu_0_leaves_no_device_and_import_works():
    printed = output(
        """
        import torch, torch_npu
        print(torch.npu.is_available(), torch.npu.device_count(), torch.accelerator.is_available())
        print(torch.ones(3).sum().item())
        torch.manual_seed(0)
        torch.npu.manual_seed_all(0)
        for use in (
            lambda: torch.ones(3, device="npu"),
            lambda: torch.ones(3).npu(),
            lambda: torch.npu.set_device(0),
            lambda: torch.npu.Stream(),
            lambda: torch.npu.current_device(),
            lambda: torch.npu.synchronize(),
        ):
            try:
                use()
            except (RuntimeError, AssertionError) as error:
                print("SOFTNPU" in str(error) or "0 NPU device" in str(error), type(error).__name__)
            else:
                print("no error")
        """,
        SOFTNPU="0",
    ).split("\n")
    assert printed[:2] == ["False 0 False", "3.0"]
    assert len(printed) == 8 and all(line.startswith("True") for line in printed[2:]), printed


def test_visible_devices_are_renumbered_from_zero():
    printed = output(
        """
        import torch, torch_npu
        print(torch.npu.device_count(), torch.ones(1, device="npu:1").device)
        try:
            torch.ones(1, device="npu:2")
        except RuntimeError as error:
            print(error)
        """,
        ASCEND_RT_VISIBLE_DEVICES="6,2",
    ).split("\n")
    assert printed[0] == "2 npu:1"
    assert "index 2" in printed[1] and "2 NPU device" in printed[1]


@pytest.mark.parametrize(
    ("variable", "text"), [("SOFTNPU_SOC", "Ascend000X"), ("SOFTNPU_COLOR", "blue")]
)
def test_importing_with_a_bad_setting_raises_and_does_not_crash(variable, text):
    done = run_python("import torch_npu", **{variable: text})
    assert done.returncode == 1, done.stderr
    assert "ValueError" in done.stderr and variable in done.stderr


BANNER = """
import sys, torch, torch_npu
print("imported", file=sys.stderr, flush=True)
torch.ones(1, device="npu")
print("used", file=sys.stderr, flush=True)
torch.ones(1, device="npu:1") + 1
torch.npu.synchronize()
"""


def test_the_banner_appears_once_and_at_first_use():
    lines = run_python(BANNER).stderr.strip().split("\n")
    assert lines[0] == "imported" and lines[2:] == ["used"]
    assert lines[1].startswith("softnpu: emulating 8 x Ascend910B3 (64 GiB each)")


def test_quiet_means_no_banner():
    assert run_python(BANNER, SOFTNPU_QUIET="1").stderr.split() == ["imported", "used"]


def test_only_rank_0_of_a_job_prints_the_banner():
    assert run_python(BANNER, RANK="3", LOCAL_RANK="3").stderr.split() == ["imported", "used"]


@pytest.mark.parametrize(
    "first", ["import torch_npu, torch", "import torch, torch_npu", "import torch"]
)
def test_either_package_may_be_imported_first(first):
    """Installed, torch loads the device by itself (entry point `torch.backends`), also while torch_npu imports it."""
    later = "" if "torch_npu" in first else "import torch_npu;"
    assert output(f"{first}; {later} print(torch.ones(2, device='npu').sum().item())") == "2.0"


def test_devices_made_visible_after_the_import():
    code = """
        import os, torch, torch_npu
        first = torch.npu.device_count()
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0,3"
        print(first, torch.npu.device_count())
        torch.ones(1, device="npu:1")
        os.environ["ASCEND_RT_VISIBLE_DEVICES"] = "0"
        print(torch.npu.device_count())
    """
    assert output(code, SOFTNPU_QUIET="1").splitlines() == ["8 2", "2"]
