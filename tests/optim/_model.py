"""What the optimizer tests share: a few parameters, gradients by step, and a run of two optimizers."""

import torch

SHAPES = ((3, 4), (5,), (2, 3, 2, 2), (1,))


def start(dtype=torch.float64):
    """The same parameters every time, on the CPU."""
    source = torch.Generator().manual_seed(1)
    return [torch.randn(s, generator=source, dtype=torch.float64).to(dtype) for s in SHAPES]


def gradients(step):
    source = torch.Generator().manual_seed(100 + step)
    return [torch.randn(s, generator=source, dtype=torch.float64) for s in SHAPES]


def parameters(dtype=torch.float32, device="npu"):
    return [torch.nn.Parameter(p.to(device)) for p in start(dtype)]


def train(optimizer, params, steps=6, first=0):
    """Steps with given gradients; they are accumulated into zeroed ones, as backward does it."""
    for step in range(first, first + steps):
        for param, grad in zip(params, gradients(step), strict=False):
            grad = grad.to(param.dtype).to(param.device)
            if param.grad is None:
                param.grad = grad
            else:
                param.grad.copy_(grad)
        optimizer.step()
    return params


def assert_same(found, expected, tolerance=1e-6):
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(
            got.detach().cpu().double(), want.detach().double(), atol=tolerance, rtol=tolerance
        )


def against_torch(fused, plain, options, steps=6):
    """The fused optimizer on the device in fp32 against torch's on the CPU in fp64."""
    ours, theirs = parameters(), parameters(torch.float64, "cpu")
    train(fused(ours, **options), ours, steps)
    train(plain(theirs, **options), theirs, steps)
    assert_same(ours, theirs)
