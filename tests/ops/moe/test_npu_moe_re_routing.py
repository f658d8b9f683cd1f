"""npu_moe_re_routing against a loop over ranks and experts."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.moe.loops import npu
from tests.ops.support import make


def sources(counts):
    """The source of each result: block by block, expert after expert, rank after rank."""
    offsets, total = {}, 0
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            offsets[i, j] = total
            total += count
    return [
        offsets[i, j] + t
        for j in range(len(counts[0]))
        for i in range(len(counts))
        for t in range(counts[i][j])
    ]


COUNTS = [
    [[1, 2, 1], [3, 1, 2]],
    [[0, 0, 4], [5, 0, 0], [0, 0, 0]],
    [[3, 1, 4, 1, 5]],
    [[2], [7], [1]],
    [[0, 0], [0, 0]],
]


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_order(counts, dtype, kind):
    total = sum(map(sum, counts))
    tokens, scales = make(total, 5, dtype=dtype, low=-9, high=9), make(total)
    out, moved, index, each = torch_npu.npu_moe_re_routing(
        tokens, npu(counts, kind), per_token_scales=scales
    )
    want = sources(counts)
    assert index.tolist() == want and index.dtype == torch.int32
    assert torch.equal(out.cpu(), tokens.cpu()[want]) and out.dtype == dtype
    assert torch.equal(moved.cpu(), scales.cpu()[want])
    assert (
        each.tolist() == [sum(column) for column in zip(*counts, strict=True)]
        and each.dtype == kind
    )


def test_without_scales_and_non_contiguous():
    tokens = make(4, 10, dtype=torch.float16).t()
    out, moved, index, _ = torch_npu.npu_moe_re_routing(tokens, npu(COUNTS[0]))
    assert torch.equal(out.cpu(), tokens.cpu()[sources(COUNTS[0])])
    assert moved.shape == (10,) and moved.dtype == torch.float32 and index.shape == (10,)


def test_scatter_indices_and_bytes_on_950():
    tokens = make(10, 4, dtype=torch.uint8, low=0, high=256)
    scales = make(10, 3, dtype=torch.uint8, low=0, high=256)
    with on("A5"):
        out, moved, index, _ = torch_npu.npu_moe_re_routing(
            tokens, npu(COUNTS[0]), per_token_scales=scales, idx_type=1,
            tokens_dtype=torch_npu._dtypes.CODES["hifloat8"],
        )  # fmt: skip
    want = sources(COUNTS[0])
    assert torch.equal(out.cpu(), tokens.cpu()[want]) and torch.equal(
        moved.cpu(), scales.cpu()[want]
    )
    assert [want[i] for i in index.tolist()] == list(range(10))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_on_950(dtype):
    tokens = make(10, 4).to(dtype)
    with on("A5"):
        out = torch_npu.npu_moe_re_routing(tokens, npu(COUNTS[0]))[0]
    assert torch.equal(
        out.cpu().view(torch.uint8), tokens.cpu().view(torch.uint8)[sources(COUNTS[0])]
    )


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "changes,message",
    [
        ({"counts": [[4, -1], [7, 0]]}, r"must be non-negative, but received -1 at index \(0, 1\)"),
        (
            {"counts": [4, 6]},
            r"'expert_token_num_per_rank' must be a tensor of 2 dimensions.*\(2,\)",
        ),
        ({"expert_token_num_type": 0}, "'expert_token_num_type' must be 1, but received 0"),
        ({"idx_type": 1}, "'idx_type' must be 0, but received 1"),
        ({"tokens_dtype": 290}, "'tokens_dtype' must be None on this chip, but received 290"),
        ({"dtype": torch.float32}, "'tokens' must be of dtype .*float32"),
        ({"scales": 9}, r"'per_token_scales' must be of shape \(10\).*\(9,\)"),
    ],
)
def test_bad_arguments(changes, message):
    changes = dict(changes)
    tokens = make(10, 4, dtype=changes.pop("dtype", torch.float16))
    counts = npu(changes.pop("counts", COUNTS[0]))
    scales = make(changes.pop("scales", 10))
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_moe_re_routing(tokens, counts, per_token_scales=scales, **changes)


@pytest.mark.family("A2")
def test_too_wide():
    with pytest.raises(
        RuntimeError, match="'tokens' must be of 1 to 16384 columns, but received 16385"
    ):
        torch_npu.npu_moe_re_routing(make(1, 16385, dtype=torch.int8, high=2), npu([[1]]))


def test_tokens_beyond_the_counts_stay_behind():
    tokens = make(6, 4, dtype=torch.float16)
    counts = npu([[1, 1], [1, 1]], torch.int64)
    moved, _, index, each = torch_npu.npu_moe_re_routing(tokens, counts)
    assert index.tolist() == [0, 2, 1, 3, 4, 5] and each.tolist() == [2, 2]
    assert torch.equal(moved.cpu(), tokens.cpu()[[0, 2, 1, 3, 4, 5]])
