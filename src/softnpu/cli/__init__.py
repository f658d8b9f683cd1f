"""The `softnpu` command: what the device is, which chips it can be, what works, and whether this machine is fit.

The command is the top layer, so its parts import torch_npu, but only inside the commands that need it. One
module holds one command; `softnpu.run` and `softnpu.report` hold theirs. `npu-smi` is a command of its own.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from softnpu import __version__, settings
from softnpu.cli.coverage import coverage
from softnpu.cli.devices import info, list_chips
from softnpu.cli.diff import diff
from softnpu.cli.doctor import doctor
from softnpu.cli.golden import golden
from softnpu.cli.migrate_mocks import migrate_mocks
from softnpu.cli.plan import plan
from softnpu.cli.release import release
from softnpu.report import report
from softnpu.run import run

_SHELLS = ("bash", "zsh", "fish")


@click.group(
    help="softnpu: torch_npu and TorchAir without an NPU.",
    epilog="Exit codes: 0 all is well, 1 a failure (`doctor`: an unfit machine), 2 wrong usage; `run` and "
    "`plan` have the program's. `softnpu completion --help` tells how your shell completes the command.",
)
@click.version_option(__version__)
def main() -> None:
    """Wrong settings are told in one line, by every command."""
    try:
        settings.read()
    except ValueError as wrong:
        raise click.ClickException(str(wrong)) from None


@main.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """The script that makes SHELL complete this command, its options and chips.

    \b
        softnpu completion bash > ~/.local/share/bash-completion/completions/softnpu
        softnpu completion zsh  > ~/.zfunc/_softnpu
        softnpu completion fish > ~/.config/fish/completions/softnpu.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the choices above are click's
    click.echo(kind(main, {}, "softnpu", "_SOFTNPU_COMPLETE").source())


for command in (
    info,
    list_chips,
    coverage,
    doctor,
    report,
    run,
    golden,
    diff,
    migrate_mocks,
    plan,
    release,
):
    main.add_command(command)
