"""A finding in the terminal, in ten lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from softnpu.findings import Access, Finding, place

_MAX = 20  # findings that are printed


def lines(finding: Finding, number: int = 1) -> list[Text]:
    """At most ten."""
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    found = [
        Text.assemble(
            (f"softnpu sanitizer: finding {number}, {finding.title} [{finding.kind}]", "bold red"), times
        ),
        Text(f"  {finding.text}"),
    ]  # fmt: skip
    for access in finding.accesses[:2]:
        found += _access(access)
    if finding.allocated:
        size = f" ({finding.allocation_bytes} bytes)" if finding.allocation_bytes else ""
        found.append(Text(f"  allocated{size} at {place(finding.allocated)}"))
    if finding.related:
        found.append(Text(f"  {finding.related_text} at {place(finding.related)}"))
    found.append(Text.assemble(("  missing: ", "bold green"), finding.repair))
    found.append(Text(f"  what it means: docs/sanitizer/{finding.page}.md", style="dim"))
    return found


def _access(access: Access) -> list[Text]:
    graph = " in a replayed graph" if access.in_graph else ""
    tensor = f" {access.tensor}" if access.tensor else ""
    what = f"  {access.stream}: {access.operator or 'the program'}{graph} {access.does}{tensor}"
    return [Text(what, style="cyan"), Text(f"    at {place(access.stack)}")]


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """All findings on stderr."""
    console = console or Console(file=sys.stderr, soft_wrap=True)
    for number, finding in enumerate(findings[:_MAX], 1):
        for line in lines(finding, number):
            console.print(line, soft_wrap=True)
    if len(findings) > _MAX:
        console.print(f"softnpu sanitizer: {len(findings) - _MAX} findings more")
    plural = "" if len(findings) == 1 else "s"
    console.print(f"softnpu sanitizer: {len(findings)} finding{plural}")
