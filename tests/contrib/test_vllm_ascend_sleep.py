"""The library of vllm-ascend's sleep mode: whose it is."""

from __future__ import annotations

import pytest

from softnpu.contrib.vllm_ascend import sleep


@pytest.mark.parametrize("what", ["folder", "library"])
def test_a_library_that_others_could_have_written_is_not_loaded(monkeypatch, tmp_path, what):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    trusted = sleep._folder()
    assert trusted.parent == tmp_path / "softnpu" and sleep._folder() == trusted
    (trusted / "vllm_ascend_C.so").write_text("planted")
    (trusted if what == "folder" else trusted / "vllm_ascend_C.so").chmod(0o777)
    other = sleep._folder()
    assert other != trusted and not list(other.iterdir())
    other.rmdir()
