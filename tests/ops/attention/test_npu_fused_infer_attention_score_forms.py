"""npu_fused_infer_attention_score: shared prefixes, left padding, int8 outputs, the out form."""

import pytest
import torch

import torch_npu
from tests.ops.attention.infer_reference import (
    SCALE,
    attend,
    batch,
    compare,
    draw,
    fia,
    on_device,
    pack,
    packed,
    run,
    triangle,
    unpack,
)
from tests.ops.support import make

HALF, BRAIN = torch.float16, torch.bfloat16


@pytest.mark.parametrize("length", [None, [3]])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("layout", ["BNSD", "BSH"])
def test_shared_prefix(length, rows, layout):
    q, k, v = batch((rows, rows), (6, 6))
    shared = [draw(2, 4, 16, HALF, seed) for seed in (7, 8)]
    mask = on_device(torch.rand(2, 1, rows, 10, generator=torch.Generator().manual_seed(1)) < 0.3)
    prefixes = [on_device(pack([s], layout)) for s in shared]
    out, _ = run(
        layout, q, k, v, key_shared_prefix=prefixes[0], value_shared_prefix=prefixes[1],
        actual_shared_prefix_len=length, atten_mask=mask, actual_seq_lengths_kv=[6, 2],
    )  # fmt: skip
    n = 4 if length is None else 3
    hidden = mask.cpu()[:, 0]
    for b, (found, m) in enumerate(zip(unpack(out, layout, [rows, rows], 4), (6, 2), strict=True)):
        key, value = (
            torch.cat((s[:, :n], x[b][:, :m]), 1) for s, x in zip(shared, (k, v), strict=True)
        )
        compare(
            found,
            q[b],
            key,
            value,
            HALF,
            scale=SCALE,
            hidden=lambda i, j, b=b: bool(hidden[b, i, j]),
        )


def test_left_padding():
    q, k, v = batch((5, 5), (9, 9))
    mask = make(2, 1, 5, 9, dtype=torch.bool)
    pad = {
        "query_padding_size": on_device(torch.tensor([1])),
        "kv_padding_size": on_device(torch.tensor([2, -3])),
    }
    out, lse = run(
        "BNSD", q, k, v, atten_mask=mask, actual_seq_lengths=[3, 4], actual_seq_lengths_kv=[4, 6],
        softmax_lse_flag=True, pre_tokens=0, **pad,
    )  # fmt: skip
    spans = (((1, 4), (3, 7)), ((0, 4), (3, 9)))
    for b, ((top, bottom), (left, right)) in enumerate(spans):
        of = mask.cpu()[b, 0, top:bottom, left:right]
        found = out[b, :, top:bottom]
        key, value = k[b][:, left:right], v[b][:, left:right]
        compare(
            found,
            q[b][:, top:bottom],
            key,
            value,
            HALF,
            scale=SCALE,
            hidden=lambda i, j, of=of: bool(of[i, j]),
        )
    assert not out[0, :, 0].any() and not out[:, :, 4].any() and torch.isposinf(lse[:, :, 4]).all()


def test_left_padding_before_the_cache_gives_zeros_when_decoding():
    q, k, v = batch((1, 1), (6, 6))
    pad = on_device(torch.tensor([3]))
    out, _ = run("BSH", q, k, v, kv_padding_size=pad, actual_seq_lengths_kv=[2, 5])
    compare(unpack(out, "BSH", [1, 1], 4)[0], q[0], k[0][:, 1:3], v[0][:, 1:3], HALF, scale=SCALE)
    assert not out[1].any()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("shape", [(1,), (64,), (1, 4, 1, 16), (4, 16), (2, 32, 1)])
def test_int8_output(rows, offset, shape):
    q, k, v = batch((rows, rows), (7, 7), dtype=BRAIN)
    if len(shape) > 1 or shape[0] > 1:
        q, k, v = batch((rows, rows), (7, 7), size=32, dtype=BRAIN)
        shape = {
            (64,): (128,),
            (1, 4, 1, 16): (1, 4, 1, 32),
            (4, 16): (4, 32),
            (2, 32, 1): (1, 1, 128),
        }[shape]
    scale = make(*shape, low=90, high=200)
    shift = make(*shape, low=-20, high=20) if offset else None
    out, _ = run("BNSD", q, k, v, quant_scale2=scale, quant_offset2=shift)
    assert out.dtype == torch.int8 and out.shape == (2, 4, rows, q[0].shape[2])
    for b in range(2):
        want, _ = attend(q[b].double(), k[b].double(), v[b].double(), SCALE)
        factor = scale.cpu().double().reshape(-1)
        factor = factor.view(4, 1, -1) if factor.numel() > 1 else factor
        want = want * factor
        if offset:
            add = shift.cpu().double().reshape(-1)
            want = want + (add.view(4, 1, -1) if add.numel() > 1 else add)
        error = (out[b].cpu().double() - want.clamp(-128, 127)).abs().max()
        assert error <= 0.501


def test_int8_output_takes_a_bfloat16_scale():
    q, k, v = batch((3,), (7,), dtype=BRAIN)
    out, _ = run("BSND", q, k, v, quant_scale2=make(1, dtype=BRAIN, low=64, high=65))
    assert out.dtype == torch.int8 and out.any()


def test_out_form_with_workspace():
    q, k, v = batch((3, 3), (7, 7))
    tensors = packed((q, k, v), "BNSD")
    options = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD", "scale": SCALE}
    workspace = torch_npu._npu_fused_infer_attention_score_get_max_workspace(*tensors, **options)
    assert workspace.dtype == HALF and workspace.dim() == 1
    keep = {n: options[n] for n in ("num_heads", "num_key_value_heads", "input_layout")}
    out, lse = torch_npu._npu_fused_infer_attention_score_infer_output(
        tensors[0], tensors[2], softmax_lse_flag=True, **keep
    )
    assert out.shape == (2, 4, 3, 16) and lse.shape == (2, 4, 3, 1)
    returned = torch_npu.npu_fused_infer_attention_score.out(
        *tensors, workspace=workspace, softmax_lse_flag=True, out=[out, lse], **options
    )
    want = fia(*tensors, softmax_lse_flag=True, **options)
    assert torch.equal(out, want[0]) and torch.equal(lse, want[1])
    assert returned[0].data_ptr() == out.data_ptr() and returned[1].data_ptr() == lse.data_ptr()


def test_out_form_takes_any_softmax_lse_that_is_not_asked_for():
    q, k, v = batch((1,), (7,))
    tensors = packed((q, k, v), "BNSD")
    out, lse = make(1, 4, 1, 16, dtype=HALF), make(1, dtype=HALF, low=1, high=2)
    before = lse.clone()
    torch_npu.npu_fused_infer_attention_score.out(
        *tensors, num_heads=4, num_key_value_heads=2, input_layout="BNSD", out=[out, lse]
    )
    assert lse.dtype == HALF and torch.equal(lse, before) and out.any()


def refuse(match, *args, **kwargs):
    with pytest.raises((RuntimeError, NotImplementedError), match=match):
        fia(*args, **kwargs)


def test_refuses_an_offset_where_rows_attend_to_nothing():
    q, k = make(1, 4, 4, 32, dtype=HALF), make(1, 4, 3, 32, dtype=HALF)
    quant = {
        "quant_scale2": make(1),
        "quant_offset2": make(1),
        "sparse_mode": 3,
        "atten_mask": triangle(),
    }
    refuse(
        "'quant_offset2' must be left out when rows attend to nothing",
        q,
        k,
        k,
        num_heads=4,
        input_layout="BNSD",
        **quant,
    )


def test_refuses_an_out_tensor_of_another_shape():
    q = make(1, 4, 3, 16, dtype=HALF)
    with pytest.raises(RuntimeError, match=r"'attention_out' must be of shape \(1, 4, 3, 16\)"):
        torch_npu.npu_fused_infer_attention_score.out(
            q, q, q, num_heads=4, input_layout="BNSD", out=[make(4, 3, 16, dtype=HALF), make(1)]
        )
