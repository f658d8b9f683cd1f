"""Makes the `hccl` backend known to torch.distributed, and builds the gloo group under it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import ProcessGroupGloo

from softnpu import _C, chips, settings
from torch_npu._errors import ErrCode, dist_error
from torch_npu.distributed import _windows

ProcessGroupHCCL = _C.hccl.ProcessGroupHCCL

#: keys of `hccl_config` and the type that upstream asks for; everything else is refused
_CONFIG = {
    "hccl_buffer_size": int,
    "group_name": str,
    "qos_traffic_class": int,
    "qos_service_level": int,
    "hccl_sdma_qos": int,
    "hccl_op_expansion_mode": int,
    "hccl_world_rank_id": int,
    "hccl_job_id": int,
    "hccl_exec_timeout": int,
    "hccl_algo": str,
    "hccl_retry_enable": str,
    "hccl_retry_params": str,
    "hccl_buffer_name": str,
}
_INT32_MAX = 2**31 - 1


def register() -> None:
    """`init_process_group("hccl")`; npu tensors of a group without a backend name use it too."""
    codes = {code.code: code for code in ErrCode}
    _C.hccl.install(_connect, lambda code: dist_error(codes[code]))
    _windows.install(ProcessGroupHCCL)
    dist.Backend.register_backend("hccl", _create, extended_api=True, devices=["npu"])


def _create(given: Any, options: Any) -> Any:
    """What c10d calls for a new group: `given` says who takes part, `options` is the user's, or None."""
    if options is None:
        options = ProcessGroupHCCL.Options()
    elif not isinstance(options, ProcessGroupHCCL.Options):
        raise TypeError(
            "hccl: pg_options must be ProcessGroupHCCL.Options, but received "
            f"{type(options).__name__}." + dist_error(ErrCode.TYPE)
        )
    check_config(options.hccl_config)
    options.group_id = options.group_id or given.group_id
    options.global_ranks_in_group = given.global_ranks_in_group
    options._timeout = given.timeout
    options._strict = settings.strict()
    options._wide_types = chips.current().family == "A5"
    return ProcessGroupHCCL(given.store, given.group_rank, given.group_size, options)


def check_config(config: Mapping[str, Any]) -> None:
    """Names and types of `Options.hccl_config`."""
    for key, value in config.items():
        wanted = _CONFIG.get(key)
        if wanted is None:
            raise RuntimeError(
                f"hccl_config has no key '{key}'; it knows {', '.join(sorted(_CONFIG))}."
                + dist_error(ErrCode.PARAM)
            )
        if not isinstance(value, wanted) or isinstance(value, bool):
            name = "int" if wanted is int else "string"
            raise RuntimeError(
                f"Value type of {key} should be {name}. Received: {type(value).__name__}."
                + dist_error(ErrCode.TYPE)
            )
    if config.get("hccl_exec_timeout", 0) > _INT32_MAX:
        raise RuntimeError(
            f"Value type of hccl_exec_timeout exceeds INT32_MAX({_INT32_MAX})."
            + dist_error(ErrCode.TYPE)
        )


def _connect(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """The gloo group that carries the data, on the interface that HCCL's variables or gloo's own name."""
    options = ProcessGroupGloo._Options()
    options._devices = [_device()]
    options._timeout = timeout
    options._threads = 2
    try:
        group = ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise dist.DistBackendError(
            f"HCCL: rank {rank} could not connect to the other {size - 1} ranks of the group: {error}."
            + dist_error(ErrCode.HCCL)
        ) from error
    group._set_sequence_number_for_group()
    return group


def _device() -> Any:
    address = os.environ.get("HCCL_IF_IP")
    if address:
        return _named_device("HCCL_IF_IP", "an address of this machine", hostname=address)
    interface = os.environ.get("HCCL_SOCKET_IFNAME", "").split(",")[0].lstrip("=^")
    if interface and not os.environ["HCCL_SOCKET_IFNAME"].startswith("^"):
        wanted = "an interface of this machine with an address"
        return _named_device("HCCL_SOCKET_IFNAME", wanted, interface=interface)
    return ProcessGroupGloo.create_default_device()


def _named_device(variable: str, wanted: str, **where: str) -> Any:
    """gloo's own errors name neither the variable nor the value."""
    try:
        return ProcessGroupGloo.create_device(**where)
    except (RuntimeError, TypeError) as error:  # TypeError: text that is no UTF-8
        raise dist.DistBackendError(
            f"HCCL: {variable} must be {wanted}, but is {os.environ[variable][:200]!r}."
            + dist_error(ErrCode.PARAM)
        ) from error
