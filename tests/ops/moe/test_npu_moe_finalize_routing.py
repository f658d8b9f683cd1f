"""npu_moe_finalize_routing against a loop over tokens and experts."""

import itertools

import pytest
import torch

import torch_npu
from tests.ops.moe.loops import finalize, npu
from tests.ops.support import assert_accurate, make

N, K, H, E, C = 5, 3, 7, 4, 6


def inputs(dtype, dropping, seed=0):
    rows = (
        make(E, C, H, dtype=dtype, seed=seed)
        if dropping
        else make(N * K, H, dtype=dtype, seed=seed)
    )
    low, high = (-1, E * C) if dropping else (0, N * K)
    index = make(N * K, dtype=torch.int32, low=low, high=high, seed=seed + 1)
    experts = make(N, K, dtype=torch.int32, low=0, high=E, seed=seed + 2)
    return rows, index, experts


def expect(rows, index, mode, scales, bias, experts, skips, top_k=K):
    def run(dtype):
        def cast(t):
            return None if t is None else t.cpu().to(dtype)

        return finalize(
            cast(rows), index.tolist(), top_k, mode >= 2, cast(scales), cast(bias),
            experts.tolist() if experts is not None else None, [cast(s) for s in skips if s is not None],
        )  # fmt: skip

    return run(torch.float64), run(rows.dtype)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_modes_and_dtypes(mode, dtype):
    rows, index, experts = inputs(dtype, mode in (1, 3))
    scales, bias = make(N, K, dtype=dtype), make(E, H, dtype=dtype)
    skip1, skip2 = make(N, H, dtype=dtype, seed=8), make(N, H, dtype=dtype, seed=9)
    out = torch_npu.npu_moe_finalize_routing(rows, skip1, skip2, bias, scales, index, experts, mode)
    want, plain = expect(rows, index, mode, scales, bias, experts, (skip1, skip2))
    assert out.dtype == dtype and out.is_contiguous()
    assert_accurate(out, want, plain)


@pytest.mark.parametrize(
    "skips,biased,scaled", itertools.product((0, 1, 2), (False, True), (False, True))
)
def test_optional_inputs(skips, biased, scaled):
    rows, index, experts = inputs(torch.float32, dropping=True, seed=4)
    skip1, skip2 = (make(N, H, seed=s) if s < skips else None for s in range(2))
    bias, scales = make(E, H) if biased else None, make(N, K) if scaled else None
    named = experts if biased else None
    out = torch_npu.npu_moe_finalize_routing(
        rows, skip1, skip2, bias, scales, index, named, drop_pad_mode=3, k=K
    )
    want, plain = expect(rows, index, 3, scales, bias, experts, (skip1, skip2))
    assert_accurate(out, want, plain)


def test_one_expert_a_token_by_default():
    rows, index = make(6, H), npu([3, 1, 0, 2, 5, 4])
    out = torch_npu.npu_moe_finalize_routing(rows, None, None, None, None, index, None)
    assert torch.equal(out.cpu(), rows.cpu()[index.cpu().long()])


def test_float32_scales_with_bfloat16_rows():
    rows, index, _ = inputs(torch.bfloat16, dropping=False)
    scales = make(N, K)
    out = torch_npu.npu_moe_finalize_routing(rows, None, None, None, scales, index, None, 2)
    want, _ = expect(rows, index, 2, scales, None, None, ())
    assert_accurate(out, want, want.bfloat16())


def test_all_dropped_and_no_tokens():
    rows = make(E, C, H)
    gone = npu([-1] * (N * K))
    out = torch_npu.npu_moe_finalize_routing(rows, None, None, None, make(N, K), gone, None, 1)
    assert torch.equal(out.cpu(), torch.zeros(N, H))
    none = torch_npu.npu_moe_finalize_routing(
        make(0, H), None, None, None, make(0, K), npu([]), None, 0
    )
    assert none.shape == (0, H)


def test_non_contiguous():
    rows, index, _ = inputs(torch.float32, dropping=False)
    wide_rows = make(N * K, 2 * H)[:, ::2]
    scales = make(K, N).t()
    out = torch_npu.npu_moe_finalize_routing(wide_rows, None, None, None, scales, index, None)
    want, plain = expect(wide_rows, index, 0, scales, None, None, ())
    assert_accurate(out, want, plain)


def call(**changes):
    rows, index, experts = inputs(torch.float32, dropping=False)
    given = {
        "rows": rows, "skip1": None, "skip2": None, "bias": make(E, H), "scales": make(N, K),
        "index": index, "experts": experts, "drop_pad_mode": 0, "k": 1,
    } | changes  # fmt: skip
    return torch_npu.npu_moe_finalize_routing(*given.values())


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"drop_pad_mode": 4}, r"argument 'drop_pad_mode' must be 0, 1, 2 or 3, but received 4"),
        ({"drop_pad_mode": 1}, r"'expanded_permuted_rows' must be a tensor of 3 dimensions.*\(15, 7\)"),
        ({"skip2": "skip"}, "'skip2' must be None where 'skip1' is None"),
        ({"experts": None}, "'export_for_source_row' must be given together with 'bias'"),
        ({"k": 2}, r"'k' must be the second size of 'scales' \(3\), but received 2"),
        ({"scales": "half"}, "'scales' must be of dtype torch.float32.*float16"),
        ({"rows": "short"}, r"'expanded_permuted_rows' must be of shape \(15, 7\).*\(14, 7\)"),
        ({"index": "outside"}, r"'expanded_src_to_dst_row' must be in \[0, 15\), but received 15 at index 2"),
        ({"index": "dropped"}, r"'expanded_src_to_dst_row' must be in \[0, 15\), but received -1 at index 4"),
        ({"experts": "outside"}, r"'export_for_source_row' must be in \[0, 4\), but received 9 at index \(1, 2\)"),
    ],
)  # fmt: skip
def test_bad_arguments(changes, message):
    places = list(range(N * K))
    experts = [[0] * K for _ in range(N)]
    experts[1][2] = 9
    tensors = {
        "skip": make(N, H), "half": make(N, K, dtype=torch.float16), "short": make(N * K - 1, H),
    }  # fmt: skip
    indices = {
        ("index", "outside"): npu([*places[:2], 15, *places[3:]]),
        ("index", "dropped"): npu([*places[:4], -1, *places[5:]]),
        ("experts", "outside"): npu(experts),
    }
    made = {
        name: indices.get((name, value), tensors.get(value, value))
        if isinstance(value, str)
        else value
        for name, value in changes.items()
    }
    with pytest.raises(RuntimeError, match=message):
        call(**made)
