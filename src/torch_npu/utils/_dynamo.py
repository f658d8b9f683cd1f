"""Upstream's place of the function that makes the device known to dynamo."""

from __future__ import annotations

import importlib


def _dynamo_register_interface_for_device() -> None:
    """Makes `npu` known to dynamo's device interfaces; here importing them does."""
    importlib.import_module("torch._dynamo.device_interface")
