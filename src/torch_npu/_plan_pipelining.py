"""Stages of torch.distributed.pipelining on a rank without peers (docs/plan-runs.md).

Before its first step a stage asks its neighbors for shapes. Nobody answers in a plan: gradients have the shapes of the
stage's own results. What comes in is what the program says of it (`input_args` of PipelineStage), or what another rank of
the same `softnpu plan` sent before: the stage before this one, else any, which stages of one shape all send.
"""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from torch_npu._patch import Patches, after_import

_STAGE = "torch.distributed.pipelining.stage"
_shared: Path | None = None


def share(directory: Path) -> None:
    """The folder through which the ranks of one plan hand shapes to stages, one file for each stage that gets them."""
    global _shared
    _shared = directory


def _sent(stage: int) -> Any:
    """What a rank that ran before sent to the stage, or to the first one that got anything; None without any."""
    if _shared is None or not _shared.is_dir():
        return None
    files = sorted(_shared.iterdir(), key=lambda file: (file.name != str(stage), int(file.name)))
    if not files:
        return None
    if files[0].name != str(stage):
        warnings.warn(
            f"softnpu plan: the ranks of stage {stage - 1} did not run; stage {stage} is taken to get what stage "
            f"{files[0].name} gets.",
            stacklevel=2,
        )
    return pickle.loads(files[0].read_bytes())


def install(patches: Patches) -> None:
    """From now on, or as soon as the program imports it."""
    after_import(_STAGE, lambda module: _replace(module, patches), patches)


def _replace(module: Any, patches: Patches) -> None:
    stage = module.PipelineStage
    if hasattr(stage, "_warmup_forward_vote"):
        _replace_metas(module, stage, patches)
    else:
        _replace_objects(stage, patches)


def _given(stage: Any) -> Any:
    """What a stage that was not told its input gets."""
    sent = _sent(stage.stage_index)
    if sent is None:
        raise RuntimeError(
            f"softnpu plan: stage {stage.stage_index} of the pipeline gets its input from a rank that does not run. "
            f"Plan a rank of the first stage before it (--rank 0,...), or give PipelineStage its shapes: "
            f"input_args=torch.empty(..., device='meta')."
        )
    return sent


def _share_with(stage: int, meta: Any) -> None:
    if _shared is not None and _shared.is_dir():
        (_shared / str(stage)).write_bytes(pickle.dumps(meta))


def _replace_objects(stage: Any, patches: Patches) -> None:
    """Of an older torch: stages send lists of objects, and one with its shapes given asks nobody."""
    infer = stage._shape_inference

    def shape_inference(self: Any, args: Any, kwargs: Any = None) -> Any:
        def receive(objects: list[Any], *_: Any, **__: Any) -> None:
            objects[0] = _given(self)

        def send(objects: list[Any], *_: Any, **__: Any) -> None:
            _share_with(self.stage_index + 1, objects[0])

        meanwhile = Patches()
        meanwhile.replace(torch.distributed, "recv_object_list", receive)
        meanwhile.replace(torch.distributed, "send_object_list", send)
        try:
            return infer(self, args, kwargs)
        finally:
            meanwhile.undo()

    patches.replace(stage, "_shape_inference", shape_inference)


def _replace_metas(module: Any, stage: Any, patches: Patches) -> None:
    """Since torch 2.13 stages vote on who knows his shapes, and send descriptions of tensors."""

    def vote(self: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
        """All stages are taken to vote as this one does."""
        dynamic = module.InferenceMode.needs_dynamic(self._user_meta, has_backward)
        return torch.tensor([0 if dynamic else 1], dtype=torch.int32, device=self.device)

    def result(self: Any, received_result: Any = None) -> torch.Tensor:
        if received_result is not None:
            return received_result
        return vote(self, self.has_backward)

    def receive(self: Any, src_stage: int) -> Any:
        if src_stage > self.stage_index:
            metas = self._stage_meta.outputs
            return module._StageBackwardMeta(backward_metas=module._derive_grad_metas(metas))
        if self._user_meta.inputs is not None:
            return module._StageForwardMeta(forward_metas=self._user_meta.inputs)
        return _given(self)

    def send(self: Any, meta: Any, dst_stage: int) -> None:
        if dst_stage > self.stage_index:
            _share_with(dst_stage, meta)

    patches.replace(stage, "_warmup_forward_vote", vote)
    patches.replace(stage, "_warmup_backward_result", result)
    patches.replace(stage, "_recv_meta", receive)
    patches.replace(stage, "_send_meta", send)
