"""Attention over caches remembers the calls that passed its check; lengths are looked at in each."""

from __future__ import annotations

import pytest
import torch

import torch_npu
from softnpu import settings
from torch_npu.ops.attention import _infer_once


def caches(**options):
    q = torch.randn(2, 4, 1, 32, device="npu", dtype=torch.float16)
    k = torch.randn(2, 2, 16, 32, device="npu", dtype=torch.float16)
    return (q, k, k.clone()), {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "BNSD",
        **options,
    }


def incre(lengths, **options):
    tensors, given = caches(**options)
    return torch_npu.npu_incre_flash_attention(*tensors, actual_seq_lengths=lengths, **given)


def fused(lengths, **options):
    tensors, given = caches(**options)
    found = torch_npu.npu_fused_infer_attention_score(
        *tensors, actual_seq_lengths_kv=lengths, **given
    )
    return found[0]


@pytest.mark.parametrize(
    ("attend", "argument"), [(incre, "actual_seq_lengths"), (fused, "actual_seq_lengths_kv")]
)
def test_lengths_are_looked_at_in_each_call(attend, argument):
    for lengths in ([3, 4], [4, 5], [16, 0], [7], [9, 9, 99]):
        assert attend(lengths).shape == (2, 4, 1, 32)
    for lengths, expected in (
        ([5, 17], "from 0 to 16"),
        ([-1, 3], "from 0 to 16"),
        ([], "of 1 or 2 entries"),
    ):
        with pytest.raises(RuntimeError, match=rf"'{argument}' must be {expected}"):
            attend(lengths)
    assert attend([3, 4]).shape == (2, 4, 1, 32)


def test_pages_bound_the_lengths():
    table = torch.tensor([[1, 0], [3, 2]], dtype=torch.int32, device="npu")
    pages = torch.randn(4, 16, 64, device="npu", dtype=torch.float16)
    q = torch.randn(2, 1, 128, device="npu", dtype=torch.float16)

    def attend(lengths, table=table):
        return torch_npu.npu_incre_flash_attention(
            q,
            pages,
            pages,
            actual_seq_lengths=lengths,
            num_heads=4,
            num_key_value_heads=2,
            block_table=table,
            block_size=16,
        )

    for lengths in ([1, 2], [17, 32]):
        attend(lengths)
    with pytest.raises(RuntimeError, match="'actual_seq_lengths' must be from 0 to 32"):
        attend([17, 33])
    with pytest.raises(RuntimeError, match="'actual_seq_lengths' must be from 0 to 16"):
        attend([17, 16], table[:, :1].contiguous())


def counted(monkeypatch) -> list[object]:
    """The calls that a check of its own sees, remembered anew."""
    seen: list[object] = []
    from torch_npu.ops.attention import npu_incre_flash_attention as operator

    def check(call):
        seen.append(call)
        operator._check(call)

    monkeypatch.setattr(operator, "_checked", _infer_once.once(check, operator._call))
    return seen


@pytest.mark.family("A2")
def test_other_shapes_options_and_chips_are_asked_again(monkeypatch):
    seen = counted(monkeypatch)
    for step in range(5):
        incre([step + 1, step + 2])
    assert len(seen) == 1
    incre([3])
    incre([3, 4], inner_precise=0)
    with pytest.raises(RuntimeError, match="num_key_value_heads"):
        incre([3, 4], num_key_value_heads=3)
    with settings.override(soc="Ascend310P3"):
        incre([3, 4])
    assert len(seen) == 5


def test_masks_are_asked_about_each_time(monkeypatch):
    """A mask must cover the longest length: that is no matter of shapes alone."""
    seen = counted(monkeypatch)
    mask = torch.zeros(2, 8, dtype=torch.bool, device="npu")
    incre([3, 4], atten_mask=mask)
    incre([8, 4], atten_mask=mask)
    with pytest.raises(RuntimeError, match="atten_mask"):
        incre([9, 4], atten_mask=mask)
    assert len(seen) == 3
