"""Tensors in files of the safetensors format, written and read with torch alone.

A machine with a card often has no network, so a recording must not need another package. The format is an 8-byte
length, a JSON header and the bytes of the tensors; the test suite reads these files with the safetensors package.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any

import torch

#: dtypes that the format has a name for; others are stored as bytes, and the index knows their dtype
_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    **{
        getattr(torch, name): label
        for name, label in (("float8_e4m3fn", "F8_E4M3"), ("float8_e5m2", "F8_E5M2"))
        if hasattr(torch, name)
    },
}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, in the order of its elements."""
    plain = tensor.detach().as_subclass(torch.Tensor)  # numpy() takes no class of a program's
    flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
    array: Any = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return memoryview(array)


def content_hash(tensor: torch.Tensor, data: memoryview) -> str:
    """The same for tensors of the same dtype, shape and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{dtype_name(tensor.dtype)}{tuple(tensor.shape)}".encode())
    digest.update(data)
    return digest.hexdigest()


def write(path: Path, tensors: dict[str, tuple[torch.dtype, tuple[int, ...], memoryview]]) -> None:
    """Writes the file whole or not at all."""
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        known = _NAMES.get(dtype)
        header[name] = {
            "dtype": known or "U8",
            "shape": list(shape) if known else [data.nbytes],
            "data_offsets": [offset, offset + data.nbytes],
        }
        offset += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    draft = path.with_suffix(".part")
    with open(draft, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for _, _, data in tensors.values():
            file.write(data)
    draft.replace(path)


class Reader:
    """One file; its header is read once, a tensor when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        self.bytes = path.stat().st_size
        with open(path, "rb") as file:
            start = file.read(8)
            if len(start) < 8:
                raise ValueError(f"{path} is not a safetensors file: it has {len(start)} bytes")
            (length,) = struct.unpack("<Q", start)
            if length > self.bytes - 8:
                raise ValueError(f"{path} is not a safetensors file: its header has no end")
            try:
                self.header: Any = json.loads(file.read(length))
            except (ValueError, RecursionError) as wrong:
                raise ValueError(f"{path} is not a safetensors file: {wrong}") from None
        self.start = 8 + length

    def read(self, name: str, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
        try:
            first, last = self.header[name]["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{self.path} has no tensor {name}") from None
        wanted = math.prod(shape) * dtype.itemsize
        whole = all(type(one) is int for one in (first, last)) and last - first == wanted
        if not whole or not 0 <= first <= last:
            raise ValueError(f"{self.path} has no {dtype_name(dtype)}{list(shape)} of name {name}")
        if self.start + last > self.bytes:
            raise ValueError(f"{self.path} ends before the data of {name}")
        data = bytearray(wanted)
        with open(self.path, "rb") as file:
            file.seek(self.start + first)
            if file.readinto(data) != len(data):
                raise ValueError(f"{self.path} ends before the data of {name}")
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
