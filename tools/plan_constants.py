"""Sets the constants of the clock on the measurements that are meant for it, and prints what it finds.

`python -m tools.plan_constants`: one constant after the other, up and down by some percent, as long as the sum of
|log(predicted / measured)| over the rows that are not held out gets smaller; every kind of measurement weighs the same.
The held-out rows take no part. Results are rounded and written into constants.py by hand.
"""

from __future__ import annotations

import dataclasses
import math

from softnpu.plan.clock import evidence
from softnpu.plan.clock.constants import DEFAULT, Constants

# Not set here: what another public source gives (network_efficiency, mesh_efficiency), or no measurement shows (host_launch,
# network_latency, attention_backward, small_message, core_load).
FREE = (
    "cube_efficiency", "cube_start", "memory_efficiency", "cache_speedup", "vector_start", "row_start",
    "sort_rate", "triton_efficiency", "softmax_rate", "attention_cube", "attention_memory", "attention_start",
    "link_efficiency", "reduce_efficiency", "copy_efficiency", "small_latency", "peer_latency",
    "exchange_start", "exchange_peer", "copy_start", "host_sync", "host_dispatch", "in_step",
)  # fmt: skip
AT_MOST_ONE = tuple(name for name in FREE if name.endswith("_efficiency")) + ("attention_cube", "attention_memory")  # fmt: skip
STEPS = (0.8, 0.93, 0.98, 1.02, 1.07, 1.25)


def loss(constants: Constants) -> float:
    """The mean over kinds of the mean |log| of what is not held out."""
    total: dict[str, list[float]] = {}
    for row in evidence.rows():
        if not row.missing and not row.held_out:
            found = evidence.judge(row, constants)
            total.setdefault(row.kind, []).append(abs(math.log(found.predicted / row.value)))
    return sum(sum(errors) / len(errors) for errors in total.values()) / len(total)


def fit(constants: Constants, rounds: int = 6) -> Constants:
    best = loss(constants)
    for _ in range(rounds):
        before = best
        for name in FREE:
            for step in STEPS:
                value = getattr(constants, name) * step
                if name in AT_MOST_ONE and value > 0.98:
                    continue
                tried = dataclasses.replace(constants, **{name: value})
                found = loss(tried)
                if found < best - 1e-5:
                    constants, best = tried, found
        print(f"mean |log error| {best:.4f}", flush=True)
        if before - best < 1e-3:
            break
    return constants


if __name__ == "__main__":
    found = fit(DEFAULT)
    for name in FREE:
        print(f"{name:20} {getattr(DEFAULT, name):12.4g} -> {getattr(found, name):.4g}")
