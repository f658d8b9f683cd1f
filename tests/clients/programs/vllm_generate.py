"""vLLM's offline engine: MODEL and a JSON of its options; prints the greedy tokens as JSON, last line.

Options of the program among them: `prompts` (lists of tokens), `rounds` (how often they are asked, all rounds in the
result), `sleep` (the weights leave the device and come back before), `lora` (an adapter for all prompts but the last).
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

TOKENS = 8


def main() -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    from tests.clients.vllm_ascend.models import PROMPTS

    options = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": 128, "max_num_seqs": 4,
        "gpu_memory_utilization": 0.02, "num_gpu_blocks_override": 16, "seed": 0, **json.loads(sys.argv[2]),
    }  # fmt: skip
    prompts, rounds = options.pop("prompts", PROMPTS), options.pop("rounds", 1)
    sleep, lora = options.pop("sleep", False), options.pop("lora", None)
    engine = LLM(model=sys.argv[1], **options)
    if sleep:
        engine.sleep(level=1)
        engine.wake_up()
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    requests = [{"prompt_token_ids": prompt} for prompt in prompts]
    adapter = None
    if lora is not None:
        adapter = [LoRARequest("adapter", 1, lora)] * (len(prompts) - 1) + [None]
    answers = []
    for _ in range(rounds):
        answers += engine.generate(requests, sampling, lora_request=adapter)
    said = {
        "tokens": [list(one.outputs[0].token_ids) for one in answers],
        "cached": [one.num_cached_tokens for one in answers],
    }
    print("\n" + json.dumps(said))


if __name__ == "__main__":
    main()
