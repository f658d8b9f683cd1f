"""The table that torch.npu.memory_summary prints."""

from __future__ import annotations

from typing import Any

_METRICS = (
    ("allocated_bytes", "Allocated memory", True),
    ("active_bytes", "Active memory", True),
    ("requested_bytes", "Requested memory", True),
    ("reserved_bytes", "NPU reserved memory", True),
    ("inactive_split_bytes", "Non-releasable memory", True),
    ("allocation", "Allocations", False),
    ("active", "Active allocs", False),
    ("segment", "NPU reserved segments", False),
    ("inactive_split", "Non-releasable allocs", False),
)
_POOLS = (("all", ""), ("large_pool", "from large pool"), ("small_pool", "from small pool"))
_KINDS = ("current", "peak", "allocated", "freed")
_WIDTH = 75


def _scaled(value: int, reference: int, step: int, units: tuple[str, ...]) -> str:
    """`value` in the unit that keeps `reference` below five digits."""
    unit = units[0]
    for following in units[1:]:
        if reference < 750 * step:
            break
        unit = following
        value //= step
        reference //= step
    return f"{value:7d} {unit}"


def _cell(value: int, reference: int, is_size: bool) -> str:
    if is_size:
        return _scaled(value, reference, 1024, ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB"))
    return _scaled(value, reference, 1000, (" ", "K", "M")) + " "


def memory_summary(index: int, stats: dict[str, Any], abbreviated: bool) -> str:
    """One row a statistic: now, peak, all allocated, all freed; by pool unless abbreviated."""
    rule, double = "-" * _WIDTH, "=" * _WIDTH
    rows = [
        double,
        f"{f'PyTorch NPU memory summary, device ID {index}':^{_WIDTH}}",
        rule,
        f"{'NPU OOMs: ':>22}{stats.get('num_ooms', 0):<14d}|"
        f"{'npuMalloc retries: ':>27}{stats.get('num_alloc_retries', 0):<11d}",
        double,
        f"{'Metric':^23}| Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    for key, title, is_size in _METRICS:
        rows.append(rule)
        for pool, label in _POOLS[:1] if abbreviated else _POOLS:
            values = [stats.get(f"{key}.{pool}.{kind}", 0) for kind in _KINDS]
            name = f" {title}" if pool == "all" else f"   {label}"
            cells = "|".join(f"{_cell(v, values[0] or v, is_size):>12}" for v in values)
            rows.append(f"{name:<23}|{cells}")
    for key, title in (
        ("oversize_allocations", "Oversize allocations"),
        ("oversize_segments", "Oversize NPU segments"),
    ):
        values = [stats.get(f"{key}.{kind}", 0) for kind in _KINDS]
        cells = "|".join(f"{_cell(v, values[0] or v, False):>12}" for v in values)
        rows += [rule, f"{f' {title}':<23}|{cells}"]
    rows.append(double)
    return "|" + "|\n|".join(f"{row:<{_WIDTH}}" for row in rows) + "|\n"
