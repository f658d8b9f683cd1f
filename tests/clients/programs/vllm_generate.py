"""vLLM's offline engine: MODEL and a JSON of its options; prints the greedy tokens as JSON, last line."""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import torch

TOKENS = 8


def define_torchvision() -> None:
    """PyPI's torchvision is built for CUDA; without it, its library is absent and its import fails over two schemas."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_kept"] = library


define_torchvision()  # in the processes that vLLM starts, too


def main() -> None:
    from vllm import LLM, SamplingParams

    from tests.clients.vllm_ascend.models import PROMPTS

    options = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": 128, "max_num_seqs": 4,
        "gpu_memory_utilization": 0.02, "num_gpu_blocks_override": 16, "seed": 0, **json.loads(sys.argv[2]),
    }  # fmt: skip
    sleep = options.pop("sleep", False)
    engine = LLM(model=sys.argv[1], **options)
    if sleep:  # the weights leave the device and come back
        engine.sleep(level=1)
        engine.wake_up()
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    requests = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    found = engine.generate(requests, sampling)
    print(json.dumps([list(one.outputs[0].token_ids) for one in found]))


if __name__ == "__main__":
    main()
