"""Functions of other libraries that must see whether CUDA is really there while transfer_to_npu is on.

They choose CUDA-only code (flash-attn, bitsandbytes, pynvml) where `torch.cuda.is_available()` is true, and have
their own branch for the NPU otherwise.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.torch_version import TorchVersion

from torch_npu._patch import Patches

#: library -> (first version, module -> names in it)
LIBRARIES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "transformers": (
        "4.32.0",
        {
            "transformers.training_args": ("TrainingArguments.__post_init__",),
            "transformers.trainer": ("Trainer._load_rng_state", "Trainer._save_rng_state"),
            "transformers.trainer_utils": ("TrainerMemoryTracker.start",),
            "transformers.utils.import_utils": (
                "is_torch_cuda_available",
                "is_mamba_ssm_available",
                "is_causal_conv1d_available",
                "is_torch_bf16_gpu_available",
                "is_torch_tf32_available",
                "is_bitsandbytes_available",
                "is_flash_attn_2_available",
            ),
        },
    ),
    "trl": (
        "0.7.1",
        {
            "trl.import_utils": ("is_bitsandbytes_available",),
            "trl.trainer.utils": ("get_kbit_device_map",),
        },
    ),
    "peft": ("0.5.0", {"peft.utils.other": ("infer_device",)}),
    "accelerate": (
        "0.22.0",
        {
            "accelerate.commands.env": ("env_command",),
            "accelerate.launchers": ("notebook_launcher",),
            "accelerate.commands.config.default": ("write_basic_config",),
            "accelerate.utils.environment": ("override_numa_affinity",),
            "accelerate.utils.modeling": ("get_max_memory",),
            "accelerate.utils.megatron_lm": ("initialize",),
            "accelerate.utils.bnb": ("load_and_quantize_model", "get_quantized_model_device_map"),
            "accelerate.utils.imports": ("is_cuda_available",),
            "accelerate.state": ("PartialState._prepare_backend",),
        },
    ),
}


def seeing(is_available: Callable[[], bool]) -> Callable[..., Callable[..., Any]]:
    """A decorator: while the function runs, `torch.cuda.is_available` is this one."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            patches = Patches()
            patches.replace(torch.cuda, "is_available", is_available)
            try:
                return function(*args, **kwargs)
            finally:
                patches.undo()

        return run

    return decorate


def found() -> Iterator[tuple[Any, str]]:
    """(owner, name) of every such function of the libraries that are installed."""
    for library, (first, modules) in LIBRARIES.items():
        try:
            version = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            continue
        if TorchVersion(version) >= first:
            for module, names in modules.items():
                yield from _of(module, names)


def _of(module: str, names: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    try:
        owner: Any = importlib.import_module(module)
    except ImportError:  # an optional part of the library
        return
    for name in names:
        kind, _, method = name.rpartition(".")
        holder = getattr(owner, kind, None) if kind else owner
        if holder is not None and hasattr(holder, method):
            yield holder, method
