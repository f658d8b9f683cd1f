"""What upstream adds to torch.distributed.distributed_c10d: groups made anew, uneven collectives."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torch_npu._errors import ErrCode, dist_error

__all__ = ["is_hccl_available", "reinit_process_group"]


def is_hccl_available() -> bool:
    """Whether torch.distributed knows the backend `hccl`."""
    return "hccl" in dist.Backend.backend_list


def backend_of(group: Any = None) -> Any:
    """The hccl backend of a group (the default group if None), also under the DETAIL debug wrapper."""
    chosen = c10d._get_default_group() if group in (None, dist.GroupMember.WORLD) else group
    found = chosen._get_backend(torch.device("npu"))
    return found.wrapped_pg if hasattr(found, "wrapped_pg") else found


def reinit_process_group(group: Any = None, rebuild_link: bool = True) -> Any:
    """Makes the group usable again after a fault, on all its ranks.

    With `rebuild_link` the connections are made anew at the next operation, and the group is returned. Without it
    the existing ones of all groups go on; that is possible only while no operation has failed.
    """
    if rebuild_link:
        chosen = c10d._get_default_group() if group is None else group
        backend_of(chosen).abort_hccl_comm("reinit")
        return chosen
    for known in list(c10d._world.pg_map):
        if torch.device("npu") in known._device_types and backend_of(known)._failed():
            raise RuntimeError(
                f"reinit_process_group: the links of group {known.group_name} are broken and need "
                "rebuild_link=True." + dist_error(ErrCode.HCCL)
            )
    return None


def reduce_scatter_tensor_uneven(
    output: torch.Tensor,
    input: torch.Tensor,
    input_split_sizes: Sequence[int] | None = None,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Reduces `input` over the ranks; rank i gets `input_split_sizes[i]` rows (equal parts if None)."""
    if not _takes_part("reduce_scatter_tensor_uneven", output, input, group):
        return None
    options = c10d.ReduceScatterOptions()
    options.reduceOp = op
    splits = list(input_split_sizes or [])
    work = backend_of(group).reduce_scatter_tensor_uneven(output, input, splits, options)
    return work if async_op else _waited(work)


def all_gather_into_tensor_uneven(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Gathers the inputs of all ranks; rank i gives `output_split_sizes[i]` rows (equal parts if None)."""
    if not _takes_part("all_gather_into_tensor_uneven", output, input, group):
        return None
    splits = list(output_split_sizes or [])
    work = backend_of(group).all_gather_into_tensor_uneven(output, input, splits)
    return work if async_op else _waited(work)


def _takes_part(name: str, output: torch.Tensor, input: torch.Tensor, group: Any) -> bool:
    if c10d._rank_not_in_group(group):
        c10d._warn_not_in_group(name)
        return False
    if output.device.type != "npu" or input.device.type != "npu":
        warnings.warn("Support for Tensors is limited to those of type npu", stacklevel=3)
        return False
    return True


def _waited(work: Any) -> None:
    work.wait()


# --- patches of torch.distributed, put in place by torch_npu/_patch.py --------------------------------------------------


def monitored_barrier(before: Any) -> Any:
    """torch's function refuses every backend but gloo; hccl has gloo inside."""

    def patched(group: Any = None, timeout: timedelta | None = None, wait_all_ranks: bool = False):
        if c10d._rank_not_in_group(group) or dist.get_backend(group) != "hccl":
            return before(group, timeout, wait_all_ranks)
        limit = timeout or c10d._get_default_timeout(dist.Backend("hccl"))
        c10d._check_valid_timeout(limit)
        backend = backend_of(group)
        _interruptible(backend, lambda: backend._monitored_barrier(limit, wait_all_ranks))
        return None

    return patched


def _interruptible(backend: Any, wait: Callable[[], None]) -> None:
    """Runs what waits inside gloo, on a thread of its own, so that Ctrl-C is noticed; it aborts the group."""
    if threading.current_thread() is not threading.main_thread():
        return wait()
    wrong: list[BaseException] = []

    def waits() -> None:
        try:
            wait()
        except BaseException as error:  # raised by the thread that asked
            wrong.append(error)

    thread = threading.Thread(target=waits, name="monitored_barrier", daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        backend.abort()
        raise
    if wrong:
        raise wrong[0]
    return None


def sequence_number(before: Any) -> Any:
    """The sequence number of a group is its npu backend's where that is hccl."""

    def patched(self: Any) -> int:
        if dist.get_backend_config(self) in ("hccl", "npu:hccl"):
            return backend_of(self)._sequence()
        return before(self)

    return patched


def all_gather_backward(before: Any) -> Any:
    """Gradient of torch.distributed.nn's all_gather_base, which torch gives for nccl only."""

    def patched(ctx: Any, grad_output: torch.Tensor) -> tuple[Any, ...]:
        if dist.get_backend(ctx.group) != "hccl":
            return before(ctx, grad_output)
        ranks = dist.get_world_size(ctx.group)
        if grad_output.size(0) % ranks != 0:
            raise RuntimeError(
                f"the first dimension of {tuple(grad_output.shape)} cannot be divided by {ranks} ranks."
                + dist_error(ErrCode.PARAM)
            )
        shape = (grad_output.size(0) // ranks, *grad_output.shape[1:])
        grad = grad_output.new_empty(shape)
        dist.reduce_scatter_tensor(grad, grad_output.contiguous(), group=ctx.group)
        return None, grad, None

    return patched
