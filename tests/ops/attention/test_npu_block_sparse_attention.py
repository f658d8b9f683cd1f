"""npu_block_sparse_attention and its gradient against masked attention in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.support import make

BLOCK = [4, 128]


def mask_of(batch, heads, rows, columns):
    mask = make(batch, heads, -(-rows // 4), -(-columns // 128), dtype=torch.int8, low=0, high=2)
    mask[0, 0, 0] = 0  # rows without keys
    mask[-1, -1, 0] = 1
    return mask


def dense(query, key, value, mask, scale):
    """(N, S, D) of one sequence, head by head; the blocks spread over a whole mask."""
    group = query.shape[0] // key.shape[0]
    outs, sums = [], []
    for head in range(query.shape[0]):
        shown = mask[head].repeat_interleave(4, 0).repeat_interleave(128, 1)
        shown = shown[: query.shape[1], : key.shape[1]].bool()
        scores = (query[head] @ key[head // group].T * scale).masked_fill(~shown, -torch.inf)
        weights = scores.softmax(-1).nan_to_num(0)
        outs.append(weights @ value[head // group])
        sums.append(scores.logsumexp(-1))
    return torch.stack(outs), torch.stack(sums)


def reference(query, key, value, mask, layout, lengths, kv_lengths):
    query, key, value = (t.double() for t in (query, key, value))
    mask, outs, sums, start, first = mask.cpu(), [], [], 0, 0
    for b, (n, length) in enumerate(zip(lengths, kv_lengths, strict=True)):
        if layout == "TND":
            own = query[start : start + n].transpose(0, 1)
            keys, values = (t[first : first + length].transpose(0, 1) for t in (key, value))
            start, first = start + n, first + length
        else:
            own, keys, values = query[b, :, :n], key[b, :, :length], value[b, :, :length]
        out, lse = dense(own, keys, values, mask[b], 0.1)
        outs.append(out)
        sums.append(lse)
    return outs, sums


def inputs(layout, dtype, size, lengths, kv_lengths, grad=False):
    options = {"dtype": dtype, "requires_grad": grad}
    if layout == "TND":
        shapes = (sum(lengths), 4, size), (sum(kv_lengths), 2, size)
    else:
        shapes = (2, 4, max(lengths), size), (2, 2, max(kv_lengths), size)
    query = make(*shapes[0], **options)
    key, value = (make(*shapes[1], seed=s, **options) for s in (1, 2))
    return query, key, value, mask_of(2, 4, max(lengths), max(kv_lengths))


def call(given, layout, lengths, kv_lengths, **options):
    return torch_npu.npu_block_sparse_attention(
        *given, BLOCK, q_input_layout=layout, kv_input_layout=layout, num_key_value_heads=2,
        scale_value=0.1, actual_seq_lengths=lengths, actual_seq_lengths_kv=kv_lengths,
        **({"inner_precise": 0, "softmax_lse_flag": 1} | options),
    )  # fmt: skip


CASES = [("TND", [5, 9], [130, 10]), ("BNSD", [5, 9], [130, 200]), ("BNSD", [9, 9], [7, 7])]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("layout,lengths,kv_lengths", CASES)
def test_attention(dtype, size, layout, lengths, kv_lengths):
    given = inputs(layout, dtype, size, lengths, kv_lengths)
    out, lse = call(given, layout, lengths, kv_lengths)
    right, sums = reference(*(t.cpu() for t in given), layout, lengths, kv_lengths)
    tolerance = 2e-3 if dtype == torch.float16 else 1.6e-2
    start = 0
    for b, n in enumerate(lengths):
        if layout == "TND":
            mine, stats = (t[start : start + n].transpose(0, 1) for t in (out, lse))
            start += n
        else:
            mine, stats = out[b, :, :n], lse[b, :, :n]
        torch.testing.assert_close(mine.cpu().double(), right[b], rtol=tolerance, atol=tolerance)
        known = sums[b] > -torch.inf
        torch.testing.assert_close(
            stats.cpu().double()[..., 0][known], sums[b][known], rtol=1e-3, atol=1e-3
        )
    plain = call(given, layout, lengths, kv_lengths, softmax_lse_flag=0)[1]
    assert plain.shape == lse.shape and not plain.any()


def test_whole_sequences_without_lengths():
    given = inputs("BNSD", torch.float16, 64, [9, 9], [7, 7])
    out = call(given, "BNSD", None, None, inner_precise=1)[0]
    assert torch.equal(out.cpu(), call(given, "BNSD", [9, 9], [7, 7])[0].cpu())


@pytest.mark.parametrize("layout,lengths,kv_lengths", CASES)
def test_gradients(layout, lengths, kv_lengths):
    given = inputs(layout, torch.float16, 128, lengths, kv_lengths, grad=True)
    out, lse = call(given, layout, lengths, kv_lengths)
    assert not lse.requires_grad
    gradient = make(*out.shape, dtype=torch.float16, seed=5)
    out.backward(gradient)
    plain = [t.detach().cpu().double().requires_grad_() for t in given[:3]]
    right, _ = reference(*plain, given[3].cpu(), layout, lengths, kv_lengths)
    total, start = 0, 0
    for b, n in enumerate(lengths):
        if layout == "TND":
            part = gradient[start : start + n].transpose(0, 1)
            start += n
        else:
            part = gradient[b, :, :n]
        total = total + (right[b] * part.cpu().double()).sum()
    total.backward()
    for mine, correct in zip(given[:3], plain, strict=True):
        scale = correct.grad.abs().max()
        assert (mine.grad.cpu().double() - correct.grad).abs().max() <= 5e-3 * scale


def test_gradients_need_the_logsumexp():
    given = inputs("BNSD", torch.float16, 128, [9, 9], [7, 7], grad=True)
    with pytest.raises(RuntimeError, match="gradients need softmax_lse_flag=1"):
        call(given, "BNSD", None, None, softmax_lse_flag=0)[0].sum().backward()


@pytest.mark.family("A2")
@pytest.mark.parametrize(
    "options,message",
    [
        ({"inner_precise": 4}, "'inner_precise' must be 0 or 1"),
        ({"softmax_lse_flag": 2}, "'softmax_lse_flag' must be"),
        ({"lengths": [5, 9], "kv_lengths": None}, "'actual_seq_lengths' must be given together"),
        (
            {"lengths": [5, 10], "kv_lengths": [7, 7]},
            "'actual_seq_lengths' must be of 2 lengths from 0 to 9",
        ),
        ({"layout": "BSND"}, "'q_input_layout' must be 'TND' or 'BNSD'"),
    ],
)
def test_refusals(options, message):
    options = dict(options)
    given = inputs("BNSD", torch.float16, 64, [9, 9], [7, 7])
    lengths, kv_lengths = options.pop("lengths", None), options.pop("kv_lengths", None)
    with pytest.raises(RuntimeError, match=f"npu_block_sparse_attention: argument {message}"):
        call(given, options.pop("layout", "BNSD"), lengths, kv_lengths, **options)


def test_blocks_of_128_columns():
    given = inputs("BNSD", torch.float16, 64, [9, 9], [7, 7])
    with pytest.raises(RuntimeError, match="'block_shape' must be a multiple of 128 columns"):
        torch_npu.npu_block_sparse_attention(
            *given, [4, 64], q_input_layout="BNSD", kv_input_layout="BNSD", num_key_value_heads=2
        )


def test_layout_and_precision_on_ascend950():
    given = inputs("BNSD", torch.bfloat16, 128, [9, 9], [7, 7])
    swapped = (*(t.transpose(1, 2).contiguous() for t in given[:3]), given[3])
    right, sums = call(given, "BNSD", None, None)
    with on("A5"):
        out, lse = call(swapped, "BSND", None, None, inner_precise=4)
        with pytest.raises(RuntimeError, match="'inner_precise' must be 4"):
            call(swapped, "BSND", None, None)
    assert torch.equal(out.transpose(1, 2), right) and torch.equal(lse.transpose(1, 2), sums)


def test_lengths_sum_up_in_tnd():
    given = inputs("TND", torch.float16, 64, [5, 9], [130, 10])
    message = "'actual_seq_lengths' must be of 2 lengths of at least 0, 14 in all"
    with pytest.raises(RuntimeError, match=message):
        call(given, "TND", [5, 8], [130, 10])
    for lengths, missing in (((None, [130, 10]), ""), (([5, 9], None), "_kv"), ((None, None), "")):
        message = f"'actual_seq_lengths{missing}' must be given with q_input_layout 'TND'"
        with pytest.raises(RuntimeError, match=message) as raised:
            call(given, "TND", *lengths)
        assert f"actual_seq_lengths{missing} must be specified" in str(raised.value)


def test_masks_of_another_shape():
    given = inputs("BNSD", torch.float16, 64, [9, 9], [7, 7])
    wider = torch.cat([given[3], given[3]], -1)
    with pytest.raises(RuntimeError, match=r"'block_sparse_mask' must be of shape \(2, 4, 3, 1\)"):
        call((*given[:3], wider), "BNSD", None, None)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8])
def test_masks_and_default_blocks_of_the_gradient(kind):
    query, key, value, _ = inputs("BNSD", torch.float16, 64, [9, 9], [7, 7])
    mask = torch.ones(2, 4, 1, 1, dtype=torch.int8).npu()
    lse, grad = make(2, 4, 9, 1, low=2, high=4), make(2, 4, 9, 64, dtype=torch.float16, seed=5)
    tail = (None, None, "BNSD", "BNSD", 2, 0.1)
    backward = torch_npu.npu_block_sparse_attention_backward
    right = backward(grad, query, key, value, grad, lse, mask, [128, 128], *tail)
    found = backward(grad, query, key, value, grad, lse, mask.to(kind), None, *tail)
    assert all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
