"""Seconds of processor time that programs of `make clients` take on npu and on the CPU device, side by side.

    .venv-clients/bin/python -m tests.clients.times [name ...]

Each program runs on both devices by turns, and the least of its repetitions counts; the first run of each is not counted:
it imports modules and, where graphs are compiled, sets up the compilers. Those that compile start each run without
caches. One thread each: set
OMP_NUM_THREADS=1 and TORCHINDUCTOR_COMPILE_THREADS=1.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator

import torch

from tests.clients import tiny

REPETITIONS = 3


def trainer(device: str, folder: str, **options: object) -> None:
    tiny.losses(tiny.llama(), tiny.Counting(), folder, device, **options)


def bert(device: str, folder: str) -> None:
    tiny.losses(tiny.bert(), tiny.Halves(), folder, device)


def muon(device: str, folder: str) -> None:
    """PyTorch's Muon for the matrices of a model: five products of each a step."""
    model = tiny.llama().to(device)
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "layers" in n]
    optimizer = torch.optim.Muon(matrices, 1e-2)
    words = tiny.Counting().words[:16].to(device)
    for _ in range(10):
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def generate(device: str, folder: str) -> None:
    words = tiny.Counting().words[:3, :8].to(device)
    tiny.llama().to(device).eval().generate(words, max_new_tokens=40, do_sample=False)


def peft(device: str, folder: str) -> None:
    from tests.clients.test_peft import adapted

    tiny.losses(adapted(), tiny.Counting(), folder, device)


def sft(device: str, folder: str) -> None:
    import datasets
    import trl

    from tests.clients import test_trl

    data = {"text": [test_trl.sentence(i, 12) for i in range(16)]}
    model = os.path.join(folder, "model")
    tiny.llama().save_pretrained(model)
    made = test_trl.trainer_of(
        trl.SFTTrainer,
        model,
        args=trl.SFTConfig(**test_trl.options(folder, device), max_length=16),
        train_dataset=datasets.Dataset.from_dict(data),
    )
    test_trl.losses(made, device)


def diffusion(device: str, folder: str, network: str) -> None:
    from tests.clients import test_diffusers

    make, inputs = getattr(test_diffusers, network), getattr(test_diffusers, f"{network}_inputs")
    test_diffusers.step(make(), inputs(), device)


def picture(device: str, folder: str) -> None:
    from tests.clients import test_diffusers

    if device == "cpu":
        test_diffusers.expected_picture()
    else:
        test_diffusers.picture(test_diffusers.pipeline().to(device))


def lightning(device: str, folder: str) -> None:
    from tests.clients import test_lightning

    for registry in (test_lightning.AcceleratorRegistry, test_lightning.ACCELERATOR_REGISTRY):
        registry.register("npu", test_lightning.NpuAccelerator, override=True)
    test_lightning.train(device)


CASES: dict[str, Callable[[str, str], None]] = {
    "transformers Trainer, Llama": trainer,
    "transformers Trainer, BERT": bert,
    "transformers Trainer, bf16": lambda d, f: trainer(d, f, bf16=True),
    "transformers generate": generate,
    "torch.optim.Muon, Llama": muon,
    "peft LoRA": peft,
    "trl SFT": sft,
    "diffusers UNet, gradients": lambda d, f: diffusion(d, f, "unet"),
    "diffusers Flux, gradients": lambda d, f: diffusion(d, f, "flux"),
    "diffusers pipeline": picture,
    "lightning Trainer": lightning,
}
COMPILED: dict[str, Callable[[str, str], None]] = {
    "transformers Trainer, torch_compile": lambda d, f: trainer(d, f, torch_compile=True),
}


def spent() -> float:
    """Processor seconds of this process and of the compilers that it started."""
    return sum(os.times()[:4])


def once(case: Callable[[str, str], None], device: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = spent()
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            case(device, folder)
        torch.npu.synchronize()
        return spent() - began


def cold(case: Callable[[str, str], None], device: str) -> float:
    """A run that compiles everything anew."""
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        return once(case, device)


def rows(wanted: list[str]) -> Iterator[tuple[str, float, float]]:
    for name, case in {**CASES, **COMPILED}.items():
        if wanted and not any(one in name for one in wanted):
            continue
        measure, repetitions = (cold, 1) if name in COMPILED else (once, REPETITIONS)
        for device in ("npu", "cpu"):
            measure(case, device)
        found: dict[str, list[float]] = {"npu": [], "cpu": []}
        for _ in range(repetitions):
            for device, times in found.items():
                times.append(measure(case, device))
        yield name, min(found["npu"]), min(found["cpu"])


def main() -> None:
    """Prints the table as it stands in docs/clients.md."""
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    print("| program | npu, s | cpu, s | ratio |\n|---|---|---|---|")
    for name, npu, cpu in rows(sys.argv[1:]):
        print(f"| {name} | {npu:.2f} | {cpu:.2f} | {npu / cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
