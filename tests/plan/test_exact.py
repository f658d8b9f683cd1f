"""A run for shapes alone reaches the peaks of memory of the real run."""

from __future__ import annotations

import json

import pytest

from tests import forking
from tests.device.process import output


def _memory(done: forking.Done) -> dict:
    assert done.returncode == 0, done.stderr
    (line,) = [text for text in done.stdout.splitlines() if text.startswith("MEMORY ")]
    return json.loads(line.removeprefix("MEMORY "))


@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer", "moe", "graph", "decode", "llama"])
def test_peaks_are_those_of_the_real_run(tmp_path, name):
    text = f"from tests.plan import models\nmodels.report({name!r})"
    real, planned = map(_memory, forking.programs(tmp_path, text, [{"PLAN": "0"}, {"PLAN": "1"}]))
    assert planned["allocated"] == real["allocated"]
    assert planned["reserved"] == real["reserved"]


def test_a_model_that_does_not_fit_here():
    """A step of Llama 70B on one of 8 ranks: some 80 GiB of device memory, and next to nothing of the host's."""
    text = """
        import resource
        from tests.plan import models
        models.report("llama_70b")
        print("HOST", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    """
    said = output(text, PLAN="1", SOFTNPU_MEMORY="256GiB", SOFTNPU_QUIET="1").splitlines()
    memory = json.loads(next(line for line in said if line.startswith("MEMORY ")).split(" ", 1)[1])
    assert 70 * 2**30 < memory["allocated"] < 100 * 2**30
    assert int(said[-1].removeprefix("HOST ")) < 2048
