"""npu_lstm_data against torch.nn.LSTM over a PackedSequence, in fp64."""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make

T, B, I, H = 5, 3, 4, 3
LENGTHS = torch.tensor([5, 3, 2])
BATCHES = torch.tensor([3, 3, 2, 1, 1])
MASK = (torch.arange(T)[:, None] < LENGTHS[None, :]).unsqueeze(2).expand(T, B, H)


def run(x, batches, weight, bias, mask, h, c, direction=False, flag_seq=True, batch_first=False):
    rest = (True, 1, 0.0, True, False, batch_first, flag_seq, direction)
    return torch_npu.npu_lstm_data(x, batches, weight, bias, mask, h, c, *rest)


def inputs(dtype=torch.float32, **options):
    options["dtype"] = dtype
    return (
        make(T, B, I, **options),
        make(I + H, 4 * H, **options),
        make(4 * H, **options),
        make(1, B, H, seed=5, **options),
        make(1, B, H, seed=6, **options),
    )


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("host", [False, True])
def test_forward(reverse, host):
    x, weight, bias, h, c = inputs()
    lstm = torch.nn.LSTM(I, H, bidirectional=True).double()
    end = "_reverse" if reverse else ""
    with torch.no_grad():
        getattr(lstm, f"weight_ih_l0{end}").copy_(weight[:I].t())
        getattr(lstm, f"weight_hh_l0{end}").copy_(weight[I:].t())
        getattr(lstm, f"bias_ih_l0{end}").copy_(bias)
        getattr(lstm, f"bias_hh_l0{end}").zero_()
    states = [t.cpu().double().expand(2, -1, -1).contiguous() for t in (h, c)]
    packed = pack_padded_sequence(x.cpu().double(), LENGTHS)
    y, (hn, cn) = lstm(packed, states)
    y, _ = pad_packed_sequence(y)
    batches = BATCHES if host else BATCHES.npu()
    found = run(x, batches, weight, bias, MASK.half().npu(), h, c, reverse)
    side, last = int(reverse), 0 if reverse else T - 1
    want = y[..., side * H : (side + 1) * H]
    assert_accurate(found[0], want, want.float(), 2e-6)
    assert_accurate(found[1][last], hn[side], hn[side].float(), 2e-6)
    assert_accurate(found[2][last], cn[side], cn[side].float(), 2e-6)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("flag_seq,batch_first", [(True, False), (True, True), (False, False)])
def test_gradients(reverse, flag_seq, batch_first):
    args = inputs(torch.float64, requires_grad=True)
    mask = MASK.transpose(0, 1) if batch_first else MASK

    def call(x, weight, bias, h, c):
        x = x.transpose(0, 1) if batch_first else x
        return run(
            x, BATCHES.npu(), weight, bias, mask.half().npu(), h, c, reverse, flag_seq, batch_first
        )[:3]

    gradcheck(call, *args, fast_mode=True)


def test_backward_operator_agrees_with_autograd():
    x, weight, bias, h, c = inputs(requires_grad=True)
    results = run(x, BATCHES, weight, bias, MASK.half().npu(), h, c, True)
    grad = make(T, B, H, seed=9)
    results[0].backward(grad)
    found = torch_npu.npu_lstm_data_backward(
        grad, None, None, x, BATCHES, weight, bias, h, c, *results, True
    )
    for tensor, want in zip((x, weight, bias, h, c), found, strict=True):
        torch.testing.assert_close(tensor.grad, want)


def test_bad_batch_sizes():
    x, weight, bias, h, c = inputs()
    mask = MASK.half().npu()
    with pytest.raises(
        RuntimeError, match=r"npu_lstm_data: argument 'batch_sizes' must be of shape \(5\)"
    ):
        run(x, BATCHES[:4], weight, bias, mask, h, c)
    with pytest.raises(RuntimeError, match="'batch_sizes' must be falling from at most 3 to 0"):
        run(x, BATCHES.flip(0), weight, bias, mask, h, c)


def test_mask_that_says_otherwise():
    x, weight, bias, h, c = inputs()
    with pytest.raises(RuntimeError, match="'seq_mask' must be 1 where 'batch_sizes' has"):
        run(x, BATCHES, weight, bias, torch.ones_like(MASK).half().npu(), h, c)
