"""_npu_dropout_gen_mask: size, share of set bits, and dependence on seed and offset alone."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def share(mask):
    data = mask.cpu()
    return sum(((data >> i) & 1).double().mean().item() for i in range(8)) / 8


def generate(size, p, seed=1, offset=0, **options):
    return torch_npu._npu_dropout_gen_mask(make(2, 3), size, p, seed, offset, **options)


@pytest.mark.parametrize(
    "size,length", [([32, 16], 64), ([17, 19], 48), ([1], 16), ([0, 3], 0), ([], 16)]
)
def test_size(size, length):
    mask = generate(size, 0.4)
    assert mask.dtype == torch.uint8 and mask.shape == (length,)


@pytest.mark.parametrize("p,byte", [(0.0, 255), (1.0, 0)])
def test_nothing_and_everything(p, byte):
    assert generate([32, 16], p).cpu().tolist() == [byte] * 64


def test_share_of_set_bits():
    assert share(generate([500, 500], 0.7)) == pytest.approx(0.3, abs=0.01)


def test_same_seed_and_offset_same_mask():
    first = generate([50, 50], 0.5, 2, 100, parallel=True)
    assert torch.equal(first, generate([2500], 0.5, 2, 100, parallel=False, sync=True))


@pytest.mark.parametrize("other", [(3, 100), (2, 101), (102, 0)])
def test_other_seed_or_offset_other_mask(other):
    assert not torch.equal(generate([50, 50], 0.5, 2, 100), generate([50, 50], 0.5, *other))


def test_bad_probability():
    with pytest.raises(RuntimeError, match="_npu_dropout_gen_mask.*'p' must be from 0 to 1, .*2.0"):
        generate([4], 2.0)


def test_bad_size():
    with pytest.raises(RuntimeError, match=r"argument 'size' must be a list of sizes, .*\[-4\]"):
        generate([-4], 0.5)


def test_bad_offset():
    with pytest.raises(
        RuntimeError, match="argument 'offset' must be not negative, but received -1"
    ):
        generate([4], 0.5, 1, -1)
