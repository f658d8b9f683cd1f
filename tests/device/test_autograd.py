"""Autograd on the device: gradients, double backward, forward mode, torch.func, autocast, GradScaler, checkpoint."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import torch_npu  # noqa: F401

HALVES = [torch.float16, torch.bfloat16]


def leaf(*shape, seed=0, dtype=torch.float64):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return values.npu().requires_grad_()


FUNCTIONS = {
    "matmul": (lambda a, b: (a @ b).tanh(), (3, 4), (4, 2)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), (1, 2, 5, 5), (3, 2, 3, 3)),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), (1, 2, 4), (2, 3, 3)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w), (3, 4), (4,)),
    "softmax": (lambda x, y: x.softmax(1) * y, (3, 4), (3, 4)),
    "sdpa": (lambda q, k: F.scaled_dot_product_attention(q, k, k), (1, 2, 3, 4), (1, 2, 5, 4)),
    "index": (lambda x, y: x[torch.tensor([2, 0, 2], device="npu")] * y, (3, 2), (3, 2)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True), (4, 3), (3,)),
    "cumsum and norm": (lambda x, y: (x.cumsum(0) - y).norm(), (3, 2), (3, 2)),
    "max_pool": (lambda x, y: F.max_pool2d(x, 2) * y, (1, 1, 4, 4), (1, 1, 2, 2)),
    "inverse": (
        lambda x, y: torch.linalg.solve(x @ x.mT + 3 * torch.eye(3, device="npu"), y),
        (3, 3),
        (3, 2),
    ),
    "sort": (lambda x, y: x.sort(1)[0] * y, (3, 4), (3, 4)),
    "interpolate": (
        lambda x, y: F.interpolate(x, scale_factor=2, mode="bilinear") * y,
        (1, 1, 3, 3),
        (1, 1, 6, 6),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_and_double_backward(name):
    function, first, second = FUNCTIONS[name]
    inputs = leaf(*first), leaf(*second, seed=1)
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=name != "sdpa")
    if name != "sdpa":  # fused attention has no second derivative on any device
        assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("cell", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_gradients_are_the_cpus(cell):
    torch.manual_seed(0)
    host = cell(3, 4, num_layers=2, bidirectional=True)
    device = cell(3, 4, num_layers=2, bidirectional=True).npu()
    device.load_state_dict(host.state_dict())
    x = torch.randn(5, 2, 3)
    for module, value in ((host, x), (device, x.npu())):
        module(value)[0].square().sum().backward()
    for a, b in zip(host.parameters(), device.parameters(), strict=True):
        torch.testing.assert_close(b.grad.cpu(), a.grad, rtol=1e-4, atol=1e-5)


def test_gradients_live_on_the_device():
    x = torch.ones(3, device="npu:2", requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.device == torch.device("npu:2") and x.grad.tolist() == [2, 2, 2]


def test_gradients_cross_devices():
    host = torch.ones(3, requires_grad=True)
    (host.npu(0) * 2).to("npu:1").mul(3).cpu().sum().backward()
    assert host.grad.device.type == "cpu" and host.grad.tolist() == [6, 6, 6]


def test_backward_runs_in_a_thread_of_its_own_with_the_right_device():
    x = torch.ones(2, device="npu:3", requires_grad=True)
    seen = []
    y = x * 2
    y.register_hook(lambda g: seen.append((torch.npu.current_device(), threading.get_ident())))
    y.sum().backward()
    assert seen[0][0] == 3 and seen[0][1] != threading.get_ident()
    assert torch.npu.current_device() == 0


def test_in_place_and_view_gradients():
    x = torch.ones(4, device="npu", requires_grad=True)
    y = x * 1
    y[1:3].mul_(5)
    y.view(2, 2)[1].add_(x[:2])
    y.sum().backward()
    assert x.grad.tolist() == [2, 6, 5, 1]


def test_a_modified_saved_tensor_is_noticed():
    x = torch.ones(3, device="npu", requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_leaf_refuses_in_place_changes():
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        torch.ones(3, device="npu", requires_grad=True).add_(1)


def test_no_grad_and_inference_mode():
    x = torch.ones(3, device="npu", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = (x * 2)[1:]
        assert y.is_inference() and y.tolist() == [2, 2]
        y.add_(1)
        z = torch.zeros(2, device="npu")
        torch.add(y, 1, out=z)
        assert z.tolist() == [4, 4]
    assert (x * 2).requires_grad


def test_custom_functions():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad

    assert torch.autograd.gradcheck(Cube.apply, (leaf(4),))


def test_saved_tensors_can_go_to_the_host():
    x = torch.randn(4, 4, device="npu", requires_grad=True)
    (x.exp() @ x).sum().backward()
    expected, x.grad = x.grad.clone(), None
    with torch.autograd.graph.save_on_cpu():
        (x.exp() @ x).sum().backward()
    assert torch.equal(x.grad, expected)


def test_anomaly_mode_names_nan():
    x = torch.zeros(1, device="npu", requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="nan"):
        (x.sqrt() * 0).sum().backward()


# --- checkpoint -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint_gives_the_same_gradients_with_dropout(reentrant):
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)
    ).npu()
    x = torch.randn(4, 8, device="npu", requires_grad=True)

    def gradients(run):
        module.zero_grad()
        x.grad = None
        torch.manual_seed(3)
        run().sum().backward()
        return [x.grad.clone(), *(p.grad.clone() for p in module.parameters())]

    plain = gradients(lambda: module(x))
    again = gradients(lambda: checkpoint(module, x, use_reentrant=reentrant))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_checkpoint_saves_memory():
    layers = [
        torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()).npu() for _ in range(6)
    ]

    def held(wrap):
        x = torch.ones(512, 256, device="npu", requires_grad=True)
        before = torch.npu.memory_allocated()
        y = x
        for layer in layers:
            y = wrap(layer, y)
        return torch.npu.memory_allocated() - before

    plain = held(lambda f, y: f(y))
    assert held(lambda f, y: checkpoint(f, y, use_reentrant=False)) <= plain * 0.6


def test_checkpoint_keeps_autocast():
    w = torch.randn(4, 4, device="npu", requires_grad=True)
    seen = []

    def step(x):
        seen.append((torch.is_autocast_enabled("npu"), torch.get_autocast_dtype("npu")))
        return x @ w

    with torch.autocast("npu", torch.bfloat16):
        y = checkpoint(step, torch.ones(2, 4, device="npu"), use_reentrant=False)
    y.sum().backward()
    assert seen == [(True, torch.bfloat16)] * 2


# --- torch.func and forward mode ------------------------------------------------------------------


def test_vmap_grad_jvp_and_friends():
    torch.manual_seed(0)
    w, x = torch.randn(3, 4, device="npu"), torch.randn(5, 4, device="npu")

    def loss(w, x):
        return (w @ x).tanh().square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, x)
    host = torch.func.vmap(torch.func.grad(loss), (None, 0))(w.cpu(), x.cpu())
    assert each.device.type == "npu"
    torch.testing.assert_close(each.cpu(), host)

    value, tangent = torch.func.jvp(lambda w: loss(w, x[0]), (w,), (torch.ones_like(w),))
    torch.testing.assert_close(tangent, each[0].sum())
    assert value.item() == pytest.approx(loss(w, x[0]).item())

    _, pull = torch.func.vjp(lambda w: loss(w, x[1]), w)
    torch.testing.assert_close(pull(torch.ones((), device="npu"))[0], each[1])


def test_jacobians_and_hessians():
    x = leaf(3).detach()

    def f(x):
        return x.sin() * x.sum()

    forward, reverse = torch.func.jacfwd(f)(x), torch.func.jacrev(f)(x)
    torch.testing.assert_close(forward, reverse)
    torch.testing.assert_close(forward.cpu(), torch.func.jacrev(f)(x.cpu()))
    hessian = torch.func.hessian(lambda x: (x**3).sum())(x)
    torch.testing.assert_close(hessian, torch.diag(6 * x))


def test_vmap_with_randomness():
    torch.manual_seed(0)
    x = torch.zeros(4, 3, device="npu")
    different = torch.vmap(lambda v: v + torch.rand_like(v), randomness="different")(x)
    same = torch.vmap(lambda v: v + torch.rand_like(v), randomness="same")(x)
    assert not torch.equal(different[0], different[1]) and torch.equal(same[0], same[1])


def test_functional_call_gives_per_sample_gradients():
    module = torch.nn.Linear(4, 2).npu()
    parameters = {k: v.detach() for k, v in module.named_parameters()}
    x, y = torch.randn(6, 4, device="npu"), torch.randn(6, 2, device="npu")

    def loss(parameters, x, y):
        return F.mse_loss(torch.func.functional_call(module, parameters, (x,)), y)

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
    mean = torch.func.grad(loss)(parameters, x, y)
    for name, value in each.items():
        torch.testing.assert_close(value.mean(0), mean[name])


def test_forward_mode_dual_numbers():
    import torch.autograd.forward_ad as fw

    x, t = torch.randn(3, device="npu"), torch.randn(3, device="npu")
    with fw.dual_level():
        out = fw.unpack_dual((fw.make_dual(x, t) ** 2).exp())
    torch.testing.assert_close(out.tangent, (x**2).exp() * 2 * x * t)
    assert out.tangent.device.type == "npu"


# --- autocast ----------------------------------------------------------------------------------------

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
        assert (x.double() @ x.double()).dtype == torch.float64
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


# --- GradScaler --------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "optimizer",
    ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "LBFGS"],
)
@pytest.mark.parametrize("foreach", [False, True])
def test_optimizers_follow_the_cpu(optimizer, foreach):
    if optimizer == "LBFGS" and foreach:
        options = {"line_search_fn": "strong_wolfe"}
    elif optimizer == "LBFGS":
        options = {}
    else:
        options = {"foreach": foreach}
    results = []
    for device in ("cpu", "npu"):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 6, device=device))
        steps = getattr(torch.optim, optimizer)([w], lr=0.1, **options)

        def closure(w=w, steps=steps):
            steps.zero_grad()
            loss = ((w - 2) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(5):
            steps.step(closure)
        results.append(w.detach().cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "Adagrad"])
def test_fused_optimizers_follow_the_plain_ones(optimizer):
    results = []
    for fused in (False, True):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 6, device="npu"))
        steps = getattr(torch.optim, optimizer)([w], lr=0.1, fused=fused, foreach=False)
        for _ in range(4):
            steps.zero_grad()
            ((w - 2) ** 2).sum().backward()
            steps.step()
        results.append(w.detach())
    torch.testing.assert_close(results[1], results[0])


def test_clip_grad_norm():
    w = torch.nn.Parameter(torch.zeros(4, device="npu"))
    w.grad = torch.full((4,), 3.0, device="npu")
    norm = torch.nn.utils.clip_grad_norm_([w], 1.0)
    assert norm.item() == pytest.approx(6) and w.grad.norm().item() == pytest.approx(1, rel=1e-4)
