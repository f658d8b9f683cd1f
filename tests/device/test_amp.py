"""torch.autocast("npu") and GradScaler."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_npu  # noqa: F401

HALVES = [torch.float16, torch.bfloat16]


LOWER = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x),
    "mm": lambda x: torch.mm(x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "einsum": lambda x: torch.einsum("ij,jk", x, x),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x: F.conv2d(x[None, :, :, None], x[:, :, None, None]),
    "conv3d": lambda x: F.conv3d(x[None, :, :, None, None], x[:, :, None, None, None]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, :, :, None], x[:, :, None, None]),
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "sdpa": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}
WIDE = {
    "exp": torch.exp,
    "log": lambda x: x.abs().log(),
    "pow": lambda x: x**2,
    "rsqrt": lambda x: x.abs().rsqrt(),
    "reciprocal": torch.reciprocal,
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(0),
    "prod": torch.prod,
    "sum": torch.sum,
    "norm": torch.norm,
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "l1_loss": lambda x: F.l1_loss(x, x),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(4, dtype=torch.long, device="npu")),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, x),
    "softplus": F.softplus,
    "cdist": lambda x: torch.cdist(x, x),
    "bce with logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
}


LISTED = [
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "scaled_dot_product_attention",
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "group_norm",
    "frobenius_norm.dim",
    "nuclear_norm",
    "nuclear_norm.dim",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "prod",
    "prod.dim_int",
    "softmax.int",
    "log_softmax.int",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "linalg_matrix_norm.str_ord",
    "sum",
    "sum.dim_IntList",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
    "binary_cross_entropy",
]


def test_the_lists_are_upstreams():
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    missing = [name for name in LISTED if not has(f"aten::{name}", "AutocastPrivateUse1")]
    assert not missing
    assert not has("aten::relu", "AutocastPrivateUse1")


@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_lowers_products(dtype):
    x = torch.randn(4, 4, device="npu")
    for name, function in LOWER.items():
        with torch.autocast("npu", dtype):
            assert function(x).dtype == dtype, name
        assert function(x).dtype == torch.float32, name


@pytest.mark.parametrize("dtype", HALVES)
def test_autocast_widens_what_needs_range(dtype):
    x = torch.randn(4, 4, device="npu").to(dtype)
    with torch.autocast("npu", dtype):
        for name, function in WIDE.items():
            assert function(x).dtype == torch.float32, name
        for name, function in {
            "relu": torch.relu,
            "add": lambda v: v + v,
            "tanh": torch.tanh,
        }.items():
            assert function(x).dtype == dtype, name


def test_autocast_promotes_to_the_widest():
    half, full = torch.ones(4, 4, device="npu").half(), torch.ones(4, 4, device="npu")
    with torch.autocast("npu", torch.float16):
        assert torch.addcmul(full, half, half).dtype == torch.float32
        assert torch.atan2(half, full).dtype == torch.float32
        assert torch.cross(half[:3, :3], full[:3, :3], dim=1).dtype == torch.float32
        assert torch.dot(half[0], full[0]).dtype == torch.float32


def test_autocast_refuses_binary_cross_entropy():
    x = torch.full((3,), 0.5, device="npu")
    with (
        torch.autocast("npu", torch.float16),
        pytest.raises(RuntimeError, match="binary_cross_entropy.*unsafe to autocast"),
    ):
        F.binary_cross_entropy(x, x)
    assert F.binary_cross_entropy(x, x).item() == pytest.approx(0.6931, abs=1e-4)


def test_autocast_settings():
    assert not torch.is_autocast_enabled("npu")
    x = torch.ones(2, 2, device="npu")
    with torch.autocast("npu"):
        assert torch.is_autocast_enabled("npu")
        assert (x @ x).dtype == torch.get_autocast_dtype("npu") == torch.float16
        with torch.autocast("npu", enabled=False):
            assert (x @ x).dtype == torch.float32
        with torch.autocast("npu", torch.bfloat16):
            assert (x @ x).dtype == torch.bfloat16
        exact = x.to("npu", torch.float64)
        assert (exact @ exact).dtype == torch.float64
        host = torch.ones(2, 2)
        assert (host @ host).dtype == torch.float32
    with torch.npu.amp.autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    assert set(torch.npu.get_amp_supported_dtype()) >= set(HALVES)


def test_autocast_as_a_decorator_and_its_cache():
    w = torch.randn(4, 4, device="npu", requires_grad=True)

    @torch.autocast("npu", dtype=torch.bfloat16)
    def run(x):
        return x @ w + x @ w

    y = run(torch.ones(2, 4, device="npu"))
    y.sum().backward()
    assert w.grad.dtype == torch.float32
    torch.testing.assert_close(w.grad, torch.full_like(w, 4.0))


def test_autocast_backward_keeps_parameters_wide():
    module = torch.nn.Linear(4, 2).npu()
    with torch.autocast("npu", torch.float16):
        module(torch.ones(3, 4, device="npu")).float().sum().backward()
    assert {p.grad.dtype for p in module.parameters()} == {torch.float32}


def test_custom_functions_know_autocast():
    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="npu", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("npu")
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="npu")
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad @ x.mT + x.mT @ grad

    x = torch.randn(3, 3, device="npu", requires_grad=True)
    with torch.autocast("npu", torch.float16):
        y = Product.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad is not None


# --- GradScaler ---


@pytest.mark.parametrize(
    "make", [lambda: torch.amp.GradScaler("npu"), lambda: torch.npu.amp.GradScaler()]
)
def test_grad_scaler_scales_unscales_and_steps(make):
    scaler = make()
    w = torch.nn.Parameter(torch.ones(3, device="npu"))
    optimizer = torch.optim.SGD([w], lr=0.5)
    loss = scaler.scale((w * 2).sum())
    assert loss.device.type == "npu" and loss.item() == 6 * 2**16
    loss.backward()
    assert w.grad.tolist() == [2 * 2.0**16] * 3
    scaler.unscale_(optimizer)
    assert w.grad.tolist() == [2, 2, 2]
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [0, 0, 0] and scaler.get_scale() == 2**16


def test_grad_scaler_skips_a_step_that_overflows():
    scaler = torch.amp.GradScaler("npu", init_scale=1024.0, growth_interval=2)
    w = torch.nn.Parameter(torch.ones(2, device="npu"))
    optimizer = torch.optim.SGD([w], lr=1.0)
    w.grad = torch.tensor([float("inf"), 1], device="npu")
    scaler.scale(w.sum())
    scaler.step(optimizer)
    scaler.update()
    assert w.tolist() == [1, 1] and scaler.get_scale() == 512
    for _ in range(2):
        w.grad = torch.full((2,), 512.0, device="npu")
        scaler.step(optimizer)
        scaler.update()
    assert w.tolist() == [-1, -1] and scaler.get_scale() == 1024


def test_grad_scaler_state():
    scaler = torch.amp.GradScaler("npu", init_scale=8.0)
    scaler.scale(torch.ones(1, device="npu"))
    other = torch.amp.GradScaler("npu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 8
