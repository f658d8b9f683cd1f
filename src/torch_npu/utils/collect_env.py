"""What is installed, for reports: `python -m torch_npu.utils.collect_env`."""

from __future__ import annotations

import torch.utils.collect_env

import torch_npu
from torch_npu.npu import utils


def get_cann_version() -> str:
    """The version of CANN that is emulated."""
    return utils.get_cann_version()


def get_torch_npu_version() -> str:
    return torch_npu.__version__


def get_pretty_env_info() -> str:
    """torch's own report with the lines of torch_npu before it."""
    lines = [
        f"Torch-npu version: {get_torch_npu_version()}",
        f"CANN version: {get_cann_version()} (emulated by softnpu)",
        f"NPU: {torch_npu.npu.device_count()} x {torch_npu.npu.get_device_name()}"
        if torch_npu.npu.is_available()
        else "NPU: none",
    ]
    return "\n".join(lines) + "\n" + torch.utils.collect_env.get_pretty_env_info()


def main() -> None:
    print(get_pretty_env_info())


if __name__ == "__main__":
    main()
