"""torchrec's modules: embeddings of jagged features, interaction and a small DLRM, on the device."""

from __future__ import annotations

import copy

import pytest
import torch

try:
    import torchrec  # noqa: F401
except (
    ImportError,
    OSError,
) as error:  # fbgemm_gpu of PyPI is built for cuda; fbgemm-gpu-cpu is the other
    pytest.skip(f"torchrec cannot be imported: {error}", allow_module_level=True)
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.models.dlrm import DLRM, DLRMTrain


def features(device):
    return KeyedJaggedTensor.from_lengths_sync(
        keys=["user", "item"],
        values=torch.tensor([1, 2, 3, 0, 4, 4, 1, 2], device=device),
        lengths=torch.tensor([2, 1, 0, 1, 3, 1], device=device),
    )


def tables():
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=name, embedding_dim=8, num_embeddings=6, feature_names=[name])
            for name in ("user", "item")
        ]
    )


def test_embedding_bags():
    torch.manual_seed(0)
    on_cpu = tables()
    on_npu = copy.deepcopy(on_cpu).to("npu")
    found, expected = on_npu(features("npu")), on_cpu(features("cpu"))
    assert found.values().device.type == "npu" and found.keys() == expected.keys()
    torch.testing.assert_close(found.values().cpu(), expected.values())


def test_dlrm_trains():
    losses = []
    for device in ("npu", "cpu"):
        torch.manual_seed(1)
        model = DLRMTrain(
            DLRM(tables(), dense_in_features=4, dense_arch_layer_sizes=[8, 8], over_arch_layer_sizes=[8, 1])
        )  # fmt: skip
        dense, labels = torch.randn(3, 4), torch.tensor([1, 0, 1])
        model = model.to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        batch = type("Batch", (), {})()
        batch.dense_features, batch.sparse_features = dense.to(device), features(device)
        batch.labels = labels.to(device)
        seen = []
        for _ in range(3):
            loss, _ = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(seen)
    assert losses[1][-1] < losses[1][0]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
