"""The causal convolution over cached states: what npu_fused_causal_conv1d and its in-place form compute."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._math import wide

TAPS = 3
FEW = 8  # tokens a sequence, of which the card has a kernel of its own


DEFAULTS = {"pad_slot_id": -1, "residual_connection": 0, "block_size": 128, "conv_mode": "default"}


def values(tensor):
    return None if tensor is None else tensor.tolist()


#: what the card's kernels take and the result does not depend on
UNUSED = ("activation", "run_mode", "max_query_len")


def given(arguments):
    """The arguments that count, with what None stands for filled in."""
    filled = {k: DEFAULTS[k] for k in DEFAULTS if arguments[k] is None}
    return {k: v for k, v in {**arguments, **filled}.items() if k not in UNUSED}


def run(call, x, y):
    """The convolution of `x` into `y`; the states of `call` are updated. Both are flat: (tokens, dim)."""
    states, steps = call["conv_states"], TAPS - 1
    bounds = _bounds(call, x)
    lines, computed = values(call["cache_indices"]), values(call["num_computed_tokens"])
    accepted = values(call["num_accepted_tokens"])
    first, last = (values(call[f"block_idx_{n}_scheduled_token"]) for n in ("first", "last"))
    initial = values(call["initial_state_idx"])
    capacity = states.shape[1]
    for b, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
        read = write = b if lines is None else lines[b]
        if last is not None:
            read, write = lines[b][initial[b]], lines[b][last[b]]
        if read == call["pad_slot_id"]:
            continue
        fresh = computed is not None and computed[b] == 0
        offset = capacity - steps if accepted is None else accepted[b] - 1
        offset = 0 if fresh else offset
        part = x[start:end].clone()
        past = states[read, : offset + steps].clone()
        padded = torch.cat((torch.zeros_like(past[:steps]) if fresh else past, part))
        kept = min(capacity, padded.shape[0])
        states[write, capacity - kept :] = padded[padded.shape[0] - kept :]
        padded = padded[offset:]
        if last is not None:
            size = call["block_size"]
            for line, at in _full_blocks(first[b], last[b], computed[b], end - start, size):
                states[lines[b][line], capacity - steps :] = padded[at : at + steps]
        result = convolve(padded, call["weight"])
        if call["conv_mode"] == "pangu":
            result[: max(steps - computed[b], 0)] = 0
        if call["residual_connection"]:
            result = result + wide(part)
        y[start:end] = result.to(y.dtype)


def _bounds(call, x):
    """Where the sequences begin and end in `x`."""
    if call["query_start_loc"] is not None:
        return call["query_start_loc"].tolist()
    batch, length = call["x"].shape[:2]
    return list(range(0, (batch + 1) * length, length))


def _full_blocks(first, last, computed, length, size):
    """The blocks of the prefix cache that the sequence completes, and where in it each one ends."""
    rest = (length - (size - computed % size)) % size
    end = length - rest - (size if rest == 0 else 0)
    fill = last - first
    return [(first + chunk, end - (fill - chunk - 1) * size) for chunk in range(fill)]


def convolve(padded, weight):
    """The products of each channel with the taps, (tokens, dim) by (taps, dim), in fp32."""
    taps = weight.shape[0]
    rows = padded.shape[0] - taps + 1
    x, w = wide(padded), wide(weight)
    return sum(x[k : k + rows] * w[k] for k in range(taps))


def check(call, longest):
    """The constraints of both forms; `longest` is max_query_len, which chooses the card's kernel."""
    x, weight, states = call["x"], call["weight"], call["conv_states"]
    must.dtype("x", x, torch.float16, torch.bfloat16)
    must.ndim("x", x, 2, 3)
    shape = tuple(x.shape)
    dim = shape[-1]
    must.hold(x.numel() > 0, "x", "not empty", shape)
    few = x.dim() == 3 or (longest is not None and 1 <= longest <= FEW)
    narrowest = 64 if few else 16
    fits = narrowest <= dim <= 16384
    must.hold(fits, "x", f"of a last size in [{narrowest}, 16384]", shape)
    must.hold(dim % 16 == 0, "x", "of a last size divisible by 16", shape)
    must.same_dtype("weight", weight, "x", x)
    must.shape("weight", weight, (TAPS, dim))
    must.same_dtype("conv_states", states, "x", x)
    must.shape("conv_states", states, (None, None, dim))
    if x.dim() == 2:
        must.present("query_start_loc", call["query_start_loc"], "with 'x' of 2 dimensions")
    must.ndim("query_start_loc", call["query_start_loc"], 1)
    batch = shape[0] if x.dim() == 3 else call["query_start_loc"].shape[0] - 1
    least = TAPS - 1
    if x.dim() == 3:
        must.hold(shape[1] <= FEW, "x", f"of at most {FEW} tokens a sequence", shape)
        least = TAPS - 2 + shape[1]
    must.hold(1 <= batch <= 256, "x", "of 1 to 256 sequences", batch)
    rows = tuple(states.shape)
    must.hold(rows[1] >= least, "conv_states", f"of at least {least} steps a line", rows)
    must.choice("residual_connection", call["residual_connection"], (0, 1))
    _check_cache(call, batch)
    _check_unused(call, batch, dim)


def _check_cache(call, batch):
    prefix = [
        name
        for name in (
            "block_idx_first_scheduled_token",
            "block_idx_last_scheduled_token",
            "initial_state_idx",
        )
        if call[name] is not None
    ]
    if prefix or call["conv_mode"] == "pangu":
        when = "with automatic prefix caching or conv_mode 'pangu'"
        must.present("num_computed_tokens", call["num_computed_tokens"], when)
    if prefix:
        for name in ("first", "last"):
            full = f"block_idx_{name}_scheduled_token"
            must.present(full, call[full], f"with '{prefix[0]}'")
        must.present("initial_state_idx", call["initial_state_idx"], f"with '{prefix[0]}'")
        must.present("cache_indices", call["cache_indices"], f"with '{prefix[0]}'")
        size = call["block_size"]
        must.hold(size is not None and size >= 2, "block_size", "at least 2", size)
    for name in (
        "query_start_loc",
        "cache_indices",
        "num_accepted_tokens",
        "num_computed_tokens",
        "block_idx_first_scheduled_token",
        "block_idx_last_scheduled_token",
        "initial_state_idx",
    ):
        must.dtype(name, call[name], torch.int32)
    must.shape("query_start_loc", call["query_start_loc"], (batch + 1,))
    must.shape("cache_indices", call["cache_indices"], (batch, None) if prefix else (batch,))
    for name in ("num_accepted_tokens", "num_computed_tokens", *prefix):
        must.shape(name, call[name], (batch,))
    _check_lines(call)


def _check_lines(call):
    lines, count = call["cache_indices"], call["conv_states"].shape[0]
    if must.has_data(lines):
        pad = call["pad_slot_id"]
        inside = ((lines >= 0) & (lines < count)) | (lines == pad)
        must.hold(
            bool(inside.all()), "cache_indices", f"in [0, {count - 1}] or {pad}", lines.tolist()
        )


def _check_unused(call, batch, dim):
    """Arguments that the card takes and does not use; their types and shapes are documented."""
    must.dtype("initial_state_mode", call["initial_state_mode"], torch.int32)
    must.shape("initial_state_mode", call["initial_state_mode"], (batch,))
    must.shape("bias", call["bias"], (dim,))
