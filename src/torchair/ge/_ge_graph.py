"""Where graphs dumped as py, and programs for older versions of TorchAir, import parts of torchair.ge from."""

from torchair.ge._types import DataType, Format
from torchair.ge.graph import Const, Tensor, TensorSpec
from torchair.ge.graph import Graph as GeGraph
from torchair.ge.graph import current as get_default_ge_graph

__all__ = ["Const", "DataType", "Format", "GeGraph", "Tensor", "TensorSpec", "get_default_ge_graph"]
