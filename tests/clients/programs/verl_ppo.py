"""A step of PPO by verl's actor on the device, and the same by plain PyTorch on the CPU; argument: a file for both, as JSON.

The policy writes its responses (greedy), verl computes their log-probabilities, advantages (GAE) and the update, with
the parameters sharded by FSDP2 over one rank.
"""

from __future__ import annotations

import copy
import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM
from verl import DataProto
from verl.trainer.ppo.core_algos import compute_gae_advantage_return
from verl.utils.device import get_device_name, get_nccl_backend
from verl.workers.actor.dp_actor import DataParallelPPOActor
from verl.workers.config import FSDPActorConfig, FSDPEngineConfig, OptimizerConfig

ROWS, PROMPT, RESPONSE, WORDS = 4, 6, 8, 97
EPOCHS, RATE, ENTROPY = 2, 1e-3, 0.01


def policy(device: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config).to(device)


def log_probs(model: LlamaForCausalLM, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the responses, and the entropy at each of their places."""
    logits = model(rows).logits[:, PROMPT - 1 : -1].log_softmax(-1)
    found = logits.gather(-1, rows[:, PROMPT:, None]).squeeze(-1)
    return found, -(logits.exp() * logits).sum(-1)


def reference(model: LlamaForCausalLM, rows: torch.Tensor, advantages: torch.Tensor) -> dict:
    """PPO as its paper has it, with the limit of dual clipping: mini-batches of two rows, a gradient of each row."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    with torch.no_grad():
        before, entropy = log_probs(model, rows)
    norms = []
    for _ in range(EPOCHS):
        for start in range(0, ROWS, 2):
            optimizer.zero_grad()
            for row in range(start, start + 2):
                one = slice(row, row + 1)
                now, uncertainty = log_probs(model, rows[one])
                ratio, gain = (now - before[one]).exp(), advantages[one]
                loss = torch.maximum(-gain * ratio, -gain * ratio.clamp(0.8, 1.2))
                loss = torch.where(gain < 0, torch.minimum(loss, -3 * gain), loss)
                ((loss.mean() - ENTROPY * uncertainty.mean()) / 2).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
    with torch.no_grad():
        after, _ = log_probs(model, rows)
    return {
        "before": before.sum(-1).tolist(), "after": after.sum(-1).tolist(), "entropy": entropy.mean().item(),
        "norms": norms,
    }  # fmt: skip


def main() -> None:
    device = get_device_name()
    dist.init_process_group(get_nccl_backend())
    model = policy(device)
    plain = copy.deepcopy(model).cpu()
    prompts = torch.randint(3, WORDS, (ROWS, PROMPT), generator=torch.Generator().manual_seed(1))
    written = model.generate(
        prompts.to(device), attention_mask=torch.ones_like(prompts).to(device), do_sample=False,
        min_new_tokens=RESPONSE, max_new_tokens=RESPONSE, pad_token_id=0,
    ).cpu()  # fmt: skip
    fully_shard(model, mesh=init_device_mesh(device, (1,)))

    config = FSDPActorConfig(
        strategy="fsdp2", ppo_mini_batch_size=ROWS // 2, ppo_micro_batch_size_per_gpu=1, ppo_epochs=EPOCHS,
        rollout_n=1, use_torch_compile=False, grad_clip=1.0, entropy_coeff=ENTROPY,
        optim=OptimizerConfig(lr=RATE), fsdp_config=FSDPEngineConfig(dtype="float32"),
    )  # fmt: skip
    actor = DataParallelPPOActor(config, model, torch.optim.AdamW(model.parameters(), lr=RATE))
    mask = torch.ones(ROWS, RESPONSE)
    batch = {
        "input_ids": written, "responses": written[:, PROMPT:], "response_mask": mask,
        "attention_mask": torch.ones_like(written),
        "position_ids": torch.arange(PROMPT + RESPONSE).expand(ROWS, -1).contiguous(),
    }  # fmt: skip
    about = {"temperature": 1.0, "micro_batch_size": 2, "use_dynamic_bsz": False, "pad_token_id": 0}
    data = DataProto.from_dict(tensors=batch, meta_info=about)
    before = actor.compute_log_prob(data, calculate_entropy=True)
    rewards = torch.zeros(ROWS, RESPONSE)
    rewards[:, -1] = torch.arange(ROWS) % 2 * 2.0 - 1  # every other response is good
    values = 0.1 * torch.randn(ROWS, RESPONSE, generator=torch.Generator().manual_seed(2))
    advantages, _ = compute_gae_advantage_return(rewards, values, mask, gamma=0.99, lam=0.95)
    data.batch["old_log_probs"] = before["log_probs"].cpu()
    data.batch["advantages"] = advantages
    metrics = actor.update_policy(data)
    after = actor.compute_log_prob(data, calculate_entropy=True)
    found = {
        "before": before["log_probs"].sum(-1).tolist(),
        "after": after["log_probs"].sum(-1).tolist(),
        "entropy": before["entropys"].mean().item(),
        "norms": [float(norm) for norm in metrics["actor/grad_norm"]],
    }
    said = {"device": device, "verl": found, "reference": reference(plain, written, advantages)}
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(said, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
