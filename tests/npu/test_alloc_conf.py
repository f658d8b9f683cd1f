"""PYTORCH_NPU_ALLOC_CONF and PYTORCH_NO_NPU_MEMORY_CACHING."""

import pytest
import torch

import torch_npu
from softnpu import _C
from tests.device.process import run_python
from torch_npu.npu import _alloc_conf
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
    table = divisions["roundup_power2_divisions"]
    assert [count for _, count in table] == [1] * 9 + [2] + [4] * 6
    assert table[8][0] == 512 * MIB - 1 and table[-1][0] == 2**62
    table = parse("roundup_power2_divisions:[8:1,64:4,128:8,256:2,>:16]")[
        "roundup_power2_divisions"
    ]
    assert [count for _, count in table] == [1, 1, 1, 1, 0, 0, 4, 8, 2] + [16] * 7
    assert parse("roundup_power2_divisions:8") == {"roundup_power2_divisions": [(2**62, 8)]}


@pytest.mark.parametrize(
    "text, kind, message",
    [
        ("max_split:3", ValueError, "Unrecognized key 'max_split'"),
        ("backend:native", ValueError, "Unrecognized key 'backend'"),
        (
            "max_split_size_mb:20",
            RuntimeError,
            "max_split_size_mb must be a whole number at least 21",
        ),
        ("max_split_size_mb:big", RuntimeError, "'big'"),
        ("max_split_size_mb:" + "9" * 5000, RuntimeError, "must be a whole number at least 21"),
        ("max_split_size_mb", RuntimeError, "expecting max_split_size_mb value"),
        (
            "garbage_collection_threshold:1.0",
            RuntimeError,
            "garbage_collection_threshold is invalid",
        ),
        ("garbage_collection_threshold:0", RuntimeError, "garbage_collection_threshold is invalid"),
        (
            "expandable_segments:yes",
            RuntimeError,
            "Expected a single True/False argument for expandable",
        ),
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


@pytest.fixture
def configured():
    """Settings for a device that no other test uses, taken back afterwards."""
    torch.npu.init()

    def apply(text, caching=True):
        _alloc_conf.configure(_alloc_conf.parse(text), caching)
        return "npu:5"

    torch.npu.empty_cache()
    yield apply
    _alloc_conf.configure({})
    _C.configure_extra({"page": 0, "max_non_split_rounding": 20 * MIB})
    for index in range(_C.device_count()):
        _C.set_memory_fraction(index, 1.0)
    torch.npu.empty_cache()


def block(mib, device):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


@pytest.mark.parametrize(
    "text",
    [
        *("max_split_size_mb", "max_non_split_rounding_mb", "pinned_max_round_threshold_mb"),
        *("pinned_max_cached_size_mb", "roundup_power2_divisions"),
    ],
)
def test_numbers_that_no_memory_has(configured, text):
    device = configured(f"{text}:{2**59}")
    assert [block(mib, device).nbytes // MIB for mib in (1, 3, 33)] == [1, 3, 33]
    assert torch.ones(3).pin_memory().sum().item() == 3


def test_expandable_segments_and_fraction(configured):
    device = configured("expandable_segments:True,per_process_memory_fraction:0.25")
    kept = block(100, device)
    assert [s["is_expandable"] for s in torch.npu.memory_snapshot() if s["device"] == 5] == [True]
    assert torch.npu.get_per_process_memory_fraction(device) == 0.25
    _C.set_memory_fraction(0, 1.0)
    for index in range(torch.npu.device_count()):
        _C.set_memory_fraction(index, 1.0)
    del kept


def test_a_page_of_one_gigabyte(configured):
    kept = block(2, configured("page_size:1g"))
    assert torch.npu.memory_reserved("npu:5") == 2**30
    del kept


def test_a_block_above_max_split_size_is_not_split(configured):
    device = configured("max_split_size_mb:100")
    block(200, device)
    kept = block(60, device)
    assert torch.npu.memory_stats(device)["max_split_size"] == 100 * MIB
    assert torch.npu.memory_reserved(device) == 260 * MIB
    del kept


def test_segments_of_another_size(configured):
    kept = block(2, configured("large_segment_size_mb:40"))
    assert torch.npu.memory_reserved("npu:5") == 40 * MIB
    del kept


@pytest.mark.parametrize("key", ["segment_size_mb", "large_segment_size_mb"])
@pytest.mark.filterwarnings("ignore:segment_size_mb")
def test_expandable_segments_grow_by_the_size(configured, key):
    kept = block(8, configured(f"expandable_segments:True,{key}:128"))
    assert torch.npu.memory_reserved("npu:5") == 128 * MIB
    del kept


def test_sizes_rounded_up_to_divisions_of_a_power_of_two(configured):
    before = torch.npu.memory_allocated("npu:5")
    kept = block(5, configured("roundup_power2_divisions:2"))
    assert torch.npu.memory_allocated("npu:5") - before == 6 * MIB
    del kept


def test_sizes_between_two_entries_are_not_rounded(configured):
    device = configured("roundup_power2_divisions:[8:1,64:4,>:16]")
    before = torch.npu.memory_allocated("npu:5")
    for size, counted in ((34, 34), (65, 80), (130, 136)):
        kept = block(size, device)
        assert torch.npu.memory_allocated("npu:5") - before == counted * MIB
        del kept


def test_no_caching(configured):
    kept = block(5, configured("", caching=False))
    assert torch.npu.memory_reserved("npu:5") == 5 * MIB
    del kept
    assert torch.npu.memory_reserved("npu:5") == 0


def test_environment(configured):
    _alloc_conf.from_environment({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"})
    assert torch.npu.memory_stats("npu:5")["max_split_size"] == 64 * MIB
    _alloc_conf.from_environment({"PYTORCH_NO_NPU_MEMORY_CACHING": "1"})
    assert _alloc_conf.current == {}
    with pytest.raises(RuntimeError, match="please set only one of them"):
        _alloc_conf.from_environment({v: "" for v in _alloc_conf.VARIABLES})


def test_a_wrong_environment_stops_the_first_use():
    code = """
        import torch, torch_npu
        print("imported")
        for _ in range(2):
            try:
                torch.ones(1, device="npu")
            except (RuntimeError, ValueError) as error:
                print("Unrecognized key 'nonsense'" in str(error))
    """
    done = run_python(code, PYTORCH_NPU_ALLOC_CONF="nonsense:1")
    assert done.stdout.split() == ["imported", "True", "True"], done.stderr


def test_settings_while_running():
    with pytest.raises(ValueError, match="unsupported setting: page_size"):
        torch.npu._set_allocator_settings("page_size:1g")
    with pytest.raises(ValueError, match="Unrecognized key"):
        torch.npu._set_allocator_settings("x:1")
    with pytest.raises(TypeError, match="must be a str"):
        torch.npu._set_allocator_settings(True)


def test_split_size_changes_while_running(configured):
    torch_npu._C._npu_npuCachingAllocator_set_allocator_settings("max_split_size_mb:64")
    assert torch.npu.memory_stats()["max_split_size"] == 64 * MIB


def _pinned_mib(size_mib):
    """The bytes held for one pinned tensor while it lives, and after it was freed, in MiB."""
    torch.npu.host_empty_cache()
    before = torch.npu.host_memory_stats()["allocated_bytes.current"]
    pinned = torch.empty(size_mib * MIB, dtype=torch.uint8).pin_memory()
    live = torch.npu.host_memory_stats()["allocated_bytes.current"] - before
    del pinned
    after = torch.npu.host_memory_stats()["allocated_bytes.current"] - before
    return live / MIB, after / MIB


@pytest.mark.parametrize(
    "settings, size, live, after",
    [
        ("expandable_segments:False", 5, 8, 8),
        ("pinned_max_round_threshold_mb:4", 5, 5, 5),
        ("pinned_max_round_threshold_mb:8", 5, 8, 8),
        ("pinned_max_cached_size_mb:4", 5, 5, 0),
        ("pinned_max_cached_size_mb:8", 5, 8, 8),
        ("pinned_max_round_threshold_mb:16,pinned_max_cached_size_mb:4", 5, 5, 0),
    ],
)
def test_pinned_thresholds(configured, settings, size, live, after):
    torch.npu._set_allocator_settings(settings)
    assert _pinned_mib(size) == (live, after)


def test_pinned_thresholds_have_no_effect_on_expandable_segments():
    with pytest.warns(UserWarning, match="do not take effect"):
        parse("pin_memory_expandable_segments:True,pinned_max_cached_size_mb:32")


def test_the_pinned_block_freed_last_is_reused():
    held = [torch.ones(1).pin_memory() for _ in range(3)]
    addresses = [tensor.data_ptr() for tensor in held]
    del held[0], held[0], held[0]
    assert torch.ones(1).pin_memory().data_ptr() == addresses[-1]


def test_rejections_are_counted_while_asked_for(configured):
    def rejections():
        return torch.npu.memory_stats()["num_oom_rejections"]

    torch.npu._set_allocator_settings("per_process_memory_fraction:0.001")
    before = rejections()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**30, device="npu")
    assert rejections() == before
    torch.npu._set_allocator_settings("throw_on_npumalloc_oom:True")
    torch.empty(8, device="npu")
    assert rejections() == before
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**30, device="npu")
    assert rejections() > before
    torch.npu.reset_accumulated_memory_stats()
    assert rejections() == 0


def test_time_of_pinned_memory_is_counted():
    torch.npu.host_empty_cache()
    torch.npu.reset_accumulated_host_memory_stats()
    pinned = torch.ones(2**22).pin_memory()
    assert torch.npu.host_memory_stats()["host_alloc_time.count"] == 1
    del pinned
    torch.npu.host_empty_cache()
    assert torch.npu.host_memory_stats()["host_free_time.count"] == 1


def test_more_than_an_exabyte():
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        torch.empty(2**60, dtype=torch.int8, device="npu")
