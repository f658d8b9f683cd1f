"""Lightning: its Trainer and its Fabric on an accelerator that the program registers, as the library asks for."""

from __future__ import annotations

import pytest
import torch

L = pytest.importorskip("lightning", reason="lightning is not installed")
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY  # noqa: E402
from lightning.fabric.strategies import SingleDeviceStrategy as FabricDevice  # noqa: E402
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402
from lightning.pytorch.strategies import SingleDeviceStrategy  # noqa: E402


class NpuAccelerator(Accelerator):
    """Lightning has none for npu; this is what its documentation asks of one."""

    def setup_device(self, device):
        torch.npu.set_device(device)

    def get_device_stats(self, device):
        return torch.npu.memory_stats(device)

    def teardown(self):
        torch.npu.empty_cache()

    @staticmethod
    def parse_devices(devices):
        return list(range(devices)) if isinstance(devices, int) else list(devices)

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device("npu", index) for index in devices]

    @staticmethod
    def auto_device_count():
        return torch.npu.device_count()

    @staticmethod
    def is_available():
        return torch.npu.is_available()

    @staticmethod
    def name():
        return "npu"


@pytest.fixture(autouse=True)
def registered():
    for registry in (AcceleratorRegistry, ACCELERATOR_REGISTRY):
        registry.register("npu", NpuAccelerator, override=True)
    yield
    for registry in (AcceleratorRegistry, ACCELERATOR_REGISTRY):
        registry.pop("npu")


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)
        )
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.net(x).float(), y)
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


def train(device, **options):
    L.seed_everything(3, verbose=False)
    x = torch.randn(32, 8)
    rows = torch.utils.data.TensorDataset(x, x.square().sum(1, keepdim=True))
    strategy = SingleDeviceStrategy(torch.device("npu", 0)) if device == "npu" else "auto"
    trainer = L.Trainer(
        accelerator=device, devices=1, strategy=strategy, max_epochs=3, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    model = Regression()
    trainer.fit(model, torch.utils.data.DataLoader(rows, 8))
    assert {loss.device.type for loss in model.losses} == {device}
    return torch.stack([loss.cpu() for loss in model.losses])


def test_trainer():
    found, expected = train("npu"), train("cpu")
    assert expected[-1] < expected[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_trainer_accumulates_and_clips():
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    torch.testing.assert_close(
        train("npu", **options), train("cpu", **options), atol=1e-5, rtol=1e-5
    )


def test_trainer_in_mixed_precision():
    """The plugin is given: by its name, Lightning asks for the autocast of cuda on every accelerator but cpu."""
    found = train("npu", plugins=[MixedPrecision("bf16-mixed", "npu")])
    expected = train("cpu", plugins=[MixedPrecision("bf16-mixed", "cpu")])
    assert not torch.equal(found, train("npu"))
    torch.testing.assert_close(found, expected, atol=5e-2, rtol=2e-2)


def test_fabric():
    losses = []
    for device in ("npu", "cpu"):
        strategy = FabricDevice(torch.device("npu", 0)) if device == "npu" else "auto"
        fabric = L.Fabric(accelerator=device, devices=1, strategy=strategy)
        torch.manual_seed(5)
        model = torch.nn.Linear(6, 3)
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
        x = fabric.to_device(torch.randn(4, 6))
        seen = []
        for _ in range(3):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            seen.append(loss.item())
        assert loss.device.type == device == fabric.device.type
        losses.append(seen)
    assert losses[1][-1] < losses[1][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
