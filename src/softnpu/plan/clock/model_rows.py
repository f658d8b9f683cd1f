"""Rows of whole models: from their words to a training step, a decoding step, a prefill or a server."""

from __future__ import annotations

from softnpu.chips import Chip
from softnpu.plan.clock import architectures, serving, training
from softnpu.plan.clock.constants import Constants
from softnpu.plan.clock.evidence import Row
from softnpu.plan.clock.figures import ClockError

_WEIGHTS = {"8": "int8", "16": "bfloat16"}


def layout(words: dict[str, str]) -> training.Layout:
    """`tp=8 pp=2 ...` as a layout."""
    number = {key: int(value) for key, value in words.items() if value.isdigit()}
    return training.Layout(
        seq=number["seq"],
        micro_batch=number["mbs"],
        batch=number["gbs"],
        tp=number["tp"],
        pp=number["pp"],
        cp=number["cp"],
        dp=number["dp"],
        ep=number.get("ep", 1),
        chunk=number.get("chunk", 0),
        recompute=words["recompute"] == "full",
        fused_communication="mc2" in number,
        sharded_optimizer="zero1" in number,
        sharded_parameters="zero3" in number,
        overlap="overlap" in number,
        fused_attention="flash" in number,
    )


def predict(row: Row, chip: Chip, constants: Constants) -> float:
    words = row.sizes()
    one = architectures.get(words["model"])
    if row.family == "train":
        step = training.step(one, layout(words), chip, row.dtype, constants)
        return step.seconds if row.unit == "s/step" else step.tokens_per_second
    how = serving.Serving(
        batch=int(words.get("batch", 1)),
        keys=int(words.get("keys", 1)),
        ranks=int(words["dies"]),
        tp=int(words.get("tp", 1)),
        ep=int(words.get("ep", 1)),
        drafts=int(words.get("drafts", 0)),
        weights=_WEIGHTS[words["weights"]],
        cache_bits=int(words.get("cache", 16)),
    )
    if row.family == "prefill":
        seconds = serving.prefill(one, int(words["sequences"]), int(words["seq"]), how, chip, constants)  # fmt: skip
        return 1e3 * seconds
    if row.family == "serve":
        sizes = (int(words["input"]), int(words["output"]), int(words["concurrency"]))
        return serving.serve(one, *sizes, how, chip, constants)
    seconds = serving.decode(one, how, chip, constants) / (1 + float(words["accepted"]))
    if row.unit == "ms":
        return 1e3 * seconds
    if row.unit == "tokens/s/NPU":  # a package of two dies
        return 2 * how.batch / seconds
    raise ClockError(f"{row.id}: unit {row.unit}")
