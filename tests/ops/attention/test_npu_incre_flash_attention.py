"""npu_incre_flash_attention against the formula in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.attention.infer_reference import attend, compare, draw, on_device, pack, unpack
from tests.ops.families import as_chip
from tests.ops.support import assert_accurate, make

HALF, BRAIN = torch.float16, torch.bfloat16
SCALE = 0.25


def ifa(*args, **kwargs):
    return torch_npu.npu_incre_flash_attention(*args, **kwargs)


def batch(columns, size=16, dtype=HALF):
    q = [draw(4, 1, size, dtype, seed=b) for b in range(len(columns))]
    k, v = ([draw(2, n, size, dtype, seed=b + s) for b, n in enumerate(columns)] for s in (50, 90))
    return q, k, v


def run(layout, q, k, v, **options):
    tensors = [on_device(pack(t, layout)) for t in (q, k, v)]
    return ifa(
        *tensors,
        num_heads=4,
        num_key_value_heads=2,
        scale_value=SCALE,
        input_layout=layout,
        **options,
    )


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("lengths", [None, [5], [7, 0]])
def test_layouts_and_lengths(layout, dtype, lengths):
    q, k, v = batch((7, 7), dtype=dtype)
    out = run(layout, q, k, v, actual_seq_lengths=lengths)
    assert out.shape == pack(q, layout).shape and out.dtype == dtype
    counts = (lengths or [7]) * (1 if lengths and len(lengths) == 2 else 2)
    for b, found in enumerate(unpack(out, layout, [1, 1], 4)):
        compare(found, q[b], k[b][:, : counts[b]], v[b][:, : counts[b]], dtype, scale=SCALE)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 17])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_heads_that_share_a_cache(heads, dtype):
    """Few heads of a cache are multiplied as they come, more in packed blocks; 263 columns leave a rest of both."""
    q = make(2, 2 * heads, 1, 32, dtype=dtype)
    k, v = (make(2, 263, 2, 32, dtype=dtype, seed=s).transpose(1, 2) for s in (1, 2))
    options = {"num_heads": 2 * heads, "num_key_value_heads": 2, "input_layout": "BNSD"}
    out = ifa(q, k, v, scale_value=SCALE, **options)
    host = [t.cpu() for t in (q, k, v)]
    exact, plain = (
        torch.nn.functional.scaled_dot_product_attention(
            *(t.to(kind) for t in host), scale=SCALE, enable_gqa=True
        )
        for kind in (torch.float64, dtype)
    )
    assert_accurate(out, exact, plain)


@pytest.mark.parametrize("shape", [(2, 7), (2, 1, 7), (2, 1, 1, 7), (1, 1, 1, 7), (2, 1, 1, 16)])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8])
def test_mask(shape, dtype):
    q, k, v = batch((7, 7))
    mask = make(*shape, dtype=torch.bool)
    out = run("BNSD", q, k, v, atten_mask=mask.to(dtype))
    hidden = mask.cpu().reshape(-1, shape[-1]).expand(2, -1)
    for b in range(2):
        compare(
            out[b], q[b], k[b], v[b], HALF, scale=SCALE, hidden=lambda i, j, b=b: bool(hidden[b, j])
        )


def test_position_bias():
    q, k, v = batch((7, 7), dtype=BRAIN)
    shift = make(2, 4, 1, 7, dtype=BRAIN)
    out = run("BNSD", q, k, v, pse_shift=shift, inner_precise=0)
    for b in range(2):
        compare(out[b], q[b], k[b], v[b], BRAIN, scale=SCALE, bias=shift.cpu()[b])


@pytest.mark.parametrize("layout,form", [("BSH", 3), ("BNSD", 3), ("BNSD", 4)])
def test_pages(layout, form):
    q, _, _ = batch((1, 1))
    caches = [make(5, 2, 16, 16, dtype=HALF, seed=s) for s in (1, 2)]
    table = torch.tensor([[4, 2, -1], [1, 77, 77]], dtype=torch.int32)
    pages = [c if form == 4 else c.transpose(1, 2).reshape(5, 16, 32) for c in caches]
    out = ifa(
        on_device(pack(q, layout)), *pages, actual_seq_lengths=[20, 9],
        block_table=on_device(table), block_size=16, num_heads=4, num_key_value_heads=2,
        scale_value=SCALE, input_layout=layout,
    )  # fmt: skip
    for b, (found, ids, n) in enumerate(
        zip(unpack(out, layout, [1, 1], 4), ([4, 2], [1]), (20, 9), strict=True)
    ):
        k, v = (torch.cat([c.cpu()[i] for i in ids], 1)[:, :n] for c in caches)
        compare(found, q[b], k, v, HALF, scale=SCALE)


@pytest.mark.parametrize(
    "layout,shape", [("BNSD", (2, 2, 1, 32)), ("BSH", (2, 64)), ("BSND", (2, 2, 32)), ("BSH", (2,))]
)
@pytest.mark.parametrize("offset", [False, True])
def test_int8_cache(layout, shape, offset):
    q, _, _ = batch((6, 6), size=32)
    generator = torch.Generator().manual_seed(3)
    k, v = (
        [torch.randint(-128, 128, (2, 6, 32), generator=generator) for _ in range(2)]
        for _ in range(2)
    )
    scale = make(*shape, dtype=HALF, low=0.01, high=0.02)
    shift = make(*shape, dtype=HALF, low=-9, high=9) if offset else None
    out = ifa(
        on_device(pack(q, layout)), *(on_device(pack(c, layout).to(torch.int8)) for c in (k, v)),
        num_heads=4, num_key_value_heads=2, scale_value=SCALE, input_layout=layout,
        antiquant_scale=scale, antiquant_offset=shift,
    )  # fmt: skip
    view = (2, 1, 1, 1) if shape == (2,) else (2, 2, 1, 32)
    times = scale.cpu().double().view(view)
    plus = shift.cpu().double().view(view) if offset else torch.zeros(view).double()
    for b, found in enumerate(unpack(out, layout, [1, 1], 4)):
        want, _ = attend(
            q[b].double(), (k[b] + plus[0]) * times[0], (v[b] + plus[1]) * times[1], SCALE
        )
        assert (found.double() - want).abs().max() <= 2 * torch.finfo(HALF).eps * want.abs().max()


@pytest.mark.parametrize("shape", [(1,), (4, 32)])
def test_int8_output(shape):
    q, k, v = batch((7,), size=32)
    scale, offset = make(*shape, low=50, high=90), make(*shape, low=-9, high=9)
    out = run("BNSD", q, k, v, quant_scale2=scale, quant_offset2=offset)
    want, _ = attend(q[0].double(), k[0].double(), v[0].double(), SCALE)
    view = (1, 1, 1) if shape == (1,) else (4, 1, 32)
    want = want * scale.cpu().double().view(view) + offset.cpu().double().view(view)
    assert out.dtype == torch.int8
    assert (out[0].cpu().double() - want.clamp(-128, 127)).abs().max() <= 0.501


def test_left_padding():
    q, k, v = batch((8, 8))
    pad = on_device(torch.tensor([2]))
    mask = make(2, 8, dtype=torch.bool)
    out = run("BNSD", q, k, v, kv_padding_size=pad, actual_seq_lengths=[3, 7], atten_mask=mask)
    hidden = mask.cpu()
    compare(
        out[0],
        q[0],
        k[0][:, 3:6],
        v[0][:, 3:6],
        HALF,
        scale=SCALE,
        hidden=lambda i, j: bool(hidden[0, 3 + j]),
    )
    assert not out[1].any()
    plain = run("BNSD", q, k, v, kv_padding_size=pad)  # without lengths it has no effect
    compare(plain[0], q[0], k[0], v[0], HALF, scale=SCALE)


def refuse(match, *args, **kwargs):
    with pytest.raises((RuntimeError, NotImplementedError), match=match):
        ifa(*args, **kwargs)


def test_refuses_bad_arguments():
    q, k = make(2, 1, 64, dtype=HALF), make(2, 7, 64, dtype=HALF)
    name = "npu_incre_flash_attention: argument "
    refuse(name + "'query' must be of one token a sequence", k, k, k, num_heads=4)
    refuse("'padding_mask' must be left at None", q, k, k, num_heads=4, padding_mask=make(1))
    refuse(
        "'input_layout' must be 'BSH', 'BSND' or 'BNSD'", q, k, k, num_heads=4, input_layout="TND"
    )
    refuse(
        "'actual_seq_lengths' must be from 0 to 7, but received 8",
        q,
        k,
        k,
        num_heads=4,
        actual_seq_lengths=[8],
    )
    refuse("'inner_precise' must be 0 or 1", q, k, k, num_heads=4, inner_precise=2)
    refuse("'dequant_scale1' must be left out", q, k, k, num_heads=4, dequant_scale1=make(1))
    refuse(
        "'key' must be of dtype torch.float16 or torch.int8",
        q,
        k.to(BRAIN),
        k.to(BRAIN),
        num_heads=4,
    )
    refuse(
        "'pse_shift' must be of dtype torch.float16",
        q,
        k,
        k,
        num_heads=4,
        pse_shift=make(2, 4, 1, 7),
    )


def test_refuses_on_310p_what_it_leaves_out():
    q, k = make(2, 1, 64, dtype=HALF), make(2, 7, 64, dtype=HALF)
    with as_chip("Ascend310P3"):
        refuse(
            "'query' must be of dtype torch.float16",
            q.to(BRAIN),
            k.to(BRAIN),
            k.to(BRAIN),
            num_heads=4,
        )
        refuse(
            "'pse_shift' must be left out on 310P",
            q,
            k,
            k,
            num_heads=4,
            pse_shift=make(2, 4, 1, 7, dtype=HALF),
        )
        few = make(2, 7, 32, dtype=HALF)
        refuse(
            "'input_layout' must be 'BNSD' with grouped heads on 310P",
            q,
            few,
            few,
            num_heads=4,
            num_key_value_heads=2,
        )
        narrow = q[..., :32], k[..., :32], k[..., :32]
        refuse("'query' must be of a head size divisible by 16 on 310P", *narrow, num_heads=4)


def test_more_than_256_heads():
    """The caches have at most 256 heads, the query 64 for each."""
    q, k = make(1, 260, 1, 16, dtype=HALF), make(1, 130, 3, 16, dtype=HALF)
    options = {"num_heads": 260, "num_key_value_heads": 130, "input_layout": "BNSD"}
    assert ifa(q, k, k, **options).shape == q.shape
    many = make(1, 257, 3, 16, dtype=HALF)
    message = "'num_key_value_heads' must be at most 256"
    refuse(message, q[:, :257], many, many, num_heads=257, input_layout="BNSD")


def test_masks_of_the_longest_length():
    """A mask as wide as the longest sequence, not as the cache."""
    q, k = make(2, 1, 64, dtype=HALF), make(2, 9, 64, dtype=HALF, seed=1)
    wide = on_device(torch.rand(2, 9, generator=torch.Generator().manual_seed(3)) < 0.4)
    options = {"num_heads": 4, "scale_value": SCALE, "actual_seq_lengths": [5, 3]}
    right = ifa(q, k, k, atten_mask=wide, **options)
    assert torch.equal(ifa(q, k, k, atten_mask=wide[:, :5].contiguous(), **options), right)
    refuse("'atten_mask' must be of shape", q, k, k, atten_mask=wide[:, :4], **options)
