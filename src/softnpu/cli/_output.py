"""How the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json

import click
from rich.console import Console
from rich.table import Table

GIB = 2**30
json_option = click.option("--json", "as_json", is_flag=True, help="For programs to read.")


def table(title: str, *columns: str) -> Table:
    made = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        made.add_column(column, overflow="fold", no_wrap=index == 0)
    return made


def show(made: Table) -> None:
    Console().print(made)


def show_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))
