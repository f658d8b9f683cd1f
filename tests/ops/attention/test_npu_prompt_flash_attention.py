"""npu_prompt_flash_attention against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.attention.infer_reference import (
    attend,
    compare,
    draw,
    on_device,
    pack,
    triangle,
    unpack,
)
from tests.ops.families import as_chip, on
from tests.ops.support import make

HALF, BRAIN = torch.float16, torch.bfloat16
SCALE = 0.25


def pfa(*args, **kwargs):
    return torch_npu.npu_prompt_flash_attention(*args, **kwargs)


def batch(rows, columns, size=16, dtype=HALF):
    q = [draw(4, n, size, dtype, seed=b) for b, n in enumerate(rows)]
    k, v = ([draw(2, n, size, dtype, seed=b + s) for b, n in enumerate(columns)] for s in (50, 90))
    return q, k, v


def run(layout, q, k, v, **options):
    tensors = [on_device(pack(t, layout.partition("_")[0])) for t in (q, k, v)]
    return pfa(
        *tensors,
        num_heads=4,
        num_key_value_heads=2,
        scale_value=SCALE,
        input_layout=layout,
        **options,
    )


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD", "BNSD_BSND"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_layouts(layout, dtype):
    q, k, v = batch((3, 3), (7, 7), dtype=dtype)
    out = run(layout, q, k, v, actual_seq_lengths=[3, 2], actual_seq_lengths_kv=[4, 7])
    target = layout.partition("_")[2] or layout
    assert out.dtype == dtype
    for b, (found, n, m) in enumerate(
        zip(unpack(out, target, [3, 2], 4), (3, 2), (4, 7), strict=True)
    ):
        compare(found, q[b][:, :n], k[b][:, :m], v[b][:, :m], dtype, scale=SCALE)
    assert not unpack(out, target, [3, 3], 4)[1][:, 2].any()


def test_one_sequence_layout():
    q, k, v = batch((3,), (7,))
    compare(run("NSD", q, k, v), q[0], k[0], v[0], HALF, scale=SCALE)


def test_ragged_layout():
    q, k, v = batch((3, 1), (4, 7), size=64, dtype=BRAIN)
    out = run("TND", q, k, v, actual_seq_lengths=[3, 4], actual_seq_lengths_kv=[4, 11])
    for b, found in enumerate(unpack(out, "TND", [3, 1], 4)):
        compare(found, q[b], k[b], v[b], BRAIN, scale=SCALE)


def test_a_mask_hides_what_is_ahead_by_default():
    q, k, v = batch((4,), (7,))
    mask = on_device(torch.zeros(4, 7, dtype=torch.bool))
    out = run("BNSD", q, k, v, atten_mask=mask)
    compare(out[0], q[0], k[0], v[0], HALF, scale=SCALE, hidden=lambda i, j: j > i)
    out = run("BNSD", q, k, v)
    compare(out[0], q[0], k[0], v[0], HALF, scale=SCALE)


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("rows,columns", [(4, 7), (6, 3), (1, 5)])
def test_sparse_modes(mode, rows, columns):
    q, k, v = batch((rows,), (columns,))
    full = on_device(
        torch.rand(1, 1, rows, columns, generator=torch.Generator().manual_seed(2)) < 0.3
    )
    mask = full if mode < 2 else triangle()
    out = run("BNSD", q, k, v, sparse_mode=mode, atten_mask=mask, pre_tokens=2, next_tokens=1)
    corner, masked = columns - rows, full.cpu()[0, 0]
    hidden = [
        lambda i, j: bool(masked[i, j]) or j < i - 2 or j > i + 1,
        lambda i, j: bool(masked[i, j]),
        lambda i, j: j > i,
        lambda i, j: j > i + corner,
        lambda i, j: j < i + corner - 2 or j > i + corner + 1,
    ][mode]
    compare(out[0], q[0], k[0], v[0], HALF, scale=SCALE, hidden=hidden)


def test_position_bias():
    q, k, v = batch((3, 3), (7, 7), dtype=BRAIN)
    shift = make(2, 4, 3, 7, dtype=BRAIN)
    out = run("BNSD", q, k, v, pse_shift=shift)
    for b in range(2):
        compare(out[b], q[b], k[b], v[b], BRAIN, scale=SCALE, bias=shift.cpu()[b])


@pytest.mark.parametrize("shape", [(1,), (1, 4, 1, 32)])
def test_int8_output(shape):
    q, k, v = batch((3,), (7,), size=32)
    scale, offset = make(*shape, low=50, high=90), make(*shape, low=-9, high=9)
    out = run("BNSD", q, k, v, quant_scale2=scale, quant_offset2=offset)
    want, _ = attend(q[0].double(), k[0].double(), v[0].double(), SCALE)
    want = want * scale.cpu().double() + offset.cpu().double()
    assert out.dtype == torch.int8
    assert (out.cpu().double() - want.view(out.shape).clamp(-128, 127)).abs().max() <= 0.501


@pytest.mark.parametrize("bias", [False, True])
def test_int8_products(bias):
    generator = torch.Generator().manual_seed(4)
    q, k, v = (torch.randint(-128, 128, (4, n, 32), generator=generator) for n in (3, 9, 9))
    factors = torch.tensor([0.003, 100.0, 0.02])
    scales = {
        n: on_device(factors[i : i + 1])
        for i, n in enumerate(("deq_scale1", "quant_scale1", "deq_scale2"))
    }
    shift = make(1, 4, 3, 9, dtype=HALF) if bias else None
    out = pfa(
        *(on_device(t[None].to(torch.int8)) for t in (q, k, v)), num_heads=4, input_layout="BNSD",
        scale_value=SCALE, pse_shift=shift, **scales,
    )  # fmt: skip
    scores = (q @ k.mT).double() * factors[0].double() * SCALE + (
        shift.cpu()[0].double() if bias else 0
    )
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    rounded = (weights * 100).round().clamp(-128, 127)
    want = rounded @ v.double() * factors[2].double() / weights.sum(-1, keepdim=True)
    assert out.dtype == HALF
    assert (out[0].cpu().double() - want).abs().max() <= 2 * torch.finfo(
        HALF
    ).eps * want.abs().max()


def test_non_contiguous_and_unaligned():
    q, k, v = (make(1, 5, 4, 10, dtype=HALF, seed=s).transpose(1, 2) for s in range(3))
    out = pfa(q, k, v, num_heads=4, input_layout="BNSD", scale_value=SCALE)
    compare(out[0], q.cpu()[0], k.cpu()[0], v.cpu()[0], HALF, scale=SCALE)


def test_no_keys():
    q, k, v = batch((3,), (0,))
    assert not run("BNSD", q, k, v).any()


def refuse(match, *args, **kwargs):
    with pytest.raises((RuntimeError, NotImplementedError), match=match):
        pfa(*args, **kwargs)


def test_refuses_bad_arguments():
    q = make(2, 4, 3, 16, dtype=HALF)
    options = {"num_heads": 4, "input_layout": "BNSD"}
    name = "npu_prompt_flash_attention: argument "
    refuse(name + "'key' must be of the dtype of 'query'", q, q.to(BRAIN), q.to(BRAIN), **options)
    refuse("'padding_mask' must be left at None", q, q, q, padding_mask=make(1), **options)
    refuse("'input_layout' must be .*'TND_NTD'", q, q, q, num_heads=4, input_layout="TND_NTD")
    refuse("'sparse_mode' must be .*received 5", q, q, q, sparse_mode=5, **options)
    refuse(
        "'deq_scale1' must be left out unless query is int8", q, q, q, deq_scale1=make(1), **options
    )
    refuse(
        "'quant_scale2' must be of dtype torch.float32",
        q,
        q,
        q,
        quant_scale2=make(1, dtype=BRAIN),
        **options,
    )
    refuse(
        "'num_key_value_heads' must be a divisor of 4", q, q, q, num_key_value_heads=3, **options
    )
    refuse(
        "'pse_shift' must be of shape", q, q, q, pse_shift=make(2, 4, 3, 2, dtype=HALF), **options
    )


def test_refuses_on_310p_what_it_leaves_out():
    q, b = make(2, 4, 3, 16, dtype=HALF), make(2, 4, 3, 16, dtype=BRAIN)
    options = {"num_heads": 4, "input_layout": "BNSD"}
    with as_chip("Ascend310P3"):
        refuse("'query' must be of dtype torch.float16", b, b, b, **options)
        refuse("'sparse_mode' must be 0", q, q, q, sparse_mode=3, atten_mask=triangle(), **options)
        refuse("'next_tokens' must be 0 or at least 3 on 310P", q, q, q, next_tokens=2, **options)
        refuse("'pre_tokens' must be at least 3 on 310P", q, q, q, pre_tokens=2, **options)
        mask = on_device(torch.zeros(3, 3, dtype=torch.bool))
        refuse("'atten_mask' must be left out on 310P unless", q, q, q, atten_mask=mask, **options)
        near = pfa(q, q, q, pre_tokens=3, next_tokens=3, **options)
        assert torch.equal(near, pfa(q, q, q, **options))
        heads = options["num_heads"]
        assert torch.equal(
            pfa(q, q, q, num_key_value_heads=heads, **options), pfa(q, q, q, **options)
        )
        refuse(
            f"'num_key_value_heads' must be 0 or {heads}", q, q, q, num_key_value_heads=1, **options
        )


def test_refuses_in_tnd_what_it_leaves_out():
    q, lengths = (
        make(4, 4, 64, dtype=BRAIN),
        {"actual_seq_lengths": [4], "actual_seq_lengths_kv": [4]},
    )
    options = {"num_heads": 4, "input_layout": "TND"} | lengths
    half = q.to(HALF)
    refuse("'query' must be of dtype torch.bfloat16", half, half, half, **options)
    refuse("'query' must be of head sizes 64, 128 or 192", *(q[..., :32],) * 3, **options)
    refuse(
        "'sparse_mode' must be 0, 3 or 4", q, q, q, sparse_mode=2, atten_mask=triangle(), **options
    )
    mask = on_device(torch.zeros(4, 4, dtype=torch.bool))
    refuse("'atten_mask' must be left out with sparse_mode 0", q, q, q, atten_mask=mask, **options)
    short = options | {"actual_seq_lengths": [3]}
    refuse(r"'actual_seq_lengths' must be ending at the rows of query \(4\)", q, q, q, **short)
    fewer = options | {"actual_seq_lengths_kv": [3], "sparse_mode": 3, "atten_mask": triangle()}
    refuse("'actual_seq_lengths' must be of sequences of no more queries", q, q, q, **fewer)


def test_wide_rows():
    """The card warns of rows of 65535 elements and more, and takes them."""
    q = make(1, 1, 65536, dtype=HALF)
    assert pfa(q, q, q, num_heads=128, input_layout="BSH").shape == q.shape


@pytest.mark.parametrize("mode", [10, 11, 12, 13, 14])
def test_high_precision_modes_are_the_plain_ones(mode):
    q, k, v = (make(1, 2, 16, 16, dtype=torch.float16, seed=i) for i in range(3))
    size = 2048 if mode >= 12 else 16
    mask = torch.ones(size, size, dtype=torch.bool, device=q.device).triu(1)
    options = {"num_heads": 2, "input_layout": "BNSD", "atten_mask": mask}
    want = torch_npu.npu_prompt_flash_attention(q, k, v, sparse_mode=mode - 10, **options)
    got = torch_npu.npu_prompt_flash_attention(q, k, v, sparse_mode=mode, **options)
    assert torch.equal(got.cpu(), want.cpu())
    assert not torch.equal(got.cpu(), torch.zeros_like(got.cpu()))


def test_not_on_950():
    q = make(1, 2, 16, 16, dtype=torch.float16)
    with on("A5"), pytest.raises(NotImplementedError, match="'query' must be on a chip of series"):
        torch_npu.npu_prompt_flash_attention(q, q, q, num_heads=2, input_layout="BNSD")
