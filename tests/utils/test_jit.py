"""torch_npu.jit.optimize rewrites TorchScript."""

import torch

import torch_npu
import torch_npu.jit


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x) + torch.nn.functional.gelu(x, approximate="tanh")


def test_exact_gelu_becomes_the_fast_one():
    x = torch.linspace(-3, 3, 9, device="npu")
    traced = torch.jit.trace(Model(), x, check_trace=False)
    torch_npu.jit.optimize(traced)
    text = str(traced.graph)
    assert text.count("npu::fast_gelu") == 1 and text.count("aten::gelu") == 1
    right = torch_npu.fast_gelu(x) + torch.nn.functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(traced(x), right)
