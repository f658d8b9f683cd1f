"""Whole trainings: the CPU's losses in fp32, convergence in half precision, memory that comes back."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_npu  # noqa: F401

STEPS = 20
DEVICE = "npu:5"


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 5),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)

    @staticmethod
    def data():
        return torch.randn(16, 3, 16, 16), torch.randint(0, 5, (16,))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.lstm = nn.LSTM(12, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0][:, -1])

    @staticmethod
    def data():
        return torch.randint(0, 20, (16, 9)), torch.randint(0, 5, (16,))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.body(self.embed(x), mask=mask, is_causal=True).mean(1))

    @staticmethod
    def data():
        return torch.randint(0, 20, (16, 10)), torch.randint(0, 5, (16,))


MODELS = [Cnn, Lstm, Transformer]


def build(kind):
    torch.manual_seed(0)
    return kind(), kind.data()


def train(model, data, device, steps=STEPS, dtype=None, optimizer=torch.optim.SGD, **options):
    """The losses of `steps` steps on copies of the model and the data; fp16 with a GradScaler."""
    model = copy.deepcopy(model).to(device)
    inputs, labels = (part.to(device) for part in data)
    steps_of = optimizer(model.parameters(), **options)
    kind = torch.device(device).type
    scaler = torch.amp.GradScaler(kind, enabled=dtype == torch.float16)
    losses = []
    for _ in range(steps):
        steps_of.zero_grad()
        with torch.autocast(kind, dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(steps_of)
        scaler.update()
        losses.append(loss.item())
    return losses


@pytest.fixture(autouse=True)
def returns_its_memory():
    """Every training here gives back what it took."""
    gc.collect()
    before = torch.npu.memory_allocated(DEVICE)
    yield
    gc.collect()
    assert torch.npu.memory_allocated(DEVICE) == before


@pytest.mark.parametrize("kind", MODELS)
def test_fp32_losses_are_the_cpus(kind):
    model, data = build(kind)
    options = {"optimizer": torch.optim.SGD, "lr": 0.05, "momentum": 0.9}
    host, device = (train(model, data, where, **options) for where in ("cpu", DEVICE))
    assert host[-1] < host[0]
    for step, (a, b) in enumerate(zip(host, device, strict=True)):
        assert abs(a - b) <= 1e-5 * abs(a), f"step {step}: {b} where the CPU has {a}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", MODELS)
def test_half_precision_converges(kind, dtype):
    model, data = build(kind)
    losses = train(model, data, DEVICE, 40, dtype, torch.optim.AdamW, lr=0.01)
    assert losses[-1] < 0.3 * losses[0], losses
    wide = train(model, data, DEVICE, 40, None, torch.optim.AdamW, lr=0.01)
    assert abs(losses[0] - wide[0]) < 0.02 * wide[0]


@pytest.mark.parametrize("kind", MODELS)
def test_whole_models_in_bfloat16_train(kind):
    model, data = build(kind)
    losses = train(model.bfloat16(), _cast(data), DEVICE, 40, None, torch.optim.AdamW, lr=0.01)
    assert losses[-1] < 0.5 * losses[0], losses


def _cast(data):
    return tuple(part.bfloat16() if part.is_floating_point() else part for part in data)


def test_trainings_repeat_exactly():
    model, data = build(Transformer)
    model.body.layers[0].dropout1.p = 0.3
    runs = []
    for _ in range(2):
        torch.manual_seed(9)
        runs.append(train(model, data, DEVICE, 5, lr=0.1))
    assert runs[0] == runs[1]


def test_dropout_trains_and_evaluates():
    module = nn.Dropout(0.5).to(DEVICE)
    x = torch.ones(1000, device=DEVICE)
    assert 0.3 < (module(x) == 0).float().mean().item() < 0.7
    assert torch.equal(module.eval()(x), x)


def test_memory_peaks_repeat_from_step_to_step():
    model, data = build(Cnn)
    model, inputs = model.to(DEVICE), data[0].to(DEVICE)
    peaks = []
    for _ in range(4):
        torch.npu.reset_peak_memory_stats(DEVICE)
        model.zero_grad()
        model(inputs).sum().backward()
        peaks.append(torch.npu.max_memory_allocated(DEVICE))
    assert peaks[1] == peaks[2] == peaks[3]
    model.zero_grad()


def resident():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def test_a_thousand_iterations_leak_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, labels = torch.randn(4, 2, 8), torch.tensor([0, 1, 2, 0])

    def iterate(count):
        for _ in range(count):
            optimizer.zero_grad()
            with torch.autocast("npu", torch.bfloat16):
                loss = F.cross_entropy(model(inputs.to(DEVICE)), labels.to(DEVICE))
            loss.backward()
            optimizer.step()
        del loss
        gc.collect()
        stats = torch.npu.memory_stats(DEVICE)
        return (
            stats["allocated_bytes.all.current"],
            stats["allocation.all.current"],
            stats["reserved_bytes.all.current"],
        ), resident()

    counted, bytes_before = iterate(100)
    again, bytes_after = iterate(900)
    assert again == counted
    assert bytes_after - bytes_before < 4 * 2**20, "host memory grows"
    optimizer.zero_grad()
