"""An operator of your own on npu, with autograd, through torch.library.

    python examples/custom_operator.py

The operator is a smooth clamp, y = limit * tanh(x / limit). It has a kernel for npu, a shape function (so that
torch.compile and FakeTensor know it) and a gradient; `opcheck` and `gradcheck` confirm that they agree.
"""

from __future__ import annotations

import torch

import torch_npu  # noqa: F401  (makes the device known)


@torch.library.custom_op("example::soft_clamp", mutates_args=(), device_types="npu")
def soft_clamp(x: torch.Tensor, limit: float) -> torch.Tensor:
    """The kernel for npu."""
    return limit * torch.tanh(x / limit)


@soft_clamp.register_fake
def _(x: torch.Tensor, limit: float) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx, inputs, output) -> None:
    _, ctx.limit = inputs
    ctx.save_for_backward(output)


def _backward(ctx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    (y,) = ctx.saved_tensors
    return grad * (1 - (y / ctx.limit) ** 2), None


soft_clamp.register_autograd(_backward, setup_context=_setup)


def main() -> None:
    x = torch.linspace(-6, 6, 7, dtype=torch.float64, device="npu", requires_grad=True)
    y = soft_clamp(x, 2.0)
    y.sum().backward()
    print("x   ", [round(v, 3) for v in x.tolist()])
    print("y   ", [round(v, 3) for v in y.tolist()])
    print("dy  ", [round(v, 3) for v in x.grad.tolist()])
    # torch's fourth check, of autograd's registration, knows no devices but its own.
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(soft_clamp, (x, 2.0), test_utils=checks)
    torch.autograd.gradcheck(lambda t: soft_clamp(t, 2.0), x)
    print("opcheck and gradcheck agree")


if __name__ == "__main__":
    main()
