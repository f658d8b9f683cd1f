"""examples/torchair_export.py: what is exported computes what the model does."""

from __future__ import annotations

from examples import torchair_export


def test_exported_graph_is_the_model(tmp_path):
    assert torchair_export.main(str(tmp_path / "out")) < 1e-5
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"dynamo.pbtxt", "export.air"}
