"""A run for shapes alone reaches the peaks of memory of the real run."""

from __future__ import annotations

import json

from tests import forking

def _memory(done: forking.Done) -> dict:
    assert done.returncode == 0, done.stderr
    (line,) = [text for text in done.stdout.splitlines() if text.startswith("MEMORY ")]
    return json.loads(line.removeprefix("MEMORY "))


def test_peaks_are_those_of_the_real_run(tmp_path):
    text = "from tests.plan import models\nmodels.report('llama')"
    real, planned = map(_memory, forking.programs(tmp_path, text, [{"PLAN": "0"}, {"PLAN": "1"}]))
    assert planned["allocated"] == real["allocated"]
    assert planned["reserved"] == real["reserved"]
