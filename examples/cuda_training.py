"""A training program as it is written for CUDA; nothing in it knows of another device.

`python -c "import torch_npu.contrib.transfer_to_npu; import runpy; runpy.run_module('examples.cuda_training',
run_name='__main__')"` runs it on a device of another kind.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Linear(8 * 4 * 4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).flatten(1))


def data(samples: int, device: str) -> DataLoader:
    """Images whose brightest quadrant is the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    images = torch.rand(samples, 1, 8, 8, generator=generator)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(int(label), 2)
        image[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 1
    return DataLoader(TensorDataset(images, labels), batch_size=32, pin_memory=device == "cuda")


def train(epochs: int = 4) -> dict:
    assert torch.cuda.is_available(), "this program needs a GPU"
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    torch.cuda.set_device(0)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")

    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.cuda.amp.GradScaler()
    criterion = nn.CrossEntropyLoss().to("cuda:0")
    stream = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    torch.cuda.reset_peak_memory_stats()
    start.record()
    losses = []
    for _ in range(epochs):
        total = torch.zeros((), device="cuda")
        for images, labels in data(256, "cuda"):
            with torch.cuda.stream(stream):
                images = images.to(device, non_blocking=True)
                labels = labels.cuda(non_blocking=True)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach()
        losses.append(total.item())
    end.record()
    torch.cuda.synchronize()

    model.eval()
    with torch.no_grad():
        right = sum(
            (model(images.cuda()).argmax(1) == labels.cuda()).sum().item()
            for images, labels in data(256, "cuda")
        )
    parameter = next(model.parameters())
    return {
        "device": str(parameter.device),
        "is_cuda": parameter.is_cuda,
        "losses": losses,
        "accuracy": right / 256,
        "peak": torch.cuda.max_memory_allocated(),
        "ms": start.elapsed_time(end),
        "name": torch.cuda.get_device_name(0),
    }


if __name__ == "__main__":
    result = train()
    print(f"loss {result['losses'][0]:.3f} -> {result['losses'][-1]:.3f}")
    print(f"accuracy {result['accuracy']:.1%} on {result['name']} ({result['device']})")
