"""The tensors of a call's arguments, and whether the call wrote where it may not."""

from __future__ import annotations

from typing import Any

import torch

from tests.fuzz.kinds import plain

_MAX_BYTES = 1 << 20
#: operators that write arguments which upstream's schema does not declare, or memory whatever its strides
_UNDECLARED = (
    "npu_apply_rotary_pos_emb", "npu_kv_rmsnorm_rope_cache", "npu_mla_prolog", "npu_mla_prolog_v2", "copy_memory_",
    "_npu_group_topk", "npu_rope_quant_kvcache", "npu_dequant_rope_quant_kvcache",
)  # fmt: skip


def mapped(value: Any, function: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(one, function) for one in value)
    if isinstance(value, dict):
        return {key: mapped(one, function) for key, one in value.items()}
    return value


def tensors(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    mapped(value, found.append)
    return found


def device_types(value: Any) -> set[str]:
    """Of the tensors, and of devices that are arguments themselves."""
    if isinstance(value, torch.Tensor):
        return {value.device.type}
    if isinstance(value, torch.device):
        return {value.type}
    if isinstance(value, dict):
        value = list(value.values())
    return set().union(*map(device_types, value)) if isinstance(value, (list, tuple)) else set()


def flat(arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    pairs = [(f"args[{i}]", value) for i, value in enumerate(arguments["args"])]
    return pairs + list(arguments["kwargs"].items())


def storages(arguments: dict[str, Any]) -> dict[int, tuple[torch.UntypedStorage, torch.Tensor]]:
    """Each storage of the arguments with a copy of its bytes. By identity: the address of an out argument may change."""
    found = {}
    for tensor in tensors(arguments):
        if not plain(tensor):
            continue
        storage = tensor.untyped_storage()
        if 0 < storage.nbytes() <= _MAX_BYTES and storage._cdata not in found:
            found[storage._cdata] = (storage, _bytes(storage))
    return found


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage).cpu().clone()


def changed_outside(before: dict[int, Any], arguments: dict[str, Any], schema: Any) -> str | None:
    """Which argument was written to though the schema does not say so, or beside its elements."""
    if not before or schema is None or schema.name.split("::")[-1] in _UNDECLARED:
        return None
    written = _written(arguments, schema)
    for which, (storage, old) in before.items():
        targets = [t for t in written if t.untyped_storage()._cdata == which]
        if storage.nbytes() != old.numel():
            if targets:  # an out argument
                continue
            names = [path for path, value in flat(arguments) if _holds(value, which)]
            return f"{', '.join(names)}: has {storage.nbytes()} bytes now, not {old.numel()}"
        changed = (_bytes(storage) != old).nonzero().flatten()
        if not changed.numel():
            continue
        allowed = torch.zeros(storage.nbytes(), dtype=torch.bool)
        for tensor in targets:
            size = tensor.element_size()
            elements = torch.arange(storage.nbytes() // size)
            chosen = elements.as_strided(
                tensor.shape, tensor.stride(), tensor.storage_offset()
            ).flatten()
            for byte in range(size):
                allowed[chosen * size + byte] = True
        outside = changed[~allowed[changed]]
        if outside.numel():
            names = [path for path, value in flat(arguments) if _holds(value, which)]
            return f"{', '.join(names)}: {outside.numel()} bytes were changed that the call may not write"
    return None


def _holds(value: Any, which: int) -> bool:
    return any(plain(t) and t.untyped_storage()._cdata == which for t in tensors(value))


def _written(arguments: dict[str, Any], schema: Any) -> list[torch.Tensor]:
    found = []
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = arguments["args"]
            value = given[index] if index < len(given) else arguments["kwargs"].get(argument.name)
            found += [t for t in tensors(value) if plain(t)]
    return found
