"""Random numbers: one generator a device, (seed, offset) state, exact replay."""

from __future__ import annotations

import pytest
import torch

import torch_npu  # noqa: F401


def draw(device="npu", count=4):
    return torch.rand(count, device=device).tolist()


def test_manual_seed_repeats():
    torch.manual_seed(7)
    first = draw(), draw()
    torch.manual_seed(7)
    assert (draw(), draw()) == first
    torch.manual_seed(8)
    assert draw() != first[0]
    assert first[0] != first[1]


def test_torch_manual_seed_seeds_every_device():
    torch.manual_seed(11)
    assert [g.initial_seed() for g in torch.npu.default_generators] == [11] * 8
    assert draw("npu:0") == draw("npu:5")


def test_npu_manual_seed_seeds_the_current_device_only():
    torch.npu.manual_seed_all(1)
    with torch.npu.device(2):
        torch.npu.manual_seed(5)
        assert torch.npu.initial_seed() == 5
    assert torch.npu.initial_seed() == 1


def test_the_cpu_generator_is_untouched():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    torch.randn(100, device="npu")
    torch.nn.functional.dropout(torch.ones(100, device="npu"))
    assert torch.equal(torch.get_rng_state(), before)


def test_cpu_draws_do_not_move_the_device():
    torch.manual_seed(3)
    first = draw()
    torch.manual_seed(3)
    torch.rand(100)
    assert draw() == first


def test_state_is_seed_and_offset_in_16_bytes():
    torch.npu.manual_seed(0x0102030405060708)
    state = torch.npu.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu" and state.numel() == 16
    seed, offset = state.view(torch.int64).tolist()
    assert (seed, offset) == (0x0102030405060708, 0)
    draw()
    seed, moved = torch.npu.get_rng_state().view(torch.int64).tolist()
    assert seed == 0x0102030405060708 and moved > 0


def test_restoring_the_state_replays():
    torch.manual_seed(2)
    draw()
    state = torch.npu.get_rng_state()
    expected = draw(), torch.randperm(20, device="npu").tolist()
    torch.npu.set_rng_state(state)
    assert (draw(), torch.randperm(20, device="npu").tolist()) == expected


def test_states_of_all_devices():
    states = torch.npu.get_rng_state_all()
    assert len(states) == 8
    expected = [draw(f"npu:{i}") for i in range(8)]
    torch.npu.set_rng_state_all(states)
    assert [draw(f"npu:{i}") for i in range(8)] == expected


def test_a_state_of_the_wrong_size_is_refused():
    with pytest.raises(RuntimeError, match="16 bytes.*received 5 bytes"):
        torch.npu.set_rng_state(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises((RuntimeError, TypeError), match="ByteTensor|dtype"):
        torch.npu.set_rng_state(torch.zeros(16))


def test_own_generators_are_independent():
    a = torch.Generator("npu").manual_seed(4)
    b = torch.Generator("npu").manual_seed(4)
    default = torch.npu.get_rng_state()
    first = torch.rand(5, device="npu", generator=a)
    assert torch.equal(first, torch.rand(5, device="npu", generator=b))
    assert not torch.equal(first, torch.rand(5, device="npu", generator=a))
    assert torch.equal(default, torch.npu.get_rng_state())
    assert a.device == torch.device("npu:0") and a.initial_seed() == 4
    assert torch.Generator("npu:3").device.index == 3


def test_generators_clone():
    a = torch.Generator("npu").manual_seed(4)
    torch.rand(5, device="npu", generator=a)
    b = a.clone_state()
    assert torch.equal(
        torch.rand(5, device="npu", generator=a), torch.rand(5, device="npu", generator=b)
    )


def test_generator_offset():
    a = torch.Generator("npu").manual_seed(4)
    torch.rand(5, device="npu", generator=a)
    at = a.get_offset()
    expected = torch.rand(5, device="npu", generator=a)
    a.set_offset(at)
    assert torch.equal(torch.rand(5, device="npu", generator=a), expected)


def test_graphsafe_state_is_shared():
    a = torch.Generator("npu").manual_seed(4)
    b = torch.Generator("npu").manual_seed(9)
    b.graphsafe_set_state(a.graphsafe_get_state())
    first = torch.rand(3, device="npu", generator=a)
    second = torch.rand(3, device="npu", generator=b)
    assert not torch.equal(first, second) and b.initial_seed() == 4
    assert a.get_offset() == b.get_offset()


def test_a_generator_of_the_wrong_device_is_refused():
    with pytest.raises(
        RuntimeError,
        match="Expected a '(npu|privateuseone)' device type for generator but found 'cpu'",
    ):
        torch.rand(3, device="npu", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found"):
        torch.rand(3, generator=torch.Generator("npu"))


def test_seed_draws_a_new_one():
    torch.npu.seed()
    first = torch.npu.initial_seed()
    torch.npu.seed()
    assert torch.npu.initial_seed() != first
    torch.npu.seed_all()
    assert len({g.initial_seed() for g in torch.npu.default_generators}) == 1


RANDOM = {
    "randn": lambda g: torch.randn(50, device="npu", generator=g),
    "randint": lambda g: torch.randint(0, 1000, (50,), device="npu", generator=g),
    "randperm": lambda g: torch.randperm(50, device="npu", generator=g),
    "normal_": lambda g: torch.empty(50, device="npu").normal_(1, 2, generator=g),
    "uniform_": lambda g: torch.empty(50, device="npu").uniform_(-1, 1, generator=g),
    "exponential_": lambda g: torch.empty(50, device="npu").exponential_(generator=g),
    "geometric_": lambda g: torch.empty(50, device="npu").geometric_(0.3, generator=g),
    "cauchy_": lambda g: torch.empty(50, device="npu").cauchy_(generator=g),
    "log_normal_": lambda g: torch.empty(50, device="npu").log_normal_(generator=g),
    "random_": lambda g: torch.empty(50, device="npu").random_(generator=g),
    "bernoulli": lambda g: torch.full((50,), 0.5, device="npu").bernoulli(generator=g),
    "multinomial": lambda g: torch.ones(50, device="npu").multinomial(20, generator=g),
    "poisson": lambda g: torch.poisson(torch.full((50,), 4.0, device="npu"), generator=g),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_follow_the_given_generator(name):
    g = torch.Generator("npu").manual_seed(1)
    first, second = RANDOM[name](g), RANDOM[name](g)
    assert first.device.type == "npu"
    assert not torch.equal(first, second)
    assert torch.equal(RANDOM[name](g.manual_seed(1)), first)


@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.nn.functional.dropout(torch.ones(64, device="npu")),
        lambda: torch.nn.functional.rrelu(-torch.ones(64, device="npu"), training=True),
        lambda: torch.nn.functional.gumbel_softmax(torch.ones(64, device="npu")),
        lambda: torch.rand_like(torch.ones(64, device="npu")),
        lambda: torch.nn.functional.alpha_dropout(torch.ones(64, device="npu"), training=True),
        lambda: torch.normal(torch.zeros(64, device="npu"), 1.0),
        lambda: torch.nn.functional.scaled_dot_product_attention(
            *torch.ones(3, 1, 1, 8, 4, device="npu"), dropout_p=0.5
        ),
    ],
)
def test_random_operators_without_a_generator_follow_the_default_one(function):
    torch.manual_seed(5)
    first, second = function(), function()
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(function(), first)


def test_the_distributions_are_right():
    torch.manual_seed(0)
    x = torch.randn(200_000, device="npu")
    assert abs(x.mean().item()) < 0.01 and abs(x.std().item() - 1) < 0.01
    u = torch.rand(200_000, device="npu")
    assert u.min().item() >= 0 and u.max().item() < 1 and abs(u.mean().item() - 0.5) < 0.005
    kept = torch.nn.functional.dropout(torch.ones(200_000, device="npu"), 0.3)
    assert abs((kept == 0).float().mean().item() - 0.3) < 0.01
    assert abs(kept.max().item() - 1 / 0.7) < 1e-6


def test_neighboring_offsets_are_unrelated():
    torch.manual_seed(0)
    a, b = torch.randn(2, 100_000, device="npu")
    c = torch.randn(100_000, device="npu")
    table = torch.corrcoef(torch.stack([a, b, c]).cpu())
    assert (table - torch.eye(3)).abs().max() < 0.02


def test_fork_rng_restores_the_device():
    torch.manual_seed(1)
    state = torch.npu.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        draw()
    assert torch.equal(torch.npu.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_normal_numbers_of_integers_are_cut_off(dtype):
    """The card draws them; PyTorch's CPU kernels refuse."""
    torch.npu.manual_seed(5)
    whole = torch.randn(1000, dtype=dtype, device="npu")
    torch.npu.manual_seed(5)
    exact = torch.randn(1000, device="npu")
    assert torch.equal(whole, exact.to(dtype)) and whole.unique().numel() > 3
