"""npu_hans_encode and npu_hans_decode: what goes in comes out, bit by bit."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import make

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def buffers(x, ratio=0.5, spare=1.0):
    """As MindSpeed allocates them; `spare` bytes a number in the variable part."""
    size, n = x.element_size(), x.numel()
    fixed = (math.ceil(n * ratio) // size + 1) // 2 * 2
    counts = (n * (size - 1) // size, fixed, int(n * spare) // size + 2)
    zeros = [torch.zeros(c, dtype=x.dtype, device=x.device) for c in counts]
    return torch.zeros(256, dtype=torch.int32, device=x.device), *zeros


def there_and_back(x, statistic=True, reshuff=False, pdf=None, **sizes):
    out = list(buffers(x, **sizes))
    out[0] = out[0] if pdf is None else pdf
    got = torch_npu.npu_hans_encode(x, statistic, reshuff, out=tuple(out))
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip(got, out, strict=True))
    counts, mantissa, fixed, var = got
    back = torch.zeros_like(x)
    again = torch_npu.npu_hans_decode(mantissa, fixed, var, counts, reshuff, out=back)
    assert again.data_ptr() == back.data_ptr()
    kind = INTEGERS[x.dtype]
    assert torch.equal(back.cpu().view(kind), x.cpu().view(kind))
    return got


@pytest.mark.parametrize("reshuff", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(256, 64), (1,), (3, 7), (20,)])
def test_lossless(shape, dtype, reshuff):
    there_and_back(torch.randn(shape).to(dtype).npu(), reshuff=reshuff)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern(dtype):
    """Zeros, denormals, infinities, NaN with payloads, both signs."""
    kind = INTEGERS[dtype]
    bits = torch.arange(-(2**15), 2**15).to(kind)
    bits = bits * 65537 if dtype == torch.float32 else bits
    there_and_back(bits.view(dtype).npu(), spare=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ordinary_numbers_need_half_a_byte_for_their_exponents(dtype):
    x = torch.randn(4096).to(dtype).npu()
    _, _, _, var = there_and_back(x, ratio=0.75)
    assert not var.cpu().view(INTEGERS[dtype]).any()


def test_the_counts_are_those_of_the_exponents():
    x = torch.tensor([1.0, 1.5, -2.0, 0.0, 8.0]).npu()
    counts = there_and_back(x)[0].cpu()
    want = torch.zeros(256, dtype=torch.int32)
    want[127], want[128], want[0], want[130] = 2, 1, 1, 1
    assert torch.equal(counts, want)


def test_counts_of_another_tensor():
    counts = there_and_back(torch.randn(500).npu())[0].clone()
    before = counts.clone()
    there_and_back(torch.randn(500).npu() * 1e-3, statistic=False, pdf=counts)
    assert torch.equal(counts.cpu(), before.cpu())


def test_non_contiguous():
    there_and_back(torch.randn(30, 40).npu().t())


def test_too_little_room():
    x = torch.randn(64).exp().npu() ** 20
    pdf, mantissa, fixed, _ = buffers(x)
    var = torch.zeros(0).npu()
    with pytest.raises(RuntimeError, match="npu_hans_encode: argument 'var' must be of at least"):
        torch_npu.npu_hans_encode(x, True, False, out=(pdf, mantissa, fixed[:2], var))


def test_refusals():
    x = make(16)
    pdf, mantissa, fixed, var = buffers(x)
    with pytest.raises(RuntimeError, match="'input' must be of dtype .*float64"):
        torch_npu.npu_hans_encode(x.to("npu", torch.float64), out=(pdf, mantissa, fixed, var))
    with pytest.raises(RuntimeError, match=r"'pdf' must be of shape \(256\).*\(16,\)"):
        torch_npu.npu_hans_encode(x, out=(pdf[:16], mantissa, fixed, var))
    with pytest.raises(RuntimeError, match="'fixed' must be of the dtype of 'input'"):
        torch_npu.npu_hans_encode(x, out=(pdf, mantissa, fixed.half(), var))
    with pytest.raises(RuntimeError, match="'out' must be of numbers that .* bytes can hold"):
        torch_npu.npu_hans_decode(mantissa, fixed, var, pdf, out=make(999))
