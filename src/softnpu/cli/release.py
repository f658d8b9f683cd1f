"""`softnpu release`: which release of torch_npu this installation states."""

from __future__ import annotations

import click

from softnpu import torch_versions


@click.command()
@click.argument("version", required=False)
def release(version: str | None) -> None:
    """Shows the release of torch_npu that the metadata state, or sets it to VERSION.

    \b
        softnpu release 2.10.0.post4    # meets the pin torch-npu==2.10.0.post4
        softnpu release 2.10.0          # as installed
    """
    if version is not None:
        try:
            torch_versions.state_release(version)
        except (ValueError, OSError) as wrong:
            raise click.ClickException(str(wrong)) from None
    found = torch_versions.described()
    if found is None:
        raise click.ClickException("no description of torch_npu by softnpu is installed")
    click.echo(
        f"torch_npu {found.version}, CANN {torch_versions.cann(torch_versions.plain(found.version))}"
    )
