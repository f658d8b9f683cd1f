"""NpuFusedOptimizerBase: combined tensors, what may happen between steps, clipping, saving."""

import copy
import pickle

import pytest
import torch

from tests.optim._model import assert_same, parameters, train
from torch_npu.optim import NpuFusedAdam, NpuFusedOptimizerBase, NpuFusedSGD
from torch_npu.utils import is_combined_tensor_valid


def pair(**options):
    """An Adam of ours and one of torch's, over the same parameters."""
    ours, theirs = parameters(), parameters(torch.float64, "cpu")
    return ours, NpuFusedAdam(ours, **options), theirs, torch.optim.Adam(theirs, **options)


def test_parameters_gradients_and_states_are_windows():
    params = parameters()
    optimizer = NpuFusedAdam(params)
    before = [id(p) for p in params]
    train(optimizer, params, 1)
    assert [id(p) for p in params] == before
    flat, half = optimizer.get_combined_params()
    assert half is None and flat.numel() == sum(p.numel() for p in params)
    assert is_combined_tensor_valid(flat, params)
    grads, _ = optimizer.get_combined_grads()
    assert is_combined_tensor_valid(grads, [p.grad for p in params])
    state = optimizer.combined_param_states_indexed_by_group[0][0]
    for name in ("exp_avg", "exp_avg_sq"):
        assert is_combined_tensor_valid(state[name], [optimizer.state[p][name] for p in params])
    assert optimizer.is_fused_optimizer


def test_both_dtypes():
    wide, half = parameters(), parameters(torch.float16)
    optimizer = NpuFusedSGD([*wide, *half], lr=0.1)
    train(optimizer, wide, 1)  # the halves have no gradients yet
    assert optimizer.get_combined_params()[1] is None
    for param in half:
        param.grad = torch.ones_like(param)
    kept = [p.detach().clone() for p in half]
    optimizer.step()
    assert [c.dtype for c in optimizer.get_combined_params()] == [torch.float32, torch.float16]
    for param, value in zip(half, kept, strict=True):
        torch.testing.assert_close(param.detach(), (value.double() - 0.1).half())


def test_groups_have_their_own_options():
    ours, theirs = parameters(), parameters(torch.float64, "cpu")

    def groups(params):
        return [{"params": params[:2], "lr": 0.1}, {"params": params[2:], "weight_decay": 0.3}]

    train(NpuFusedAdam(groups(ours), lr=0.01), ours)
    train(torch.optim.Adam(groups(theirs), lr=0.01), theirs)
    assert_same(ours, theirs)


def test_replaced_gradients():
    """What zero_grad(set_to_none=True) of a module, or a new gradient object, does."""
    ours, fused, theirs, plain = pair(lr=0.1)
    for step in range(4):
        for param in (*ours, *theirs):
            param.grad = None
        train(fused, ours, 1, first=step)
        train(plain, theirs, 1, first=step)
    assert_same(ours, theirs)


def test_a_parameter_that_joins_later():
    """It begins with its own step count; the others go on with theirs."""
    ours, fused, theirs, plain = pair(lr=0.1)
    train(fused, ours[:2], 3)
    train(plain, theirs[:2], 3)
    train(fused, ours, 3, first=3)
    train(plain, theirs, 3, first=3)
    assert_same(ours, theirs)


def test_a_group_that_joins_later():
    ours, theirs = parameters(), parameters(torch.float64, "cpu")
    fused, plain = NpuFusedAdam(ours[:2], lr=0.1), torch.optim.Adam(theirs[:2], lr=0.1)
    train(fused, ours[:2], 2)
    train(plain, theirs[:2], 2)
    fused.add_param_group({"params": ours[2:], "lr": 0.2})
    plain.add_param_group({"params": theirs[2:], "lr": 0.2})
    train(fused, ours, 2, first=2)
    train(plain, theirs, 2, first=2)
    assert_same(ours, theirs)


def test_backward_accumulates_into_the_windows():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    exact = copy.deepcopy(model).double()
    model = model.npu()
    fused = NpuFusedAdam(model.parameters(), lr=0.05)
    plain = torch.optim.Adam(exact.parameters(), lr=0.05)
    x = torch.randn(16, 4)
    for _ in range(5):
        fused.zero_grad()
        plain.zero_grad()
        model(x.npu()).square().sum().backward()
        exact(x.double()).square().sum().backward()
        fused.step()
        plain.step()
    assert_same(model.parameters(), exact.parameters(), 1e-5)
    assert is_combined_tensor_valid(
        fused.get_combined_grads()[0], [p.grad for p in model.parameters()]
    )


def test_zero_grad():
    params = parameters()
    optimizer = NpuFusedAdam(params)
    optimizer.zero_grad()  # nothing to do yet
    train(optimizer, params, 1)
    optimizer.zero_grad()
    assert all((p.grad == 0).all() for p in params)
    with pytest.raises(ValueError, match="set_to_none=True is not supported"):
        optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize("norm_type", [1, 2, 3.5, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping(norm_type, max_norm):
    ours, theirs = parameters(), parameters(torch.float64, "cpu")
    for mine, other in zip(ours, theirs, strict=True):
        mine.grad = mine.detach().clone() * 3
        other.grad = other.detach().clone() * 3
    fused = NpuFusedAdam(ours)
    found = fused.clip_grad_norm_fused_(max_norm, norm_type)
    want = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    torch.testing.assert_close(found.cpu().double(), want, rtol=1e-5, atol=1e-6)
    assert_same([p.grad for p in ours], [p.grad for p in theirs], 1e-5)


def test_clipping_nothing():
    assert NpuFusedAdam(parameters()).clip_grad_norm_fused_(1.0).item() == 0


def test_closure():
    param = torch.nn.Parameter(torch.ones(2, device="npu"))
    optimizer = NpuFusedSGD([param], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert (param == 0).all()


def test_a_step_without_gradients_changes_nothing():
    params = parameters()
    kept = [p.detach().clone() for p in params]
    NpuFusedAdam(params).step()
    assert all(torch.equal(p, k) for p, k in zip(params, kept, strict=True))


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_copies_go_on(how):
    ours, fused, theirs, plain = pair(lr=0.1)
    train(fused, ours, 2)
    train(plain, theirs, 4)
    copied = copy.deepcopy(fused) if how == "deepcopy" else pickle.loads(pickle.dumps(fused))
    params = copied.param_groups[0]["params"]
    train(copied, params, 2, first=2)
    assert_same(params, theirs)


def test_non_contiguous_parameters():
    """A transposed weight is laid out in its own order; its values are updated in place."""
    ours = [torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t().npu())]
    ours[0].grad = torch.ones(2, 3).t().npu()
    NpuFusedSGD(ours, lr=1.0).step()
    assert ours[0].tolist() == (torch.arange(6.0).reshape(2, 3).t() - 1).tolist()


def test_the_base_has_no_update():
    params = parameters()
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(NotImplementedError):
        NpuFusedOptimizerBase(params, {"lr": 1.0}).step()


def test_a_subclass_in_upstreams_manner():
    """It overrides the two methods and works on the lists."""

    class Descent(NpuFusedOptimizerBase):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        def _maybe_init_combined_states(self):
            self.is_states_combined = True

        def _group_step(self, group_index):
            lr = self.param_groups[group_index]["lr"]
            pairs = zip(
                self.combined_params_indexed_by_group[group_index],
                self.combined_grads_indexed_by_group[group_index],
                strict=True,
            )
            for param, grad in pairs:
                if param is not None:
                    param.add_(grad, alpha=-lr)

    ours, theirs = parameters(), parameters(torch.float64, "cpu")
    train(Descent(ours, 0.1), ours)
    train(torch.optim.SGD(theirs, 0.1), theirs)
    assert_same(ours, theirs)


def test_other_dtypes_are_refused():
    params = parameters(torch.bfloat16)
    with pytest.raises(TypeError, match="must be float32 or float16, but received torch.bfloat16"):
        train(NpuFusedAdam(params), params, 1)


def test_sparse_gradients_are_refused():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="NpuFusedAdam does not support sparse gradients"):
        NpuFusedAdam(table.parameters()).step()


def test_host_parameters_are_refused():
    params = parameters(device="cpu")
    with pytest.raises(RuntimeError, match="must be on an npu, but received one on cpu"):
        train(NpuFusedAdam(params), params, 1)
