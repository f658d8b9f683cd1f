"""The arguments of an inference attention and their layouts, in upstream's words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops.attention import _paged
from torch_npu.ops.attention._layouts import heads_first

#: input_layout -> the layout of the query (and of caches that are not paged), and of the output
LAYOUTS = {
    "BSH": ("BSH", "BSH"),
    "BSND": ("BSND", "BSND"),
    "BNSD": ("BNSD", "BNSD"),
    "TND": ("TND", "TND"),
    "NTD": ("NTD", "NTD"),
    "NSD": ("NSD", "NSD"),
    "BNSD_BSND": ("BNSD", "BSND"),
    "BSH_BNSD": ("BSH", "BNSD"),
    "BSND_BNSD": ("BSND", "BNSD"),
    "BSH_NBSD": ("BSH", "NBSD"),
    "BSND_NBSD": ("BSND", "NBSD"),
    "BNSD_NBSD": ("BNSD", "NBSD"),
    "TND_NTD": ("TND", "NTD"),
    "NTD_TND": ("NTD", "TND"),
}

#: the side of the causal mask that sparse_mode 2, 3 and 4 take
TEMPLATE = 2048

#: the values of sparse_mode; 5 to 8 (prefix, global, dilated, block_local) upstream leaves out too
DEFAULT, ALL, LEFT_UP, RIGHT_DOWN, BAND, TREE = 0, 1, 2, 3, 4, 9


@dataclass
class InferArguments:
    """The arguments; every default is that of npu_fused_infer_attention_score."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    pse_shift: torch.Tensor | None = None
    atten_mask: torch.Tensor | None = None
    actual_seq_lengths: Sequence[int] | None = None
    actual_seq_lengths_kv: Sequence[int] | None = None
    dequant_scale1: torch.Tensor | None = None
    quant_scale1: torch.Tensor | None = None
    dequant_scale2: torch.Tensor | None = None
    quant_scale2: torch.Tensor | None = None
    quant_offset2: torch.Tensor | None = None
    antiquant_scale: torch.Tensor | None = None
    antiquant_offset: torch.Tensor | None = None
    key_antiquant_scale: torch.Tensor | None = None
    key_antiquant_offset: torch.Tensor | None = None
    value_antiquant_scale: torch.Tensor | None = None
    value_antiquant_offset: torch.Tensor | None = None
    block_table: torch.Tensor | None = None
    query_padding_size: torch.Tensor | None = None
    kv_padding_size: torch.Tensor | None = None
    key_shared_prefix: torch.Tensor | None = None
    value_shared_prefix: torch.Tensor | None = None
    actual_shared_prefix_len: Sequence[int] | None = None
    query_rope: torch.Tensor | None = None
    key_rope: torch.Tensor | None = None
    key_rope_antiquant_scale: torch.Tensor | None = None
    num_heads: int = 1
    scale: float = 1.0
    pre_tokens: int = 2147483647
    next_tokens: int = 2147483647
    input_layout: str = "BSH"
    num_key_value_heads: int = 0
    sparse_mode: int = 0
    inner_precise: int = 0
    block_size: int = 0
    antiquant_mode: int = 0
    key_antiquant_mode: int = 0
    value_antiquant_mode: int = 0
    softmax_lse_flag: bool = False
    # what only the second version has
    dequant_scale_query: torch.Tensor | None = None
    query_quant_mode: int = 0
    learnable_sink: torch.Tensor | None = None
    out_dtype: torch.dtype | None = None
    query_format: str = ""  # float8_e4m3fn, hifloat8 or float4_e2m1fn_x2; see _small_floats
    key_format: str = ""
    value_format: str = ""
    # which operator speaks
    prompt: bool = False  # it has no incremental branch
    incremental: bool = False  # it has no other
    operator: str = "npu_fused_infer_attention_score"
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.query.dtype == torch.float8_e4m3fn:
            self.query_format = "float8_e4m3fn"
        if self.key.dtype == torch.float8_e4m3fn:
            self.key_format = "float8_e4m3fn"
        if self.value.dtype == torch.float8_e4m3fn:
            self.value_format = "float8_e4m3fn"

    def name(self, argument: str) -> str:
        """The operator's own name of an argument."""
        return self.names.get(argument, argument)

    @cached_property
    def layout(self) -> str:
        return LAYOUTS[self.input_layout][0]

    @property
    def ragged(self) -> bool:
        """All sequences lie one after the other, and the lengths are cumulative."""
        return self.layout in ("TND", "NTD")

    @property
    def paged(self) -> bool:
        return self.block_table is not None

    @property
    def capacity(self) -> int:
        """Tokens that the pages of one sequence hold."""
        return 0 if self.block_table is None else self.block_table.shape[1] * self.block_size

    @cached_property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_heads

    @cached_property
    def queries(self) -> tuple[int, int, int, int]:
        """(B, N, S, D) of the query, B = 1 and S = T in a ragged layout."""
        return sizes(self.query, self.layout, self.num_heads)

    @cached_property
    def key_sizes(self) -> tuple[int, int, int, int]:
        """(B, N, S, D) of a key that does not lie in pages."""
        return sizes(self.key, self.layout, self.kv_heads)

    @property
    def batch(self) -> int:
        return len(self.actual_seq_lengths or ()) if self.ragged else self.queries[0]

    @property
    def decode(self) -> bool:
        """One query token a sequence: upstream's incremental branch."""
        return not self.prompt and not self.ragged and self.queries[2] == 1

    @cached_property
    def unwindowed(self) -> bool:
        """One query token that sees all keys whatever sparse_mode says: with unquantized caches in the
        plain layouts and equal head sizes alone, and not on A5 (fused_infer_attention_score's info parser)."""
        if not self.decode or self.query_rope is not None:
            return False
        if self.key.dtype != self.query.dtype or not self.query.dtype.is_floating_point:
            return True
        usual = self.input_layout in ("BSH", "BSND", "BNSD", "NSD")
        return usual and self.value_size == self.queries[3] and chips.current().family != "A5"

    @property
    def packed(self) -> int:
        """How many values an element of the cache carries: an int32 eight int4, a byte two float4."""
        if self.value.dtype == torch.int32:
            return 8
        return 2 if self.value_format == "float4_e2m1fn_x2" else 1

    @cached_property
    def value_size(self) -> int:
        """The head size of value and output."""
        if self.paged:
            return _paged.page_shape(self.value, self.kv_heads)[2] * self.packed
        return sizes(self.value, self.layout, self.kv_heads)[3] * self.packed

    @property
    def result_dtype(self) -> torch.dtype:
        if self.quant_scale2 is not None:
            return self.out_dtype or torch.int8
        if self.query.dtype == torch.int8 or self.query_format:
            rope = torch.float16 if self.query_rope is None else self.query_rope.dtype
            return self.out_dtype or rope
        return self.query.dtype


def sizes(x: torch.Tensor, layout: str, heads: int) -> tuple[int, int, int, int]:
    """(B, N, S, D) of a tensor in a layout."""
    shape = x.shape
    if layout == "BSH":
        return shape[0], heads, shape[1], shape[2] // heads
    if layout == "BSND":
        return shape[0], shape[2], shape[1], shape[3]
    if layout == "BNSD":
        return shape[0], shape[1], shape[2], shape[3]
    if layout == "NBSD":
        return shape[1], shape[0], shape[2], shape[3]
    return (1, shape[1], shape[0], shape[2]) if layout == "TND" else (1, *shape)


def as_bnsd(x: torch.Tensor, layout: str, heads: int) -> torch.Tensor:
    """A tensor of a layout seen as (B, N, S, D)."""
    if layout == "NBSD":
        return x.transpose(0, 1)
    return x.unsqueeze(0) if layout in ("NTD", "NSD") else heads_first(x, layout, heads)


def output_shapes(call: InferArguments) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The documented shapes of attention_out and softmax_lse."""
    batch, heads, rows, _ = call.queries
    size = call.value_size
    out = {
        "BSH": (batch, rows, heads * size),
        "BSND": (batch, rows, heads, size),
        "BNSD": (batch, heads, rows, size),
        "NBSD": (heads, batch, rows, size),
        "TND": (rows, heads, size),
        "NTD": (heads, rows, size),
        "NSD": (heads, rows, size),
    }[LAYOUTS[call.input_layout][1]]
    if not call.softmax_lse_flag:
        return out, (0,)
    return out, (rows, heads, 1) if call.ragged else (batch, heads, rows, 1)


def empty_outputs(call: InferArguments) -> tuple[torch.Tensor, torch.Tensor]:
    """attention_out and softmax_lse, without values."""
    out, lse = output_shapes(call)
    must.countable(call.name("num_heads"), math.prod(out) + math.prod(lse), call.num_heads)
    return (
        call.query.new_empty(out, dtype=call.result_dtype),
        call.query.new_empty(lse, dtype=torch.float32),
    )


def prefix_length(call: InferArguments) -> int:
    """Tokens of the shared prefix that count."""
    if call.key_shared_prefix is None:
        return 0
    if call.actual_shared_prefix_len is not None:
        return call.actual_shared_prefix_len[0]
    return sizes(call.key_shared_prefix, call.layout, call.kv_heads)[2]


def kv_lengths(call: InferArguments) -> list[int]:
    """Tokens of key and value a sequence, the shared prefix not counted."""
    lengths = call.actual_seq_lengths_kv
    if call.ragged and not call.paged:
        return [length for _, length in spans(lengths)]
    if lengths is None:
        lengths = [sizes(call.key, call.layout, call.kv_heads)[2]]
    return each(lengths, call.batch)


def spans(ends: Sequence[int] | None) -> list[tuple[int, int]]:
    """(start, length) of each sequence of a ragged batch, from its cumulative lengths."""
    assert ends is not None  # a ragged layout requires them
    return [(a, b - a) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def each(values: Sequence[int], batch: int) -> list[int]:
    """One value a sequence: a single one serves all, surplus ones are not read."""
    return list(values) * batch if len(values) == 1 else list(values[:batch])
