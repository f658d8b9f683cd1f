"""The graph engine's graph format, package `ge.proto`, described in Python: field numbers as upstream's ge_ir has them.

Each message is one row a field: "type name = number", `*` for repeated, `map` for a map from string to AttrDef.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_DTYPES = [
    "UNDEFINED",
    "FLOAT",
    "FLOAT16",
    "INT8",
    "UINT8",
    "INT16",
    "UINT16",
    "INT32",
    "INT64",
    "UINT32",
    "UINT64",
    "BOOL",
    "DOUBLE",
    "STRING",
    "DUAL_SUB_INT8",
    "DUAL_SUB_UINT8",
    "COMPLEX64",
    "COMPLEX128",
    "QINT8",
    "QINT16",
    "QINT32",
    "QUINT8",
    "QUINT16",
    "RESOURCE",
    "STRING_REF",
    "DUAL",
    "VARIANT",
    "BF16",
    "INT4",
    "UINT1",
    "INT2",
    "UINT2",
    "COMPLEX32",
    "HIFLOAT8",
    "FLOAT8_E5M2",
    "FLOAT8_E4M3FN",
    "FLOAT8_E8M0",
    "FLOAT6_E3M2",
    "FLOAT6_E2M3",
    "FLOAT4_E2M1",
    "FLOAT4_E1M2",
]
_LIST_KINDS = [
    "NONE",
    "STRING",
    "INT",
    "FLOAT",
    "BOOL",
    "BYTES",
    "TENSOR_DESC",
    "TENSOR",
    "GRAPH",
    "NAMED_ATTRS",
    "DATA_TYPE",
]

_MESSAGES: dict[str, str] = {
    "AttrDef.ListValue": "*bytes s = 2; *int64 i = 3; *float f = 4; *bool b = 5; *bytes bt = 7; "
    "*TensorDescriptor td = 8; *TensorDef t = 9; *GraphDef g = 10; *NamedAttrs na = 11; *int64 dt = 12; "
    "AttrDef.ListValue.ListValueType val_type = 20",
    "AttrDef.ListListInt.ListInt": "*int64 list_i = 1",
    "AttrDef.ListListInt": "*AttrDef.ListListInt.ListInt list_list_i = 1",
    "AttrDef.ListListFloat.ListFloat": "*float list_f = 1",
    "AttrDef.ListListFloat": "*AttrDef.ListListFloat.ListFloat list_list_f = 1",
    "AttrDef": "?bytes s = 2; ?int64 i = 3; ?float f = 4; ?bool b = 5; ?bytes bt = 7; ?AttrDef.ListValue list = 1; "
    "?NamedAttrs func = 10; ?TensorDescriptor td = 11; ?TensorDef t = 12; ?GraphDef g = 13; "
    "?AttrDef.ListListInt list_list_int = 14; ?int64 dt = 15; ?AttrDef.ListListFloat list_list_float = 16; "
    "?bytes expression = 17",
    "NamedAttrs": "string name = 1; map attr = 2",
    "ShapeDef": "*int64 dim = 1",
    "TensorDescriptor": "string name = 1; DataType dtype = 2; ShapeDef shape = 3; string layout = 4; map attr = 5; "
    "bool has_out_attr = 9; int64 size = 10; int64 weight_size = 11; bool reuse_input = 12; bool output_tensor = 13; "
    "string device_type = 14; bool input_tensor = 15; int64 real_dim_cnt = 16; int64 reuse_input_index = 17; "
    "int64 data_offset = 18; int64 cmps_size = 19; string cmps_tab = 20; int64 cmps_tab_offset = 21",
    "TensorDef": "TensorDescriptor desc = 1; bytes data = 2",
    "OpDef": "string name = 1; string type = 2; *string input = 5; map attr = 10; bool has_out_attr = 20; "
    "int64 id = 21; int64 stream_id = 22; *string input_name = 23; *string src_name = 24; *int64 src_index = 25; "
    "*string dst_name = 26; *int64 dst_index = 27; *int64 input_i = 28; *int64 output_i = 29; *int64 workspace = 30; "
    "*int64 workspace_bytes = 31; *bool is_input_const = 32; *TensorDescriptor input_desc = 33; "
    "*TensorDescriptor output_desc = 34; *string subgraph_name = 35",
    "GraphDef": "string name = 1; *string input = 4; *string output = 5; *OpDef op = 6; map attr = 11",
    "ModelDef": "string name = 1; uint32 version = 2; string custom_version = 3; *GraphDef graph = 7; map attr = 11",
}
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    kind: getattr(_Field, f"TYPE_{kind.upper()}")
    for kind in ("bytes", "int64", "float", "bool", "string", "uint32")
}
_ENUMS = ("DataType", "AttrDef.ListValue.ListValueType")


def _add_field(message: Any, row: str, full_name: str) -> None:
    declared, number = row.split(" = ")
    kind, name = declared.split()
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, "string key = 1", "")
        _add_field(entry, "AttrDef value = 2", "")
        kind = f"*{full_name}.{entry.name}"
    if kind[0] == "*":
        field.label = _Field.LABEL_REPEATED
    elif kind[0] == "?":
        field.oneof_index = 0
    kind = kind.lstrip("*?")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = _Field.TYPE_ENUM if kind in _ENUMS else _Field.TYPE_MESSAGE
    field.type_name = f".ge.proto.{kind}"


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="softnpu/ge_ir.proto", package="ge.proto", syntax="proto3"
    )
    enum = file.enum_type.add(name="DataType")
    for number, name in enumerate(_DTYPES):
        enum.value.add(name=f"DT_{name}", number=number)
    made: dict[str, Any] = {}
    for full_name in sorted(_MESSAGES, key=lambda one: one.count(".")):
        outer, _, name = full_name.rpartition(".")
        made[full_name] = (made[outer].nested_type if outer else file.message_type).add(name=name)
    kinds = made["AttrDef.ListValue"].enum_type.add(name="ListValueType")
    for number, name in enumerate(_LIST_KINDS):
        kinds.value.add(name=f"VT_LIST_{name}", number=number)
    made["AttrDef"].oneof_decl.add(name="value")
    for full_name, rows in _MESSAGES.items():
        for row in rows.split("; "):
            _add_field(made[full_name], row, full_name)
    return file


_pool = (
    descriptor_pool.DescriptorPool()
)  # one of our own: the real TorchAir may be imported beside it
_pool.Add(_file())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"ge.proto.{name}"))


AttrDef = _message("AttrDef")
TensorDescriptor = _message("TensorDescriptor")
TensorDef = _message("TensorDef")
OpDef = _message("OpDef")
GraphDef = _message("GraphDef")
ModelDef = _message("ModelDef")
#: name of a data type in the file -> its number there, which is not its number in torchair.ge.DataType
PROTO_DTYPES: dict[str, int] = {f"DT_{name}": number for number, name in enumerate(_DTYPES)}
