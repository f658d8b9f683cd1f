"""timm by transfer_to_npu: a program written for cuda trains a small vision transformer and a small ResNet."""

from __future__ import annotations

import pytest

from tests.clients.launch import PROGRAMS, tool

try:
    import timm  # noqa: F401
except (
    ImportError,
    RuntimeError,
) as error:  # a torchvision built for another torch fails at import
    pytest.skip(f"timm cannot be imported: {error}", allow_module_level=True)


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "resnet10t"])
def test_timm(model):
    losses = {}
    for device in ("cuda", "cpu"):
        said = tool("python", PROGRAMS / "timm_train.py", model, device)
        losses[device] = [
            float(line.split()[1]) for line in said.splitlines() if line.startswith("loss")
        ]
    assert len(losses["cpu"]) == 3
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=2e-3)
