"""PYTORCH_NPU_ALLOC_CONF: `key:value,key:value`, read and checked as upstream does, then given to the allocator."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from softnpu import _C
from torch_npu._errors import ErrCode, SubModule, code_line

MIB = 2**20
UNLIMITED_MB = 2**40
VARIABLES = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
NO_CACHING = "PYTORCH_NO_NPU_MEMORY_CACHING"


def _error(kind: type[Exception], text: str, code: ErrCode = ErrCode.VALUE) -> Exception:
    return kind(text + code_line(SubModule.OPS, code))


def _boolean(key: str, text: str) -> bool:
    if text not in ("True", "False"):
        raise _error(
            RuntimeError,
            f"Expected a single True/False argument for {key}, but received {text!r}",
            ErrCode.PARAM,
        )
    return text == "True"


def _whole(low: int, high: int | None = None) -> Callable[[str, str], int]:
    def read(key: str, text: str) -> int:
        allowed = f"at least {low}" if high is None else f"from {low} to {high}"
        number = int(text) if text.isdecimal() and len(text) <= 18 else -1
        if number < low or (high is not None and number > high):
            raise _error(
                RuntimeError,
                f"CachingAllocator option {key} must be a whole number {allowed}, but is {text[:80]!r}",
            )
        return min(number, UNLIMITED_MB)

    return read


def _fraction(low_open: bool, high_open: bool) -> Callable[[str, str], float]:
    def read(key: str, text: str) -> float:
        match = re.fullmatch(r"\d*\.?\d+(e-?\d+)?|\d+\.", text)
        value = float(text) if match else -1.0
        if not 0 <= value <= 1 or (low_open and value == 0) or (high_open and value == 1):
            left, right = "(" if low_open else "[", ")" if high_open else "]"
            raise _error(
                RuntimeError, f"{key} is invalid, set it in {left}0.0, 1.0{right}, but is {text!r}"
            )
        return value

    return read


def _power_of_two(key: str, text: str) -> int:
    value = _whole(1)(key, text)
    if value & (value - 1):
        raise _error(RuntimeError, f"{key} must be a power of 2, but is {text!r}")
    return value


#: sizes are in intervals from one power of two to the next, of MiB; the first has all below 2 MiB, the last all the rest
_INTERVALS = 16


def _divisions(key: str, text: str) -> list[tuple[int, int]]:
    """`4`, or `[256:1,512:2,>:4]`: (sizes up to, divisions), ascending.

    As in PyTorch, a size names the interval that begins with it: the first entry holds for all smaller ones too, `>` for
    all larger ones than the last, and intervals between two entries have no divisions.
    """
    if not text.startswith("["):
        return [(2**62, _power_of_two(key, text))]
    divisions, last = [0] * _INTERVALS, -1
    for entry in text[1:-1].split(","):
        bound, _, count = (part.strip() for part in entry.partition(":"))
        value = _power_of_two(key, count)
        if bound == ">":
            divisions[last + 1 :] = [value] * (_INTERVALS - last - 1)
            last = _INTERVALS
            continue
        index = _power_of_two(key, bound).bit_length() - 1
        if index <= last:
            raise _error(
                RuntimeError, f"{key} must list its sizes in ascending order, but is {text!r}"
            )
        index = min(index, _INTERVALS - 1)
        divisions[0 if last < 0 else index : index + 1] = [value] * (index + 1 if last < 0 else 1)
        last = index
    limits = [2 ** (index + 1) * MIB - 1 for index in range(_INTERVALS - 1)] + [2**62]
    return list(zip(limits, divisions, strict=True))


def _page(key: str, text: str) -> int:
    if text != "1g":
        raise _error(RuntimeError, f"Unsupported {key} value: {text}; the only one is 1g")
    return 2**30


_READERS: dict[str, Callable[[str, str], Any]] = {
    "max_split_size_mb": _whole(21),
    "garbage_collection_threshold": _fraction(True, True),
    "roundup_power2_divisions": _divisions,
    "expandable_segments": _boolean,
    "pinned_use_background_threads": _boolean,
    "large_segment_size_mb": _whole(20),
    "max_non_split_rounding_mb": _whole(20),
    "pinned_max_round_threshold_mb": _whole(1),
    "pinned_max_cached_size_mb": _whole(1),
    "pin_memory_expandable_segments": _boolean,
    "pinned_mem_register": _boolean,
    "base_addr_aligned_kb": _whole(0, 16),
    "page_size": _page,
    "segment_size_mb": _whole(20, 512),
    "multi_stream_lazy_reclaim": _boolean,
    "per_process_memory_fraction": _fraction(False, False),
    "pinned_reserve_segment_size_mb": _whole(1),
    "release_lock_on_npumalloc": _boolean,
    "throw_on_npumalloc_oom": _boolean,
}


def parse(text: str) -> dict[str, Any]:
    """The settings that a configuration text asks for, each value checked."""
    found: dict[str, Any] = {}
    text = text.strip()
    for entry in re.split(r",(?![^\[]*\])", text) if text else []:
        key, colon, value = entry.strip().partition(":")
        if key not in _READERS:
            raise _error(ValueError, f"Unrecognized key '{key}' in NPU allocator config, ")
        if not colon or not value.strip():
            raise _error(RuntimeError, f"Error, expecting {key} value")
        found[key] = _READERS[key](key, value.strip())
    _check_conflicts(found)
    return found


def _check_conflicts(found: Mapping[str, Any]) -> None:
    if found.get("expandable_segments") and (
        "max_split_size_mb" in found or "garbage_collection_threshold" in found
    ):
        raise _error(
            RuntimeError,
            "`max_split_size_mb` or `garbage_collection_threshold`, cannot be enabled with "
            "`expandable_segments`, please set `expandable_segments` to `False`.",
            ErrCode.PARAM,
        )
    if "segment_size_mb" in found:
        warnings.warn("segment_size_mb is deprecated, use large_segment_size_mb.", stacklevel=4)
    if found.get("pinned_mem_register") and found.get("pin_memory_expandable_segments"):
        warnings.warn(
            "pinned_mem_register is off while pin_memory_expandable_segments is True.", stacklevel=4
        )
    thresholds = {"pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"} & set(found)
    if found.get("pin_memory_expandable_segments") and thresholds:
        warnings.warn(
            "pinned_max_round_threshold_mb and pinned_max_cached_size_mb do not take effect while "
            "pin_memory_expandable_segments is True.",
            stacklevel=4,
        )


def configure(found: Mapping[str, Any], caching: bool = True) -> None:
    """Gives checked settings to the allocator of every device.

    Keys that only make the card's driver faster (pinned pages, address alignment, locks) have nothing to
    act on here: they are checked and kept for `current`.
    """
    global current
    config: dict[str, Any] = {"caching": caching}
    if "max_split_size_mb" in found:
        config["max_split_size"] = found["max_split_size_mb"] * MIB
    if "roundup_power2_divisions" in found:
        config["roundup_power2"] = found["roundup_power2_divisions"]
    for key in ("garbage_collection_threshold", "expandable_segments"):
        if key in found:
            config[key] = found[key]
    if "segment_size_mb" in found and found.get("expandable_segments"):
        config["large_segment"] = found["segment_size_mb"] * MIB
    if "large_segment_size_mb" in found:
        config["large_segment"] = found["large_segment_size_mb"] * MIB
    _C.configure_allocator(config)
    extra = {}
    if "max_non_split_rounding_mb" in found:
        extra["max_non_split_rounding"] = found["max_non_split_rounding_mb"] * MIB
    if "page_size" in found:
        extra["page"] = found["page_size"]
    _C.configure_extra(extra)
    _C.count_rejections(found.get("throw_on_npumalloc_oom", False))
    _C.configure_pinned(
        found.get("pinned_max_round_threshold_mb", UNLIMITED_MB) * MIB,
        found.get("pinned_max_cached_size_mb", UNLIMITED_MB) * MIB,
    )
    if "per_process_memory_fraction" in found:
        for index in range(_C.device_count()):
            _C.set_memory_fraction(index, found["per_process_memory_fraction"])
    current = dict(found)


current: dict[str, Any] = {}


def update(found: Mapping[str, Any]) -> None:
    """Changes some settings and keeps the others."""
    merged = {**current, **found}
    _check_conflicts(merged)
    configure(merged, not os.environ.get(NO_CACHING))


def from_environment(environment: Mapping[str, str] = os.environ) -> None:
    """What the environment asks for; the device calls this when it starts."""
    texts = [environment[v] for v in VARIABLES if v in environment]
    if len(texts) > 1:
        raise _error(
            RuntimeError,
            f"Both {' and '.join(VARIABLES)} have been set, please set only one of them.",
        )
    caching = not environment.get(NO_CACHING)
    if texts or not caching:
        configure(parse(texts[0] if texts else ""), caching)
