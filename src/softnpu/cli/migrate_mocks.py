"""`softnpu migrate-mocks`: the fakes of torch_npu, torch.npu and acl in a test suite, and what each would become."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from softnpu.cli import _mocks, _output

#: names whose value a test chooses: the mark of the pytest plugin chooses it for the whole device
_SETTINGS = {
    "get_soc_version": '@pytest.mark.npu(soc="Ascend910B3"), with the chip that the test means',
    "get_device_name": '@pytest.mark.npu(soc="Ascend910B3"), with the chip that the test means',
    "get_device_properties": '@pytest.mark.npu(soc="Ascend910B3"), with the chip that the test means',
    "device_count": "@pytest.mark.npu(devices=2), with the number that the test means",
    "mem_get_info": '@pytest.mark.npu(memory="16GiB"), with the size that the test means',
    "is_available": "delete: it is True here (SOFTNPU=0 makes a process without a device)",
}


@dataclass
class Advice:
    file: str
    line: int
    kind: str
    target: str
    becomes: str


@click.command(name="migrate-mocks")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@_output.json_option
def migrate_mocks(paths: tuple[Path, ...], as_json: bool) -> None:
    """Lists the fakes of torch_npu, torch.npu and acl in the Python files of PATHS and what each would become.

    Nothing is changed. docs/ci.md shows a conftest before and after.
    """
    found: list[Advice] = []
    for file in _python_files(paths):
        try:
            fakes = _mocks.find(file.read_text("utf-8"), str(file))
        except (SyntaxError, UnicodeDecodeError) as wrong:
            click.echo(f"{file}: not read: {wrong}", err=True)
            continue
        found += [Advice(str(file), f.line, f.kind, f.target, becomes(f)) for f in fakes]
    if as_json:
        _output.show_json([asdict(advice) for advice in found])
        return
    if not found:
        click.echo("no fakes of torch_npu, torch.npu or acl")
        return
    table = _output.table("fakes", "where", "what", "of", "becomes")
    for advice in found:
        table.add_row(f"{advice.file}:{advice.line}", advice.kind, advice.target, advice.becomes)
    _output.show(table)
    files = len({advice.file for advice in found})
    gone = sum(advice.becomes.startswith("delete") for advice in found)
    click.echo(f"{len(found)} fakes in {files} files; {gone} can be deleted")


def _python_files(paths: tuple[Path, ...]) -> Iterator[Path]:
    for path in paths:
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def becomes(fake: _mocks.Fake) -> str:
    """The advice for one fake."""
    root, _, rest = fake.target.partition(".")
    name = fake.target.rpartition(".")[2]
    if root == "acl":
        return "keep: softnpu has no acl module; call torch.npu instead where the program can"
    if fake.kind == "module in sys.modules":
        if _module_exists(fake.target):
            return "delete: the import works"
        return f"keep: softnpu has no module {fake.target}"
    if fake.kind == "rename of the backend":
        return "delete: importing torch_npu does it"
    if name in _SETTINGS:
        return _SETTINGS[name]
    if not rest or fake.target == "torch.npu":
        return "delete: the module is there"
    state = _state(fake.target)
    if state == "absent":
        return f"keep: softnpu has no {fake.target}"
    note = "" if state == "works" else f" (partly: {state})"
    if fake.kind.startswith("patch"):
        return f"delete, and assert on the result; to count calls keep it with wraps={fake.target}{note}"
    return f"delete: softnpu has it{note}"


def _module_exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _state(target: str) -> str:
    """works, absent, or what is missing of it."""
    text = importlib.resources.files("softnpu").joinpath("coverage.json").read_text("utf-8")
    names = {target, target.replace("torch_npu.npu.", "torch.npu.")}
    names |= {n.replace("torch.npu.", "torch_npu.npu.") for n in names}
    for entry in json.loads(text):
        if entry["name"] in names and entry["status"] == "partial":
            return entry["note"]
    importlib.import_module("torch_npu")
    place: object = importlib.import_module("torch")
    words = target.split(".")
    if words[0] == "torch_npu":
        place = importlib.import_module("torch_npu")
    for word in words[1:]:
        if not hasattr(place, word):
            return "absent"
        place = getattr(place, word)
    return "works"
