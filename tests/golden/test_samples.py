"""What every operator computes from its samples, recorded and computed again: the same bits."""

from __future__ import annotations

import torch

from softnpu import chips, golden
from softnpu.golden._replay import counts
from tests.ops.support import make
from torch_npu.ops._registry import operators

#: operators that no recording holds, and why
UNRECORDED = {
    "empty_with_format": "its result is uninitialized",
    "empty_with_swapped_memory": "its result is uninitialized",
    "dropout_with_byte_mask": "a composite: _dropout_with_byte_mask, which it calls, is recorded",
}
#: operators without a result
NOTHING = {"npu::npu_prefetch"}


def here(operator) -> bool:
    """Whether the chip has it, and the recording below asks for it."""
    families = operator.chips
    return operator.namespace == "npu" and (families is None or chips.current().family in families)


def test_all_operators_replay_without_a_difference(tmp_path):
    """Random ones too: the state of the generator is recorded with the call."""
    silent = set()
    with golden.record(tmp_path / "all", ops="npu::*") as recorder:
        for name, operator in sorted(operators.items()):
            for sample in operator.samples if here(operator) else []:
                args, kwargs = sample.inputs(make)
                before = recorder.seen
                with torch.no_grad():
                    operator.overload(*args, **kwargs)
                if recorder.seen == before:
                    silent.add(name)
    assert silent == set(UNRECORDED)
    assert not recorder.unsupported and not recorder.writer.index["left_out"]
    results = golden.replay(tmp_path / "all")
    wrong = [(r.name, r.status, r.reason) for r in results if r.status != "same"]
    assert wrong == [] and counts(results)["same"] == recorder.seen > 300
    nothing = {r.name for r in results if not r.outputs and r.call["outputs"] is None}
    assert nothing == NOTHING, "all others have something to compare"
    assert any("rng" in r.call for r in results)
