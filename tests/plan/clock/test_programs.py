"""Tasks as PyTorch's dispatcher sees them: every operator of real programs gets a time."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from softnpu.plan.clock import predict
from softnpu.plan.tasks import Task, TensorSpec


class Tasks(TorchDispatchMode):
    """Notes each operator that makes or writes a tensor; views make none."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        inputs, outputs = specs((args, kwargs)), specs(out)
        if outputs and not function.is_view:
            self.found.append(Task(function.name(), "kernel", 0, 0, inputs, outputs))
        return out


def specs(tree):
    return tuple(
        TensorSpec(tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor)
    )


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(256, 1000)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)))


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, groups=2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.LSTM(64, 128, 2, batch_first=True)

    def forward(self, x):
        return self.body(x)[0].sum(1)


def tokens():
    return torch.zeros(4, 128, dtype=torch.long, device="meta")


PROGRAMS = {
    "decoder": (Decoder, tokens),
    "pictures": (Pictures, lambda: torch.zeros(8, 3, 64, 64, device="meta")),
    "sequence": (Sequence, lambda: torch.zeros(8, 20, 64, device="meta")),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_training_step_of_a_program(name):
    model, data = PROGRAMS[name]
    with torch.device("meta"):
        net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    with Tasks() as tasks:
        net(data()).float().pow(2).mean().backward()
        optimizer.step()
    found = predict(tasks.found, "Ascend910B3")
    assert len(found.tasks) == len(tasks.found) > 50
    assert all(task.seconds > 0 for task in found.tasks)
    assert 0 < found.mfu < 1
    assert {"launch"} <= set(found.by_bound)


def test_operations_of_a_decoder():
    """Products count twice as many operations in the backward pass."""
    with torch.device("meta"):
        net = Decoder()
    with Tasks() as forward:
        out = net(tokens())
    with Tasks() as backward:
        out.sum().backward()
    there, back = (predict(tasks.found, "Ascend910B3").flops for tasks in (forward, backward))
    weights = sum(p.numel() for p in net.parameters() if p.dim() == 2) - 1000 * 256
    least = 2 * 4 * 128 * weights
    assert least < there < 1.3 * least
    assert 1.9 < back / there < 2.3


def test_operators_without_usual_shapes():
    """A time for each, whatever the shapes: vectors, scalars, empty tensors."""
    x, vector, scalar, empty = (TensorSpec(s, "float32") for s in ((4, 4), (4,), (), (0, 4)))
    cases = [
        ("aten::mv", (x, vector), (vector,)),
        ("aten::dot", (vector, vector), (scalar,)),
        ("aten::mm", (empty, x), (empty,)),
        ("aten::addmm", (vector, x, x), (x,)),
        ("aten::linear", (vector, x), (vector,)),
        ("aten::sort", (vector,), (vector, vector)),
        ("aten::zero_", (), (scalar,)),
        ("aten::topk", (empty,), (empty,)),
        ("npu::npu_grouped_matmul", (x, TensorSpec((2, 4, 4), "float32")), (x,)),
        ("aten::softmax", (scalar,), (scalar,)),
        ("aten::convolution", (TensorSpec((1, 2, 8), "float32"), TensorSpec((4, 2, 3), "float32")), (TensorSpec((1, 4, 6), "float32"),)),
    ]  # fmt: skip
    for name, inputs, outputs in cases:
        (time,) = predict([Task(name, "kernel", 0, 0, inputs, outputs)], "Ascend910B3").tasks
        assert 0 < time.seconds < 1e-3, name
