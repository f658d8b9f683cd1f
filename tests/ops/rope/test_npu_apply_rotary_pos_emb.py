"""npu_apply_rotary_pos_emb against rotations of single pairs in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.rope._loops import rotate
from tests.ops.support import assert_accurate, make


def inputs(layout, size=64, turned=None, dtype=torch.float32, batch=2, angles_batch=None):
    sizes = {"B": batch, "S": 3, "T": 5, "D": size}

    def tensor(heads, seed, **other):
        named = sizes | {"N": heads} | other
        return make(*(named[letter] for letter in layout), dtype=dtype, seed=seed)

    angle = {"D": turned or size, "B": angles_batch or batch}
    return tensor(4, 1), tensor(2, 2), tensor(1, 3, **angle), tensor(1, 4, **angle)


def check(tensors, layout, mode="half"):
    query, key, cos, sin = tensors
    before = [t.cpu() for t in (query, key)]
    got = torch_npu.npu_apply_rotary_pos_emb(query, key, cos, sin, layout, mode)
    turned = cos.shape[-1]
    for have, given, old in zip(got, (query, key), before, strict=True):
        assert have.data_ptr() == given.data_ptr() and torch.equal(have, given)
        part = old[..., :turned]
        want = rotate(part.double(), cos.cpu().double(), sin.cpu().double(), mode)
        plain = rotate(part, cos.cpu(), sin.cpu(), mode)
        assert_accurate(given[..., :turned], want, plain)
        assert torch.equal(given[..., turned:].cpu(), old[..., turned:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["BSND", "TND"])
@pytest.mark.parametrize("size,turned", [(64, 64), (128, 128), (128, 64)])
def test_in_place(layout, size, turned, dtype):
    check(inputs(layout, size, turned, dtype), layout)


@pytest.mark.parametrize("layout", ["BSND", "SBND", "BNSD", "TND"])
@pytest.mark.parametrize("mode", ["half", "interleave", "quarter"])
def test_ascend950(layout, mode):
    with on("A5"):
        check(inputs(layout, 24, 16, angles_batch=1), layout, mode)


def test_defaults():
    tensors = inputs("BSND")
    want = torch_npu.npu_apply_rotary_pos_emb(*(t.clone() for t in tensors), "BSND", "half")
    got = torch_npu.npu_apply_rotary_pos_emb(*tensors)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_views_are_written_through():
    base = make(2, 3, 6, 64)
    _, _, cos, sin = inputs("BSND")
    before = base.cpu()
    check((base[:, :, :4], base[:, :, 4:5], cos, sin), "BSND")
    assert torch.equal(base[:, :, 5].cpu(), before[:, :, 5])


def test_empty():
    query, key, cos, sin = (t[:0] for t in inputs("TND"))
    assert torch_npu.npu_apply_rotary_pos_emb(query, key, cos, sin, "TND")[0].shape == (0, 4, 64)


def test_no_derivative():
    query, key, cos, sin = inputs("BSND")
    query = query.clone().requires_grad_()
    out = torch_npu.npu_apply_rotary_pos_emb(query, key, cos, sin)[0]
    with pytest.raises(RuntimeError, match="npu_apply_rotary_pos_emb' is not implemented"):
        out.sum().backward()


@pytest.mark.family("A2")
def test_layout_and_mode_of_older_chips():
    with pytest.raises(
        RuntimeError,
        match="npu_apply_rotary_pos_emb: argument 'layout' must be 'BSND' or 'TND'.*'BNSD'",
    ):
        torch_npu.npu_apply_rotary_pos_emb(*inputs("BNSD"), "BNSD")
    with pytest.raises(RuntimeError, match="'rotary_mode' must be 'half', but received 'quarter'"):
        torch_npu.npu_apply_rotary_pos_emb(*inputs("BSND"), "BSND", "quarter")


@pytest.mark.family("A2")
def test_head_size():
    with pytest.raises(RuntimeError, match="argument 'query' must be 64 or 128 long.*32"):
        torch_npu.npu_apply_rotary_pos_emb(*inputs("BSND", 32))


def test_rank_does_not_fit_the_layout():
    with pytest.raises(RuntimeError, match="argument 'query' must be a tensor of 3 dimensions"):
        torch_npu.npu_apply_rotary_pos_emb(*inputs("BSND"), "TND")


def test_angles_of_several_heads():
    query, key, _, _ = inputs("BSND")
    with pytest.raises(RuntimeError, match=r"argument 'cos' must be of shape \(2, 3, 1, \*\)"):
        torch_npu.npu_apply_rotary_pos_emb(query, key, query, query)


def test_dtypes_differ():
    query, key, cos, sin = inputs("BSND")
    with pytest.raises(RuntimeError, match="argument 'key' must be of the dtype of 'query'"):
        torch_npu.npu_apply_rotary_pos_emb(query, key.half(), cos, sin)


def test_quarter_needs_a_multiple_of_four():
    with (
        on("A5"),
        pytest.raises(RuntimeError, match="argument 'cos' must be a multiple of 4"),
    ):
        torch_npu.npu_apply_rotary_pos_emb(*inputs("BSND", 6), "BSND", "quarter")


def test_no_bfloat16_on_inference_series():
    with (
        on("310P"),
        pytest.raises(RuntimeError, match="'query' must be of dtype .*bfloat16"),
    ):
        torch_npu.npu_apply_rotary_pos_emb(*inputs("BSND", dtype=torch.bfloat16))
