"""Files of hardware counters: l2_cache.csv, soc_pmu.csv, nic.csv, roce.csv, hccs.csv, pcie.csv.

Differs from upstream: there is no cache, network card or bus to count. Each file has the documented columns, names
what would have been counted, and says N/A for every count; the tables NIC, ROCE, HCCS, PCIE and TASK_PMU_INFO are empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch_npu.profiler._model import Model
from torch_npu.profiler.writers import _csv
from torch_npu.profiler.writers._csv import NA, stamp

L2_CACHE = ["Device_id", "Stream Id", "Task Id", "Hit Rate", "Victim Rate", "Op Name"]
SOC_PMU = ["Device_id", "Stream Id", "Task Id", "TLB Miss Rate", "TLB Hit Rate", "Op Name"]
NETWORK = [
    "Device_id", "Timestamp(us)", "Bandwidth(MB/s)", "Rx Bandwidth efficiency(%)", "rxPacket/s", "rxError rate(%)",
    "rxDropped rate(%)", "Tx Bandwidth efficiency(%)", "txPacket/s", "txError rate(%)", "txDropped rate(%)", "funcId",
]  # fmt: skip
HCCS = ["Device_id", "Mode", "Max", "Min", "Average"]
PCIE = ["Device_id", "Mode", "Min", "Max", "Avg"]
_PCIE_MODES = (
    "Tx_p_avg(MB/s)", "Tx_np_avg(MB/s)", "Tx_cpl_avg(MB/s)", "Tx_latency_avg(us)", "Rx_p_avg(MB/s)", "Rx_np_avg(MB/s)",
    "Rx_cpl_avg(MB/s)",
)  # fmt: skip


def write(model: Model, out: Path) -> None:
    if not model.with_npu:
        return
    asked = model.experimental
    if asked.get("_l2_cache"):
        _csv.write(out / "l2_cache.csv", L2_CACHE, _tasks(model))
        _csv.write(out / "soc_pmu.csv", SOC_PMU, _tasks(model))
    if asked.get("_sys_io"):
        _csv.write(out / "nic.csv", NETWORK, _moments(model))
        _csv.write(out / "roce.csv", NETWORK, _moments(model))
    if asked.get("_sys_interconnection"):
        ways = [[d, mode, NA, NA, NA] for d in model.devices for mode in ("Tx(MB/s)", "Rx(MB/s)")]
        _csv.write(out / "hccs.csv", HCCS, ways)
        buses = [[d, mode, NA, NA, NA] for d in model.devices for mode in _PCIE_MODES]
        _csv.write(out / "pcie.csv", PCIE, buses)


def _tasks(model: Model) -> Iterator[list[Any]]:
    for task in model.kernels:
        yield [task.device, task.stream, task.number, NA, NA, task.kernel]


def _moments(model: Model) -> Iterator[list[Any]]:
    start = model.info.get("start_info", {}).get("start_time", 0)
    for device in model.devices:
        yield [device, stamp(start), *[NA] * (len(NETWORK) - 2)]
