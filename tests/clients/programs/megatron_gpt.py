"""Trains a small GPT of Megatron-core with MindSpeed's patches; the last stage's ranks write their losses as JSON.

torchrun megatron_gpt.py TENSOR PIPELINE FOLDER [MindSpeed's own arguments...]

EXPERTS=4 in the environment makes the layers mixtures of that many experts, two for each token; GATED=1 gives them gates
(SwiGLU), which MindSpeed's --use-fused-swiglu computes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

TENSOR, PIPELINE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
del sys.argv[1:4]  # MindSpeed reads the rest when it is imported

import mindspeed.megatron_adaptor  # noqa: E402, F401  before Megatron, which it patches
import torch  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

WORDS, LENGTH, ROWS, STEPS = 96, 32, 4, 6
EXPERTS = int(os.environ.get("EXPERTS", "0")) or None
GATED = os.environ.get("GATED") == "1"
FUSED = {name for name in sys.argv if name.startswith("--use-f")}


class Operators(TorchDispatchMode):
    """The names of torch_npu's operators that the forward pass calls."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "npu":
            self.seen.add(function.name().removeprefix("npu::").partition(".")[0])
        return function(*args, **(kwargs or {}))


def network() -> torch.nn.Module:
    """Without gates on two ranks: Megatron splits the rows of a gated layer so that they begin with another network."""
    more = {"gated_linear_unit": True, "activation_func": torch.nn.functional.silu} if GATED else {}
    if FUSED:
        more["position_embedding_type"] = "rope"  # MindSpeed asks the configuration for it
    config = TransformerConfig(
        num_layers=2, hidden_size=64, ffn_hidden_size=128, num_attention_heads=4, use_cpu_initialization=True,
        tensor_model_parallel_size=TENSOR, pipeline_model_parallel_size=PIPELINE, pipeline_dtype=torch.float32,
        normalization="RMSNorm",
        add_bias_linear=False, bias_activation_fusion="--use-fused-swiglu" in FUSED, attention_dropout=0.0,
        hidden_dropout=0.0, apply_rope_fusion="--use-fused-rotary-pos-emb" in FUSED, **more,
        num_moe_experts=EXPERTS, moe_router_topk=2, moe_token_dispatcher_type="alltoall",
    )  # fmt: skip
    return GPTModel(
        config, get_gpt_layer_local_spec(EXPERTS, normalization="RMSNorm"), vocab_size=WORDS, max_sequence_length=LENGTH,
        position_embedding_type="rope", pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
    ).cuda()  # fmt: skip


def forward(_: object, model: torch.nn.Module):
    """Sentences that count on in threes."""
    first = torch.randint(0, WORDS, (ROWS, 1), generator=torch.Generator().manual_seed(0))
    words = ((first + 3 * torch.arange(LENGTH + 1)) % WORDS).cuda()
    places = torch.arange(LENGTH, device="cuda").expand(ROWS, LENGTH)
    mask = torch.ones(1, 1, LENGTH, LENGTH, device="cuda").tril() < 0.5
    found = model(words[:, :-1].contiguous(), places, mask, labels=words[:, 1:].contiguous())
    return found, lambda losses: (losses.mean(), {"loss": losses.mean().detach()})


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(TENSOR, PIPELINE)
    torch.manual_seed(0)
    model_parallel_cuda_manual_seed(0)
    model = network()
    assert next(model.parameters()).device.type == "npu"
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    operators = Operators()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with operators:
            found = get_forward_backward_func()(
                forward_step_func=forward, data_iterator=None, model=model, num_microbatches=1, seq_length=LENGTH,
                micro_batch_size=ROWS, decoder_seq_length=LENGTH, forward_only=False,
            )  # fmt: skip
        optimizer.step()
        if parallel_state.is_pipeline_last_stage():
            losses.append(found[0]["loss"].item())
    if losses:
        (FOLDER / f"losses{rank}.json").write_text(json.dumps(losses), "utf-8")
        (FOLDER / f"operators{rank}.json").write_text(json.dumps(sorted(operators.seen)), "utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
