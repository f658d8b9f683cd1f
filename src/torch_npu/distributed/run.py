"""torch_npu.distributed.run: the launcher, with upstream's extra parameter; `torchrun` does the same."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from torch.distributed import run as _torch_run
from torch.distributed.argparse_util import env
from torch.distributed.elastic.multiprocessing.errors import record

from torch_npu._errors import ErrCode, dist_error

__all__ = ["parse_args"]


def parse_args(args: Sequence[str] | None) -> argparse.Namespace:
    """The launcher's arguments."""
    parser = _torch_run.get_args_parser()
    parser.add_argument(
        "--enable_tiered_parallel_tcpstore",
        action=env,
        type=str,
        default="false",
        help="a store with a proxy on each node; not available here, so only 'false' is accepted",
    )
    return parser.parse_args(args)


@record
def _main(args: Sequence[str] | None = None) -> None:
    chosen = parse_args(args)
    if chosen.enable_tiered_parallel_tcpstore.lower() != "false":
        raise NotImplementedError(
            "the parameter 'enable_tiered_parallel_tcpstore' is not supported."
            + dist_error(ErrCode.NOT_SUPPORT)
        )
    _torch_run.run(chosen)


if __name__ == "__main__":
    _main()
