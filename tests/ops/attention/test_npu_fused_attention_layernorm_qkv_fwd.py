"""npu_fused_attention_layernorm_qkv_fwd and npu_fused_attention_qkv_grad against layer norm and linear in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import make

ROWS, WIDTH = 12, 32


def half(*shape, **options):
    return make(*shape, dtype=torch.float16, **options)


def inputs(biased=True):
    given = {
        "x": half(ROWS, WIDTH, low=-4, high=4),
        "kernel_query": half(WIDTH, WIDTH, seed=1),
        "kernel_key": half(WIDTH, WIDTH, seed=2),
        "kernel_value": half(WIDTH, WIDTH, seed=3),
        "gamma": half(WIDTH, seed=4),
        "beta": half(WIDTH, seed=5),
    }
    names = ("bias_query", "bias_key", "bias_value")
    return given | ({n: half(WIDTH, seed=6 + i) for i, n in enumerate(names)} if biased else {})


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("length,heads,eps", [(4, 2, 1e-5), (12, 8, 1e-2)])
def test_forward(biased, length, heads, eps):
    given = inputs(biased)
    norm, *projected, mean, variance = torch_npu.npu_fused_attention_layernorm_qkv_fwd(
        **given, seq_len=length, num_heads=heads, eps=eps
    )
    plain = {k: t.cpu().double() for k, t in given.items()}
    x = plain["x"]
    right = torch.nn.functional.layer_norm(x, (WIDTH,), plain["gamma"], plain["beta"], eps)
    torch.testing.assert_close(norm.cpu().double(), right, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(mean.cpu().double(), x.mean(1), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        variance.cpu().double(), x.var(1, unbiased=False), rtol=1e-3, atol=1e-3
    )
    for name, mine in zip(("query", "key", "value"), projected, strict=True):
        y = norm.cpu().double() @ plain[f"kernel_{name}"] + plain.get(f"bias_{name}", 0)
        y = y.view(ROWS // length, length, heads, WIDTH // heads).permute(0, 2, 1, 3)
        assert mine.shape == y.shape and mine.is_contiguous() and mine.dtype == torch.float16
        torch.testing.assert_close(mine.cpu().double(), y, rtol=1e-3, atol=1e-3)


def test_gradients():
    given = inputs()
    h = given["x"].cpu().double().requires_grad_()
    kernels = [
        given[f"kernel_{n}"].cpu().double().requires_grad_() for n in ("query", "key", "value")
    ]
    biases = [torch.zeros(WIDTH, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    outer = [half(ROWS, WIDTH, seed=20 + i) for i in range(3)]
    other = half(ROWS, WIDTH, seed=30)
    results = [h @ k + b for k, b in zip(kernels, biases, strict=True)]
    torch.autograd.backward(results, [g.cpu().double() for g in outer])
    found = torch_npu.npu_fused_attention_qkv_grad(
        *outer, *(given[f"kernel_{n}"] for n in ("query", "key", "value")), given["x"], other
    )
    right = [h.grad + other.cpu().double(), *(t.grad for t in (*kernels, *biases))]
    assert len(found) == 7
    for mine, want in zip(found, right, strict=True):
        assert mine.dtype == torch.float16
        torch.testing.assert_close(mine.cpu().double(), want, rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"seq_len": 5}, "'x' must be of whole sequences of 5 rows, but received 12"),
        ({"num_heads": 5}, "'x' must be as wide as 5 equal heads, but received 32"),
        ({"seq_len": 0}, "'seq_len' must be above 0"),
        ({"x": (ROWS, 16)}, r"'kernel_query' must be of shape \(16, 16\)"),
        ({"gamma": (16,)}, r"'gamma' must be of shape \(32\)"),
    ],
)
def test_refusals(changes, message):
    changes = {k: half(*v) if isinstance(v, tuple) else v for k, v in changes.items()}
    given = {**inputs(), "seq_len": 4, "num_heads": 2, **changes}
    with pytest.raises(RuntimeError, match=f"layernorm_qkv_fwd: argument {message}"):
        torch_npu.npu_fused_attention_layernorm_qkv_fwd(**given)


def test_gradients_refuse_other_shapes():
    given = (
        [half(4, 8) for _ in range(3)] + [half(8, 8) for _ in range(3)] + [half(4, 8), half(3, 8)]
    )
    with pytest.raises(RuntimeError, match=r"'grad_output_ln' must be of shape \(4, 8\)"):
        torch_npu.npu_fused_attention_qkv_grad(*given)
    given[-1], given[3] = half(4, 8), make(8, 8)
    with pytest.raises(
        RuntimeError, match="'query_kernel' must be of the dtype of 'hidden_states'"
    ):
        torch_npu.npu_fused_attention_qkv_grad(*given)
