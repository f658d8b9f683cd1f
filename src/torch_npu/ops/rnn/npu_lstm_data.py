"""npu_lstm_data and npu_lstm_data_backward: one LSTM layer over packed sequences laid out in full."""

from __future__ import annotations

import torch

from torch_npu._errors import ErrCode
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops.rnn import _lstm, _sequence
from torch_npu.ops.rnn.npu_lstm import (
    by_name,
    check_layer,
    check_mask,
    gradients,
    mask_of,
    npu_lstm,
)


def _check_batches(batch_sizes: torch.Tensor, count: int, batch: int) -> None:
    must.dtype("batch_sizes", batch_sizes, torch.int64, torch.int32)
    must.shape("batch_sizes", batch_sizes, (count,))
    if must.has_data(batch_sizes) and batch_sizes.numel():
        found = batch_sizes.cpu()
        falling = bool((found[1:] <= found[:-1]).all()) and found[-1] >= 0 and found[0] <= batch
        must.hold(falling, "batch_sizes", f"falling from at most {batch} to 0", found.tolist())


def _check_agreement(seq_mask, batch_sizes, batch_first, input) -> None:
    """The mask and the batch sizes say the same: the backward pass reads the latter."""
    if not (must.has_data(seq_mask) and must.has_data(batch_sizes) and must.has_data(input)):
        return
    mask = mask_of(seq_mask, True, batch_first, input)
    assert mask is not None
    batches = _sequence.mask_of_batches(batch_sizes, mask.shape[1], mask)
    same = bool((mask == batches).all())
    must.hold(same, "seq_mask", "1 where 'batch_sizes' has a sequence", "another", ErrCode.VALUE)


@npu_op(
    "npu_lstm_data(Tensor input, Tensor batch_sizes, Tensor weight, Tensor bias, Tensor seq_mask, "
    "Tensor h, Tensor c, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first, bool flag_seq, bool direction) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    output_differentiability=(True, True, True, False, False, False, False, False),
    host_ok=True,
    aclop=True,
)
def npu_lstm_data(
    input, weight, bias, seq_mask, h, c, has_biases, batch_first, flag_seq, direction
):
    r"""`npu_lstm` over the sequences of a PackedSequence, each laid out over all steps.

    Args:
        input: (T, B, I), or (B, T, I) if `batch_first`; float16 or float32.
        batch_sizes: (T,): how many sequences last at each step, on the device or the host; the
            longest sequence comes first.
        weight: (I + H, 4H), as in `npu_lstm`.
        bias: (4H,).
        seq_mask: with `flag_seq` lengths or a mask, as in `npu_lstm`; it says what `batch_sizes`
            says.
        h: the initial state, (1, B, H) or (B, H).
        c: the initial cell, likewise.
        has_biases: whether `bias` is added.
        num_layers: 1.
        dropout: 0.
        train: whether the gates are kept for a backward pass; here they always are.
        bidirectional: False.
        batch_first: the layout of `input`, of a mask and of the results.
        flag_seq: whether the lengths are taken into account.
        direction: True to walk from the last step to the first.

    Returns:
        The eight results of `npu_lstm`.
    """
    return npu_lstm.kernel(
        input, weight, bias, seq_mask, h, c, has_biases, batch_first, flag_seq, direction
    )


@npu_lstm_data.check
def _(
    input,
    batch_sizes,
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
    _check_batches(batch_sizes, count, batch)
    if flag_seq:
        check_mask(seq_mask, count, batch, hidden, batch_first)
        _check_agreement(seq_mask, batch_sizes, batch_first, input)


@npu_lstm_data.meta
def _(input, bias):
    return _lstm.shapes(input, bias)


@npu_lstm_data.backward
def _(*grads, input, batch_sizes, batch_first, flag_seq, direction, results, **arguments):
    if batch_first or not flag_seq:
        like, mask = wide(input), None
        if flag_seq:
            mask = _sequence.mask_of_batches(batch_sizes, input.shape[0], like)
        arguments.update(input=input, batch_first=batch_first, direction=direction)
        return gradients(grads, results, mask, arguments)
    layer = (arguments[name] for name in ("weight", "bias", "h", "c"))
    found = npu_lstm_data_backward(*grads[:3], input, batch_sizes, *layer, *results, direction)
    return by_name(found, arguments["bias"], arguments["has_biases"])


npu_lstm_data.samples = [
    Sample(
        lambda make: (
            make(4, 2, 3),
            make(4, dtype=torch.int64, low=2, high=3),
            *(make(7, 16), make(16), make(0), make(1, 2, 4), make(1, 2, 4)),
            *(True, 1, 0.0, True, False, False, False, True),
        )
    )
]


@npu_op(
    "npu_lstm_data_backward(Tensor? grady_opt, Tensor? gradh_opt, Tensor? gradc_opt, "
    "Tensor input, Tensor batch_sizes, Tensor weight, Tensor bias, Tensor init_h, Tensor init_c, "
    "Tensor y, Tensor h, Tensor c, Tensor i, Tensor j, Tensor f, Tensor o, Tensor tanhc, "
    "bool flag_direction) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    host_ok=True,
    aclop=True,
)
def npu_lstm_data_backward(
    grady_opt,
    gradh_opt,
    gradc_opt,
    input,
    batch_sizes,
    weight,
    bias,
    init_h,
    init_c,
    y,
    h,
    c,
    i,
    j,
    f,
    o,
    tanhc,
    flag_direction,
):
    """Gradients of `npu_lstm_data` over (T, B, I), with the lengths of `batch_sizes`.

    Args:
        grady_opt: the gradient of y at every step, or None for zero.
        gradh_opt: that of h.
        gradc_opt: that of c.
        input: as given to `npu_lstm_data`.
        batch_sizes: as given.
        weight: as given.
        bias: as given.
        init_h: the initial state.
        init_c: the initial cell.
        y: the results of `npu_lstm_data`, in order.
        h: the second.
        c: the third.
        i: the fourth.
        j: the fifth.
        f: the sixth.
        o: the seventh.
        tanhc: the eighth.
        flag_direction: `direction` as given.

    Returns:
        The gradients of input, weight, bias, init_h and init_c, in their shapes and dtypes.
    """
    mask = _sequence.mask_of_batches(batch_sizes, input.shape[1], wide(input))
    dx, dw, db, dh, dc = _lstm.backward(
        (grady_opt, gradh_opt, gradc_opt),
        *(input, weight, bias, init_h, init_c),
        (y, h, c, i, j, f, o, tanhc),
        mask,
        flag_direction,
        False,
    )
    return dx, dw, db.to(bias.dtype), dh, dc


@npu_lstm_data_backward.check
def _(
    grady_opt,
    gradh_opt,
    gradc_opt,
    input,
    batch_sizes,
    weight,
    bias,
    init_h,
    init_c,
    y,
    h,
    c,
    i,
    j,
    f,
    o,
    tanhc,
):
    whole = (input, weight, bias, init_h, init_c, True, 1, 0, True, False, False)
    count, batch, hidden = check_layer(*whole, states=("init_h", "init_c"))
    _check_batches(batch_sizes, count, batch)
    of = {"grady_opt": grady_opt, "gradh_opt": gradh_opt, "gradc_opt": gradc_opt}
    of |= {"y": y, "h": h, "c": c, "i": i, "j": j, "f": f, "o": o, "tanhc": tanhc}
    for name, tensor in of.items():
        must.shape(name, tensor, (count, batch, hidden))


@npu_lstm_data_backward.meta
def _(input, weight, bias, init_h, init_c):
    of = (input, weight, bias, init_h, init_c)
    return tuple(t.new_empty(t.shape) for t in of)


npu_lstm_data_backward.samples = [
    Sample(
        lambda make: (
            *(make(3, 2, 4), None, None, make(3, 2, 5)),
            make(3, dtype=torch.int64, low=2, high=3),
            *(make(9, 16), make(16), make(1, 2, 4), make(1, 2, 4)),
            *(make(3, 2, 4, low=0.1, high=0.9) for _ in range(8)),
            True,
        )
    )
]
