"""PyTorch's operator database under capture: a captured and replayed operator gives what it gives eagerly.

`check(op)` captures the first samples of an operator and compares the replay with the eager result; `reason(op)` says
which operators cannot be captured, and why, from captured.toml: they make the host wait for data of the device, which a
capture refuses, as the card does.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from softnpu.python_versions import tomllib
from tests.opinfo.compare import (
    Pair,
    SeesRandom,
    _call,
    _equal,
    _mine,
    _same_form,
    _samples,
    tensors,
)

TABLE = Path(__file__).with_name("captured.toml")
SAMPLES = 3
SEED = 42  # the one that random operators of the database set; inside a capture only the same again is allowed
HOST_WAITS = "error code is 107027"


class Refused(Exception):
    """The operator makes the host wait inside the capture."""


def pair_of(op: OpInfo) -> Pair:
    """The operator in float32 or, if it has none, in its first dtype."""
    dtypes = op.supported_dtypes("cpu")
    return Pair(op, torch.float32 if torch.float32 in dtypes else sorted(dtypes, key=str)[0])


def operators() -> list[Pair]:
    return [pair_of(op) for op in op_db if op.supported_dtypes("cpu")]


def refusals() -> dict[str, str]:
    """Operator name -> why it cannot be captured."""
    table = tomllib.loads(TABLE.read_text("utf-8"))
    return {name: why for section in table.values() for name, why in section.items()}


def check(pair: Pair) -> int:
    """Captures up to SAMPLES calls and returns their number; raises Refused, or AssertionError at a difference."""
    count = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in _samples(pair, requires_grad=False):
            if count == SAMPLES:
                break
            _check(pair, (sample.input, sample.args, sample.kwargs), f"sample {count}")
            count += 1
    return count


def _check(pair: Pair, arguments: Any, where: str) -> None:
    torch.manual_seed(SEED)
    try:
        mine = _mine(pair, arguments)
        with SeesRandom() as mode:
            want = _call(pair, _mine(pair, arguments))
    except (AssertionError, NotImplementedError, RuntimeError):
        return  # not on this device at all: compare.py is about that
    graph = torch.npu.NPUGraph()
    torch.manual_seed(SEED)
    try:
        with torch.npu.graph(graph):
            got = _call(pair, mine)
    except RuntimeError as error:
        if HOST_WAITS in str(error):
            raise Refused(str(error).splitlines()[1]) from error
        if isinstance(error, NotImplementedError):
            raise Refused(str(error).splitlines()[0]) from error
        raise
    graph.replay()
    if any(t.device.type != "npu" for t in tensors(got)):
        return  # a view or a result of the host: nothing was captured
    if mode.found or "empty" in pair.name or not _equal(want, _call(pair, _mine(pair, arguments))):
        _same_form(got, want, where)
    else:
        assert _equal(got, want), f"{where}: the replay differs from the eager call"
