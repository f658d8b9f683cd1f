"""_npu_paged_attention and its workspace against plain attention in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, close, lens, pages
from tests.ops.families import on
from tests.ops.support import make


def inputs(dtype=torch.float16, heads=4, kv_heads=2, size=16, out_size=16, lengths=(20, 1, 17)):
    count = len(lengths)
    return dict(
        query=make(count, heads, size, dtype=dtype),
        key_cache=make(6, 16, kv_heads, size, dtype=dtype, seed=1),
        value_cache=make(6, 16, kv_heads, out_size, dtype=dtype, seed=2),
        num_kv_heads=kv_heads,
        num_heads=heads,
        scale_value=0.3,
        block_table=make(count, 3, dtype=torch.int32, low=0, high=6),
        context_lens=lens(*lengths),
        out=make(count, heads, out_size, dtype=dtype),
    )


def expected(given):
    rows = []
    for i, length in enumerate(given["context_lens"].tolist()):
        key = pages(given["key_cache"], given["block_table"][i], length)
        value = pages(given["value_cache"], given["block_table"][i], length)
        rows.append(attention(given["query"][i : i + 1], key, value, given["scale_value"])[0])
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads,kv_heads", [(4, 2), (4, 4), (8, 1), (1, 1)])
def test_attention(dtype, heads, kv_heads):
    given = inputs(dtype, heads, kv_heads)
    assert torch_npu._npu_paged_attention(**given) is None
    close(given["out"], expected(given), dtype)


def test_other_value_size():
    given = inputs(size=32, out_size=8, lengths=(48,))
    torch.ops.atb._npu_paged_attention(**given)
    close(given["out"], expected(given), torch.float16)


def test_nz_caches():
    given = inputs(size=32, out_size=32)
    plain = expected(given)
    for name in ("key_cache", "value_cache"):
        cache = given[name]  # (blocks, block, N, D) -> (blocks, N * D / 16, block, 16)
        given[name] = cache.flatten(2).unflatten(2, (-1, 16)).transpose(1, 2).contiguous()
    with on("310P"):
        torch_npu._npu_paged_attention(**given)
    close(given["out"], plain, torch.float16)


def test_lengths_on_the_device_of_310p():
    given = inputs(size=32, out_size=32)
    plain = expected(given)
    for name in ("key_cache", "value_cache"):
        given[name] = given[name].flatten(2).unflatten(2, (-1, 16)).transpose(1, 2).contiguous()
    given["context_lens"] = given["context_lens"].npu()
    with on("310P"):
        torch_npu._npu_paged_attention(**given)
    close(given["out"], plain, torch.float16)


def test_plain_caches_are_refused_on_310p():
    with (
        on("310P"),
        pytest.raises(RuntimeError, match=r"'key_cache' must be of shape \(\*, 4, \*, 16"),
    ):
        torch_npu._npu_paged_attention(**inputs(size=32, out_size=32))


def test_as_many_key_heads_as_query_heads():
    given = inputs(heads=4, kv_heads=4)
    plain = expected(given)
    torch_npu._npu_paged_attention(**given | {"num_kv_heads": 0})
    close(given["out"], plain, torch.float16)


def test_ascend950():
    given = inputs()
    with on("A5"):
        torch_npu._npu_paged_attention(**given)
        close(given["out"], expected(given), torch.float16)
        with pytest.raises(RuntimeError, match="'scale_value' must be above 0 and at most 1"):
            torch_npu._npu_paged_attention(**given | {"scale_value": 2.0})


def test_wide_heads_have_short_pages():
    given = inputs(heads=1, kv_heads=1, size=272, lengths=(3,))
    given |= {
        n: make(2, 256, 1, w, dtype=torch.float16)
        for n, w in (("key_cache", 272), ("value_cache", 16))
    }
    given["block_table"] = make(1, 2, dtype=torch.int32, low=0, high=2)
    with pytest.raises(RuntimeError, match="'key_cache' must be of at most 128 tokens a block"):
        torch_npu._npu_paged_attention(**given)


def test_rows_without_keys_are_zero():
    given = inputs(lengths=(0, 4))
    torch_npu._npu_paged_attention(**given)
    assert not given["out"][0].any()
    assert given["out"][1].any()


def test_workspace():
    given = inputs()
    workspace = torch_npu._npu_paged_attention_get_workspace(**given)
    assert workspace.dtype == torch.uint8 and workspace.dim() == 1
    assert workspace.device == given["query"].device
    torch_npu._npu_paged_attention(**given, workspace=workspace)
    close(given["out"], expected(given), torch.float16)


def test_lengths_change_in_a_graph():
    given = inputs(lengths=(20, 20))
    graph, stream = torch.npu.NPUGraph(), torch.npu.Stream()
    event = torch.npu.ExternalEvent()
    with torch.npu.graph(graph):
        current = torch.npu.current_stream()
        event.wait(current)
        event.reset(current)
        torch.npu.graph_task_group_begin(current)
        torch_npu._npu_paged_attention(**given)
        handle = torch.npu.graph_task_group_end(current)
    given["context_lens"] = lens(7, 33)
    with torch.npu.stream(stream):
        torch.npu.graph_task_update_begin(stream, handle)
        torch_npu._npu_paged_attention(**given)
        torch.npu.graph_task_update_end(stream)
        event.record(stream)
    graph.replay()
    close(given["out"], expected(given), torch.float16)


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda g: g.update(context_lens=g["context_lens"].npu()), "'context_lens' must be a CPU"),
        (lambda g: g.update(context_lens=g["context_lens"].long()), "'context_lens' must be of dtype"),
        (lambda g: g.update(num_kv_heads=3), "'num_kv_heads' must be 0 or a divisor of 'num_heads' .4."),
        (lambda g: g.update(num_heads=0), "'num_heads' must be positive, but received 0"),
        (lambda g: g.update(context_lens=lens(49, 1, 1)), "'context_lens' must be .*up to 48.*received 49"),
        (lambda g: g.update(context_lens=lens(-1, 1, 1)), "'context_lens' must be of lengths of at least 0"),
        (lambda g: g.update(query=g["query"].float()), "'query' must be of dtype"),
        (lambda g: g.update(out=g["out"][:2]), r"'out' must be of shape \(3, 4, \*\)"),
        (lambda g: g.update(out=g["out"].repeat(1, 1, 2)[..., :16]), "'out' must be contiguous"),
        (lambda g: g.update(query=g["query"].flatten(1)), r"'query' must be of shape \(\*, 4, \*\)"),
        (lambda g: g.update(value_cache=g["value_cache"][:5]), r"'value_cache' must be of shape \(6, 16, 2"),
        (lambda g: g.update(key_cache=g["key_cache"][..., :8]), r"'key_cache' must be of shape .*2, 16"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    given = inputs()
    change(given)
    with pytest.raises(RuntimeError, match=f"_npu_paged_attention: argument {message}"):
        torch_npu._npu_paged_attention(**given)


def test_blocks_outside_the_cache():
    given = inputs()
    given["block_table"][0, 0] = 6
    with pytest.raises(RuntimeError, match="'block_table' must be of block numbers from 0 to 5"):
        torch_npu._npu_paged_attention(**given)
