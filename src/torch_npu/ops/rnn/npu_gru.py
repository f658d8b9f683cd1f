"""npu_gru and npu_gru_backward: one GRU layer over a sequence."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.rnn import _gru, _sequence
from torch_npu.ops.rnn._sequence import FLOATS, time_first


def _check(
    input, hx, weight_input, weight_hidden, bias_input, bias_hidden, seq_length, batch_first
) -> tuple[int, int, int]:
    must.dtype("input", input, *FLOATS)
    must.ndim("input", input, 3)
    must.dtype("bias_input", bias_input, *FLOATS)
    must.ndim("bias_input", bias_input, 1)
    threefold = bias_input.shape[0] % 3 == 0
    must.hold(threefold, "bias_input", "of three values a hidden unit", tuple(bias_input.shape))
    hidden = bias_input.shape[0] // 3
    must.dtype("bias_hidden", bias_hidden, *FLOATS)
    must.shape("bias_hidden", bias_hidden, (3 * hidden,))
    must.same_dtype("weight_input", weight_input, "input", input)
    must.shape("weight_input", weight_input, (input.shape[2], 3 * hidden))
    must.same_dtype("weight_hidden", weight_hidden, "input", input)
    must.shape("weight_hidden", weight_hidden, (hidden, 3 * hidden))
    count, batch = time_first(input, batch_first).shape[:2]
    must.hold(count > 0, "input", "of at least one step", tuple(input.shape), ErrCode.PARAM)
    must.dtype("hx", hx, *FLOATS)
    must.ndim("hx", hx, 2, 3)
    must.shape("hx", hx, (batch, hidden) if hx.dim() == 2 else (1, batch, hidden))
    if _has_lengths(seq_length):
        _sequence.check_lengths("seq_length", seq_length, count, batch)
    return count, batch, hidden


def _has_lengths(seq_length: torch.Tensor) -> bool:
    """A tensor without dimensions or values, as upstream's torch.gru passes it, gives no lengths."""
    return seq_length.dim() > 0 and seq_length.shape[0] > 0


def _mask(seq_length: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    if not _has_lengths(seq_length):
        return None
    return _sequence.mask_of_lengths(seq_length, x.shape[0], x)


def _weights(weight_input, weight_hidden, bias_input, bias_hidden, has_biases) -> _gru.Weights:
    biases = (wide(bias_input), wide(bias_hidden)) if has_biases else (None, None)
    return _gru.Weights(wide(weight_input), wide(weight_hidden), *biases)


def _gradients(grads, a, results, batch_first: bool) -> _gru.Gradients:
    """The gradients in fp32, (T, B, ...); `a` holds the arguments of the layer by name."""
    x, hx = time_first(wide(a["input"]), batch_first), wide(a["hx"])
    dy, dh = (
        time_first(wide(torch.zeros_like(results[0]) if g is None else g), batch_first)
        for g in grads
    )
    trace = _gru.Trace(*(time_first(wide(r), batch_first) for r in results))
    weights = _gru.Weights(wide(a["weight_input"]), wide(a["weight_hidden"]), None, None)
    return _gru.back(
        dy, dh, x, weights, hx.reshape(hx.shape[-2:]), trace, _mask(a["seq_length"], x)
    )


@npu_op(
    "npu_gru(Tensor input, Tensor hx, Tensor weight_input, Tensor weight_hidden, "
    "Tensor bias_input, Tensor bias_hidden, Tensor seq_length, bool has_biases, int num_layers, "
    "float dropout, bool train, bool bidirectional, bool batch_first) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    output_differentiability=(True, True, False, False, False, False),
    aclop=True,
)
def npu_gru(
    input,
    hx,
    weight_input,
    weight_hidden,
    bias_input,
    bias_hidden,
    seq_length,
    has_biases,
    batch_first,
):
    r"""One GRU layer in one direction.

    $$ r = \sigma(x_t W_r + b_r + h_{t-1} U_r + c_r), \quad
       z = \sigma(x_t W_z + b_z + h_{t-1} U_z + c_z) $$
    $$ n = \tanh(x_t W_n + b_n + r \odot (h_{t-1} U_n + c_n)), \quad
       h_t = (1 - z) \odot n + z \odot h_{t-1} $$

    Args:
        input: (T, B, I), or (B, T, I) if `batch_first`; float16 or float32.
        hx: the initial state, (1, B, H) or (B, H); float16 or float32.
        weight_input: (I, 3H), the gates r, z, n side by side: `weight_ih.t()` of torch.nn.GRU.
        weight_hidden: (H, 3H), `weight_hh.t()`.
        bias_input: (3H,); float16 or float32. Its size tells H.
        bias_hidden: (3H,).
        seq_length: (B,) in int32, the lengths of the sequences; a tensor without dimensions or
            values means that all are complete.
        has_biases: whether the biases are added.
        num_layers: not read: it is one layer.
        dropout: not read.
        train: whether the gates are kept for a backward pass; here they always are.
        bidirectional: whether the layer is one of a pair; the caller flips the input of the other.
        batch_first: the layout of `input` and of the results.

    Returns:
        y, h, z (update), r (reset), n (new) and h U_n + c_n (hidden_new) of every step, (T, B, H) or
        (B, T, H), in the dtype of `bias_input`. After a sequence's end y is 0 and h stays.

    Differs from upstream:
        float32 is taken; upstream's page lists float16. `seq_length` and `batch_first` work, where
        upstream passes neither on to the card. The gradient takes every step's h into account;
        upstream's takes the last step's alone.
    """
    x, h = time_first(wide(input), batch_first), wide(hx)
    weights = _weights(weight_input, weight_hidden, bias_input, bias_hidden, has_biases)
    trace = _gru.run(x, weights, h.reshape(h.shape[-2:]), _mask(seq_length, x))
    return _sequence.stored(trace, bias_input.dtype, batch_first)


@npu_gru.check
def _(
    input,
    hx,
    weight_input,
    weight_hidden,
    bias_input,
    bias_hidden,
    seq_length,
    has_biases,
    num_layers,
    dropout,
    train,
    bidirectional,
    batch_first,
):
    _check(
        *(input, hx, weight_input, weight_hidden, bias_input, bias_hidden, seq_length),
        batch_first,
    )
    must.anything(num_layers, dropout)
    must.choice("train", train, (True, False))
    must.choice("has_biases", has_biases, (True, False))
    must.choice("bidirectional", bidirectional, (True, False))


@npu_gru.meta
def _(input, weight_hidden, bias_input):
    size = (*input.shape[:2], weight_hidden.shape[0])
    return tuple(bias_input.new_empty(size) for _ in _gru.Trace._fields)


@npu_gru.backward
def _(*grads, results, **arguments):
    if arguments["batch_first"]:
        found = _gradients(grads[:2], arguments, results, True)
        found = found._replace(x=time_first(found.x, True))
    else:
        layer = (
            "input",
            "weight_input",
            "weight_hidden",
            "bias_input",
            "bias_hidden",
            "seq_length",
            "hx",
        )
        found = npu_gru_backward(*grads[:2], *(arguments[name] for name in layer), *results)
    names = ("weight_input", "weight_hidden", "input", "bias_input", "bias_hidden", "hx")
    of = {}
    for name, gradient in zip(names, found, strict=True):
        given = arguments[name]
        of[name] = gradient.to(given.dtype).reshape(given.shape)
        if name.startswith("bias") and not arguments["has_biases"]:
            of[name] = torch.zeros_like(given)
    return of


npu_gru.samples = [
    Sample(
        lambda make: (
            *(make(5, 2, 3), make(1, 2, 4), make(3, 12), make(4, 12), make(12), make(12)),
            *(make(), True, 1, 0.0, True, False, False),
        )
    ),
    Sample(
        lambda make: (
            *(make(2, 5, 3), make(2, 4), make(3, 12), make(4, 12), make(12), make(12)),
            make(2, dtype=torch.int32, low=1, high=5),
            *(True, 1, 0.0, True, True, True),
        )
    ),
    Sample(
        lambda make: (
            *(make(3, 2, 3, dtype=torch.float16), make(1, 2, 2)),
            *(make(3, 6, dtype=torch.float16), make(2, 6, dtype=torch.float16)),
            *(make(6), make(6), make(2, dtype=torch.int32, low=1, high=3)),
            *(False, 1, 0.0, False, False, False),
        )
    ),
]


@npu_op(
    "npu_gru_backward(Tensor? grady, Tensor? gradh, Tensor input, Tensor weight_input, "
    "Tensor weight_hidden, Tensor bias_input, Tensor bias_hidden, Tensor seq_length, Tensor hx, "
    "Tensor y_output, Tensor h_output, Tensor output_updata, Tensor output_reset, "
    "Tensor output_new, Tensor hidden_new) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    aclop=True,
)
def npu_gru_backward(
    grady,
    gradh,
    input,
    weight_input,
    weight_hidden,
    seq_length,
    hx,
    y_output,
    h_output,
    output_updata,
    output_reset,
    output_new,
    hidden_new,
):
    """Gradients of `npu_gru` over (T, B, I).

    Args:
        grady: the gradient of y at every step, or None for zero.
        gradh: that of h.
        input: as given to `npu_gru`.
        weight_input: as given.
        weight_hidden: as given.
        bias_input: as given.
        bias_hidden: as given.
        seq_length: as given.
        hx: as given.
        y_output: the results of `npu_gru`, in order.
        h_output: the second.
        output_updata: the third.
        output_reset: the fourth.
        output_new: the fifth.
        hidden_new: the sixth.

    Returns:
        The gradients of weight_input, weight_hidden, input, bias_input, bias_hidden and hx, in the
        dtype of `input`.
    """
    results = (y_output, h_output, output_updata, output_reset, output_new, hidden_new)
    given = {"input": input, "hx": hx, "seq_length": seq_length}
    given |= {"weight_input": weight_input, "weight_hidden": weight_hidden}
    found = _gradients((grady, gradh), given, results, False)
    return tuple(
        g.to(input.dtype).reshape(hx.shape) if name == "h" else g.to(input.dtype)
        for name, g in found._asdict().items()
    )


@npu_gru_backward.check
def _(
    grady,
    gradh,
    input,
    weight_input,
    weight_hidden,
    bias_input,
    bias_hidden,
    seq_length,
    hx,
    y_output,
    h_output,
    output_updata,
    output_reset,
    output_new,
    hidden_new,
):
    size = _check(
        input, hx, weight_input, weight_hidden, bias_input, bias_hidden, seq_length, False
    )
    of = {"grady": grady, "gradh": gradh, "y_output": y_output, "h_output": h_output}
    of |= {"output_updata": output_updata, "output_reset": output_reset}
    of |= {"output_new": output_new, "hidden_new": hidden_new}
    for name, tensor in of.items():
        must.shape(name, tensor, size)


@npu_gru_backward.meta
def _(input, weight_input, weight_hidden, bias_input, bias_hidden, hx):
    of = (weight_input, weight_hidden, input, bias_input, bias_hidden, hx)
    return tuple(input.new_empty(t.shape) for t in of)


npu_gru_backward.samples = [
    Sample(
        lambda make: (
            *(make(3, 2, 4), None, make(3, 2, 5), make(5, 12), make(4, 12), make(12), make(12)),
            *(make(2, dtype=torch.int32, low=1, high=3), make(1, 2, 4)),
            *(make(3, 2, 4, low=0.1, high=0.9) for _ in range(6)),
        )
    )
]
