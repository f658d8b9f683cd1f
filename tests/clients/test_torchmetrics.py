"""torchmetrics: metrics that live on the device, gathered over the ranks of a job."""

from __future__ import annotations

import pytest
import torch
import torchmetrics
from torchmetrics import classification as kinds

from tests.clients.launch import tool

METRICS = {
    "accuracy": lambda: kinds.MulticlassAccuracy(5, average="macro"),
    "f1": lambda: kinds.MulticlassF1Score(5),
    "auroc": lambda: kinds.MulticlassAUROC(5),
    "auroc_binned": lambda: kinds.MulticlassAUROC(5, thresholds=20),
    "confusion": lambda: kinds.MulticlassConfusionMatrix(5),
    "calibration": lambda: kinds.MulticlassCalibrationError(5),
}


@pytest.mark.parametrize("name", METRICS)
def test_classification(name):
    scores, labels = torch.randn(3, 64, 5).softmax(-1), torch.randint(0, 5, (3, 64))
    found = []
    for device in ("npu", "cpu"):
        metric = METRICS[name]().to(device)
        for x, y in zip(scores, labels, strict=True):
            metric.update(x.to(device), y.to(device))
        value = metric.compute()
        assert value.device.type == device
        found.append(value.cpu())
        metric.reset()
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    "make", [torchmetrics.MeanSquaredError, torchmetrics.R2Score, torchmetrics.SpearmanCorrCoef]
)
def test_regression(make):
    x = torch.randn(100)
    y = x + torch.randn(100) / 3
    found = [make().to(d)(x.to(d), y.to(d)).cpu() for d in ("npu", "cpu")]
    torch.testing.assert_close(*found)


def test_perplexity_and_a_collection():
    logits, words = torch.randn(2, 8, 50), torch.randint(0, 50, (2, 8))
    found = []
    for device in ("npu", "cpu"):
        metrics = torchmetrics.MetricCollection(
            {"perplexity": torchmetrics.text.Perplexity(), "mean": torchmetrics.MeanMetric()}
        ).to(device)
        metrics["perplexity"].update(logits.to(device), words.to(device))
        metrics["mean"].update(logits.to(device))
        found.append({name: value.cpu() for name, value in metrics.compute().items()})
    torch.testing.assert_close(*found)


def test_ranks_are_gathered(program):
    said = tool("torchrun", "--standalone", "--nproc-per-node=2", program / "metrics.py")
    assert said.count("accuracy 0.75 on npu") == 2
