"""Autograd on the device: gradients, double backward, forward mode, torch.func, checkpoint."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import torch_npu  # noqa: F401


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


def test_a_tensor_modified_by_a_foreach_operator_is_noticed():
    x = torch.ones(3, device="npu", requires_grad=True)
    y = x.exp()
    with torch.no_grad():
        torch._foreach_add_([y], 1.0)
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


# --- checkpoint ---


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


# --- torch.func and forward mode ---


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
