"""npu_hans_encode and npu_hans_decode: lossless compression of floating numbers."""

from __future__ import annotations

import torch

from softnpu import chips
from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.memory import _hans

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
#: numbers a core takes at least, numbers a loop takes, bytes of the head, and bytes that each core adds
CORE, LOOP, HEAD, TAIL = 32768, 64, 512, 8448


def _bound(count: int) -> int:
    """The bytes that the coded exponents of `count` numbers may take."""
    cores = min(count // CORE, chips.current().vector_cores)
    return count + count // LOOP + TAIL * cores + HEAD


def _check_mantissa(mantissa: torch.Tensor, count: int) -> None:
    size = mantissa.element_size()
    held, needed = mantissa.numel() * size, count * (size - 1)
    must.hold(held == needed, "mantissa", f"of {needed} bytes", held, ErrCode.PARAM)


@npu_op(
    "npu_hans_encode.out(Tensor input, bool statistic=False, bool reshuff=False, *,"
    " Tensor(a!) pdf, Tensor(b!) mantissa, Tensor(c!) fixed, Tensor(d!) var)"
    " -> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!))",
    ge="HansEncode",
    infinite=True,  # any bits
)
def npu_hans_encode(input, statistic, pdf, mantissa, fixed, var):
    r"""Compresses numbers by coding their exponents; `npu_hans_decode` restores them bit by bit.

    Args:
        input: float32, bfloat16 or float16.
        statistic: True counts the bytes that hold the exponents into `pdf`; False takes `pdf` as it is.
        reshuff: the order in which upstream's cores store their parts; the result is the same here.
        pdf: the 256 counts, int32, (256,) or (1, 256); written with `statistic`.
        mantissa: is written: the bytes without the exponents, n * (itemsize - 1) for n numbers; of the
            dtype of `input`.
        fixed: is written: the coded exponents, half a byte a number; of the dtype of `input`.
        var: is written: what does not fit into `fixed`; of the dtype of `input`.

    Returns:
        pdf, mantissa, fixed and var. In Python they are given as `out=(pdf, mantissa, fixed, var)`.

    Constraints:
        A multiple of 64 numbers n, at least 32768. `fixed` has at least 512 bytes; together with `var` (alone with
        `reshuff`) n + n / 64 + 512 bytes and 8448 for each core that works, one for 32768 numbers.

    Differs from upstream: the code inside the buffers is one of our own (upstream publishes none), so
    that only `npu_hans_decode` of this package reads them.
    """
    high, lower = _hans.split(input)
    counts = torch.bincount(high, minlength=256).to(pdf.dtype) if statistic else pdf.flatten()
    rest = torch.cat((lower, _hans.encode(high, _hans.frequent(counts))))
    in_mantissa = min(lower.shape[0], mantissa.nbytes)
    in_fixed = min(rest.shape[0] - in_mantissa, fixed.nbytes)
    in_var = rest.shape[0] - in_mantissa - in_fixed
    if in_var > var.nbytes:
        raise RuntimeError(
            f"npu_hans_encode: argument 'var' must be of at least {in_var} bytes for these"
            f" numbers, but received {var.nbytes}"
        )
    if statistic:
        pdf.copy_(counts.view(pdf.shape))
    sizes = (in_mantissa, in_fixed, in_var)
    for target, part in zip((mantissa, fixed, var), rest.split(sizes), strict=True):
        if part.shape[0]:
            held = torch.cat((part, _hans.as_bytes(target)[part.shape[0] :]))
            target.copy_(held.view(target.dtype).view(target.shape))
    return pdf, mantissa, fixed, var


@npu_hans_encode.check
def _(input, reshuff, pdf, mantissa, fixed, var):
    must.dtype("input", input, *DTYPES)
    count, shape = input.numel(), tuple(input.shape)
    fits = count % LOOP == 0 and count >= CORE
    expected = f"of a multiple of {LOOP} numbers, at least {CORE}"
    must.hold(fits, "input", expected, shape, ErrCode.PARAM)
    must.hold(isinstance(reshuff, bool), "reshuff", "a bool", reshuff)
    must.dtype("pdf", pdf, torch.int32)
    must.hold(pdf.numel() == 256, "pdf", "of 256 counts", tuple(pdf.shape), ErrCode.PARAM)
    for name, tensor in (("mantissa", mantissa), ("fixed", fixed), ("var", var)):
        must.same_dtype(name, tensor, "input", input)
    _check_mantissa(mantissa, count)
    least = _bound(count) if reshuff else HEAD
    size = input.element_size()
    room = fixed.numel() * size
    must.hold(room >= least, "fixed", f"of at least {least} bytes", room)
    held, whole = room + var.numel() * size, _bound(count)
    must.hold(held >= whole, "var", f"of {whole} bytes together with 'fixed'", held)


@npu_hans_encode.meta
def _(pdf, mantissa, fixed, var):
    return pdf, mantissa, fixed, var


@npu_hans_encode.call
def _(input, statistic=False, reshuff=False, *, out):
    pdf, mantissa, fixed, var = out
    buffers = {"pdf": pdf, "mantissa": mantissa, "fixed": fixed, "var": var}
    return torch.ops.npu.npu_hans_encode.out(input, statistic, reshuff, **buffers)


def _zeros(make, count, dtype):
    return torch.zeros(count, dtype=dtype).to(make(1).device)


def _buffers(make, count, dtype):
    """Buffers that hold whatever `count` numbers need."""
    size = dtype.itemsize
    sizes = {"mantissa": count * (size - 1), "fixed": _bound(count), "var": count}
    parts = {name: _zeros(make, -(-bytes_ // size), dtype) for name, bytes_ in sizes.items()}
    return {"pdf": _zeros(make, 256, torch.int32), **parts}


npu_hans_encode.samples = [
    Sample(
        lambda make: (make(256, 128), True), lambda make: _buffers(make, 256 * 128, torch.float32)
    ),
    Sample(
        lambda make: (make(32832, dtype=torch.bfloat16), False, True),
        lambda make: _buffers(make, 32832, torch.bfloat16),
    ),
]


@npu_op(
    "npu_hans_decode.out(Tensor mantissa, Tensor fixed, Tensor var, Tensor pdf,"
    " bool reshuff=False, *, Tensor(a!) out) -> Tensor(a!)",
    ge="HansDecode",
    infinite=True,
)
def npu_hans_decode(mantissa, fixed, var, pdf, out):
    r"""Restores what `npu_hans_encode` compressed, bit by bit.

    Args:
        mantissa: as the encoder wrote it.
        fixed: as the encoder wrote it.
        var: as the encoder wrote it.
        pdf: as the encoder used it.
        reshuff: as in the encoder.
        out: is written; with the dtype and the number of elements of the encoder's input.

    Returns:
        `out`.
    """
    count = out.numel()
    lower = count * (out.element_size() - 1)
    stream = torch.cat(
        (_hans.as_bytes(mantissa)[:lower], _hans.as_bytes(fixed), _hans.as_bytes(var))
    )
    high = _hans.decode(stream[lower:], count, _hans.frequent(pdf.flatten()))
    return out.copy_(_hans.join(high, stream[:lower], out))


@npu_hans_decode.check
def _(mantissa, fixed, var, pdf, reshuff, out):
    must.dtype("out", out, *DTYPES)
    must.hold(isinstance(reshuff, bool), "reshuff", "a bool", reshuff)
    must.dtype("pdf", pdf, torch.int32)
    must.hold(pdf.numel() == 256, "pdf", "of 256 counts", tuple(pdf.shape), ErrCode.PARAM)
    size = out.element_size()
    for name, tensor in (("mantissa", mantissa), ("fixed", fixed), ("var", var)):
        must.same_dtype(name, tensor, "out", out)
    _check_mantissa(mantissa, out.numel())
    held = (mantissa.numel() + fixed.numel() + var.numel()) * size
    least = out.numel() * (size - 1) + (out.numel() + 1) // 2
    must.hold(held >= least, "out", f"of numbers that {held} bytes can hold", tuple(out.shape))


@npu_hans_decode.meta
def _(out):
    return out


def _coded(make):
    given = _buffers(make, 256 * 128, torch.float32)
    return tuple(given[name] for name in ("mantissa", "fixed", "var", "pdf"))


npu_hans_decode.samples = [Sample(_coded, lambda make: {"out": make(256, 128)})]
