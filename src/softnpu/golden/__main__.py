"""`python -m softnpu.golden record prog.py` on a machine with a card, where only torch and torch_npu are installed."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="softnpu.golden", description="Records what operators compute; softnpu replays it."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("record", help="run a program and record its operators")
    add.add_argument("-o", "--output", default="golden", help="directory of the recording")
    add.add_argument("--ops", default="npu_*", help="patterns between commas")
    add.add_argument("--modules", action="store_true", help="record the calls of modules too")
    add.add_argument("--limit", default="4GiB", help="bytes of tensors")
    add.add_argument("--each", type=int, help="at most so many calls of one operator")
    add.add_argument("--resume", action="store_true", help="continue an earlier run")
    add.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    add.add_argument("program")
    add.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)

    from softnpu.golden._program import run_program
    from softnpu.golden._record import record

    options = {k: getattr(given, k) for k in ("ops", "modules", "limit", "each", "resume")}
    with contextlib.ExitStack() as stack:
        try:
            recorder = stack.enter_context(record(given.output, **options))
        except (FileExistsError, ValueError) as wrong:
            sys.exit(f"softnpu.golden: {wrong}")
        stack.callback(lambda: print(said(recorder, given.output), file=sys.stderr))
        run_program(given.program, given.arguments, given.module)


def said(recorder, output) -> str:  # type: ignore[no-untyped-def]
    index = recorder.writer.index
    rest = f", {index['left_out']} left out" if index["left_out"] else ""
    megabytes = recorder.writer.stored / 2**20
    return f"{output}: {len(index['calls'])} calls, {megabytes:.1f} MiB of tensors{rest}"


if __name__ == "__main__":
    main()
