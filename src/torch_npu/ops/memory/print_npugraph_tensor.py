"""print_npugraph_tensor: torch.npu's own, which upstream exports beside the operators, too."""

from __future__ import annotations

from torch_npu.npu._graph_debug import print_npugraph_tensor
from torch_npu.ops._registry import public

public(print_npugraph_tensor)
