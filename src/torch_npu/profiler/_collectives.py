"""Which group each collective of a profile belongs to, seen at PyTorch's own operators of torch.distributed.

gloo, which moves the data under `hccl`, tells when it worked and not for whom. Every collective, whether Python, DDP or a
compiled graph asks for it, passes the dispatcher as `c10d::allreduce_` and the like, with its group; there it is noted
while somebody profiles, from the call until its work is complete.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from softnpu import collectives
from torch_npu.profiler import _rank
from torch_npu.profiler._communication import Communication

Transfer = list[Any]  # name, start, end, thread, shapes, data types: see _host.Recorder.transfers

_INPUTS = ("inputs", "input_tensors", "input_list", "input_tensor", "input", "tensors", "tensor")
_PEERS = ("dst", "src")
_DTYPES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bfp16",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.bool: "uint8",
}  # fmt: skip


class CollectiveRecorder:
    """Notes the collectives on NPU tensors, of all groups and threads, from its making until `stop`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Communication] = {}  # in flight; they end when they are asked for
        self._ended: list[Communication] = []
        self._numbers = itertools.count()
        self._library = torch.library.Library("c10d", "IMPL")
        for name in collectives.KINDS:
            overload = getattr(torch.ops.c10d, name).default
            see = functools.partial(self._see, overload, _places(overload))
            self._library.impl(name, see, "AutogradPrivateUse1", with_keyset=True)

    def stop(self) -> None:
        self._library._destroy()

    def _see(self, overload: Any, places: dict[str, int], keys: Any, *args: Any) -> Any:
        start, number = time.time_ns(), next(self._numbers)
        with torch._C._AutoDispatchBelowAutograd():
            result = overload.redispatch(keys & torch._C._after_autograd_keyset, *args)
        one = _described(overload, places, args, start)  # a group has its name after the first call
        with self._lock:
            self._open[number] = one
        boxed = result[-1] if isinstance(result, (tuple, list)) else result
        future = dist.Work.unbox(boxed).get_future()
        future.add_done_callback(lambda _: self._end(number))
        return result

    def _end(self, number: int) -> None:
        now = time.time_ns()
        with self._lock:
            self._ended.append(replace(self._open.pop(number), end_ns=now))

    def take(
        self, transfers: list[Transfer], last: bool
    ) -> tuple[list[Communication], list[Transfer]]:
        """The collectives that ended since the last call, and the transfers that none of them explains."""
        with self._lock:
            found, self._ended = self._ended, []
            flying = list(self._open.values())
            if last:
                found += flying
                self._open.clear()
        begun = [(one.start_ns, one.end_ns) for one in found]
        begun += [(one.start_ns, 1 << 62) for one in flying]
        rest = [t for t in transfers if not any(start <= t[1] <= end for start, end in begun)]
        return found, rest


def _places(overload: Any) -> dict[str, int]:
    """Where an operator has its group, its input and, in a message, its other rank."""
    names = [argument.name for argument in overload._schema.arguments]
    places = {"group": names.index("process_group")}
    places["input"] = next(names.index(name) for name in _INPUTS if name in names)
    for name in _PEERS:
        if name in names:
            places["peer"] = names.index(name)
    return places


def _described(
    overload: Any, places: dict[str, int], args: Sequence[Any], start: int
) -> Communication:
    group = dist.ProcessGroup.unbox(args[places["group"]])
    ranks = tuple(dist.get_process_group_ranks(group))
    rank = dist.get_rank()
    tensors = list(_tensors(args[places["input"]]))
    first = tensors[0] if tensors else None
    device = torch.npu.current_device() if first is None else first.device.index  # type: ignore[attr-defined]
    return Communication(
        name=collectives.HCCL_NAMES[collectives.KINDS[overload._schema.name.split("::")[1]]],
        group=_rank.communicator(group, rank) or group.group_name,
        ranks=ranks,
        rank=rank,
        peer=ranks[args[places["peer"]]] if "peer" in places else -1,
        count=sum(t.numel() for t in tensors),
        dtype="n/a" if first is None else _DTYPES.get(first.dtype, "n/a"),
        size=sum(t.numel() * t.element_size() for t in tensors),
        device=device,
        stream=torch.npu.current_stream(device).stream_id,  # type: ignore[attr-defined]
        thread=threading.get_native_id(),
        start_ns=start,
        end_ns=time.time_ns(),
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value:
            yield from _tensors(item)
