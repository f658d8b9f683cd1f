"""torch.npu.amp and the autocast switches of torch.npu."""

import pytest
import torch

import torch_npu


def test_autocast_computes_in_the_chosen_dtype():
    x = torch.ones(4, 4, device="npu")
    with torch.npu.amp.autocast():
        assert (x @ x).dtype == torch.float16
    with torch.npu.amp.autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert torch.softmax(x.half(), 0).dtype == torch.float32
    with torch.npu.amp.autocast(enabled=False):
        assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_autocast_as_decorator():
    @torch.npu.amp.autocast()
    def product(x):
        return x @ x

    assert product(torch.ones(2, 2, device="npu")).dtype == torch.float16


def test_switches():
    assert torch.npu.is_autocast_enabled() is False
    torch.npu.set_autocast_enabled(True)
    before = torch.npu.get_autocast_dtype()
    try:
        assert torch.npu.is_autocast_enabled() is True and torch_npu._C.is_autocast_enabled()
        torch.npu.set_autocast_dtype(torch.bfloat16)
        assert torch.npu.get_autocast_dtype() == torch.bfloat16
        assert (
            torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu")
        ).dtype == torch.bfloat16
    finally:
        torch.npu.set_autocast_dtype(before)
        torch.npu.set_autocast_enabled(False)
    assert before == torch.float16
    with pytest.raises(TypeError, match="enabled must be a bool"):
        torch.npu.set_autocast_enabled(1)
    with pytest.raises(TypeError, match="dtype must be a torch.dtype"):
        torch.npu.set_autocast_dtype("half")
    assert torch.npu.get_amp_supported_dtype() == [torch.float16, torch.bfloat16, torch.float32]


def make(**arguments):
    weight = torch.ones(2, device="npu", requires_grad=True)
    return weight, torch.optim.SGD([weight], lr=0.5), torch.npu.amp.GradScaler(**arguments)


def test_scaled_step_equals_the_plain_one():
    weight, optimizer, scaler = make(init_scale=1024.0)
    scaler.scale((weight * 3).sum()).backward()
    assert torch.equal(weight.grad.cpu(), torch.full((2,), 3072.0))
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weight.detach().cpu(), torch.full((2,), -0.5))
    assert scaler.get_scale() == 1024.0


def test_an_infinite_gradient_skips_the_step_and_halves_the_scale():
    weight, optimizer, scaler = make(init_scale=8.0)
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weight.detach().cpu(), torch.ones(2))
    assert scaler.get_scale() == 4.0


def test_the_scale_grows_after_enough_good_steps():
    weight, optimizer, scaler = make(init_scale=8.0, growth_interval=2)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 16.0


def test_a_static_scale_never_changes_and_skips_nothing():
    weight, optimizer, scaler = make(init_scale=8.0, dynamic=False, growth_interval=1)
    scaler.scale((weight * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 8.0
    assert torch.equal(weight.detach().cpu(), torch.zeros(2))
    optimizer.zero_grad()
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert not torch.isfinite(weight).any() and scaler.get_scale() == 8.0


def test_state_round_trips():
    _, _, scaler = make(init_scale=32.0, dynamic=False)
    state = scaler.state_dict()
    assert state["dynamic"] is False and state["scale"] == 32.0
    _, _, other = make()
    other.load_state_dict(state)
    assert other.get_scale() == 32.0 and other._dynamic is False


def test_disabled_scaler_changes_nothing():
    weight, optimizer, scaler = make(enabled=False)
    loss = weight.sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weight.detach().cpu(), torch.full((2,), 0.5))


def test_the_overflow_flag_skips_the_step_in_saturation_mode(saturation):
    weight, optimizer, scaler = make(init_scale=8.0)
    found = []
    for factor in (6e4, 1.0):
        optimizer.zero_grad()
        half = weight.half() * factor
        scaler.scale((half * 4).float().sum()).backward()
        assert torch.isfinite(weight.grad).all()
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), weight.tolist()))
    assert found == [(4.0, [1.0, 1.0]), (4.0, [-1.0, -1.0])]


def test_wrong_arguments():
    with pytest.raises(ValueError, match="growth factor must be > 1.0"):
        torch.npu.amp.GradScaler(growth_factor=1.0)
    with pytest.raises(ValueError, match="backoff factor must be < 1.0"):
        torch.npu.amp.GradScaler(backoff_factor=1.0)
    with pytest.raises(ValueError, match="outputs should be npu, but is cpu"):
        torch.npu.amp.GradScaler().scale(torch.ones(1))


def test_custom_functions_cast():
    with pytest.warns(FutureWarning, match="custom_fwd"):
        forward_decorator = torch.npu.amp.custom_fwd(cast_inputs=torch.float16)
    with pytest.warns(FutureWarning, match="custom_bwd"):

        class Double(torch.autograd.Function):
            @staticmethod
            @forward_decorator
            def forward(ctx, x):
                ctx.seen = x.dtype
                return x * 2

            @staticmethod
            @torch.npu.amp.custom_bwd
            def backward(ctx, gradient):
                assert ctx.seen == torch.float16
                return gradient * 2

    x = torch.ones(2, device="npu", requires_grad=True)
    with torch.npu.amp.autocast():
        assert Double.apply(x).dtype == torch.float16
    assert torch.npu.amp.amp_definitely_not_available() is False


@pytest.mark.parametrize("first", [0, 1])
def test_an_overflow_skips_the_steps_of_all_optimizers(first):
    """Those unscaled before it too; `update` forgets it."""
    weights = [torch.ones(2, device="npu", requires_grad=True) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
    scaler = torch.npu.amp.GradScaler(init_scale=4.0, growth_interval=1)
    scaler.scale(sum(weight.sum() for weight in weights)).backward()
    weights[first].grad.fill_(float("inf"))
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert [weight.tolist() for weight in weights] == [[1.0, 1.0], [1.0, 1.0]]
    assert scaler.get_scale() == 2.0
    for optimizer in optimizers:
        optimizer.zero_grad()
    scaler.scale(sum(weight.sum() for weight in weights)).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert [weight.tolist() for weight in weights] == [[0.0, 0.0], [0.0, 0.0]]
    assert scaler.get_scale() == 4.0
