"""A valid call of every kernel in torch.ops.softnpu, as keyword arguments: what the tests of the guards start from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Arguments = dict[str, Any]


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    seed = torch.Generator().manual_seed(sum(shape) + len(shape))
    return torch.randn(*shape, generator=seed).to(dtype)


def integers(high: int, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    seed = torch.Generator().manual_seed(sum(shape) + high)
    return torch.randint(0, high, shape, generator=seed).to(dtype)


def _adam(**more: Any) -> Arguments:
    return {"beta1": 0.9, "beta2": 0.99, "rate": 1e-3} | more


def _moments(first: str = "param", last: str = "grad") -> Arguments:
    return {first: randn(35), "m": randn(35), "v": randn(35).abs(), last: randn(35)}


def _attention() -> Arguments:
    return {
        "query": randn(2, 4, 9, 16),
        "key": randn(2, 2, 19, 16),
        "value": randn(2, 2, 19, 24),
        "out": torch.zeros(2, 4, 9, 24),
        "softmax_max": torch.zeros(2, 4, 9, 8),
        "softmax_sum": torch.ones(2, 4, 9, 8),
        "mask": integers(2, 2, 1, 9, 19, dtype=torch.bool),
        "bias": randn(1, 4, 9, 19),
        "slopes": randn(2, 4),
        "sink": randn(4),
        "q_len": [9, 7],
        "kv_len": [19, 13],
        "band_low": [-5],
        "band_high": [3],
        "prefix": [2],
        "keep_prob": 0.8,
        "dropout_bits": integers(256, (9 * 19 + 7 * 13) * 4 // 8 + 1, dtype=torch.uint8),
    }


def _paged() -> Arguments:
    return {
        "query": randn(3, 4, 1, 16, dtype=torch.bfloat16),
        "key": randn(7, 2, 8, 16, dtype=torch.bfloat16),
        "value": randn(7, 2, 8, 16, dtype=torch.bfloat16),
        "out": torch.zeros(3, 4, 1, 16, dtype=torch.bfloat16),
        "q_len": [1, 1, 1],
        "kv_len": [17, 3, 24],
        "pages": integers(7, 3, 3, dtype=torch.int64),
    }


def _attention_backward() -> Arguments:
    forward = _attention()
    return {
        **{name: forward[name] for name in ("query", "key", "value", "out")},
        "grad": randn(2, 4, 9, 24),
        "softmax_max": torch.ones(2, 4, 9, 8),
        "softmax_sum": torch.ones(2, 4, 9, 8),
        "dq": torch.zeros(2, 4, 9, 16),
        "dk": torch.zeros(2, 2, 19, 16),
        "dv": torch.zeros(2, 2, 19, 24),
        "dbias": torch.zeros(1, 4, 9, 19),
        "dslopes": torch.zeros(2, 4),
        "dsink": torch.zeros(2, 4),
        **{name: forward[name] for name in list(forward)[6:]},
    }


def _gated() -> Arguments:
    return {
        "x": integers(50, 5, 22),
        "weight_scale": randn(3, 22),
        "activation_scale": randn(5),
        "bias": integers(9, 22),
        "quant_scale": randn(3, 11),
        "quant_offset": randn(3, 1),
        "group": torch.tensor([0, 0, 1, 2, 9]),
        "used": 4,
        "left": True,
        "dynamic": False,
        "mode": 0,
        "limit": 7.0,
        "alpha": 1.7,
        "shift": 1.0,
    }


def _routing() -> Arguments:
    return {
        "rows": randn(6, 37),
        "index": integers(6, 4, 3),
        "scales": randn(4, 3),
        "bias": randn(5, 37),
        "expert": integers(5, 4, 3),
        "skip1": randn(4, 37),
        "skip2": randn(4, 37),
    }


#: by operator; a second call of one follows a colon
CALLS: dict[str, Callable[[], Arguments]] = {
    "apply_adam": lambda: _moments("var") | _adam(epsilon=1e-8, nesterov=True),
    "apply_adam_w": lambda: _moments("var")
    | _adam(largest=randn(35), decay=0.9, correction=0.5, epsilon=1e-8, maximize=False),
    "attention": _attention,
    "attention:paged": _paged,
    "attention_backward": _attention_backward,
    "cross_entropy": lambda: {
        "x": randn(5, 19), "target": integers(19, 5, dtype=torch.int64), "weight": randn(19),
        "smooth": True,
    },
    "cross_entropy_backward": lambda: {
        "log_prob": randn(5, 19), "target": integers(19, 5, dtype=torch.int64),
        "at_target": randn(5), "spread": randn(5), "weight": randn(19),
    },
    "dequant_swiglu_quant": _gated,
    "dropout_bits": lambda: {
        "seed": 1, "offset": 2, "keep_prob": 0.5, "bits": torch.zeros(37, dtype=torch.uint8),
    },
    "dynamic_quant": lambda: {
        "x": randn(5, 24), "smooth": randn(3, 24), "ends": torch.tensor([2, 4, 5]).int(),
        "int4": True, "asymmetric": True,
    },
    "dynamic_quant:plain": lambda: {
        "x": randn(5, 70, dtype=torch.float16), "smooth": None, "ends": None, "int4": False,
        "asymmetric": False,
    },
    "finalize_routing": _routing,
    "finalize_routing_backward": lambda: {
        "grad": randn(4, 37), "index": integers(6, 4, 3), "count": 6, "scales": randn(4, 3),
        "rows": randn(6, 37),
    },
    "fused_adadelta": lambda: {
        "param": randn(35), "square": randn(35).abs(), "delta": randn(35).abs(), "grad": randn(35),
        "rate": 0.1, "rho": 0.9, "eps": 1e-6, "penalty": 0.1,
    },
    "fused_adam": lambda: _moments()
    | _adam(largest=randn(35), root=0.5, eps=1e-8, penalty=0.1, shrink=0.9),
    "fused_adamp": lambda: _moments()
    | _adam(sizes=[20, 15], rows=[4, 0], root=0.5, eps=1e-8, decay=0.1, delta=0.1, ratio=0.1,
            nesterov=True),
    "fused_bert_adam": lambda: _moments() | _adam(eps=1e-8, decay=0.1, most=1.0),
    "fused_lamb": lambda: _moments()
    | _adam(norm=torch.tensor([2.0]), sizes=[20, 15], eps=1e-8, decay=0.1, most=10.0),
    "fused_rmsprop": lambda: {
        "param": randn(35), "square": randn(35).abs(), "buffer": randn(35), "mean": randn(35),
        "grad": randn(35), "rate": 0.1, "alpha": 0.9, "eps": 1e-6, "momentum": 0.9, "penalty": 0.1,
        "shrink": 0.9, "inside": True, "rate_first": False,
    },
    "fused_sgd": lambda: {
        "param": randn(35), "buffer": randn(35), "grad": randn(35), "rate": 0.1, "momentum": 0.9,
        "dampening": 0.1, "penalty": 0.1, "nesterov": True, "first": False,
    },
    "gelu": lambda: {"x": randn(5, 19), "tanh": False},
    "gelu_backward": lambda: {"dy": randn(5, 19), "x": randn(5, 19), "tanh": True},
    "gelu_mul": lambda: {"x": randn(5, 38, dtype=torch.bfloat16), "tanh": False},
    "group_norm_swish": lambda: {
        "x": randn(2, 6, 5, 3), "groups": 3, "weight": randn(6), "bias": randn(6), "eps": 1e-5,
        "scale": 1.0,
    },
    "group_norm_swish_backward": lambda: {
        "dy": randn(2, 6, 5, 3), "x": randn(2, 6, 5, 3), "groups": 3, "weight": randn(6),
        "bias": randn(6), "mean": randn(2, 3), "rstd": randn(2, 3), "scale": 1.0,
    },
    "int8_mm": lambda: {
        "a": integers(99, 3, 7, dtype=torch.int8), "b": integers(99, 7, 5, dtype=torch.int8),
    },
    "indexer": lambda: {
        "query": randn(3, 5, 19), "weights": randn(3, 5), "key": randn(21, 19),
        "seen": integers(22, 3, dtype=torch.int64), "count": 4,
    },
    "layer_norm": lambda: {
        "x": randn(3, 4, 19), "inner": 2, "weight": randn(4, 19), "bias": randn(4, 19), "eps": 1e-5,
    },
    "masked_softmax": lambda: {
        "x": randn(2, 3, 5, 19), "mask": integers(2, 2, 1, 5, 19, dtype=torch.bool), "scale": 0.5,
        "masked": -1e4,
    },
    "masked_softmax_backward": lambda: {
        "dy": randn(2, 3, 5, 19), "y": randn(2, 3, 5, 19),
        "mask": integers(2, 2, 1, 5, 19, dtype=torch.bool), "scale": 0.5,
    },
    "mish": lambda: {"x": randn(5, 19, dtype=torch.float16)},
    "mish_backward": lambda: {"dy": randn(5, 19), "x": randn(5, 19)},
    "quantize": lambda: {
        "x": randn(4, 6, 16), "scales": randn(6), "zero": integers(9, 6), "axis": 1, "divide": True,
        "dtype": torch.int8, "int4": False,
    },
    "mx_quant": lambda: {
        "x": randn(3, 70), "axis": 1, "block": 32, "format": 0, "mode": 0, "algorithm": 0, "carry": 0,
        "inverse": 1.0, "least": 0.0, "coarse": 0,
    },
    "write_pages": lambda: {
        "cache": torch.zeros(4, 8, 2, 16), "slots": integers(32, 5), "rows": randn(5, 2, 16), "nz": False,
    },
    "write_pages:two": lambda: {
        "cache": torch.zeros(4, 2, 8, 16), "slots": integers(32, 5), "rows": randn(5, 2, 16), "nz": True,
        "second": torch.zeros(4, 1, 8, 16), "second_rows": randn(5, 1, 16),
    },
    "gated_delta_rule": lambda: {
        "query": randn(5, 2, 19, dtype=torch.bfloat16), "key": randn(5, 2, 19, dtype=torch.bfloat16),
        "value": randn(5, 4, 10, dtype=torch.bfloat16), "beta": randn(5, 4), "g": -randn(5, 4).abs(),
        "gk": -randn(5, 4, 19).abs(), "scale": 0.5, "lengths": [3, 2], "state": randn(6, 4, 10, 19),
        "first": [0, 4], "last": [1, 2, 3, 5, 4], "every": True,
    },
    "read_pages": lambda: {
        "target": torch.zeros(9, 2, 16), "cache": randn(4, 8, 2, 16), "table": integers(4, 2, 2),
        "firsts": [0, 5], "lengths": [5, 4], "skipped": [0, 3], "nz": False,
    },
    "read_pages:two": lambda: {
        "target": torch.zeros(9, 32), "cache": randn(4, 2, 8, 16), "table": integers(4, 2, 2), "firsts": [0, 5],
        "lengths": [5, 4], "skipped": [0, 3], "nz": True, "second": torch.zeros(9, 16), "second_cache": randn(4, 1, 8, 16),
    },
    "quantize:int4": lambda: {
        "x": randn(4, 16), "scales": randn(16), "zero": None, "axis": 1, "divide": False,
        "dtype": torch.int8, "int4": True,
    },
    "round_to_hf32_": lambda: {"dense": randn(5, 37), "mantissa": 11},
    "rms_norm": lambda: {
        "x": randn(3, 4, 19, dtype=torch.bfloat16), "addend": randn(3, 4, 19, dtype=torch.bfloat16),
        "gamma": randn(4, 19), "epsilon": 1e-6, "shift": 1.0,
    },
    "rms_norm_backward": lambda: {
        "dy": randn(3, 4, 19), "x": randn(3, 4, 19), "gamma": randn(19), "rstd": randn(3, 4, 1),
    },
    "rotary": lambda: {
        "x": randn(2, 3, 5, 12), "cos": randn(2, 1, 5, 12), "sin": randn(2, 1, 5, 12),
        "mode": "quarter",
    },
    "rotary_backward": lambda: {
        "dy": randn(2, 3, 5, 12), "x": randn(2, 3, 5, 12), "cos": randn(2, 1, 5, 12),
        "sin": randn(2, 1, 5, 12), "mode": "interleave",
    },
    "route_pairs": lambda: {
        "experts": integers(8, 5, 3), "top_k": 3, "start": 1, "end": 6, "rows": 12,
    },
    "silu_backward": lambda: {"dy": randn(5, 19), "x": randn(5, 19), "y": randn(5, 19)},
    "swiglu": lambda: {"x": randn(5, 38), "dim": -1},
    "swiglu_backward": lambda: {"dy": randn(5, 19), "x": randn(5, 38), "dim": -1},
    "swish": lambda: {"x": randn(5, 19), "scale": 1.0, "out": torch.zeros(5, 19)},
    "swish_backward": lambda: {"dy": randn(5, 19), "x": randn(5, 19), "scale": 1.0},
    "take_rows": lambda: {
        "rows": randn(6, 37), "index": integers(6, 9), "present": integers(2, 9, dtype=torch.bool),
    },
    "top_k_rows": lambda: {"x": randn(4, 39), "k": 5},
    "top_k_rows:many": lambda: {"x": randn(4, 89), "k": 40},
    "top_k_top_p": lambda: {
        "x": randn(4, 39), "p": torch.tensor([0.1, 0.5, 0.9, 1.0]), "k": integers(39, 4),
    },
}  # fmt: skip


def call(key: str, arguments: Arguments) -> Any:
    return getattr(torch.ops.softnpu, key.partition(":")[0])(**arguments)
