"""npu_hans_encode and npu_hans_decode: what goes in comes out, bit by bit."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import make

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}


def buffers(x, ratio=0.5, spare=1.0):
    """As MindSpeed allocates them; `spare` bytes a number in the variable part, and what the card's cores add."""
    size, n = x.element_size(), x.numel()
    fixed = (math.ceil(n * ratio) // size + 1) // 2 * 2
    counts = (n * (size - 1) // size, fixed, (int(n * spare) + n // 64 + 10000) // size)
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
@pytest.mark.parametrize("shape", [(256, 128), (32832,), (3, 171, 64)])
def test_lossless(shape, dtype, reshuff):
    there_and_back(torch.randn(shape).to(dtype).npu(), reshuff=reshuff, ratio=1.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern(dtype):
    """Zeros, denormals, infinities, NaN with payloads, both signs."""
    kind = INTEGERS[dtype]
    bits = torch.arange(-(2**15), 2**15).to(kind)
    bits = bits * 65537 if dtype == torch.float32 else bits
    there_and_back(bits.view(dtype).npu(), spare=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ordinary_numbers_need_half_a_byte_for_their_exponents(dtype):
    x = torch.randn(32768).to(dtype).npu()
    _, _, _, var = there_and_back(x, ratio=0.75)
    assert not var.cpu().view(INTEGERS[dtype]).any()


def test_the_counts_are_those_of_the_exponents():
    x = torch.tensor([1.0, 1.5, -2.0, 0.0, 8.0, 8.0, 8.0, 8.0]).repeat(4096).npu()
    counts = there_and_back(x)[0].cpu()
    want = torch.zeros(256, dtype=torch.int32)
    want[127], want[128], want[0], want[130] = 8192, 4096, 4096, 16384
    assert torch.equal(counts, want)


def test_counts_of_another_tensor():
    counts = there_and_back(torch.randn(32768).npu())[0].clone()
    before = counts.clone()
    there_and_back(torch.randn(32768).npu() * 1e-3, statistic=False, pdf=counts)
    assert torch.equal(counts.cpu(), before.cpu())


def test_counts_in_a_row():
    pdf = torch.zeros(1, 256, dtype=torch.int32).npu()
    counts = there_and_back(torch.randn(32768).npu(), pdf=pdf)[0]
    assert counts.shape == (1, 256) and int(counts.sum()) == 32768
    there_and_back(torch.randn(32768).npu(), statistic=False, pdf=pdf)


def test_non_contiguous():
    there_and_back(torch.randn(320, 128).npu().t())


@pytest.mark.parametrize(
    "change,message",
    [
        (
            {"input": lambda x: x[:-1]},
            "'input' must be of a multiple of 64 numbers, at least 32768",
        ),
        (
            {"input": lambda x: x[:64]},
            "'input' must be of a multiple of 64 numbers, at least 32768",
        ),
        ({"input": lambda x: x.int()}, "'input' must be of dtype .*int32"),
        ({"pdf": lambda t: t[:16]}, r"'pdf' must be of 256 counts.*\(16,\)"),
        ({"mantissa": lambda t: t[1:]}, "'mantissa' must be of 98304 bytes.*98300"),
        ({"fixed": lambda t: t.half()}, "'fixed' must be of the dtype of 'input'"),
        ({"fixed": lambda t: t[:127]}, "'fixed' must be of at least 512 bytes.*508"),
        ({"var": lambda t: t[:0]}, "'var' must be of 42240 bytes together with 'fixed'.*16384"),
    ],
)
def test_refusals(change, message):
    given = dict(zip(("pdf", "mantissa", "fixed", "var"), buffers(make(32768)), strict=True))
    given["input"] = make(32768)
    for name, how in change.items():
        given[name] = how(given[name])
    x = given.pop("input")
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_hans_encode(x, out=tuple(given.values()))


def test_reshuffled_parts_need_a_whole_fixed_buffer():
    x = make(32768)
    with pytest.raises(RuntimeError, match="'fixed' must be of at least 42240 bytes.*16384"):
        torch_npu.npu_hans_encode(x, True, True, out=buffers(x))


def test_a_result_that_does_not_fit_its_parts():
    pdf, mantissa, fixed, var = buffers(make(32768))
    with pytest.raises(RuntimeError, match="'mantissa' must be of 98307 bytes.*98304"):
        torch_npu.npu_hans_decode(mantissa, fixed, var, pdf, out=make(32769))
