"""Shapes of Transformers by name, from architectures.toml, and their parameters."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

from softnpu.plan.clock.figures import ClockError
from softnpu.python_versions import tomllib


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of multi-head latent attention."""

    query: int  # rank of the queries' projection
    key: int  # of the keys' and values'
    plain: int  # of a head, without rotation
    rotary: int
    value: int


@dataclass(frozen=True, slots=True)
class Index:
    """The indexer of sparse attention: it scores all keys and keeps some."""

    heads: int
    size: int
    keep: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """A Transformer without its biases and norms, which weigh nothing here."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    vocab: int
    kv_heads: int = 0
    head: int = 0
    gated: bool = True
    tied: bool = False
    window: int = 0
    experts: int = 0
    top: int = 0
    expert_ffn: int = 0
    shared: int = 0
    dense_layers: int = 0
    latent: Latent | None = None
    index: Index | None = None

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def head_size(self) -> int:
        return self.head or self.hidden // self.heads

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def matrices(self) -> int:
        """Products of an MLP."""
        return 3 if self.gated else 2

    @property
    def attention_parameters(self) -> int:
        """Of one layer."""
        one = self.latent
        if one is None:
            return self.hidden * self.head_size * 2 * (self.heads + self.key_heads)
        head = one.plain + one.rotary
        down = self.hidden * (one.query + one.key + one.rotary)
        up = one.query * self.heads * head + one.key * self.heads * (one.plain + one.value)
        return down + up + self.heads * one.value * self.hidden

    @property
    def expert_parameters(self) -> int:
        """Of one expert."""
        return self.matrices * self.hidden * self.expert_ffn

    def mlp_parameters(self, moe: bool, experts: int) -> int:
        """Of one layer, with so many experts."""
        if not moe:
            return self.matrices * self.hidden * self.ffn
        return (experts + self.shared) * self.expert_parameters + self.hidden * self.experts

    def parameters(self, experts: int = 0) -> int:
        """Of the whole model, or with so many experts a layer."""
        count = experts or self.experts
        dense = self.layers - self.moe_layers
        mlps = dense * self.mlp_parameters(False, 0) + self.moe_layers * self.mlp_parameters(True, count)  # fmt: skip
        ends = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * self.attention_parameters + mlps + ends


@functools.cache
def _all() -> dict[str, Architecture]:
    text = resources.files("softnpu.plan.clock").joinpath("architectures.toml").read_text("utf-8")
    found = {}
    for name, entry in tomllib.loads(text).items():
        if "latent" in entry:
            entry["latent"] = Latent(**entry["latent"])
        if "index" in entry:
            entry["index"] = Index(**entry["index"])
        found[name] = Architecture(name=name, **entry)
    return found


def names() -> list[str]:
    return list(_all())


def get(name: str) -> Architecture:
    if name not in _all():
        raise ClockError(
            f"model {name!r} is not in architectures.toml, which has {', '.join(_all())}"
        )
    return _all()[name]
