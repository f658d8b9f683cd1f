"""npu_ring_attention_update against attention over all keys at once."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make


def eight(values):
    return values.unsqueeze(-1).expand(*values.shape, 8).contiguous()


def steps(dtype, rows, heads, size):
    """Two attentions over different keys, (rows, heads, size) with maxima and sums (rows, heads), and the whole."""
    query = make(rows, heads, size, device="cpu").double()
    keys = [make(n, heads, size, device="cpu", seed=n).double() for n in (5, 7)]
    scores = [torch.einsum("rhd,khd->rhk", query, k) for k in keys]
    found = []
    for part, key in zip(scores, keys, strict=True):
        top = part.amax(-1)
        total = (part - top.unsqueeze(-1)).exp().sum(-1)
        out = torch.einsum("rhk,khd->rhd", part.softmax(-1), key)
        found.append((out.to(dtype), top.float(), total.float()))
    both = torch.cat(scores, -1)
    whole = torch.einsum("rhk,khd->rhd", both.softmax(-1), torch.cat(keys))
    top = both.amax(-1)
    return found, (whole, top, (both - top.unsqueeze(-1)).exp().sum(-1))


def check(found, right, dtype):
    tolerance = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    torch.testing.assert_close(found[0].cpu().double(), right[0], rtol=tolerance, atol=tolerance)
    for actual, correct in zip(found[1:], right[1:], strict=True):
        assert (actual == actual[..., :1]).all()
        torch.testing.assert_close(actual[..., 0].cpu().double(), correct, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_sbh(dtype):
    """(S, B, N * D) with statistics (B, N, S, 8); the batch is made of rows here."""
    found, right = steps(dtype, 6, 2, 16)
    given = []
    for out, top, total in found:
        given += [out.reshape(3, 2, 32).npu()]
        given += [eight(t.view(3, 2, 2).permute(1, 2, 0)).npu() for t in (top, total)]
    out, top, total = torch_npu.npu_ring_attention_update(*given)
    check(
        (out, top, total),
        (right[0].reshape(3, 2, 32), *(t.view(3, 2, 2).permute(1, 2, 0) for t in right[1:])),
        dtype,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["TND", "", "SBH"])
def test_tnd(dtype, layout):
    """'' orders the statistics by sequence, head and row, as npu_fusion_attention does."""
    found, right = steps(dtype, 7, 2, 64)
    edges = [0, 3, 3, 7]

    def ordered(values):
        if layout == "TND":
            return values
        parts = [values[a:b].t().reshape(-1) for a, b in zip(edges, edges[1:], strict=False)]
        return torch.cat(parts).view(values.shape)

    given = []
    for out, top, total in found:
        given += [out.npu(), eight(ordered(top)).npu(), eight(ordered(total)).npu()]
    results = torch_npu.npu_ring_attention_update(
        *given, actual_seq_qlen=torch.tensor(edges).npu(), input_layout="TND",
        input_softmax_layout=layout,
    )  # fmt: skip
    check(results, (right[0], ordered(right[1]), ordered(right[2])), dtype)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"input_layout": "BSH"}, "'input_layout' must be 'SBH' or 'TND', but received 'BSH'"),
        ({"input_softmax_layout": "x"}, "'input_softmax_layout' must be '', 'SBH' or 'TND'"),
        ({"input_layout": "TND"}, "'prev_softmax_max' must be a tensor of 3 dimensions"),
    ],
)
def test_refusals(options, message):
    out, statistics = make(3, 2, 32), make(2, 2, 3, 8)
    with pytest.raises(RuntimeError, match=f"npu_ring_attention_update: argument {message}"):
        torch_npu.npu_ring_attention_update(*(out, statistics, statistics) * 2, **options)


@pytest.mark.parametrize("edges", [[3, 5], [0, 4], [0, 6, 5]])
def test_edges(edges):
    out, statistics = make(5, 2, 64), make(5, 2, 8)
    with pytest.raises(RuntimeError, match="'actual_seq_qlen' must be sums of lengths from 0 to 5"):
        torch_npu.npu_ring_attention_update(
            *(out, statistics, statistics) * 2, actual_seq_qlen=torch.tensor(edges).npu(),
            input_layout="TND",
        )  # fmt: skip


@pytest.mark.family("A2")
def test_head_sizes_in_tnd():
    def call(heads, size):
        out, statistics = make(5, heads, size), make(5, heads, 8)
        torch_npu.npu_ring_attention_update(
            *(out, statistics, statistics) * 2, actual_seq_qlen=torch.tensor([0, 5]).npu(),
            input_layout="TND",
        )  # fmt: skip

    with pytest.raises(RuntimeError, match="a head size that is a multiple of 64 up to 768"):
        call(2, 72)
    with on("A5"):
        call(2, 72)
        with pytest.raises(RuntimeError, match="at most 256 heads"):
            call(257, 8)
