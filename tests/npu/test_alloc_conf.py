"""PYTORCH_NPU_ALLOC_CONF and PYTORCH_NO_NPU_MEMORY_CACHING."""

import pytest
import torch
import torch_npu  # noqa: F401

from tests.device.process import output, run_python
from torch_npu.npu._alloc_conf import MIB, parse


def test_values_are_read():
    assert parse("") == {}
    assert parse("max_split_size_mb:128, garbage_collection_threshold:0.8") == {
        "max_split_size_mb": 128,
        "garbage_collection_threshold": 0.8,
    }
    assert parse("expandable_segments:True") == {"expandable_segments": True}
    assert parse("page_size:1g,base_addr_aligned_kb:16")["page_size"] == 2**30
    divisions = parse("roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:False")
    assert divisions["roundup_power2_divisions"] == [(256 * MIB, 1), (512 * MIB, 2), (2**62, 4)]
    assert parse("roundup_power2_divisions:8") == {"roundup_power2_divisions": [(2**62, 8)]}


@pytest.mark.parametrize(
    "text, kind, message",
    [
        ("max_split:3", ValueError, "Unrecognized key 'max_split'"),
        ("backend:native", ValueError, "Unrecognized key 'backend'"),
        ("max_split_size_mb:20", RuntimeError, "max_split_size_mb must be a whole number at least 21"),
        ("max_split_size_mb:big", RuntimeError, "'big'"),
        ("max_split_size_mb", RuntimeError, "expecting max_split_size_mb value"),
        ("garbage_collection_threshold:1.0", RuntimeError, "garbage_collection_threshold is invalid"),
        ("garbage_collection_threshold:0", RuntimeError, "garbage_collection_threshold is invalid"),
        ("expandable_segments:yes", RuntimeError, "Expected a single True/False argument for expandable"),
        ("base_addr_aligned_kb:17", RuntimeError, "from 0 to 16"),
        ("page_size:2m", RuntimeError, "Unsupported page_size value: 2m"),
        ("segment_size_mb:600", RuntimeError, "from 20 to 512"),
        ("roundup_power2_divisions:3", RuntimeError, "power of 2"),
        ("roundup_power2_divisions:[512:1,256:2]", RuntimeError, "ascending"),
        ("per_process_memory_fraction:2", RuntimeError, "per_process_memory_fraction is invalid"),
        ("expandable_segments:True,max_split_size_mb:64", RuntimeError, "cannot be enabled with"),
        ("garbage_collection_threshold:0.5,expandable_segments:True", RuntimeError, "cannot be"),
    ],
)
def test_wrong_texts_are_refused(text, kind, message):
    with pytest.raises(kind, match=message):
        parse(text)


def test_the_environment_is_read_at_the_start():
    code = """
        import torch, torch_npu
        a = torch.empty(100 * 2**20, dtype=torch.uint8, device="npu")
        segment = torch.npu.memory_snapshot()[0]
        print(segment["is_expandable"], torch.npu.get_per_process_memory_fraction())
    """
    conf = "expandable_segments:True,per_process_memory_fraction:0.25"
    assert output(code, PYTORCH_NPU_ALLOC_CONF=conf) == "True 0.25"
    assert output(code) == "False 1.0"


def test_a_page_of_one_gigabyte():
    code = """
        import torch, torch_npu
        a = torch.empty(2 * 2**20, dtype=torch.uint8, device="npu")
        print(torch.npu.memory_reserved() // 2**30)
    """
    assert output(code, PYTORCH_NPU_ALLOC_CONF="page_size:1g") == "1"


def test_a_large_block_is_not_split_above_max_split_size():
    code = """
        import torch, torch_npu
        x = torch.empty(200 * 2**20, dtype=torch.uint8, device="npu")
        del x
        y = torch.empty(60 * 2**20, dtype=torch.uint8, device="npu")
        print(torch.npu.memory_stats()["max_split_size"] // 2**20, torch.npu.memory_reserved() // 2**20)
    """
    assert output(code, PYTORCH_NPU_ALLOC_CONF="max_split_size_mb:100") == "100 260"
    assert output(code) == "-1 200" or output(code).endswith(" 200")


def test_a_wrong_environment_stops_the_first_use():
    code = "import torch, torch_npu; print('imported', flush=True); torch.ones(1, device='npu')"
    done = run_python(code, PYTORCH_NPU_ALLOC_CONF="nonsense:1")
    assert done.returncode != 0 and done.stdout.strip() == "imported"
    assert "Unrecognized key 'nonsense'" in done.stderr
    both = run_python(
        code, PYTORCH_NPU_ALLOC_CONF="max_split_size_mb:64", PYTORCH_ALLOC_CONF="max_split_size_mb:64"
    )
    assert "please set only one of them" in both.stderr


def test_no_caching():
    code = """
        import torch, torch_npu
        x = torch.empty(5 * 2**20, dtype=torch.uint8, device="npu")
        held = torch.npu.memory_reserved()
        del x
        print(held // 2**20, torch.npu.memory_reserved())
    """
    assert output(code, PYTORCH_NO_NPU_MEMORY_CACHING="1") == "5 0"


def test_settings_while_running():
    with pytest.raises(ValueError, match="unsupported setting: max_split_size_mb"):
        torch.npu._set_allocator_settings("max_split_size_mb:64")
    with pytest.raises(ValueError, match="Unrecognized key"):
        torch.npu._set_allocator_settings("x:1")
    with pytest.raises(TypeError, match="must be a str"):
        torch.npu._set_allocator_settings(True)
