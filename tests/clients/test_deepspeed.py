"""DeepSpeed: ZeRO 1, 2 and 3 on two devices, with and without offload, against plain PyTorch on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.clients import launch

pytest.importorskip("deepspeed", reason="deepspeed is not installed")

FULL = ["1-none-fp32", "2-none-fp32", "3-none-fp32", "2-optimizer-fp32", "3-parameters-fp32"]
HALF = ["1-none-bf16", "2-none-fp16", "3-none-bf16"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, dict]:
    """All forms in one start of the ranks."""
    file = tmp_path_factory.mktemp("zero") / "found.pt"
    programs = launch.PROGRAMS
    launch.tool(
        "torchrun",
        "--nproc-per-node",
        2,
        "--master-port",
        29517,
        programs / "zero.py",
        file,
        *FULL,
        *HALF,
    )
    return torch.load(file)


@pytest.fixture(scope="module")
def expected() -> dict:
    """The same steps on the CPU, all rows at once."""
    from tests.clients.programs import zero

    model = zero.network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    losses = []
    for step in range(zero.STEPS):
        x, y = zero.batch(step)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "weights": {n: p.detach() for n, p in model.named_parameters()}}


@pytest.mark.parametrize("form", FULL)
def test_zero_trains_as_one_process_on_the_cpu(trained, expected, form):
    found = trained[form]
    assert found["losses"][-1] < found["losses"][0]
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("form", HALF)
def test_zero_in_half_precision(trained, expected, form):
    found = trained[form]["losses"]
    assert found == pytest.approx(expected["losses"], rel=0.05) and found[-1] < found[0]
