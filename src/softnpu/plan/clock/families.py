"""How each family of measurements is predicted: from the words of a row to the costs."""

from __future__ import annotations

from softnpu import chips
from softnpu.chips import Chip
from softnpu.plan.clock import attention, classes, collectives, cube, vector
from softnpu.plan.clock.constants import Constants
from softnpu.plan.clock.evidence import Row
from softnpu.plan.clock.figures import ClockError, link
from softnpu.plan.clock.topology import Topology
from softnpu.plan.tasks import TensorSpec, bits

_UNITS = {"s/step": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_BYTES = {"KiB": 2**10, "MiB": 2**20}


def predict(row: Row, constants: Constants) -> float:
    """What the clock says, in the row's unit."""
    chip = chips.get(row.chip)
    if row.kind == "model":
        from softnpu.plan.clock import model_rows

        return model_rows.predict(row, chip, constants)
    return _FAMILIES[row.family](row, chip, constants)


def in_unit(row: Row, seconds: float, work: float = 0.0) -> float:
    """Seconds in the row's unit, or `work` (operations, bytes) over seconds."""
    if row.unit in _UNITS:
        return seconds / _UNITS[row.unit]
    if row.unit == "TFLOPS":
        return work / seconds / 1e12
    if row.unit == "GB/s":
        return work / seconds / 1e9
    raise ClockError(f"{row.id}: unit {row.unit}")


def _matmul(row: Row, chip: Chip, constants: Constants) -> float:
    size = {name: int(value) for name, value in row.sizes().items()}
    batch, m, n, k = size.get("batch", 1), size["m"], size["n"], size["k"]
    width = bits(row.dtype) / 8
    loads = batch * (m * k * width + n * k * size.get("weight", bits(row.dtype)) / 8)
    stores = batch * m * n * size.get("out", max(16, bits(row.dtype))) / 8
    product = cube.Product(m, n, k, row.dtype, batch, loads, stores)
    return in_unit(row, cube.cost(product, chip, constants).seconds, product.flops)


def _attention(row: Row, chip: Chip, constants: Constants) -> float:
    size = {name: int(value) for name, value in row.sizes().items()}
    shape = attention.Attention(
        batch=size["batch"],
        heads=size["heads"],
        kv_heads=size.get("kv_heads", size["heads"]),
        queries=size["queries"],
        keys=size["keys"],
        key_size=size["size"],
        value_size=size.get("value", size["size"]),
        dtype=row.dtype,
        latent=bool(size.get("latent")),
    )
    seconds = attention.cost(shape, chip, constants).seconds
    host = constants.host_dispatch + constants.host_sync if size.get("host") else 0.0
    return in_unit(row, seconds + host)


def specs(words: str, dtype: str) -> list[TensorSpec]:
    """`16x3200:float32,8` as tensors; a type is only named where it is not the row's."""
    found = []
    for word in words.split(","):
        shape, _, other = word.partition(":")
        found.append(TensorSpec(tuple(map(int, shape.split("x"))), other or dtype))
    return found


def _vector(row: Row, chip: Chip, constants: Constants) -> float:
    words = row.sizes()
    tensors = specs(words["in"], row.dtype) + specs(words["out"], row.dtype)
    moved = sum(one.nbytes for one in tensors)
    if row.family == "triton":
        return in_unit(row, vector.triton(moved, chip, constants).seconds)
    elements = max(one.numel for one in tensors)
    return in_unit(row, vector.cost(words["class"], moved, elements, chip, constants).seconds)


def _launch(row: Row, chip: Chip, constants: Constants) -> float:
    elements = int(row.sizes()["elements"])
    kernel = vector.cost(classes.ELEMENTWISE, 4 * elements, elements, chip, constants)
    return in_unit(row, kernel.seconds + constants.host_sync)


def nbytes(word: str) -> float:
    """`74KiB`, `3.5MiB` or plain bytes."""
    unit = word[-3:]
    return float(word[:-3]) * _BYTES[unit] if unit in _BYTES else float(word)


def _collective(row: Row, chip: Chip, constants: Constants) -> float:
    words = row.sizes()
    ranks = int(words["ranks"])
    topology = Topology.of(chip, ranks)
    message = nbytes(words["message"]) if "message" in words else nbytes(words["part"]) * ranks
    group = topology.group((), ranks)
    return in_unit(
        row, collectives.cost(words["kind"], message, group, topology, constants).seconds
    )


def _exchange(row: Row, chip: Chip, constants: Constants) -> float:
    words = row.sizes()
    ranks = int(words["ranks"])
    sent = int(words["tokens"]) * int(words["hidden"]) * int(words["top"]) * int(words["bits"]) / 8
    topology = Topology.of(chip, ranks)
    cost = collectives.exchange(sent, ranks, topology, constants, normal=words["mode"] == "normal")
    return in_unit(row, cost.seconds, sent)


def _copy(row: Row, chip: Chip, constants: Constants) -> float:
    words = row.sizes()
    size = float(words["bytes"])
    bandwidth = link(chip, f"{words['link']}_gbs")
    cost = collectives.copy(size, bandwidth, constants, int(words["blocks"]))
    return in_unit(row, cost.seconds, size)


_FAMILIES = {
    "matmul": _matmul,
    "attention": _attention,
    "vector": _vector,
    "sort": _vector,
    "triton": _vector,
    "launch": _launch,
    "collective": _collective,
    "exchange": _exchange,
    "copy": _copy,
}
