"""dispatch_ffn_combine against the layer in float64, token by token: one rank, two ranks, every kind of weight."""

from __future__ import annotations

import pytest
import torch

from tests.contrib.ascend_ops import ops
from tests.contrib.fused_layer import (
    EXPERTS,
    SLOTS,
    TOKENS,
    call,
    given,
    layer,
    one_of_two,
    reference,
)
from tests.distributed import job


@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4"])
def test_one_rank(kind):
    weights, scales, sums, exact = layer(kind)
    x, ids, probs = given()
    out, counts = call(x, ids, probs, weights, scales, sums, "softnpu%mirror_1")
    expected = reference(x, ids, probs, exact, kind != "bfloat16")
    torch.testing.assert_close(out.double(), expected, atol=0.03, rtol=0.03)
    assert counts.tolist() == [torch.bincount(ids.flatten().long(), minlength=EXPERTS).tolist()]


def test_tokens_that_take_no_part():
    weights, scales, sums, exact = layer("bfloat16")
    x, ids, probs = given()
    active = torch.arange(TOKENS) < 4
    out, _ = call(
        x, ids, probs, weights, scales, sums, "softnpu%mirror_1", x_active_mask=active.npu()
    )
    expected = reference(x, ids, probs, exact, False, active=active)
    torch.testing.assert_close(out.double(), expected, atol=0.03, rtol=0.03)


def test_rows_past_the_room_add_nothing():
    weights, scales, sums, exact = layer("bfloat16")
    x, ids, probs = given()
    out, _ = call(x, ids, probs, weights, scales, sums, "softnpu%mirror_1", most=7)
    order = sorted((int(ids[t, s]), t, s) for t in range(TOKENS) for s in range(SLOTS))
    kept = {(t, s) for _, t, s in order[:7]}
    expected = reference(x, ids, probs, exact, False, kept)
    torch.testing.assert_close(out.double(), expected, atol=0.03, rtol=0.03)


def test_a_tensor_for_each_expert():
    weights, scales, sums, exact = layer("int8")
    x, ids, probs = given()
    out = torch.empty_like(x).npu()
    counts = torch.zeros(EXPERTS, dtype=torch.int32).npu()
    lists = [[t.npu() for t in one] for one in (*weights, *scales)]
    ops.dispatch_ffn_combine(
        x.npu(), lists[0], lists[1], ids.npu(), lists[2], lists[3], [], [], probs.npu(),
        "softnpu%mirror_1", 512, out, counts,
    )  # fmt: skip
    expected = reference(x, ids, probs, exact, True)
    torch.testing.assert_close(out.cpu().double(), expected, atol=0.03, rtol=0.03)


def test_two_ranks():
    job.run(one_of_two, 2)


def test_what_does_not_fit_raises():
    weights, scales, sums, _ = layer("int8")
    x, ids, probs = given()
    with pytest.raises(RuntimeError, match="'group' must be the name of a group"):
        call(x, ids, probs, weights, scales, sums, "nobody")
    with pytest.raises(RuntimeError, match="'x_active_mask' must be of shape"):
        mask = torch.ones(2, dtype=torch.bool).npu()
        call(x, ids, probs, weights, scales, sums, "softnpu%mirror_1", x_active_mask=mask)
