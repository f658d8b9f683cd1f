"""npu_fusion_attention_v3: tensors where npu_fusion_attention has numbers, and its memory operators."""

import pytest
import torch

import torch_npu
from tests.ops.attention.fusion_reference import TRIANGLE
from tests.ops.families import on
from tests.ops.support import make


def both(layout, *shapes, heads=2, v1=None, v3=None, **options):
    """The outputs and gradients of npu_fusion_attention and of its third version."""
    found = []
    for call, extra in (
        (torch_npu.npu_fusion_attention, v1),
        (torch_npu.npu_fusion_attention_v3, v3),
    ):
        leaves = [make(*s, seed=i).requires_grad_() for i, s in enumerate(shapes)]
        outputs = call(*leaves, heads, layout, **(extra or {}), **options)
        found.append((outputs, torch.autograd.grad(outputs[0].square().sum(), leaves)))
    return found


def same(first, second):
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


def test_equals_the_first_version():
    (one, one_grads), (three, three_grads) = both(
        "BSH",
        (2, 9, 32),
        (2, 12, 32),
        (2, 12, 32),
        sparse_mode=3,
        atten_mask=TRIANGLE.npu(),
        scale=0.25,
    )
    same(one[:4], three[:4])
    same(one_grads, three_grads)
    assert [x.dtype for x in three[4:]] == [torch.int64] * 2 and [x.shape for x in three[4:]] == [
        (1,)
    ] * 2


@pytest.mark.parametrize("softmax_layout", ["", "TND"])
def test_lengths_as_host_tensors(softmax_layout):
    lengths = {"actual_seq_qlen": [4, 4, 9], "actual_seq_kvlen": [5, 7, 12]}
    (one, one_grads), (three, three_grads) = both(
        "TND", (9, 2, 16), (12, 2, 16), (12, 2, 16), v1=lengths,
        v3={name: torch.tensor(ends) for name, ends in lengths.items()}, softmax_layout=softmax_layout,
    )  # fmt: skip
    same(one[:4], three[:4])
    same(one_grads, three_grads)


def test_dropout_of_the_generator():
    q = make(1, 2, 12, 16).requires_grad_()
    torch.npu.manual_seed(21)
    out, *_, seed, offset = torch_npu.npu_fusion_attention_v3(q, q, q, 2, "BNSD", keep_prob=0.6)
    assert (seed.item(), offset.item()) == (21, 0)
    named = torch_npu.npu_fusion_attention(q, q, q, 2, "BNSD", keep_prob=0.6, seed=21)[0]
    assert torch.equal(out, named)
    same(torch.autograd.grad(out.sum(), q), torch.autograd.grad(named.sum(), q))


def test_sink_and_pse():
    q, sink, pse = make(1, 2, 7, 16), make(2).requires_grad_(), make(1, 2, 7, 7).requires_grad_()
    found = []
    for call in (torch_npu.npu_fusion_attention, torch_npu.npu_fusion_attention_v3):
        out = call(q, q, q, 2, "BNSD", sink=sink, pse=pse)[0]
        found.append((out, *torch.autograd.grad(out.square().sum(), (sink, pse))))
    same(*found)


def test_out_form():
    q = make(6, 2, 16)
    lengths = {"actual_seq_qlen": torch.tensor([6]), "actual_seq_kvlen": torch.tensor([6])}
    want = torch_npu.npu_fusion_attention_v3(q, q, q, 2, "TND", **lengths)
    workspace = torch.ops.npu._npu_fusion_attention_v3_get_max_workspace(
        q, q, q, 2, "TND", **lengths
    )
    out, peak, total = torch.ops.npu._npu_fusion_attention_v3_infer_output(q, q, q, 2, "TND")
    names = {
        "attention_score": out,
        "softmax_max": peak,
        "softmax_sum": total,
        "softmax_out": q.new_empty(0),
    }
    numbers = {name: torch.empty(1, dtype=torch.int64, device="npu") for name in ("seed", "offset")}
    torch.ops.npu.npu_fusion_attention_v3.out(
        q, q, q, 2, "TND", **lengths, workspace=workspace, **names, **numbers
    )
    same((out, peak, total), want[:3])
    saved = {"softmax_max": peak, "softmax_sum": total, "attention_in": out}
    want = torch.ops.npu.npu_fusion_attention_grad_v3(q, q, q, q, 2, "TND", **saved, **lengths)
    grads = torch.ops.npu._npu_fusion_attention_grad_v3_infer_output(q, q, q)
    workspace = torch.ops.npu._npu_fusion_attention_grad_v3_get_max_workspace(
        q, q, q, q, 2, "TND", **saved, **lengths
    )
    targets = dict(zip(("dq", "dk", "dv", "dpse", "dsink"), grads, strict=True))
    torch.ops.npu.npu_fusion_attention_grad_v3.out(
        q, q, q, q, 2, "TND", **saved, **lengths, workspace=workspace, **targets
    )
    same(grads, want)


def test_compiles():
    q = make(1, 2, 16, 16)

    def call(q):
        return torch_npu.npu_fusion_attention_v3(q, q, q, 2, "BNSD", scale=0.25)[0] * 2

    torch.testing.assert_close(torch.compile(call, backend="aot_eager", fullgraph=True)(q), call(q))


def test_lengths_missing():
    q = make(8, 2, 16)
    with pytest.raises(
        RuntimeError,
        match="npu_fusion_attention_v3: argument 'actual_seq_qlen' must be given in input_layout TND",
    ):
        torch_npu.npu_fusion_attention_v3(q, q, q, 2, "TND")


def test_lengths_past_the_end():
    q, ends = make(8, 2, 16), torch.tensor([9])
    with pytest.raises(
        RuntimeError,
        match=r"argument 'actual_seq_qlen' must be lengths that end at or before 8.*\[9\]",
    ):
        torch_npu.npu_fusion_attention_v3(
            q, q, q, 2, "TND", actual_seq_qlen=ends, actual_seq_kvlen=ends
        )


def test_seed_missing():
    q, stats = make(1, 2, 8, 16), make(1, 2, 8, 8)
    with pytest.raises(RuntimeError, match="argument 'seed' must be given with keep_prob below 1"):
        torch_npu.npu_fusion_attention_grad_v3(
            q,
            q,
            q,
            q,
            2,
            "BNSD",
            softmax_max=stats,
            softmax_sum=stats,
            attention_in=q,
            keep_prob=0.5,
        )


def test_workspace_outside_tnd():
    q = make(1, 2, 8, 16)
    with pytest.raises(RuntimeError, match="argument 'input_layout' must be TND.*BNSD"):
        torch.ops.npu._npu_fusion_attention_v3_get_max_workspace(q, q, q, 2, "BNSD")


@pytest.mark.parametrize("layout", ["BNSD", "TND"])
def test_a_replayed_graph_draws_a_new_mask(layout):
    """Forward and gradient, with dropout, of a graph equal those of eager from the same random state."""

    def step():
        if layout == "TND":
            shape, ends = (6, 2, 16), torch.tensor([1, 6])
            lengths = {"actual_seq_qlen": ends, "actual_seq_kvlen": ends}
        else:
            shape, lengths = (1, 2, 6, 16), {}
        q = torch.randn(shape, device="npu", requires_grad=True)
        out = torch_npu.npu_fusion_attention_v3(q, q, q, 2, layout, keep_prob=0.5, **lengths)[0]
        return out, torch.autograd.grad(out.sum(), q)[0]

    torch.npu.manual_seed(3)
    start = torch.npu.get_rng_state()
    expected = [[t.clone() for t in step()] for _ in range(2)]
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        results = step()
    torch.npu.set_rng_state(start)
    for wanted in expected:
        graph.replay()
        assert all(torch.equal(*pair) for pair in zip(results, wanted, strict=True))
    assert not torch.equal(*(out for out, _ in expected))


def test_not_on_950():
    q = make(1, 2, 16, 16)
    with (
        on("A5"),
        pytest.raises(RuntimeError, match="'query' must be on a chip of series A2 or A3"),
    ):
        torch_npu.npu_fusion_attention_v3(q, q, q, 2, "BNSD")
