"""npu_multi_head_attention and its backward against the layer written out, in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

HALF = torch.float16
LEAVES = (
    "query", "key", "value", "query_weight", "key_weight", "value_weight", "out_proj_weight",
    "query_bias", "key_bias", "value_bias", "out_proj_bias",
)  # fmt: skip


def layer(batch=1, heads=16, size=16, src=16, tgt=32, dtype=HALF, biases=True):
    """The tensors of a layer by name."""
    width = heads * size
    tensors = {"query": make(batch * tgt, width, dtype=dtype)}
    tensors |= {
        n: make(batch * src, width, dtype=dtype, seed=i) for i, n in enumerate(("key", "value"))
    }
    for i, n in enumerate(("query_weight", "key_weight", "value_weight", "out_proj_weight")):
        tensors[n] = make(width, width, dtype=dtype, low=-0.2, high=0.2, seed=i + 5)
    for i, n in enumerate(("query_bias", "key_bias", "value_bias", "out_proj_bias")):
        tensors[n] = make(width, dtype=dtype, seed=i + 9) if biases else None
    tensors["attn_mask"] = make(batch, heads, tgt, src, dtype=dtype, low=-3)
    return tensors


def run(t, heads=16, size=16, src=16, tgt=32, prob=0.0, use_float=True, dropout_mask=None):
    return torch_npu.npu_multi_head_attention(
        t["query"], t["key"], t["value"], t["query_weight"], t["key_weight"], t["value_weight"],
        t["attn_mask"], t["out_proj_weight"], t["query_bias"], t["key_bias"], t["value_bias"],
        t["out_proj_bias"], dropout_mask, heads, size, src, tgt, prob, use_float,
    )  # fmt: skip


def reference(t, heads=16, src=16, tgt=32, kept=1.0):
    """y, q, k, v, softmax, probabilities and context of tensors on the host, in their dtype."""
    linear = torch.nn.functional.linear
    split = lambda x, s: x.view(-1, s, heads, x.shape[1] // heads).transpose(1, 2)  # noqa: E731
    size = t["query"].shape[1] // heads
    q = split(linear(t["query"], t["query_weight"], t["query_bias"]) * size**-0.5, tgt)
    k = split(linear(t["key"], t["key_weight"], t["key_bias"]), src)
    v = split(linear(t["value"], t["value_weight"], t["value_bias"]), src)
    softmax = (q @ k.mT + t["attn_mask"]).softmax(-1)
    weights = softmax * kept
    context = (weights @ v).transpose(1, 2).reshape(t["query"].shape)
    return (
        linear(context, t["out_proj_weight"], t["out_proj_bias"]),
        q,
        k,
        v,
        softmax,
        weights,
        context,
    )


def host(tensors, dtype):
    return {n: None if t is None else t.cpu().to(dtype) for n, t in tensors.items()}


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("use_float", [True, False])
def test_forward(biases, use_float):
    t = layer(biases=biases)
    y, bits, *rest = run(t, use_float=use_float)
    assert bits.dtype == torch.uint8 and bits.shape == (16 * 32 * 16 // 8,) and (bits == 255).all()
    assert rest[3].dtype == (torch.float32 if use_float else HALF)
    want, plain = reference(host(t, torch.float64)), reference(host(t, HALF))
    for have, exact, half in zip((y, *rest), want, plain, strict=True):
        assert_accurate(have, exact, half)


def bits_of(kept):
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128])
    return (kept.reshape(-1, 8) * weights).sum(1).to(torch.uint8)


def test_given_dropout_mask():
    t = layer()
    kept = torch.randint(0, 2, (1, 16, 32, 16), generator=torch.Generator().manual_seed(1))
    bits = bits_of(kept).to(t["query"].device)
    y, returned, *_ = run(t, prob=0.25, dropout_mask=bits)
    assert torch.equal(returned, bits)
    want, *_ = reference(host(t, torch.float64), kept=kept.double() / 0.75)
    plain, *_ = reference(host(t, HALF), kept=kept.half() / 0.75)
    assert_accurate(y, want, plain)


def test_drawn_dropout_mask():
    t = layer()
    y, bits, *_, weights, _ = run(t, prob=0.5)
    kept = (weights != 0).cpu()
    assert torch.equal(bits.cpu(), bits_of(kept.long())) and 0.45 < kept.float().mean() < 0.55
    want, *_ = reference(host(t, torch.float64), kept=kept.double() * 2)
    plain, *_ = reference(host(t, HALF), kept=kept.half() * 2)
    assert_accurate(y, want, plain)


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("prob", [0.0, 0.5])
def test_gradients(biases, prob):
    shape = {"heads": 2, "size": 2, "src": 4, "tgt": 2}
    t = layer(2, **shape, dtype=torch.float64, biases=biases)
    kept = torch.randint(0, 2, (2, 2, 2, 4), generator=torch.Generator().manual_seed(2))
    bits = bits_of(kept).to(t["query"].device)
    names = [n for n in LEAVES if t[n] is not None]

    def call(*leaves):
        return run(
            t | dict(zip(names, leaves, strict=True)), **shape, prob=prob, dropout_mask=bits
        )[0]

    gradcheck(call, *(t[n].requires_grad_() for n in names), fast_mode=True)


def test_backward_form():
    t = layer()
    results = run(t, use_float=True)
    y, bits, q, k, v, softmax, weights, context = results
    dy = make(*y.shape, dtype=HALF)
    found = torch_npu.npu_multi_head_attention_backward(
        *(t[n] for n in LEAVES),
        q,
        k,
        v,
        softmax,
        weights,
        context,
        dy,
        bits,
        16,
        16,
        16,
        32,
        0.0,
        True,
    )

    def gradients(dtype):
        tensors = host(t, dtype)
        leaves = [tensors[n].requires_grad_() for n in LEAVES]
        return dict(
            zip(
                LEAVES,
                torch.autograd.grad(reference(tensors)[0], leaves, dy.cpu().to(dtype)),
                strict=True,
            )
        )

    order = (*LEAVES[3:7], *LEAVES[:3], *LEAVES[7:])
    want, plain = gradients(torch.float64), gradients(HALF)
    for name, have in zip(order, found, strict=True):
        shape = (1, 256) if name.endswith("_bias") else tuple(want[name].shape)
        assert have.dtype == HALF and have.shape == shape
        assert_accurate(have.view(want[name].shape), want[name], plain[name], slack=1e-2)


def test_refuses_bad_arguments():
    t = layer()
    name = "npu_multi_head_attention: argument "
    with pytest.raises(
        RuntimeError,
        match=name + "'attn_head_num' must be a positive multiple of 16, but received 8",
    ):
        run(t, heads=8)
    with pytest.raises(RuntimeError, match="'query' must be of dtype torch.float16"):
        run(t | {"query": t["query"].float()})
    with pytest.raises(RuntimeError, match=r"'key' must be of shape \(16, 256\)"):
        run(t | {"key": t["key"][:8]})
    with pytest.raises(RuntimeError, match=r"'value_weight' must be of shape \(256, 256\)"):
        run(t | {"value_weight": t["value_weight"][:8]})
    with pytest.raises(RuntimeError, match="'dropout_prob' must be from 0 to below 1"):
        run(t, prob=1.0)
    with pytest.raises(RuntimeError, match=r"'dropout_mask' must be of shape \(1024\)"):
        run(t, prob=0.5, dropout_mask=make(9, dtype=torch.uint8, low=0, high=9))
    with pytest.raises(RuntimeError, match="'attn_mask' must be broadcastable to"):
        run(t | {"attn_mask": t["attn_mask"][:, :3]})
