"""npu_lstm and npu_lstm_backward: one LSTM layer over a sequence."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.rnn import _lstm, _sequence
from torch_npu.ops.rnn._sequence import FLOATS, time_first


def check_layer(
    input,
    weight,
    bias,
    h,
    c,
    has_biases,
    num_layers,
    dropout,
    train,
    bidirectional,
    batch_first,
    states=("h", "c"),
) -> tuple[int, int, int]:
    """The constraints on everything but the lengths; returns (T, B, H). `states`: the names of h and c."""
    must.dtype("input", input, *FLOATS)
    must.ndim("input", input, 3)
    must.dtype("bias", bias, *FLOATS)
    must.ndim("bias", bias, 1)
    must.hold(bias.shape[0] % 4 == 0, "bias", "of four values a hidden unit", tuple(bias.shape))
    must.choice("has_biases", has_biases, (True, False))
    hidden, features = bias.shape[0] // 4, input.shape[2]
    must.same_dtype("weight", weight, "input", input)
    must.shape("weight", weight, (features + hidden, 4 * hidden))
    count, batch = time_first(input, batch_first).shape[:2]
    must.hold(count > 0, "input", "of at least one step", tuple(input.shape), ErrCode.PARAM)
    for name, state in zip(states, (h, c), strict=True):
        _sequence.check_state(name, state, batch, hidden, input)
    _sequence.check_single_layer(num_layers, dropout, train)
    one = "False (run the other direction with direction=True)"
    must.hold(not bidirectional, "bidirectional", one, bidirectional, ErrCode.NOT_SUPPORT)
    return count, batch, hidden


def check_mask(seq_mask: torch.Tensor, count: int, batch: int, hidden: int, batch_first: bool):
    """Lengths (B,), or a mask of the results' shape."""
    if seq_mask.dim() == 1:
        _sequence.check_lengths("seq_mask", seq_mask, count, batch)
        return
    must.dtype("seq_mask", seq_mask, *FLOATS)
    leading = (batch, count) if batch_first else (count, batch)
    must.shape("seq_mask", seq_mask, (*leading, hidden))


def mask_of(seq_mask, flag_seq: bool, batch_first: bool, input) -> torch.Tensor | None:
    """The mask (T, B, 1 or H) in fp32, or None where every sequence is complete."""
    if not flag_seq:
        return None
    if seq_mask.dim() == 1:
        like = wide(input)
        return _sequence.mask_of_lengths(seq_mask, input.shape[1 if batch_first else 0], like)
    return time_first(seq_mask, batch_first).to(wide(input).dtype)


def gradients(grads, results, mask, arguments) -> dict[str, torch.Tensor]:
    """The gradients of a layer in any layout, direction and length; `arguments` are the layer's by name."""
    found = _lstm.backward(
        grads[:3],
        arguments["input"],
        arguments["weight"],
        arguments["bias"] if arguments["has_biases"] else None,
        arguments["h"],
        arguments["c"],
        results,
        mask,
        arguments["direction"],
        arguments["batch_first"],
    )
    return by_name(found, arguments["bias"], arguments["has_biases"])


def by_name(found, bias, has_biases) -> dict[str, torch.Tensor]:
    dx, dw, db, dh, dc = found
    db = db.to(bias.dtype) if has_biases else torch.zeros_like(bias)
    return {"input": dx, "weight": dw, "bias": db, "h": dh, "c": dc}


@npu_op(
    "npu_lstm(Tensor input, Tensor weight, Tensor bias, Tensor seq_mask, Tensor h, Tensor c, "
    "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, "
    "bool batch_first, bool flag_seq, bool direction) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    output_differentiability=(True, True, True, False, False, False, False, False),
    aclop=True,
)
def npu_lstm(input, weight, bias, seq_mask, h, c, has_biases, batch_first, flag_seq, direction):
    r"""One LSTM layer in one direction.

    $$ i = \sigma(W_i [x_t, h_{t-1}] + b_i), \; f = \sigma(W_f [x_t, h_{t-1}] + b_f), \;
       j = \tanh(W_j [x_t, h_{t-1}] + b_j), \; o = \sigma(W_o [x_t, h_{t-1}] + b_o) $$
    $$ c_t = f \odot c_{t-1} + i \odot j, \quad h_t = o \odot \tanh(c_t) $$

    Args:
        input: (T, B, I), or (B, T, I) if `batch_first`; float16 or float32.
        weight: (I + H, 4H): the rows of the input, then those of the state; the columns of the gates
            i, f, j, o. From torch.nn.LSTM: `cat([weight_ih, weight_hh], 1).t()`.
        bias: (4H,); of torch.nn.LSTM the sum of its two biases. Its size tells H.
        seq_mask: with `flag_seq` the lengths (B,) in int32, or a mask of the shape of y that is 1
            while a sequence lasts and 0 after; otherwise it is not looked at.
        h: the initial state, (1, B, H) or (B, H).
        c: the initial cell, likewise.
        has_biases: whether `bias` is added.
        num_layers: 1.
        dropout: 0.
        train: whether the gates are kept for a backward pass; here they always are.
        bidirectional: False.
        batch_first: the layout of `input`, of a mask and of the results.
        flag_seq: whether sequences end at different times, as `seq_mask` says.
        direction: True to walk from the last step to the first.

    Returns:
        y, h, c, i, j, f, o and tanh(c) of every step, (T, B, H) or (B, T, H), in the dtype of
        `input`. After a sequence's end (with `direction` before it begins) y is 0 and h and c keep
        their values: the final state is that of the last step walked.

    Differs from upstream:
        `batch_first` and `flag_seq` work; upstream's page calls them unsupported. The gradient takes
        the direction, the lengths and every step's h and c into account; upstream's takes the last
        step's alone, and neither direction nor lengths.
    """
    mask = mask_of(seq_mask, flag_seq, batch_first, input)
    used = bias if has_biases else None
    return _lstm.forward(input, weight, used, h, c, mask, direction, batch_first)


@npu_lstm.check
def _(
    input,
    weight,
    bias,
    seq_mask,
    h,
    c,
    has_biases,
    num_layers,
    dropout,
    train,
    bidirectional,
    batch_first,
    flag_seq,
    direction,
):
    count, batch, hidden = check_layer(
        *(input, weight, bias, h, c),
        *(has_biases, num_layers, dropout, train, bidirectional, batch_first),
    )
    must.choice("direction", direction, (True, False))
    if flag_seq:
        check_mask(seq_mask, count, batch, hidden, batch_first)


@npu_lstm.meta
def _(input, bias):
    return _lstm.shapes(input, bias)


@npu_lstm.backward
def _(*grads, input, batch_first, flag_seq, direction, results, **arguments):
    if flag_seq or direction or batch_first:
        mask = mask_of(arguments["seq_mask"], flag_seq, batch_first, input)
        arguments.update(input=input, batch_first=batch_first, direction=direction)
        return gradients(grads, results, mask, arguments)
    layer = (arguments[name] for name in ("weight", "bias", "h", "c"))
    found = npu_lstm_backward(*grads[:3], input, *layer, *results)
    return by_name(found, arguments["bias"], arguments["has_biases"])


npu_lstm.samples = [
    Sample(
        lambda make: (
            *(make(5, 2, 3), make(7, 16), make(16), make(0), make(1, 2, 4), make(1, 2, 4)),
            *(True, 1, 0.0, True, False, False, False, False),
        )
    ),
    Sample(
        lambda make: (
            *(make(2, 5, 3), make(7, 16), make(16), make(2, dtype=torch.int32, low=1, high=5)),
            *(make(2, 4), make(2, 4)),
            *(True, 1, 0.0, True, False, True, True, True),
        )
    ),
    Sample(
        lambda make: (
            *(make(3, 2, 3, dtype=torch.float16), make(5, 8, dtype=torch.float16)),
            *(make(8, dtype=torch.float16), make(0)),
            *(make(1, 2, 2, dtype=torch.float16), make(1, 2, 2, dtype=torch.float16)),
            *(False, 1, 0.0, False, False, False, False, False),
        )
    ),
]


@npu_op(
    "npu_lstm_backward(Tensor? grady, Tensor? gradh, Tensor? gradc, Tensor input, Tensor weight, "
    "Tensor bias, Tensor hx, Tensor cx, Tensor y_output, Tensor h_output, Tensor c_output, "
    "Tensor i, Tensor j, Tensor f, Tensor o, Tensor tanhc) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    aclop=True,
)
def npu_lstm_backward(
    grady,
    gradh,
    gradc,
    input,
    weight,
    bias,
    hx,
    cx,
    y_output,
    h_output,
    c_output,
    i,
    j,
    f,
    o,
    tanhc,
):
    """Gradients of `npu_lstm` walking forwards over complete sequences, (T, B, I).

    Args:
        grady: the gradient of y at every step, or None for zero.
        gradh: that of h.
        gradc: that of c.
        input: as given to `npu_lstm`.
        weight: as given.
        bias: as given.
        hx: the initial state.
        cx: the initial cell.
        y_output: the results of `npu_lstm`, in order.
        h_output: the second.
        c_output: the third.
        i: the fourth.
        j: the fifth.
        f: the sixth.
        o: the seventh.
        tanhc: the eighth.

    Returns:
        The gradients of input, weight, bias, hx and cx, in their shapes and dtypes.
    """
    results = (y_output, h_output, c_output, i, j, f, o, tanhc)
    dx, dw, db, dh, dc = _lstm.backward(
        (grady, gradh, gradc), input, weight, bias, hx, cx, results, None, False, False
    )
    return dx, dw, db.to(bias.dtype), dh, dc


@npu_lstm_backward.check
def _(
    grady,
    gradh,
    gradc,
    input,
    weight,
    bias,
    hx,
    cx,
    y_output,
    h_output,
    c_output,
    i,
    j,
    f,
    o,
    tanhc,
):
    whole = (input, weight, bias, hx, cx, True, 1, 0, True, False, False)
    _, _, hidden = check_layer(*whole, states=("hx", "cx"))
    size = (*input.shape[:2], hidden)
    of = {"grady": grady, "gradh": gradh, "gradc": gradc, "y_output": y_output}
    of |= {"h_output": h_output, "c_output": c_output, "i": i, "j": j, "f": f, "o": o}
    for name, tensor in (*of.items(), ("tanhc", tanhc)):
        must.shape(name, tensor, size)


@npu_lstm_backward.meta
def _(input, weight, bias, hx, cx):
    return tuple(t.new_empty(t.shape) for t in (input, weight, bias, hx, cx))


npu_lstm_backward.samples = [
    Sample(
        lambda make: (
            *(make(3, 2, 4), None, make(3, 2, 4), make(3, 2, 5), make(9, 16), make(16)),
            *(make(1, 2, 4), make(1, 2, 4)),
            *(make(3, 2, 4, low=0.1, high=0.9) for _ in range(8)),
        )
    )
]
