"""Old name of torchair._ge_concrete_graph.supported_declaration."""

from torchair._ge_concrete_graph.supported_declaration import (
    BF16,
    BOOL,
    C64,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    Support,
    T,
)  # fmt: skip

__all__ = [
    "BF16", "BOOL", "C64", "F16", "F32", "F64", "I8", "I16", "I32", "I64", "Support", "T", "U8",
]  # fmt: skip
