"""Calls every kernel with wrong arguments, on memory that ends at a page nobody may touch.

    python -m tests.kernels.fuzz [--seed N] [--rounds N] [--only NAME]

Each call of `calls.CALLS` is repeated with one argument changed: other sizes, dtypes, strides, values, None. It must
return, or raise an error that names the operator. A kernel that leaves its tensors ends the process.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import random
import sys
from typing import Any

import torch

import torch_npu  # noqa: F401
from tests.kernels.calls import CALLS, call

DTYPES = (
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.bool,
    torch.int32, torch.int64, torch.complex64,
)  # fmt: skip
NUMBERS = (0, -1, 1, 2, 7, -(2**62), 2**62, -(2**63), 2**63 - 1)

#: what PyTorch itself says of sizes and schemas, before a kernel runs
THEIRS = (
    "but instead found type",
    "Overflow when unpacking",
    "Storage size calculation overflowed",
    "Trying to create tensor with negative dimension",
    "invalid memory size",
    "not enough memory",
    "There were no tensor arguments to this function",
)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_kept: list[mmap.mmap] = []


def fenced(t: torch.Tensor) -> torch.Tensor:
    """A copy whose last byte is the last before a page that cannot be read or written."""
    page, size = mmap.PAGESIZE, t.numel() * t.element_size()
    size_in_pages = max(1, -(-size // page)) * page
    memory = mmap.mmap(-1, size_in_pages + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _libc.mprotect(start + size_in_pages, page, 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    _kept.append(memory)
    if size == 0:
        return t.clone()
    flat = torch.frombuffer(memory, dtype=t.dtype, count=t.numel(), offset=size_in_pages - size)
    return flat.view(t.shape).copy_(t)


def other_tensor(t: torch.Tensor, pick: random.Random) -> torch.Tensor | None:
    """Something else in the place of a tensor."""
    kind = pick.randrange(10)
    shape = list(t.shape)
    if kind == 0:
        return None
    if kind == 1:
        return t.to(pick.choice(DTYPES))
    if kind == 2 and shape:
        place = pick.randrange(len(shape))
        shape[place] = pick.choice(
            (0, 1, max(0, shape[place] - 1), shape[place] + 1, 2 * shape[place])
        )
        return t.new_zeros(shape)
    if kind == 3 and shape:
        return t.select(pick.randrange(len(shape)), 0) if 0 not in shape else t
    if kind == 4:
        return t.unsqueeze(pick.randrange(len(shape) + 1))
    if kind == 5 and shape and 0 not in shape:
        place = pick.randrange(len(shape))
        return t.narrow(place, 0, 1).expand(shape)
    if kind == 6 and len(shape) > 1:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if kind == 7:
        return t.reshape(-1)
    if kind == 8 and not t.is_floating_point() and t.dtype != torch.bool:
        worst = torch.iinfo(t.dtype)
        return torch.full_like(t, pick.choice((worst.min, worst.max, 0, min(worst.max, 100))))
    if kind == 9 and t.is_floating_point():
        return torch.full_like(t, pick.choice((float("nan"), float("inf"), -float("inf"), 0.0)))
    return t.new_zeros(0)


def other(value: Any, pick: random.Random) -> Any:
    if isinstance(value, torch.Tensor):
        return other_tensor(value, pick)
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return pick.choice(([], value[:1], value * 2, [pick.choice(NUMBERS)] * len(value)))
    if isinstance(value, int):
        return pick.choice(NUMBERS)
    if isinstance(value, float):
        return pick.choice((0.0, -1.0, float("nan"), float("inf"), 1e300))
    if isinstance(value, str):
        return pick.choice(("", "half", "none", "interleave-half"))
    if isinstance(value, torch.dtype):
        return pick.choice(DTYPES)
    return value


def attack(key: str, pick: random.Random) -> str | None:
    """One call with one or two wrong arguments; what is wrong with its outcome."""
    arguments = CALLS[key]()
    for name in pick.sample(list(arguments), k=min(len(arguments), pick.choice((1, 1, 2)))):
        arguments[name] = other(arguments[name], pick)
    # a view of fewer elements than it shows cannot be copied to the fence without becoming plain
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.is_contiguous() and value.numel():
            arguments[name] = fenced(value)
    try:
        call(key, arguments)
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
        text, op = str(error), key.partition(":")[0]
        named = f"softnpu::{op}: " in text or (op == "int8_mm" and "_int_mm: " in text)
        if not named and not any(part in text for part in THEIRS):
            shown = {
                n: (v.dtype, tuple(v.shape), v.stride()) if isinstance(v, torch.Tensor) else v
                for n, v in arguments.items()
            }
            return f"{key}: {type(error).__name__}: {text.splitlines()[0]}\n  {shown}"
    return None


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--only", default="")
    chosen = options.parse_args()
    wrong, calls = [], 0
    for key in CALLS:
        if chosen.only not in key:
            continue
        for turn in range(chosen.rounds):
            print(f"{key} --seed {chosen.seed} round {turn}", file=sys.stderr, flush=True)
            found = attack(key, random.Random(f"{key} {chosen.seed} {turn}"))
            calls += 1
            if found is not None:
                wrong.append(found)
            if len(_kept) > 500:
                _kept.clear()
    print("\n".join(sorted(set(wrong))))
    print(f"{calls} calls, {len(wrong)} with errors that do not name the operator")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
