"""npu_mrope against loops over tokens, heads and pairs."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, make

TOKENS, ROWS = 5, 9


def reference(positions, tensor, table, head_size, sections, rotary_mode, cache_mode):
    half = table.shape[1] // 2
    out = tensor.clone()
    for token in range(tensor.shape[0]):
        for column in range(half):
            if not sections:
                row = positions[token]
            elif cache_mode == "interleave":
                row = positions[column % 3 if column < 3 * sections[1] else 0, token]
            else:
                owner = 0
                while column >= sum(sections[: owner + 1]):
                    owner += 1
                row = positions[owner, token]
            cos, sin = table[row, column], table[row, half + column]
            i, j = (
                (column, column + half) if rotary_mode == "half" else (2 * column, 2 * column + 1)
            )
            for head in range(0, tensor.shape[1], head_size):
                a, b = tensor[token, head + i], tensor[token, head + j]
                out[token, head + i] = a * cos - b * sin
                out[token, head + j] = b * cos + a * sin
    return out


def inputs(head_size=32, turned=32, sections=(), dtype=torch.float32, index=torch.int64):
    rows = (len(sections), TOKENS) if sections else (TOKENS,)
    return (
        make(*rows, dtype=index, low=0, high=ROWS),
        make(TOKENS, 2 * head_size, dtype=dtype),
        make(TOKENS, head_size, dtype=dtype, seed=3),
        make(ROWS, turned, dtype=dtype, seed=4),
        head_size,
    )


def check(arguments, sections=(), rotary_mode="half", cache_mode="default", **options):
    positions, query, key, table, head_size = arguments
    got = torch_npu.npu_mrope(*arguments, rotary_mode=rotary_mode, cache_mode=cache_mode, **options)
    for have, tensor in zip(got, (query, key), strict=True):
        rest = (head_size, sections, rotary_mode, cache_mode)
        assert have.dtype == tensor.dtype
        want = reference(positions.cpu(), tensor.cpu().double(), table.cpu().double(), *rest)
        plain = reference(positions.cpu(), tensor.cpu(), table.cpu(), *rest)
        assert_accurate(have, want, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rotary_mode", ["half", "interleave"])
def test_rope(rotary_mode, dtype):
    check(inputs(dtype=dtype), rotary_mode=rotary_mode)


@pytest.mark.parametrize("cache_mode", ["default", "interleave"])
def test_rope_by_zero_sections(cache_mode):
    arguments = inputs(64, 32, index=torch.int32)
    want = torch_npu.npu_mrope(*arguments)
    got = torch_npu.npu_mrope(*arguments, mrope_section=[0, 0, 0], cache_mode=cache_mode)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    check(arguments, mrope_section=[0, 0, 0])


@pytest.mark.parametrize("rotary_mode", ["half", "interleave"])
@pytest.mark.parametrize("cache_mode", ["default", "interleave"])
def test_three_sections(cache_mode, rotary_mode):
    sections = [8, 12, 12]
    check(inputs(64, 64, sections), sections, rotary_mode, cache_mode, mrope_section=sections)


@pytest.mark.parametrize(
    "sections,cache_mode",
    [([16, 24, 24], "default"), ([24, 20, 20], "interleave"), ([16, 16, 16, 16], "default")],
)
def test_wide_sections(sections, cache_mode):
    arguments = inputs(128, 128, sections, torch.float16)
    check(arguments, sections, cache_mode=cache_mode, mrope_section=sections)


def test_none_means_the_defaults():
    arguments = inputs()
    got = torch_npu.npu_mrope(*arguments, mrope_section=None, rotary_mode=None, cache_mode=None)
    assert all(torch.equal(a, b) for a, b in zip(got, torch_npu.npu_mrope(*arguments), strict=True))


def test_inputs_stay_and_may_be_strided():
    positions, query, key, table, size = inputs()
    query = make(TOKENS, 128)[:, ::2]
    before = query.cpu()
    check((positions, query, key, table, size))
    assert torch.equal(query.cpu(), before)


def test_no_tokens():
    positions, query, key, table, size = inputs()
    got = torch_npu.npu_mrope(positions[:0], query[:0], key[:0], table, size)
    assert [t.shape for t in got] == [(0, 64), (0, 32)]


def test_modes():
    with pytest.raises(RuntimeError, match="npu_mrope: argument 'cache_mode' must be .*'invalid'"):
        torch_npu.npu_mrope(*inputs(), cache_mode="invalid")
    with pytest.raises(RuntimeError, match="argument 'rotary_mode' must be .*'interleaved'"):
        torch_npu.npu_mrope(*inputs(), rotary_mode="interleaved")


def test_sections():
    with pytest.raises(RuntimeError, match=r"argument 'mrope_section' must be .*\[1, 2, 3\]"):
        torch_npu.npu_mrope(*inputs(sections=[1, 2, 3]), mrope_section=[1, 2, 3])
    with pytest.raises(RuntimeError, match="argument 'mrope_section' must be of the sum 16"):
        torch_npu.npu_mrope(*inputs(sections=[8, 12, 12]), mrope_section=[8, 12, 12])
    with pytest.raises(RuntimeError, match=r"argument 'positions' must be of shape \(3, 5\)"):
        torch_npu.npu_mrope(*inputs(64, 64), mrope_section=[8, 12, 12])


def test_four_sections_are_not_interleaved():
    four = [16, 16, 16, 16]
    with pytest.raises(RuntimeError, match="argument 'cache_mode' must be 'default'"):
        torch_npu.npu_mrope(*inputs(128, 128, four), mrope_section=four, cache_mode="interleave")


def test_sizes():
    with pytest.raises(RuntimeError, match="argument 'head_size' must be a multiple of 32"):
        torch_npu.npu_mrope(*inputs(16, 16, dtype=torch.float16))
    with pytest.raises(
        RuntimeError, match="argument 'cos_sin_cache' must be a multiple of 16 wide"
    ):
        torch_npu.npu_mrope(*inputs(32, 48))
    positions, query, key, table, _ = inputs()
    with pytest.raises(RuntimeError, match="argument 'key' must be whole heads of 64 wide"):
        torch_npu.npu_mrope(positions, query, key, table, 64)


def test_dtypes():
    positions, query, key, table, size = inputs()
    with pytest.raises(RuntimeError, match="argument 'positions' must be of dtype .*float32"):
        torch_npu.npu_mrope(positions.float(), query, key, table, size)
    with pytest.raises(
        RuntimeError, match="argument 'cos_sin_cache' must be of the dtype of 'query'"
    ):
        torch_npu.npu_mrope(positions, query, key, table.half(), size)


def test_unknown_cache_mode():
    positions, query, key, table, size = inputs()
    message = "argument 'cache_mode' must be .*cache_mode only support default or interleave"
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_mrope(positions, query, key, table, size, cache_mode="paged")
