"""torch.npu's random state, per device and for all."""

import pytest
import torch

import torch_npu


def draw(device=0):
    return torch.randn(8, device=f"npu:{device}").cpu()


def test_same_seed_same_numbers():
    torch.npu.manual_seed(7)
    first = draw()
    assert torch.npu.initial_seed() == 7
    torch.npu.manual_seed(7)
    assert torch.equal(draw(), first)
    assert not torch.equal(draw(), first)


def test_manual_seed_is_of_the_current_device():
    torch.npu.manual_seed_all(1)
    untouched = torch.npu.get_rng_state(0)
    with torch.npu.device(1):
        torch.npu.manual_seed(99)
        assert torch.npu.initial_seed() == 99
    assert torch.equal(torch.npu.get_rng_state(0), untouched)
    assert torch.npu.initial_seed() == 1


def test_manual_seed_all_gives_every_device_the_same():
    torch.npu.manual_seed_all(5)
    assert torch.equal(draw(0), draw(3))


def test_state_round_trips():
    torch.npu.manual_seed(3)
    draw()
    state = torch.npu.get_rng_state()
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = draw()
    torch.npu.set_rng_state(state)
    assert torch.equal(draw(), first)


def test_states_of_all_devices_round_trip():
    states = torch.npu.get_rng_state_all()
    assert len(states) == torch.npu.device_count()
    first = draw(0), draw(2)
    torch.npu.set_rng_state_all(states)
    assert torch.equal(draw(0), first[0]) and torch.equal(draw(2), first[1])


def test_seed_is_random_and_seed_all_is_common():
    torch.npu.seed()
    one = torch.npu.initial_seed()
    torch.npu.seed()
    assert torch.npu.initial_seed() != one
    torch.npu.seed_all()
    assert len({g.initial_seed() for g in torch.npu.default_generators}) == 1


def test_torch_manual_seed_seeds_the_npu():
    torch.manual_seed(11)
    first = draw()
    torch.manual_seed(11)
    assert torch.equal(draw(), first)


def test_fork_rng_restores():
    torch.npu.manual_seed(2)
    state = torch.npu.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        torch.npu.manual_seed(1234)
        draw()
    assert torch.equal(torch.npu.get_rng_state(), state)


def test_offset_moves_along_the_sequence():
    torch.npu.manual_seed(4)
    draw()
    offset = torch.npu._get_rng_state_offset()
    first = draw()
    torch.npu._set_rng_state_offset(offset)
    assert torch.equal(draw(), first)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="must be a ByteTensor, but received torch.float32"):
        torch.npu.set_rng_state(torch.zeros(16))
    with pytest.raises(TypeError, match="must be a ByteTensor, but received bytes"):
        torch.npu.set_rng_state(b"")
    with pytest.raises(RuntimeError, match="invalid NPU device index 12"):
        torch_npu.npu.get_rng_state("npu:12")
    with pytest.raises(ValueError, match="invalid literal"):
        torch.npu.manual_seed("x")
