"""torch_npu as the rest of contrib calls it: operators join the package when it is imported, unseen by type checkers."""

from __future__ import annotations

from typing import Any

import torch_npu as _package

torch_npu: Any = _package
