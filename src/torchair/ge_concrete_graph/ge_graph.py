"""Old name of torchair.ge._ge_graph."""

from torchair.ge._ge_graph import (
    Const,
    DataType,
    Format,
    GeGraph,
    Tensor,
    TensorSpec,
    auto_convert_to_tensor,
    compat_as_bytes,
    compat_as_bytes_list,
    get_default_ge_graph,
    get_invalid_desc,
    next_unique_name,
    torch_type_to_ge_type,
)

__all__ = [
    "Const",
    "DataType",
    "Format",
    "GeGraph",
    "Tensor",
    "TensorSpec",
    "auto_convert_to_tensor",
    "compat_as_bytes",
    "compat_as_bytes_list",
    "get_default_ge_graph",
    "get_invalid_desc",
    "next_unique_name",
    "torch_type_to_ge_type",
]
