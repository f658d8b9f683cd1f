"""npu_lstm_cell and npu_lstm_cell_backward: one step of an LSTM."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.rnn import _lstm
from torch_npu.ops.rnn._lstm import Trace, Weights
from torch_npu.ops.rnn._sequence import FLOATS


def _check(input, w_ih, w_hh, h, c) -> tuple[int, int]:
    must.dtype("input", input, *FLOATS)
    must.ndim("input", input, 2)
    must.ndim("w_hh", w_hh, 2)
    batch, hidden = input.shape[0], w_hh.shape[0]
    for name, tensor in (("w_ih", w_ih), ("w_hh", w_hh), ("h", h), ("c", c)):
        must.same_dtype(name, tensor, "input", input)
    must.shape("w_hh", w_hh, (hidden, 4 * hidden))
    must.shape("w_ih", w_ih, (input.shape[1], 4 * hidden))
    must.shape("h", h, (batch, hidden))
    must.shape("c", c, (batch, hidden))
    return batch, hidden


@npu_op(
    "npu_lstm_cell(Tensor input, Tensor w_ih, Tensor w_hh, Tensor h, Tensor c, Tensor? b_ih=None, "
    "Tensor? b_hh=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    output_differentiability=(True, True, True, False, False, False, False, False),
    aclop=True,
)
def npu_lstm_cell(input, w_ih, w_hh, h, c, b_ih, b_hh):
    r"""One step of an LSTM.

    $$ i, f, j, o = \mathrm{input} \cdot w_{ih} + b_{ih} + h \cdot w_{hh} + b_{hh}, \quad
       c' = \sigma(f) \odot c + \sigma(i) \odot \tanh(j), \quad
       h' = \sigma(o) \odot \tanh(c') $$

    Args:
        input: (B, I); float16 or float32.
        w_ih: (I, 4H), the gates i, f, j, o side by side: `weight_ih.t()` of torch.nn.LSTMCell.
        w_hh: (H, 4H), `weight_hh.t()`.
        h: (B, H), the state.
        c: (B, H), the cell.
        b_ih: (4H,), or None.
        b_hh: (4H,); given with `b_ih` and only then.

    Returns:
        y of shape (1, B, H), the new h and c of shape (B, H), and i, j, f, o and tanh(c') of shape
        (1, B, H), in the dtype of `input`.
    """
    bias = None if b_ih is None else wide(b_ih) + wide(b_hh)
    weights = Weights(wide(w_ih), wide(w_hh), bias)
    trace = _lstm.run(wide(input).unsqueeze(0), weights, wide(h), wide(c), None, False)
    y, h, c, *gates = (t.to(input.dtype) for t in trace)
    return y, h.squeeze(0), c.squeeze(0), *gates


@npu_lstm_cell.check
def _(input, w_ih, w_hh, h, c, b_ih, b_hh):
    _, hidden = _check(input, w_ih, w_hh, h, c)
    for name, bias in (("b_ih", b_ih), ("b_hh", b_hh)):
        must.dtype(name, bias, *FLOATS)
        must.shape(name, bias, (4 * hidden,))
    paired = (b_ih is None) == (b_hh is None)
    given = None if b_hh is None else tuple(b_hh.shape)
    must.hold(paired, "b_hh", "given together with 'b_ih'", given, ErrCode.PARAM)


@npu_lstm_cell.backward
def _(*grads, results, **arguments):
    given = (arguments[name] for name in ("input", "w_ih", "w_hh", "h", "c"))
    found = npu_lstm_cell_backward(*grads[:3], *given, *results)
    names = ("input", "w_ih", "w_hh", "b_ih", "b_hh", "h", "c")
    return {
        name: gradient.to(arguments[name].dtype)
        for name, gradient in zip(names, found, strict=True)
        if arguments[name] is not None
    }


npu_lstm_cell.samples = [
    Sample(
        lambda make: (make(3, 5), make(5, 16), make(4, 16), make(3, 4), make(3, 4)),
        lambda make: {"b_ih": make(16), "b_hh": make(16)},
    ),
    Sample(
        lambda make: (
            *(make(2, 3, dtype=torch.float16), make(3, 8, dtype=torch.float16)),
            *(make(2, 8, dtype=torch.float16), make(2, 2, dtype=torch.float16)),
            make(2, 2, dtype=torch.float16),
        )
    ),
]


@npu_op(
    "npu_lstm_cell_backward(Tensor? grady, Tensor? gradh, Tensor? gradc, Tensor input, "
    "Tensor w_ih, Tensor w_hh, Tensor h, Tensor c, Tensor y_output, Tensor h_output, "
    "Tensor c_output, Tensor i, Tensor j, Tensor f, Tensor o, Tensor tanhc) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    aclop=True,
)
def npu_lstm_cell_backward(
    grady, gradh, gradc, input, w_ih, w_hh, h, c, y_output, h_output, c_output, i, j, f, o, tanhc
):
    """Gradients of `npu_lstm_cell`.

    Args:
        grady: the gradient of y, (1, B, H), or None for zero.
        gradh: that of the new h, (B, H).
        gradc: that of the new c, (B, H).
        input: as given to `npu_lstm_cell`.
        w_ih: as given.
        w_hh: as given.
        h: as given.
        c: as given.
        y_output: the results of `npu_lstm_cell`, in order.
        h_output: the second.
        c_output: the third.
        i: the fourth.
        j: the fifth.
        f: the sixth.
        o: the seventh.
        tanhc: the eighth.

    Returns:
        The gradients of input, w_ih, w_hh, b_ih, b_hh, h and c, in the dtype of `input`.
    """
    one = (1, *h.shape)
    results = (y_output, h_output, c_output, i, j, f, o, tanhc)
    trace = Trace(*(wide(t).reshape(one) for t in results))
    dy, dh, dc = (
        trace.y.new_zeros(one) if g is None else wide(g).reshape(one) for g in (grady, gradh, gradc)
    )
    found = _lstm.back(
        (dy, dh, dc),
        wide(input).unsqueeze(0),
        Weights(wide(w_ih), wide(w_hh), None),
        wide(h),
        wide(c),
        trace,
        None,
        False,
    )
    d_bias = found.bias.to(input.dtype)
    return (
        found.x.squeeze(0).to(input.dtype),
        found.weight_x.to(w_ih.dtype),
        found.weight_h.to(w_hh.dtype),
        d_bias,
        d_bias.clone(),
        found.h.to(h.dtype),
        found.c.to(c.dtype),
    )


@npu_lstm_cell_backward.check
def _(
    grady, gradh, gradc, input, w_ih, w_hh, h, c, y_output, h_output, c_output, i, j, f, o, tanhc
):
    batch, hidden = _check(input, w_ih, w_hh, h, c)
    stepped = {"grady": grady, "y_output": y_output, "i": i, "j": j, "f": f, "o": o}
    for name, tensor in (*stepped.items(), ("tanhc", tanhc)):
        must.shape(name, tensor, (1, batch, hidden))
    flat = {"gradh": gradh, "gradc": gradc, "h_output": h_output, "c_output": c_output}
    for name, tensor in flat.items():
        must.shape(name, tensor, (batch, hidden))


npu_lstm_cell_backward.samples = [
    Sample(
        lambda make: (
            *(make(1, 3, 4), make(3, 4), None),
            *(make(3, 5), make(5, 16), make(4, 16), make(3, 4), make(3, 4)),
            *(make(1, 3, 4), make(3, 4), make(3, 4)),
            *(make(1, 3, 4, low=0.1, high=0.9) for _ in range(5)),
        )
    )
]
