"""What each file of csrc took to compile, from ninja's log of the last builds: `python -m tools.build_times`.

Seconds are those on the clock: a machine that does something else at the same time gives larger ones.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def times(log: Path) -> dict[str, float]:
    """Seconds by output; the last build of each counts."""
    found: dict[str, float] = {}
    for line in log.read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        start, end, _, output, _ = line.split("\t")
        name = Path(output)
        short = name.relative_to(log.parent) if name.is_absolute() else name
        found[str(short)] = (int(end) - int(start)) / 1000
    return found


def main() -> None:
    for log in sorted((ROOT / "build").glob("objects-*/.ninja_log")):
        found = times(log)
        print(f"{log.parent.name}: {len(found)} files, {sum(found.values()):.0f} s in all")
        for name, seconds in sorted(found.items(), key=lambda item: -item[1]):
            print(f"{seconds:7.1f}  {name}")


if __name__ == "__main__":
    main()
