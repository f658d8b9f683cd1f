"""Files of weights: safetensors, and torch.distributed's checkpoints of sharded models."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.clients import tiny
from tests.clients.launch import tool

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_safetensors_round_trip(tmp_path, dtype):
    x = (torch.arange(24).reshape(4, 6) % 7).to(dtype)
    save_file({"x": x.npu(), "row": x[1].npu()}, tmp_path / "a.safetensors")
    back = load_file(tmp_path / "a.safetensors", device="npu:1")
    assert str(back["x"].device) == "npu:1" and back["x"].dtype is dtype
    assert torch.equal(back["x"].cpu(), x) and torch.equal(back["row"].cpu(), x[1])


def test_safetensors_reads_a_slice_onto_the_device(tmp_path):
    x = torch.arange(24.0).reshape(4, 6)
    save_file({"x": x}, tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt", device="npu:0") as file:
        part = file.get_slice("x")[1:3, ::1]
    assert part.is_npu and torch.equal(part.cpu(), x[1:3])


def test_safetensors_of_a_model_with_tied_weights(tmp_path):
    model = tiny.llama(tie_word_embeddings=True).to("npu")
    save_model(model, str(tmp_path / "m.safetensors"))
    other = tiny.llama(tie_word_embeddings=True).to("npu")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    load_model(other, str(tmp_path / "m.safetensors"))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_sharded_checkpoints_of_two_ranks(tmp_path, program):
    found = {}
    for device in ("npu", "cpu"):
        folder = tmp_path / device
        folder.mkdir()
        tool("torchrun", "--standalone", "--nproc-per-node=2", program / "checkpoint.py",
             folder, device)  # fmt: skip
        found[device] = json.loads((folder / "found.json").read_text("utf-8"))
    npu, cpu = found["npu"], found["cpu"]
    assert npu["straight"][-1] < 0.8 * npu["first"][0]
    assert npu["again"] == npu["straight"], "loaded weights and moments go on where they stopped"
    for part in ("first", "straight"):
        torch.testing.assert_close(
            torch.tensor(npu[part]), torch.tensor(cpu[part]), rtol=1e-5, atol=1e-6
        )
    dcp_to_torch_save(tmp_path / "npu" / "checkpoint", tmp_path / "one.pt")
    whole = torch.load(tmp_path / "one.pt", map_location="npu")["model"]
    assert whole["0.weight"].shape == (32, 8) and whole["0.weight"].is_npu
