"""_npu_flash_attention, _unpad and _v2 against plain attention in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.atb.reference import attention, causal, close, lens
from tests.ops.families import on
from tests.ops.support import make

LENGTHS = (6, 1, 9)


def tokens(dtype, flat=False):
    query, key = make(16, 4, 16, dtype=dtype), make(16, 2, 16, dtype=dtype, seed=1)
    value, out = make(16, 2, 8, dtype=dtype, seed=2), make(16, 4, 8, dtype=dtype)
    made = (query, key, value, out)
    return tuple(t.flatten(1) for t in made) if flat else made


def expected(query, key, value, bias):
    query, key, value = (
        t.unflatten(1, (n, -1)) if t.dim() == 2 else t
        for t, n in ((query, 4), (key, 2), (value, 2))
    )
    rows, start = [], 0
    for index, n in enumerate(LENGTHS):
        span = slice(start, start + n)
        rows.append(attention(query[span], key[span], value[span], 0.3, bias(index, n))[0])
        start += n
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("flat", [False, True])
def test_causal_mask(dtype, flat):
    """A float16 mask is added; a bfloat16 one holds 1 where a key is hidden."""
    query, key, value, out = tokens(dtype, flat)
    mask = torch.ones(12, 12).triu(1) * (-10000 if dtype == torch.float16 else 1)
    torch_npu._npu_flash_attention(
        query, key, value, mask.to(dtype).npu(), lens(*LENGTHS), 0.3, 4, 2, out
    )
    found = expected(query, key, value, lambda index, n: causal(n, n))
    close(out, found.flatten(1) if flat else found, dtype)


def test_mask_of_each_prompt():
    query, key, value, out = tokens(torch.float16)
    mask = make(3, 9, 9, dtype=torch.float16, low=-4, high=4)
    torch_npu._npu_flash_attention(query, key, value, mask, lens(*LENGTHS), 0.3, 4, 2, out)
    found = expected(query, key, value, lambda index, n: mask[index, :n, :n].cpu())
    close(out, found, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_without_a_mask(dtype):
    query, key, value, out = tokens(dtype)
    torch_npu._npu_flash_attention_unpad(query, key, value, lens(*LENGTHS), 0.3, 4, 2, out)
    close(out, expected(query, key, value, lambda index, n: None), dtype)


def v2(query, key, value, out, **options):
    given = dict(num_heads=4, num_kv_heads=2, scale_value=0.3, out=out) | options
    found = torch_npu.atb._npu_flash_attention_v2(query, key, value, list(LENGTHS), **given)
    assert found.data_ptr() == out.data_ptr()


@pytest.mark.parametrize("shape", [(3, 4, 9, 9), (4, 9, 9)])
def test_alibi(shape):
    given = tokens(torch.bfloat16)
    mask = make(*shape, dtype=torch.bfloat16, low=-4, high=4)
    v2(*given, mask=mask)
    picked = lambda i, n: (mask[i] if mask.dim() == 4 else mask)[:, :n, :n].cpu()  # noqa: E731
    close(given[3], expected(*given[:3], picked), torch.bfloat16)


def test_plain_masks_of_v2():
    given = tokens(torch.float16)
    mask = (torch.ones(9, 9).triu(1) * -10000).half().npu()
    v2(*given, mask=mask, mask_type=1, kernel_type=1)
    close(given[3], expected(*given[:3], lambda i, n: causal(n, n)), torch.float16)


def test_single_queries_over_their_own_keys():
    """Lengths (2, batch): those of queries, and those of keys."""
    query, key = make(3, 4, 16, dtype=torch.float16), make(14, 2, 16, dtype=torch.float16)
    mask, out = make(9, 9, dtype=torch.float16), torch.zeros_like(query)
    lengths = torch.tensor([[1, 2], [12, 2]], dtype=torch.int32)
    torch_npu._npu_flash_attention_unpad(query, key, key, lengths, 0.3, 4, 2, out)
    rows = [
        attention(query[:1], key[:12], key[:12], 0.3)[0],
        attention(query[1:], key[12:], key[12:], 0.3)[0],
    ]
    close(out, torch.cat(rows), torch.float16)
    lengths[0] = lengths.new_tensor([2, 1])
    with pytest.raises(
        RuntimeError, match="'seq_len' must be of as many keys as queries .2., or of one"
    ):
        torch_npu._npu_flash_attention(query, key, key, mask, lengths, 0.3, 4, 2, out)


def test_mask_of_each_head():
    query, key, value, out = tokens(torch.float16)
    mask = make(3, 4, 9, 9, dtype=torch.float16, low=-4, high=4)
    torch_npu._npu_flash_attention(query, key, value, mask, lens(*LENGTHS), 0.3, 4, 2, out)
    found = expected(query, key, value, lambda index, n: mask[index, :, :n, :n].cpu())
    close(out, found, torch.float16)


def test_chips():
    query, key, value, out = tokens(torch.float16)
    arguments = (lens(*LENGTHS), 0.3, 4, 2, out)
    with on("310P"), pytest.raises(RuntimeError, match="'value' must be of head size 16, as 'key'"):
        torch_npu._npu_flash_attention_unpad(query, key, value, *arguments)
    with (
        on("A5"),
        pytest.raises(RuntimeError, match="'value' must be of head size 16 .128 beside 192"),
    ):
        torch_npu._npu_flash_attention_unpad(query, key, value, *arguments)
    same = torch.zeros_like(query)
    for family in ("310P", "910A", "A5"):
        with on(family):
            torch_npu._npu_flash_attention_unpad(query, key, key, *arguments[:-1], same)
        close(same, expected(query, key, key, lambda index, n: None), torch.float16)


def test_nz_mask_of_310p():
    query, key = make(16, 4, 16, dtype=torch.float16), make(16, 2, 16, dtype=torch.float16, seed=1)
    out, mask = torch.zeros_like(query), make(16, 16, dtype=torch.float16, low=-4, high=4)
    nz = mask.unflatten(1, (-1, 16)).transpose(0, 1).unsqueeze(0).contiguous()
    with on("310P"):
        torch_npu._npu_flash_attention(query, key, key, nz, lens(*LENGTHS), 0.3, 4, 2, out)
    found = expected(query, key, key, lambda index, n: mask[:n, :n].cpu())
    close(out, found, torch.float16)


def distances(size, root):
    """i - j, or its square root with its sign, and 60000 more where j comes after i."""
    i = torch.arange(size, dtype=torch.float64)
    distance = i[:, None] - i[None, :]
    value = distance.abs().sqrt() * distance.sign() if root else distance
    return value + torch.ones(size, size).triu(1) * 60000


@pytest.mark.parametrize("mask_type", [4, 5])
@pytest.mark.parametrize("length", [40, 300])
def test_compressed_alibi(mask_type, length):
    """The 256 x 256 template goes on to the left of its reach."""
    root = mask_type == 5
    query, key = (
        make(length, 4, 16, dtype=torch.bfloat16),
        make(length, 2, 16, dtype=torch.bfloat16),
    )
    out, slopes = make(length, 4, 16, dtype=torch.bfloat16), make(4, low=-0.5, high=-0.01)
    template = distances(256, root)
    torch_npu.atb._npu_flash_attention_v2(
        query, key, key, [length], mask=template.bfloat16().npu(), slopes=slopes,
        mask_type=mask_type, scale_value=0.3, num_heads=4, num_kv_heads=2, out=out,
    )  # fmt: skip
    bias = slopes.cpu().double().view(-1, 1, 1) * distances(length, root)
    close(out, attention(query, key, key, 0.3, bias)[0], torch.bfloat16)


@pytest.mark.parametrize(
    "change,message",
    [
        ({"mask_type": 3}, "'mask_type' must be 1, 2, 4 or 5, but received 3"),
        ({"mask_type": 0}, "'mask_type' must be 1, 2, 4 or 5, but received 0"),
        ({"mask": make(2, 9, 9, dtype=torch.float16)}, r"'mask' must be of shape \(4, \*, \*\)"),
        ({"mask": make(2, 9, 9, dtype=torch.float16), "mask_type": 1}, r"'mask' must be of shape \(3, \*, \*\)"),
        ({"mask": make(256, 256, dtype=torch.float16), "mask_type": 4, "slopes": make(4)},
         "'kernel_type' must be 1 with a compressed float16 mask"),
        ({"mask_type": 2}, "'mask' must be given with mask_type 2"),
        ({"mask_type": 4, "mask": make(9, 9, dtype=torch.float16)}, r"'mask' must be of shape \(256, 256\)"),
        ({"mask_type": 4, "mask": make(256, 256, dtype=torch.float16)}, "'slopes' must be given"),
        ({"kernel_type": 2}, "'kernel_type' must be 0 or 1, but received 2"),
        ({"num_heads": 0}, "'num_heads' must be positive"),
        ({"mask": make(4, 4, dtype=torch.float16)}, "'mask' must be of at least 9 rows and 9 columns"),
    ],
)  # fmt: skip
def test_refusals(change, message):
    with pytest.raises(RuntimeError, match=f"_npu_flash_attention_v2.out: argument {message}"):
        v2(*tokens(torch.float16), **change)


def test_results_are_contiguous():
    query, key, value, _ = tokens(torch.float16)
    out = make(16, 4, 16, dtype=torch.float16)[..., ::2]
    with pytest.raises(RuntimeError, match="'out' must be contiguous"):
        torch_npu._npu_flash_attention_unpad(query, key, value, lens(*LENGTHS), 0.3, 4, 2, out)


def test_left_aligned_alibi_is_not_supported():
    with pytest.raises(NotImplementedError, match="mask_type 6"):
        v2(*tokens(torch.float16), mask_type=6)


def test_lengths_on_the_device_are_refused():
    query, key, value, out = tokens(torch.float16)
    with pytest.raises(RuntimeError, match="_unpad: argument 'seq_len' must be a CPU tensor"):
        torch_npu._npu_flash_attention_unpad(
            query, key, value, lens(*LENGTHS).npu(), 0.3, 4, 2, out
        )
