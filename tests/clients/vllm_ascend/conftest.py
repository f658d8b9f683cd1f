"""Without vllm there is nothing to collect: it has an environment of its own (`make clients`, docs/vllm.md)."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
