"""`vllm serve` with its arguments, where torchvision may be PyPI's build for CUDA (see vllm_generate.py)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import vllm_generate  # noqa: F401  # defines the schemas, in the processes that vLLM starts, too


def main() -> None:
    from vllm.entrypoints.cli.main import main as command

    sys.argv[0] = "vllm"
    command()


if __name__ == "__main__":
    main()
