"""One process of `make opinfo`: compares its share of the pairs and reports each through a queue."""

from __future__ import annotations

import os
from typing import Any


def work(keys: list[str], results: Any) -> None:
    os.environ["SOFTNPU_QUIET"] = "1"
    import torch

    torch.set_num_threads(1)
    from tests.opinfo.compare import Unsupported, check, pairs

    wanted = set(keys)
    for pair in pairs():
        if pair.key not in wanted:
            continue
        results.put((pair.key, "started", ""))
        try:
            check(pair)
            outcome = ("equal", "")
        except Unsupported as error:
            outcome = ("unsupported", str(error).split("\n")[0][:200])
        except Exception as error:  # the table is the place where a difference shows
            outcome = ("differs", f"{type(error).__name__}: {error}"[:600])
        results.put((pair.key, *outcome))
