"""docs/ops/<name>.md: one page an operator, from its docstring, its schema and its samples.

  python -m tools.opdocs [--only TEXT]

The example of a page is executed while the page is made: the shapes and dtypes it states were seen. The accuracy is
the largest error on the samples against the operator's own formula in fp64 (tests/ops compare that formula with
independent references).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch
from torch.utils._pytree import tree_flatten, tree_map_only

import torch_npu  # noqa: F401  (registers the operators)
from softnpu import _C, chips, settings
from tools import coverage
from tools.examples import call, literal, statement
from tools.signatures import parse
from torch_npu.ops._operator import Operator, Sample
from torch_npu.ops._registry import operators

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "ops"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SECTIONS = {"Args": "Arguments", "Returns": "Results"}
#: what an operator may raise for a dtype that it does not take, with its constraints switched off
_REFUSED = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def make(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    low: float = -1,
    high: float = 1,
    requires_grad: bool = False,
    seed: int | None = None,
) -> torch.Tensor:
    """The builder that samples expect, with numbers that depend on the shape (or the seed) alone."""
    source = torch.Generator().manual_seed(sum(shape) + len(shape) if seed is None else seed)
    if dtype == torch.bool:
        value = torch.randint(0, 2, shape, generator=source).bool()
    elif not dtype.is_floating_point and not dtype.is_complex:
        value = torch.randint(int(low), int(high), shape, generator=source).to(dtype)
    else:
        value = (torch.rand(shape, generator=source) * (high - low) + low).to(dtype)
    return value.to("npu").requires_grad_(requires_grad)


def families() -> dict[str, list[Operator]]:
    """Page name -> its overloads, in the order of their definition."""
    pages: dict[str, list[Operator]] = {}
    for operator in operators.values():
        pages.setdefault(operator.base, []).append(operator)
    return dict(sorted(pages.items()))


# --- a page ---------------------------------------------------------------------------------------------


def render(name: str, overloads: list[Operator], accuracy: bool = True) -> str:
    first = overloads[0]
    lines = [f"# {name}", "", *_docstring(first)]
    for other in overloads[1:]:
        if other.__doc__ != first.__doc__:
            lines += [f"## Overload {other.name.partition('.')[2]}", "", *_docstring(other, "###")]
    lines += ["## Schema", "", "```", *_schemas(overloads), "```", ""]
    lines += _example(name, overloads)
    if accuracy:
        lines += _accuracy(overloads)
    lines += _links(first)
    return "\n".join(lines) + "\n"


def _schemas(overloads: list[Operator]) -> list[str]:
    """The schemas that are registered, in upstream's words."""
    have = {str(o.schema) for o in operators.values()}
    name = overloads[0].name.split(".")[0]  # with the namespace, where it is not npu
    return [s for s in coverage.schemas()[name] if str(parse(s)) in have]


def _docstring(operator: Operator, level: str = "##") -> list[str]:
    """The docstring with its sections as headings and their entries as lists."""
    text = inspect.cleandoc(operator.__doc__ or "")
    lines, section = [], ""
    for line in text.splitlines():
        heading = re.fullmatch(r"([A-Z][A-Za-z ]*):(?: (.*))?", line)
        if heading and (
            heading[1] in SECTIONS or heading[1] in ("Constraints", "Differs from upstream")
        ):
            section = heading[1]
            lines += [
                "" if lines and lines[-1] else None,
                f"{level} {SECTIONS.get(section, section)}",
                "",
            ]
            lines += [heading[2][0].upper() + heading[2][1:]] if heading[2] else []
        elif section and not line.startswith(" ") and line and section != "Differs from upstream":
            section = ""
            lines.append(line)
        else:
            lines.append(_entry(line) if section == "Args" else re.sub(r"^    ", "", line))
    return [x for x in lines if x is not None] + [""]


def _entry(line: str) -> str:
    """`    x, y: text` as a list entry; continuation lines stay with it."""
    found = re.match(r"    ([\w, ]+): (.*)", line)
    if not found or line.startswith("     "):
        return re.sub(r"^      ", "", line)
    names = ", ".join(f"`{n.strip()}`" for n in found[1].split(","))
    return f"- {names}: {found[2]}"


def examples(name: str, overloads: list[Operator]) -> Iterator[tuple[str, Operator]]:
    """The samples as programs whose last line is the call, the best to show first."""
    for operator in overloads:
        for sample in operator.samples:
            args, kwargs = sample.inputs(make)
            lines, words = ["import torch", "import torch_npu", ""], []
            for argument, value in zip(operator.schema.arguments, args, strict=False):
                words.append(_argument(argument.name, value, lines))
            words += [f"{k}={_argument(k, v, lines)}" for k, v in kwargs.items()]
            space = "torch_npu" if operator.exported else f"torch.ops.{operator.namespace}"
            call = statement("result", f"{space}.{name}(", words, ")")
            yield "\n".join([*lines, call]), operator


def _argument(name: str, value: Any, lines: list[str]) -> str:
    """The text that stands for a value in the call; tensors get a line and a variable of their own."""
    has_tensor = any(isinstance(v, torch.Tensor) for v in tree_flatten(value)[0])
    if not has_tensor:
        return literal(value)
    if isinstance(value, (list, tuple)):
        lines.append(statement(name, "[", [literal(v) for v in value], "]"))
    else:
        lines.append(call(name, literal(value)))
    return name


def _example(name: str, overloads: list[Operator]) -> list[str]:
    if overloads[0].folder == "comm":
        return [
            "## Example",
            "",
            "It takes several ranks: see [distributed.md](../distributed.md).",
            "",
        ]
    for code, operator in examples(name, overloads):
        try:
            with operator.on_its_chip():
                result = run(code)
            break
        except _REFUSED:  # a tensor of numbers in order cannot show it: a mask, indices
            continue
    else:
        return []
    several = isinstance(result, (tuple, list))
    values = list(result) if several else [result]
    declared = [r.name for r in operator.schema.returns]
    if len(declared) != len(values):  # one list of results
        declared = [""] * len(values)
    names = [n or (f"result[{i}]" if several else "result") for i, n in enumerate(declared)]
    lines = ["## Example", "", *_chip(operator), "```python", code, "```", ""]
    if result is None:
        return lines
    lines += ["| result | shape | dtype |", "|---|---|---|"]
    for label, value in zip(names, values, strict=True):
        if isinstance(value, torch.Tensor):
            lines.append(
                f"| {label} | {tuple(value.shape)} | {str(value.dtype).removeprefix('torch.')} |"
            )
        else:
            lines.append(f"| {label} | | {type(value).__name__} |")
    return [*lines, ""]


def _chip(operator: Operator) -> list[str]:
    """The setting that the example needs, if it is not for every chip."""
    if operator.chips is None:
        return []
    with operator.on_its_chip():
        return [f"With `SOFTNPU_SOC={chips.current().name}`:", ""]


def run(code: str) -> Any:
    """Executes an example and returns its `result`."""
    scope: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(code, "<example>", "exec"), scope)
    return scope["result"]


def _links(operator: Operator) -> list[str]:
    module = operator.__module__
    source = Path(inspect.getfile(operator.parts["kernel"])).relative_to(ROOT)
    stem = module.rpartition(".")[2]
    test = ROOT / "tests" / "ops" / operator.folder / f"test_{stem}.py"
    lines = [f"Source: [{source}](../../{source})"]
    if test.exists():
        lines[0] += f", tests: [{test.relative_to(ROOT)}](../../{test.relative_to(ROOT)})"
    return lines


# --- accuracy -------------------------------------------------------------------------------------------


def _accuracy(overloads: list[Operator]) -> list[str]:
    cells = {dtype: _worst(overloads, dtype) for dtype in DTYPES}
    if not any(cells.values()):
        return []
    names = " | ".join(str(d).removeprefix("torch.") for d in DTYPES)
    values = " | ".join(cells[d] or "-" for d in DTYPES)
    lines = [
        "## Accuracy",
        "",
        "Largest absolute error of the floating results on the samples, against fp64.",
        "",
    ]
    return [*lines, f"| {names} |", "|---|---|---|", f"| {values} |", ""]


def _worst(overloads: list[Operator], dtype: torch.dtype) -> str:
    worst: float | None = None
    for operator in overloads:
        for sample in operator.samples:
            with operator.on_its_chip():
                error = _error(operator, sample, dtype)
            if error is not None:
                worst = max(worst or 0.0, error)
    return "" if worst is None else f"{worst:.1e}" if worst else "0"


def _error(operator: Operator, sample: Sample, dtype: torch.dtype) -> float | None:
    """The largest error of one sample in a dtype; None if the operator does not take it or is random."""
    given = sample.inputs(make)
    lead = next((t.dtype for t in _tensors(given) if t.dtype in DTYPES), None)
    if lead is None:
        return None

    def inputs(to: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        return tree_map_only(torch.Tensor, lambda t: to(t.clone()), given)

    def lowered(t: torch.Tensor) -> torch.Tensor:
        return t.to(dtype) if t.dtype == lead else t

    try:
        results = _call(operator, inputs(lowered), seed=1)
        if not _equal(results, _call(operator, inputs(lowered), seed=2)):
            return None
        with settings.override(strict=False):
            exact = inputs(
                lambda t: lowered(t).to(t.device, torch.float64) if t.dtype in DTYPES else t
            )
            truth = _call(operator, exact, seed=1, formula=True)
    except _REFUSED:
        return None
    errors = [
        _distance(r, t)
        for r, t in zip(results, truth, strict=True)
        if r.is_floating_point() and t.dtype == torch.float64 and r.shape == t.shape
    ]
    return max(errors, default=None)


def _call(operator: Operator, inputs: Any, seed: int, formula: bool = False) -> list[torch.Tensor]:
    args, kwargs = inputs
    torch.manual_seed(seed)
    if not formula:
        return _tensors(operator.overload(*args, **kwargs))
    kernel = operator.as_function("kernel")
    return _tensors(_C.run_kernel(operator.name, kernel, args, kwargs, operator.host_ok))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_flatten(value)[0] if isinstance(t, torch.Tensor)]


def _equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(
        torch.equal(a.cpu().nan_to_num(), b.cpu().nan_to_num())
        for a, b in zip(first, second, strict=True)
    )


def _distance(result: torch.Tensor, truth: torch.Tensor) -> float:
    a, b = result.detach().cpu().double(), truth.detach().cpu()
    finite = a.isfinite() & b.isfinite()
    return (a - b)[finite].abs().max().item() if finite.any() else 0.0


# --- all pages ------------------------------------------------------------------------------------------


def index(pages: dict[str, list[Operator]]) -> str:
    folders: dict[str, list[tuple[str, Operator]]] = {}
    for name, overloads in pages.items():
        folders.setdefault(overloads[0].folder, []).append((name, overloads[0]))
    lines = [
        "# Operators",
        "",
        f"{len(pages)} names, one page each, generated by `make docs-generated` from the docstrings and samples.",
        "",
    ]
    for folder, members in sorted(folders.items()):
        lines += [f"## {folder}", "", "| operator | |", "|---|---|"]
        for name, operator in members:
            said = inspect.cleandoc(operator.__doc__ or "").split("\n\n")[0].replace("\n", " ")
            lines.append(f"| [{name}]({name}.md) | {said.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines)


def without_numbers(page: str) -> str:
    """A page without its accuracy, which depends on the machine."""
    return re.sub(r"## Accuracy\n.*?(?=Source: )", "", page, flags=re.DOTALL)


@click.command(help=__doc__)
@click.option("--only", default="", help="Only pages whose name contains this text.")
def main(only: str) -> None:
    pages = families()
    PAGES.mkdir(parents=True, exist_ok=True)
    for file in PAGES.glob("*.md"):
        if file.stem not in pages and file.stem != "README":
            file.unlink()
    for name, overloads in pages.items():
        if only in name:
            (PAGES / f"{name}.md").write_text(render(name, overloads), "utf-8")
    (PAGES / "README.md").write_text(index(pages), "utf-8")


if __name__ == "__main__":
    main()
