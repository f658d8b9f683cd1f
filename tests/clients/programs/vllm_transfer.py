"""One of two instances that share KV caches: ROLE (producer or consumer), MODEL, PORT; vllm-ascend's MooncakeConnector.

The producer computes the prompts and prints as JSON where their KV blocks are; it lives until its input ends. The
consumer reads this from its input, fetches the blocks and prints the tokens, and how many of the prompts it was given.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")

TOKENS = 8


def main() -> None:
    from vllm import LLM, SamplingParams

    from tests.clients.vllm_ascend.models import LONG

    role, model, port = sys.argv[1:]
    sizes = {"tp_size": 1, "dp_size": 1}
    engine = LLM(
        model=model, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4,
        gpu_memory_utilization=0.02, num_gpu_blocks_override=16, seed=0,
        kv_transfer_config={
            "kv_connector": "MooncakeConnectorV1", "kv_role": f"kv_{role}", "kv_port": port,
            "engine_id": role,
            "kv_connector_extra_config": {"prefill": sizes, "decode": sizes},
        },
    )  # fmt: skip
    prompts = [{"prompt_token_ids": prompt} for prompt in LONG]
    if role == "producer":
        settings = [{"do_remote_decode": True, "do_remote_prefill": False}] * len(prompts)
    else:
        settings = json.loads(sys.stdin.readline())
    sampling = [
        SamplingParams(
            temperature=0,
            max_tokens=1 if role == "producer" else TOKENS,
            ignore_eos=True,
            extra_args={"kv_transfer_params": one},
        )
        for one in settings
    ]
    answers = engine.generate(prompts, sampling)
    if role == "producer":
        print("\n" + json.dumps([one.kv_transfer_params for one in answers]), flush=True)
        sys.stdin.read()
    else:
        said = {
            "tokens": [list(one.outputs[0].token_ids) for one in answers],
            "cached": [one.num_cached_tokens for one in answers],
        }
        print("\n" + json.dumps(said), flush=True)
    os._exit(0)  # threads of the connector wait for their sockets


if __name__ == "__main__":
    main()
