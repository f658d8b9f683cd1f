"""Attention after a cached prefix (_qlens, _prefix_v2, npu_self_attention_prefix_encoder) against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, causal, close, lens, pages
from tests.ops.support import make

NEW, ALL = (3, 2, 130), (131, 2, 258)


def inputs(dtype=torch.bfloat16, flat=False):
    caches = [make(6, 128, 2, 16, dtype=dtype, seed=s) for s in (1, 2)]
    query = make(sum(NEW), 4, 16, dtype=dtype)
    table = make(3, 3, dtype=torch.int32, low=0, high=6)
    if flat:
        return query.flatten(1), *(c.flatten(2) for c in caches), table
    return query, *caches, table


def expected(query, key, value, table, bias):
    query = query.unflatten(1, (4, -1)) if query.dim() == 2 else query
    rows, start = [], 0
    for i, (n, length) in enumerate(zip(NEW, ALL, strict=True)):
        keys, values = (pages(c, table[i], length).reshape(length, 2, 16) for c in (key, value))
        rows.append(attention(query[start : start + n], keys, values, 0.3, bias(n, length))[0])
        start += n
    return torch.cat(rows)


def template(dtype):
    return torch.ones(128, 128).triu(1).to(dtype).npu()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("flat", [False, True])
def test_qlens(dtype, flat):
    query, key, value, table = inputs(dtype, flat)
    out = torch.zeros_like(query)
    torch_npu._npu_flash_attention_qlens(
        query, key, value, table, template(dtype), lens(*NEW), lens(*ALL), 2, 4, 0.3, out
    )
    found = expected(query, key, value, table, causal)
    close(out, found.flatten(1) if flat else found, dtype)


def prefix_v2(given, mask, out, **options):
    arguments = dict(num_heads=4, num_kv_heads=2, scale_value=0.3, out=out) | options
    return torch_npu.atb._npu_flash_attention_prefix_v2(
        *given, mask, list(NEW), list(ALL), **arguments
    )


def test_prefix_v2():
    given = inputs()
    out = torch.zeros_like(given[0])
    assert prefix_v2(given, template(torch.bfloat16), out).data_ptr() == out.data_ptr()
    close(out, expected(*given, causal), torch.bfloat16)


def alibi(slopes, root):
    def bias(rows, columns):
        distance = torch.arange(columns - rows, columns)[:, None] - torch.arange(columns)[None]
        distance = distance.double()
        value = distance.abs().sqrt() if root else distance
        hidden = causal(rows, columns)
        return slopes.cpu().double().view(-1, 1, 1) * value + hidden

    return bias


def compressed(root):
    i = torch.arange(256.0)
    distance = i[:, None] - i[None, :]
    value = distance.abs().sqrt() * distance.sign() if root else distance
    return (value + torch.full((256, 256), torch.inf).triu(1)).bfloat16().npu()


@pytest.mark.parametrize("mask_type", [4, 5])
def test_prefix_v2_alibi(mask_type):
    given, slopes = inputs(), make(4, low=-0.3, high=-0.01)
    out = torch.zeros_like(given[0])
    prefix_v2(given, compressed(mask_type == 5), out, slopes=slopes, mask_type=mask_type)
    close(out, expected(*given, alibi(slopes, mask_type == 5)), torch.bfloat16)


@pytest.mark.parametrize("mask_type", [None, "mask_type_causal_mask", "mask_type_norm_compress"])
def test_prefix_encoder(mask_type):
    given = inputs()
    mask = template(torch.bfloat16) if mask_type == "mask_type_norm_compress" else None
    arguments = (*given, list(NEW), list(ALL), 4, 0.3, 2)
    options = {"mask": mask, "mask_type": mask_type}
    found = torch_npu.atb.npu_self_attention_prefix_encoder(*arguments, **options)
    close(found, expected(*given, causal), torch.bfloat16)
    out = torch.zeros_like(given[0])
    torch_npu.atb.npu_self_attention_prefix_encoder(*arguments, **options, output=out)
    assert torch.equal(out.cpu(), found.cpu())


@pytest.mark.parametrize("root", [False, True])
def test_prefix_encoder_alibi(root):
    given, slopes = inputs(), make(4, low=-0.3, high=-0.01)
    name = "mask_type_alibi_compress" + "_sort" * root
    found = torch_npu.atb.npu_self_attention_prefix_encoder(
        *given,
        list(NEW),
        list(ALL),
        4,
        0.3,
        2,
        mask=compressed(root),
        slopes=slopes,
        mask_type=name,
    )
    close(found, expected(*given, alibi(slopes, root)), torch.bfloat16)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"mask_type": 2}, "'mask_type' must be 3, 4 or 5"),
        ({"kernel_type": 0}, "'kernel_type' must be 1"),
        ({"num_kv_heads": 3}, "'num_kv_heads' must be 0 or a divisor"),
        ({"mask_type": 4}, r"'mask' must be of shape \(256, 256\)"),
    ],
)
def test_refusals(options, message):
    given = inputs()
    with pytest.raises(RuntimeError, match=f"prefix_v2.out: argument {message}"):
        prefix_v2(given, template(torch.bfloat16), torch.zeros_like(given[0]), **options)


def test_a_prefix_of_whole_blocks():
    query, key, value, table = inputs()
    with pytest.raises(RuntimeError, match="'context_lens' must be .* a multiple of 128"):
        torch_npu._npu_flash_attention_qlens(
            query, key, value, table[:1], template(torch.bfloat16), lens(3), lens(100), 2, 4, 0.3,
            torch.zeros_like(query),
        )  # fmt: skip


@pytest.mark.parametrize(
    "change,message",
    [
        (lambda q, k, t: (q, k, t[:2]), "'block_table' must be of [0-9] rows"),
        (lambda q, k, t: (q, k[:, :64], t), "'key_cache' must be of 128 tokens a block"),
        (lambda q, k, t: (q[..., :8], k[..., :8], t), "'query' must be of a head size of a multiple of 16"),
    ],
)  # fmt: skip
def test_sizes_of_pages(change, message):
    query, key, _, table = inputs()
    query, key, table = change(query, key, table)
    with pytest.raises(RuntimeError, match=message):
        torch_npu._npu_flash_attention_qlens(
            query, key, key, table, template(torch.bfloat16), lens(*NEW), lens(*ALL), 2, 4, 0.3,
            query.contiguous(),
        )  # fmt: skip


def test_another_mask():
    query, key, value, table = inputs()
    mask = template(torch.bfloat16).t().contiguous()
    with pytest.raises(RuntimeError, match="'mask' must be not 0 above the diagonal"):
        torch_npu._npu_flash_attention_qlens(
            query, key, value, table, mask, lens(*NEW), lens(*ALL), 2, 4, 0.3, query.clone()
        )


def test_unknown_mask_type():
    given = inputs()
    with pytest.raises(RuntimeError, match="prefix_encoder: argument 'mask_type' must be"):
        torch_npu.atb.npu_self_attention_prefix_encoder(
            *given, list(NEW), list(ALL), 4, 0.3, 2, mask_type="none"
        )
