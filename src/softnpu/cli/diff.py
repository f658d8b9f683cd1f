"""`softnpu diff`: where two runs of a program part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from softnpu.cli import _output
from softnpu.cli.golden import tolerance_options


@click.command()
@click.argument("run_a", type=click.Path(exists=True, path_type=Path))
@click.argument("run_b", type=click.Path(exists=True, path_type=Path))
@tolerance_options
@_output.json_option
def diff(
    run_a: Path, run_b: Path, rtol: float | None, atol: float | None, share: float | None, as_json: bool
) -> None:  # fmt: skip
    """The first operator of RUN_B whose output differs from RUN_A's though its inputs agree.

    Both are recordings of one program (`softnpu golden record --ops '*'`): eager and compiled, fp32 and bf16, two
    versions, npu and cpu; or dumps of msprobe. The exit code is 1 where they differ.
    """
    from softnpu.golden import _compare, _diff

    try:
        found = _diff.diff(run_a, run_b, tolerance=_compare.Tolerance(rtol, atol, share))
    except ValueError as wrong:
        raise click.ClickException(str(wrong)) from None
    if as_json:
        _output.show_json(found.as_json())
    else:
        _show(found)
    sys.exit(0 if found.alike else 1)


def _show(found: Any) -> None:
    click.echo(f"{found.compared} calls compared, outputs of {found.differing} differ")
    for side, counts in (("a", found.only_a), ("b", found.only_b)):
        if counts:
            names = ", ".join(f"{name} ({n})" for name, n in counts.most_common(5))
            click.echo(f"only in {side}: {sum(counts.values())} calls: {names}")
    if found.attributes is not None:
        click.echo("first call with other attributes:")
        _pair(found.attributes)
    if found.first is not None:
        click.echo("first operator whose output differs though its inputs agree:")
        _pair(found.first)
    elif found.differing:
        click.echo(
            "no operator differs with inputs that agree: the runs start from different values"
        )


def _pair(pair: Any) -> None:
    call = pair.b
    click.echo(
        f"  operator  {call.get('name') or call['op']} (call {call['seq']}, {call['phase']})"
    )
    if pair.process:
        click.echo(f"  process   {pair.process}")
    click.echo(f"  module    {call['module'] or 'none'}")
    source = call["source"]
    if source:
        click.echo(f"  source    {source['file']}:{source['line']} in {source['function']}")
        click.echo(f"            {source['text']}")
    for text in pair.attributes:
        click.echo(f"  {text}")
    for name, d in pair.outputs:
        if not d.bitwise:
            what = d.mismatch or (
                f"max abs {d.max_abs:.3g}, max rel {d.max_rel:.3g}, {d.max_ulp:.0f} ULPs, cosine {d.cosine:.6f}, "
                f"{100 * d.share:.3g} % beyond tolerance"
            )
            click.echo(f"  {name}: {what}")
            for worst in d.worst[:3]:
                click.echo(f"    {worst['index']}: {worst['golden']} in a, {worst['here']} in b")
