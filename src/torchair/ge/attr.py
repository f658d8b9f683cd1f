"""torchair.ge.attr: the types of operators' attributes, each a function of its value; mirrors upstream's module."""

from __future__ import annotations

from typing import Any

from torchair.ge.ir import AttrDef

__all__ = [
    "Bool",
    "DataType",
    "Float",
    "Int",
    "ListBool",
    "ListDataType",
    "ListFloat",
    "ListInt",
    "ListListFloat",
    "ListListInt",
    "ListStr",
    "Str",
]


class _Attr:
    """One value with its type; `_AttrType` makes them."""

    def __init__(self, kind: _AttrType, value: Any):
        self.kind, self.value = kind, value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Attr) and (self.kind, self.value) == (other.kind, other.value)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ge.attr.{self.kind.name}({self.value!r})"

    def merge_to(self, target: Any) -> None:
        """Writes the value into an AttrDef."""
        self.kind.write(target, self.value)


class _AttrType:
    """A type of attributes: `field` of AttrDef, in `list` if `list_kind` is its number there."""

    def __init__(self, name: str, field: str, list_kind: int | None = None):
        self.name, self.field, self.list_kind = name, field, list_kind

    def __call__(self, value: Any) -> _Attr:
        if isinstance(value, _Attr):
            if value.kind is not self:
                raise AssertionError(f"expected ge.attr.{self.name}, received {value!r}")
            return value
        if value is None:
            raise AssertionError(f"ge.attr.{self.name}: expected a value, received None")
        if self.list_kind is not None and not isinstance(value, (list, tuple)):
            raise AssertionError(f"ge.attr.{self.name}: expected a list, received {value!r}")
        made = _Attr(self, value)
        made.merge_to(AttrDef())  # a value of another type is an error here, not where it is used
        return made

    def __repr__(self) -> str:
        return f"ge.attr.{self.name}"

    def write(self, target: Any, value: Any) -> None:
        if self.list_kind is not None:
            values = [v.encode() for v in value] if self.field == "s" else value
            target.list.val_type = self.list_kind
            getattr(target.list, self.field).extend(values)
        elif self.field.startswith("list_list"):
            target.ClearField("value")
            outer = getattr(target, self.field)
            outer.SetInParent()
            inner = "f" if self.field.endswith("float") else "i"
            for row in value:
                getattr(getattr(outer, f"list_list_{inner}").add(), f"list_{inner}").extend(row)
        else:
            setattr(target, self.field, value.encode() if self.field == "s" else value)


Int = _AttrType("Int", "i")
Float = _AttrType("Float", "f")
Bool = _AttrType("Bool", "b")
Str = _AttrType("Str", "s")
DataType = _AttrType("DataType", "dt")
ListStr = _AttrType("ListStr", "s", 1)
ListInt = _AttrType("ListInt", "i", 2)
ListFloat = _AttrType("ListFloat", "f", 3)
ListBool = _AttrType("ListBool", "b", 4)
ListDataType = _AttrType("ListDataType", "dt", 10)
ListListInt = _AttrType("ListListInt", "list_list_int")
ListListFloat = _AttrType("ListListFloat", "list_list_float")

_KINDS = (Int, Float, Bool, Str, DataType)
_LISTS = {kind.list_kind: kind for kind in (ListStr, ListInt, ListFloat, ListBool, ListDataType)}


def read(stored: Any) -> _Attr | None:
    """The attribute that an AttrDef holds; None for what has no type here (tensors, graphs)."""
    field = stored.WhichOneof("value")
    for kind in _KINDS:
        if kind.field == field:
            value = getattr(stored, field)
            return kind(value.decode() if field == "s" else value)
    if field == "list" and stored.list.val_type in _LISTS:
        kind = _LISTS[stored.list.val_type]
        values = list(getattr(stored.list, kind.field))
        return kind([v.decode() for v in values] if kind is ListStr else values)
    if field == "list_list_int":
        return ListListInt([list(row.list_i) for row in stored.list_list_int.list_list_i])
    if field == "list_list_float":
        return ListListFloat([list(row.list_f) for row in stored.list_list_float.list_list_f])
    return None
