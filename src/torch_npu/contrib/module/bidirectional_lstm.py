"""BiLSTM: two LSTM layers, one of which reads the sequence backwards."""

from __future__ import annotations

import torch

from torch_npu.contrib._checks import deprecated


class BiLSTM(torch.nn.Module):
    """One bidirectional LSTM layer.

    Args:
        input_size: features of an input step.
        hidden_size: features of a state, in each direction.

    Input (sequence, batch, input_size), output (sequence, batch, 2 * hidden_size): forward features, then backward.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        deprecated("BiLSTM", "torch.nn.LSTM(..., bidirectional=True)")
        self.fw_rnn = torch.nn.LSTM(input_size, hidden_size, bidirectional=False)
        self.bw_rnn = torch.nn.LSTM(input_size, hidden_size, bidirectional=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        forward, _ = self.fw_rnn(inputs)
        backward, _ = self.bw_rnn(inputs.flip(0))
        return torch.cat((forward, backward.flip(0)), 2)
