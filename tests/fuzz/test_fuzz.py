"""A sample of the fuzzer, with fixed seeds, and the fuzzer itself: that it sees what it looks for."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
import torch

from tests import ROOT
from tests.fuzz import kinds, mutations
from tests.fuzz.calls import Call, Outcome, _judge_error, _on_host
from tests.fuzz.mutations import Mutation

#: at most, for each of the five samples
SECONDS = 40
#: of each kind
CALLS = {"npu": 15000, "torch": 8000, "aten": 5000, "api": 6000}


@pytest.mark.parametrize("what", list(CALLS))
def test_a_sample(what):
    """For a while; findings are printed as programs."""
    command = [sys.executable, "-m", "tests.fuzz", "--what", what, "--seed", "18", "--workers", "1"]
    command += ["--calls", str(CALLS[what]), "--seconds", str(SECONDS)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert " 0 findings" in run.stdout and "on guard pages" in run.stdout


def test_a_sample_of_a_sweep():
    command = [sys.executable, "-m", "tests.fuzz", "--what", "npu", "--sweep", "index"]
    command += ["--calls", "4000", "--seed", "18", "--workers", "1", "--seconds", str(SECONDS)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    assert " 0 findings" in run.stdout and "on guard pages" in run.stdout


def test_a_sweep_meets_every_index():
    from tests.fuzz import sweep

    name = "npu.npu_lightning_indexer"
    found = sweep.calls("index", [name], 0)
    spoiled = {(c.sample, c.mutations[-1].where) for c in found}
    lengths = "kwargs.actual_seq_lengths_query"
    assert (1, lengths) in spoiled and (1, "kwargs.block_table") in spoiled
    assert {c.strict for c in found} == {0, 1} and found != sweep.calls("index", [name], 1)
    assert not sweep.calls("index", ["npu.npu_swiglu"], 0)  # it has no index


def test_every_overload_of_ours_is_called():
    from tests.fuzz import targets
    from torch_npu.ops._registry import operators

    names = set(targets.ours())
    assert {f"npu.{name}" for name in operators} <= names
    assert {"npu.npu_conv2d.out", "npu.npu_format_cast.Tensor"} <= names
    written = targets.named("npu.npu_conv2d.out").build(0)["kwargs"]["out"]
    assert isinstance(written, torch.Tensor)
    assert "out" not in targets.on_host("npu.npu_conv2d.out", 0)["kwargs"]


def test_seeds_reproduce():
    names = ["npu.npu_rms_norm", "npu.npu_swiglu", "npu.npu_quantize"]
    one, two = ([Call.drawn(7, index, names) for index in range(30)] for _ in range(2))
    assert one == two and len({call.mutations for call in one}) > 10
    assert Call.drawn(8, 0, names) != one[0] or Call.drawn(8, 1, names) != one[1]


GUARDED = """
import ctypes, sys, torch, torch_npu
from tests.fuzz.guard import Guard, compile_guard
guard = Guard(compile_guard(), 1 << 20)
x = torch.ones(100, dtype=torch.uint8, device="npu")
ctypes.memset(x.data_ptr() + {offset}, 7, 1)
del x
print("damaged", guard.damaged())
"""


@pytest.mark.parametrize(
    ("offset", "seen"),
    [(99, "damaged 0"), (100, "damaged 1"), (-1, "damaged 1"), (130, "crash"), (-5000, "crash")],
)
def test_writes_outside_are_seen(offset, seen):
    run = subprocess.run(
        [sys.executable, "-c", GUARDED.format(offset=offset)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (seen in run.stdout) if seen != "crash" else run.returncode == -11, run.stderr


FINDER = """
import ctypes, os, torch, torch_npu, time
from tests.fuzz import isolate, run, targets
from tests.fuzz.guard import compile_guard
run.prepare()

def broken(x, kind):
    if kind == "crash": ctypes.string_at(0)
    if kind == "hang": time.sleep(1000)
    if kind == "write": ctypes.memset(x.data_ptr() + x.nbytes, 7, 1)
    if kind == "internal": raise RuntimeError("x INTERNAL ASSERT FAILED")
    if kind == "refused": raise RuntimeError("x must be positive")
    return x

kinds = ["crash", "hang", "write", "internal", "refused", "ok"]
made = {f"npu.{kind}": targets.Target(f"npu.{kind}", broken, None, 1,
        lambda index, kind=kind: {"args": [torch.ones(3, device="npu"), kind], "kwargs": {}}) for kind in kinds}
targets.KINDS["npu"] = lambda: made
plan = run.Plan(0, 60, 60, 2, list(made), patience=1.0, guard=compile_guard())
run.Call.drawn = classmethod(lambda cls, seed, index, names: cls(names[index % len(names)]))
plan.calls = 12
result = plan.run()
for finding in result.findings.values():
    assert isolate.judged_apart(finding.call, plan.guard, 1.0).kind == finding.outcome.kind
print(result.calls, sorted((f.outcome.kind, f.call.target, f.times) for f in result.findings.values()))
"""


def test_crashes_hangs_writes_and_internal_errors_are_found():
    run = subprocess.run(
        [sys.executable, "-c", FINDER], capture_output=True, text=True, cwd=ROOT, check=False
    )
    expected = [(kind, f"npu.{kind}", 2) for kind in ("crash", "hang", "internal", "write")]
    assert run.stdout.strip() == f"12 {expected}", run.stderr


def test_writes_to_arguments_that_the_schema_protects(monkeypatch):
    from tests.fuzz import targets

    target = targets.ours()["npu.npu_rms_norm"]

    def bad(x, gamma, **kwargs):
        ctypes.memset(gamma.data_ptr(), 0, 4)
        return x

    monkeypatch.setitem(targets.ours(), target.name, target._replace(function=bad))
    outcome = Call(target.name).judged()
    assert outcome.kind == "write" and "args[1]: " in outcome.message


def test_modes_that_a_call_leaves_changed(monkeypatch):
    from tests.fuzz import targets

    target = targets.ours()["npu.npu_rms_norm"]

    def bad(*args, **kwargs):
        torch.set_grad_enabled(False)

    monkeypatch.setitem(targets.ours(), target.name, target._replace(function=bad))
    try:
        assert Call(target.name).judged().kind == "state"
    finally:
        torch.set_grad_enabled(True)


def test_modes_do_not_come_back_with_the_frames_of_an_error(monkeypatch):
    from tests.fuzz import targets

    target = targets.ours()["npu.npu_rms_norm"]

    def refused(*args, **kwargs):
        guard = torch._C._DisableFuncTorch()  # as PyTorch's printing of tensors has it
        raise RuntimeError(f"no {guard}")

    monkeypatch.setitem(targets.ours(), target.name, target._replace(function=refused))
    assert Call(target.name, mode="inference").judged().kind == "refused"
    assert Call(target.name, mode="autocast").judged().kind == "refused"


@pytest.mark.filterwarnings("ignore")
def test_tensors_with_bits_have_them_on_the_cpu_too():
    kinds_of = {"negated": "is_neg", "quantized": "is_quantized"}
    for kind, holds in kinds_of.items():
        call = Call("aten.neg.default", mutations=(Mutation("args.0", "kind", kind),)).on_cpu()
        x = call.arguments()["args"][0]
        found = getattr(x, holds)
        assert x.device.type == "cpu" and (found() if callable(found) else found)


def test_what_is_internal():
    assert _judge_error(RuntimeError("x INTERNAL ASSERT FAILED at y"), 0).kind == "internal"
    assert _judge_error(RuntimeError("npu_x: argument 'k' must be positive"), 1).kind == "refused"
    assert not Outcome("refused").found and Outcome("hang").found


@pytest.mark.parametrize(
    "kind", ["dtype", "shape", "stride", "device", "values", "alias", "none", "storage"]
)
def test_mutations_change_something(kind):
    import random

    seen = set()
    for number in range(400):
        arguments = {
            "args": [torch.ones(4, 6, device="npu"), torch.zeros(4, 6, device="npu")],
            "kwargs": {},
        }
        mutation = mutations.choose(random.Random(number), arguments)
        if mutation is not None and mutation.kind == kind:
            mutations.apply(arguments, mutation)
            changed = arguments["args"][int(mutation.where[-1])]
            seen.add(
                None if changed is None
                else (changed.dtype, changed.shape, changed.stride(), changed.device.type, changed.data_ptr())
            )  # fmt: skip
    assert seen, f"{kind} was never chosen"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(kinds.KINDS))
def test_odd_tensors_are_odd(name):
    arguments = {"args": [torch.ones(4, 6, device="npu")], "kwargs": {}}
    mutations.apply(arguments, Mutation("args.0", "kind", name))
    made = arguments["args"][0]
    marked = made.is_neg() or made.is_conj() or made.is_inference() or made.requires_grad
    assert (
        marked or made.dim() in (0, 25, 65) or not kinds.plain(made) or type(made) is kinds.Subclass
    )
    assert {"sparse": torch.sparse_coo, "sparse rows": torch.sparse_csr}.get(
        name, made.layout
    ) == made.layout


@pytest.mark.filterwarnings("ignore")
def test_mutations_that_an_odd_tensor_refuses_are_left_out():
    chosen = (
        Mutation("args.0", "kind", "jagged"),
        Mutation("args.0", "stride", ("overlapping", 0)),
        Mutation("args.1", "kind", "fake"),
        Mutation("args.1", "values", ("-inf", 1)),
    )
    made = Call("npu.npu_rms_norm", mutations=chosen).made()
    assert [one.kind for one in made.mutations] == ["kind", "kind"]


def test_storages_that_were_cut_are_so_on_the_cpu_too():
    x = mutations._storage(torch.ones(4, 6, device="npu"), "cut", "npu")
    host = _on_host(x)
    assert (
        host.shape == x.shape
        and host.untyped_storage().nbytes() == x.untyped_storage().nbytes() == 48
    )


def test_a_mutation_of_what_is_gone_is_none():
    arguments = {"args": [[]], "kwargs": {}}
    for where in ("args.0.3", "args.7", "kwargs.x", "args.0.0.1"):
        mutations.apply(arguments, Mutation(where, "value", 1))
    assert arguments == {"args": [[]], "kwargs": {}}
