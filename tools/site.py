"""Hooks of mkdocs: pages that live at the root of the tree join the site, and links follow them.

The pages are written to be read in the repository, where a link may lead to any file. In the site a link to another
page leads there; one to a source file becomes its text. Pages of the list of contents that do not exist are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
#: pages from outside docs/, and what they are called in the site
GUESTS = {
    "README.md": "index.md",
    "README.zh.md": "zh.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_config(config: Any, **_: Any) -> Any:
    config["nav"] = [_existing(entry) for entry in config["nav"]]
    return config


def _existing(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry of the list of contents without the pages that nobody has written yet."""
    ((title, target),) = entry.items()
    if isinstance(target, str):
        return entry
    there = [
        e
        for e in target
        for name in e.values()
        if (ROOT / "docs" / name).exists() or name in GUESTS.values()
    ]
    return {title: there}


def on_files(files: Files, config: Any, **_: Any) -> Files:
    for source, name in GUESTS.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return rewrite(markdown, page.file.src_uri)


def rewrite(markdown: str, name: str) -> str:
    """The links of a page of the site, whose source may lie elsewhere in the repository."""
    origin = {site: source for source, site in GUESTS.items()}.get(name, f"docs/{name}")

    def follow(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target:
            return match[0]
        there = os.path.normpath(PurePosixPath(origin).parent / target)
        if there in GUESTS:
            inside = GUESTS[there]
        elif there == "docs/ops":
            inside = "ops/README.md"
        elif there.startswith("docs/") and (ROOT / there).is_file():
            inside = there.removeprefix("docs/")
        else:
            return text if text.startswith("`") else f"`{text}`"
        return f"[{text}]({os.path.relpath(inside, PurePosixPath(name).parent)}{anchor})"

    return _LINK.sub(follow, markdown)
