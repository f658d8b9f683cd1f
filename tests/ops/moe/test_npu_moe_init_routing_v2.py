"""npu_moe_init_routing_v2 without and with int8: routing against loops, rows against numpy."""

import numpy as np
import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.moe.loops import init_routing_v2, npu, scatter_order
from tests.ops.support import make

N, K, H, E = 8, 3, 10, 6
EXPERTS = [
    [0, 3, 3],
    [5, -1, 0],
    [3, 3, 3],
    [2, 5, 0],
    [-1, -1, -1],
    [1, 2, 3],
    [3, 6, 4],
    [0, 0, 5],
]


@pytest.fixture(autouse=True)
def _on_a2():
    """310P counts cumulatively and drops nothing, whatever it is asked for; tests of it say so."""
    with on("A2"):
        yield


def run(x, experts, **options):
    options = {
        "expert_num": E,
        "expert_tokens_num_flag": True,
        "expert_tokens_num_type": 1,
    } | options
    return torch_npu.npu_moe_init_routing_v2(x, npu(experts), **options)


def rows_of(x, pairs, top_k=K):
    """The rows that the pairs name, zeros for -1."""
    return torch.stack([x[p // top_k] if p >= 0 else torch.zeros_like(x[0]) for p in pairs])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int8])
@pytest.mark.parametrize("span", [(0, E), (2, 5), (3, 4), (5, 6)])
@pytest.mark.parametrize("active", [-1, 0, 5, 10**6])
def test_rows_and_indices(dtype, span, active):
    x, scale = make(N, H, dtype=dtype, low=-9, high=9), make(N)
    given = {"active_expert_range": list(span)} if span != (0, E) else {}
    out, went, counts, scales = run(x, EXPERTS, scale=scale, active_num=active, **given)
    pairs, want_went, want_counts = init_routing_v2(EXPERTS, *span, active)
    assert torch.equal(out.cpu(), rows_of(x.cpu(), pairs)) and out.dtype == dtype
    assert went.tolist() == want_went and went.dtype == torch.int32
    assert counts.tolist() == want_counts and counts.dtype == torch.int64
    assert torch.equal(scales.cpu(), rows_of(scale.cpu().unsqueeze(1), pairs).squeeze(1))


@pytest.mark.parametrize("span", [(0, E), (2, 5)])
def test_scatter_indices(span):
    _, index, _, _ = run(make(N, H), EXPERTS, active_expert_range=list(span), row_idx_type=1)
    assert index.tolist() == scatter_order(EXPERTS, span[0])


@pytest.mark.parametrize("span", [(0, E), (2, 5), (0, 2)])
def test_kinds_of_counts(span):
    x, options = make(N, H), {"active_expert_range": list(span)}
    _, _, plain = init_routing_v2(EXPERTS, *span)
    sums = [sum(plain[: i + 1]) for i in range(len(plain))]
    pairs = [[span[0] + i, c] for i, c in enumerate(plain) if c]
    pairs += [[0, 0]] * (E - len(pairs))
    for kind, want in ((0, sums), (1, plain), (2, pairs)):
        counts = run(x, EXPERTS, expert_tokens_num_type=kind, **options)[2]
        assert counts.tolist() == want and counts.dtype == torch.int64
    unasked = run(x, EXPERTS, expert_tokens_num_flag=False, **options)[2]
    assert unasked.tolist() == [0] * len(plain)


def test_experts_without_tokens_are_left_out_of_the_pairs():
    counts = run(make(3, H), [[4], [1], [4]], expert_tokens_num_type=2)[2]
    assert counts.tolist() == [[1, 1], [4, 2], [0, 0], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("capacity", [1, 2, N])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8])
def test_capacity(capacity, dtype):
    x, scale = make(N, H, dtype=dtype, low=-9, high=9), make(N)
    out, went, counts, scales = run(
        x, EXPERTS, drop_pad_mode=1, expert_capacity=capacity, scale=scale
    )
    pairs, want_went, want_counts = init_routing_v2(EXPERTS, 0, E, capacity=capacity)
    assert out.shape == (E, capacity, H)
    assert torch.equal(out.cpu().flatten(0, 1), rows_of(x.cpu(), pairs))
    assert went.tolist() == want_went and counts.tolist() == want_counts
    assert torch.equal(scales.cpu(), rows_of(scale.cpu().unsqueeze(1), pairs).squeeze(1))


@pytest.mark.parametrize(
    "experts", [[[2, 2, 2]] * N, [[-1, -1, -1]] * N, [[i % E] * K for i in range(N)]]
)
def test_one_expert_no_expert_equal_experts(experts):
    x = make(N, H)
    for options in ({}, {"drop_pad_mode": 1, "expert_capacity": 4}):
        out, went, counts, _ = run(x, experts, **options)
        pairs, want, want_counts = init_routing_v2(experts, 0, E, capacity=4 if options else 0)
        assert torch.equal(out.cpu().reshape(-1, H), rows_of(x.cpu(), pairs))
        assert went.tolist() == want and counts.tolist() == want_counts


def quantized(x, factor):
    """Dynamic int8 as the page has it, in float32: the rows and their scales."""
    x = x.astype(np.float32) * factor
    scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    safe = np.where(scale == 0, np.float32(1), scale)
    return np.rint(x / safe).astype(np.int8), scale[:, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("smooth", [None, "one", "each"])
@pytest.mark.parametrize("capacity", [0, 2])
def test_dynamic_int8(dtype, smooth, capacity):
    x = make(N, H, dtype=dtype, low=-9, high=9)
    x[2] = 0
    span = (0, E) if capacity else (2, 5)
    length = span[1] - span[0]
    scale = None if smooth is None else make(1 if smooth == "one" else length, H, low=-2, high=2)
    options = {"drop_pad_mode": 1, "expert_capacity": capacity} if capacity else {}
    out, _, _, scales = run(
        x, EXPERTS, quant_mode=1, scale=scale, active_expert_range=list(span), **options
    )
    pairs, _, _ = init_routing_v2(EXPERTS, *span, capacity=capacity)
    flat = [e for row in EXPERTS for e in row]
    factors = np.ones((len(pairs), H), np.float32)
    if scale is not None:
        table = scale.cpu().numpy()
        for i, pair in enumerate(pairs):
            factors[i] = 0 if pair < 0 else table[0 if smooth == "one" else flat[pair] - span[0]]
    want, want_scales = quantized(rows_of(x.cpu().float(), pairs).numpy(), factors)
    assert out.dtype == torch.int8 and scales.dtype == torch.float32
    assert np.array_equal(out.cpu().reshape(-1, H).numpy(), want)
    assert np.array_equal(scales.cpu().numpy(), want_scales)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_static_int8_rounds_to_even_and_saturates(dtype):
    x = make(N, H, dtype=dtype, low=-9, high=9)
    x[0, :6] = torch.tensor([0.25, 0.75, 1.25, -0.25, 400.0, -400.0])
    scale, offset = npu([2.0], torch.float32), npu([3.0], torch.float32)
    out, _, _, scales = run(x, EXPERTS, quant_mode=0, scale=scale, offset=offset)
    pairs, _, _ = init_routing_v2(EXPERTS, 0, E)
    stored = np.clip(np.rint(x.cpu().float().numpy() * 2 + 3), -128, 127)
    want = np.stack([stored[p // K] if p >= 0 else np.full(H, 3) for p in pairs])
    first = pairs.index(0)
    assert out[first, :6].tolist() == [4, 4, 6, 2, 127, -128]
    assert np.array_equal(out.cpu().numpy()[: len([p for p in pairs if p >= 0])],
                          want[: len([p for p in pairs if p >= 0])])  # fmt: skip
    assert scales.shape == (N * K,)


def test_more_experts_than_a_range_reaches():
    """The limit is the end of the range."""
    x = make(N, H)
    out, went, counts, _ = run(x, EXPERTS, expert_num=20000, active_expert_range=[2, 5])
    pairs, want_went, want_counts = init_routing_v2(EXPERTS, 2, 5)
    assert torch.equal(out.cpu(), rows_of(x.cpu(), pairs))
    assert went.tolist() == want_went and counts.tolist() == want_counts


def test_int8_is_not_quantized_again():
    x = make(N, H, dtype=torch.int8, low=-9, high=9)
    with pytest.raises(RuntimeError, match="'x' must be of dtype .*received torch.int8"):
        run(x, EXPERTS, quant_mode=1)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"expert_tokens_num_flag": False}, "'expert_tokens_num_flag' must be True on this chip"),
        (
            {"active_num": 5},
            "'active_num' must be -1 or 24, the number of 'expert_idx', but received 5",
        ),
        (
            {"drop_pad_mode": 1, "expert_capacity": 2, "quant_mode": 1},
            "'quant_mode' must be -1 with drop_pad_mode=1, but received 1",
        ),
    ],
)
def test_refused_on_ascend950(options, message):
    with on("A5"), pytest.raises(RuntimeError, match=message):
        run(make(N, H), EXPERTS, **options)


def test_no_tokens():
    none = torch.zeros(0, K, dtype=torch.int32)
    out, went, counts, scales = run(make(0, H), none, quant_mode=1, scale=make(0))
    assert out.shape == (0, H) and out.dtype == torch.int8
    assert went.shape == scales.shape == (0,) and counts.tolist() == [0] * E


def test_non_contiguous():
    x = make(H, N).t()
    out, _, _, _ = run(x, EXPERTS)
    assert torch.equal(out.cpu(), rows_of(x.cpu(), init_routing_v2(EXPERTS, 0, E)[0]))


def test_on_the_inference_series():
    x = make(N, H, dtype=torch.float16)
    with on("310P"):
        out, went, counts, before = run(
            x, EXPERTS, expert_tokens_num_type=1, drop_pad_mode=1, expert_capacity=2
        )
    pairs, want, plain = init_routing_v2(EXPERTS, 0, E)
    assert torch.equal(out.cpu(), rows_of(x.cpu(), pairs)) and went.tolist() == want
    assert counts.tolist() == [sum(plain[: i + 1]) for i in range(E)]
    assert before.tolist() == plain and before.dtype == counts.dtype == torch.int32


@pytest.mark.parametrize(
    "options,message",
    [
        ({"expert_num": 0}, "'expert_num' must be positive, but received 0"),
        ({"expert_num": 5121, "expert_tokens_num_type": 2}, r"'active_expert_range' must be of an end up to 5120"),
        ({"expert_num": 10241}, r"'active_expert_range' must be of an end up to 10240.*\[0, 10241\]"),
        ({"expert_num": 3}, r"'expert_idx' must be in \[-1, 4\), but received 5 at index \(1, 0\)"),
        ({"active_expert_range": [2, 9]}, r"'active_expert_range' must be \[start, end\].*\[2, 9\]"),
        ({"active_expert_range": [4, 4]}, r"'active_expert_range' must be \[start, end\].*\[4, 4\]"),
        ({"active_expert_range": [1]}, "'active_expert_range' must be two numbers or none"),
        ({"active_num": -2}, "'active_num' must be at least -1, but received -2"),
        ({"drop_pad_mode": 2}, "'drop_pad_mode' must be 0 or 1, but received 2"),
        ({"drop_pad_mode": 1}, r"'expert_capacity' must be within \[1, 8\], but received -1"),
        ({"drop_pad_mode": 1, "expert_capacity": 9}, r"'expert_capacity' must be within \[1, 8\]"),
        ({"drop_pad_mode": 1, "expert_capacity": 2, "row_idx_type": 1}, "'row_idx_type' must be 0 with drop"),
        ({"drop_pad_mode": 1, "expert_capacity": 2, "active_expert_range": [0, 5]}, r"must be \[0, 6\] with drop"),
        ({"drop_pad_mode": 1, "expert_capacity": 2, "expert_tokens_num_type": 0}, "'expert_tokens_num_type' must be 1"),
        ({"expert_tokens_num_type": 3}, "'expert_tokens_num_type' must be 0, 1 or 2, but received 3"),
        ({"quant_mode": 2}, "'quant_mode' must be -1, 0 or 1, but received 2"),
        ({"quant_mode": 0}, "'scale' must be given with quant_mode=0"),
        ({"quant_mode": 0, "scale": (1,)}, "'offset' must be given with quant_mode=0"),
        ({"quant_mode": 0, "scale": (2,)}, r"'scale' must be of shape \(1\).*\(2,\)"),
        ({"quant_mode": 1, "scale": (4, H)}, r"'scale' must be of shape \(1 or 6, 10\).*\(4, 10\)"),
        ({"quant_mode": 1, "offset": (1,)}, "'offset' must be None unless quant_mode=0"),
        ({"scale": (N, 1)}, r"'scale' must be of shape \(8\).*\(8, 1\)"),
        ({"x_dtype": 290}, "'x_dtype' must be None.*hifloat8"),
        ({"quant_mode": 1, "x_dtype": 285}, "'x_dtype' must be int4 only with quant_mode=13"),
    ],
)  # fmt: skip
def test_bad_arguments(options, message):
    made = {n: make(*v) if isinstance(v, tuple) else v for n, v in options.items()}
    with pytest.raises(RuntimeError, match=message):
        run(make(N, H), EXPERTS[:-2] + [[3, 4, 4], [0, 0, 5]], **made)


def test_bad_types_by_chip():
    with pytest.raises(RuntimeError, match="'x' must be of dtype .*float8_e4m3fn"):
        run(make(N, H).to(torch.float8_e4m3fn), EXPERTS)
    with on("310P"), pytest.raises(RuntimeError, match="'x' must be of dtype .*bfloat16"):
        run(make(N, H, dtype=torch.bfloat16), EXPERTS)
    with on("310P"), pytest.raises(RuntimeError, match="'quant_mode' must be -1, but received 1"):
        run(make(N, H), EXPERTS, quant_mode=1)
    with pytest.raises(RuntimeError, match="'expert_idx' must be of dtype torch.int32.*int64"):
        run(make(N, H), torch.tensor(EXPERTS))
