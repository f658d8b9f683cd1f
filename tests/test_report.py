"""`softnpu report`: a profile as one HTML page."""

from __future__ import annotations

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from softnpu.cli import main
from softnpu.report.data import Profile, find
from tests.profiler.support import make_profile, rows
from torch_npu.profiler import _analyse


@pytest.fixture
def directory(tmp_path) -> Path:
    make_profile(tmp_path / "run", profiler_level="Level1", rank=0)
    return tmp_path / "run"


def page(directory: Path, output: Path) -> str:
    done = CliRunner().invoke(main, ["report", str(directory), "-o", str(output)])
    assert done.exit_code == 0, done.output
    assert "1 profile(s)" in done.output
    return output.read_text("utf-8")


class _Balance(HTMLParser):
    VOID = {"meta", "br", "link", "img", "rect"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        self.outside += [
            v for k, v in attrs if k in ("src", "href") and v and not v.startswith("#")
        ]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(directory, tmp_path):
    text = page(directory, tmp_path / "r.html")
    parser = _Balance()
    parser.feed(text)
    assert parser.open == [] and parser.outside == []
    for title in ("Timeline", "Steps", "Device time by kernel", "Operators of the framework", "Device memory",
                  "Communication"):  # fmt: skip
        assert f"<h3>{title}</h3>" in text


def test_tables_and_curves(directory, tmp_path):
    text = page(directory, tmp_path / "r.html")
    kernels = re.search(r'<table class="kernels">.*?</table>', text, re.S)
    assert kernels and "<td>MatMulV2</td><td>AI_CORE</td>" in kernels[0] and "280.0" in kernels[0]
    assert "Computing: 240.0 us" in text and "<td>allReduce</td>" in text
    assert "Peak of allocated memory: 1.01 MB" in text


def test_the_timelines_data(directory, tmp_path):
    text = page(directory, tmp_path / "r.html")
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert data
    (timeline,) = json.loads(data[1])
    hardware = next(t for t in timeline["tracks"] if t["process"].startswith("Ascend Hardware"))
    assert hardware["process"] == "Ascend Hardware (NPU 0)"
    start, length, name = hardware["spans"][0]
    assert (start, length) == (140, 140) and "MatMulV2" in timeline["names"][name]


def test_names_cannot_break_the_page(tmp_path):
    data = rows()
    data["op"][1][0] = "<!--<script></script><script>alert(1)</script>"
    make_profile(tmp_path / "run", data)
    text = page(tmp_path / "run", tmp_path / "r.html")
    assert "</script><script>alert" not in text
    embedded = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)
    assert embedded and "<" not in embedded[1]
    assert data["op"][1][0] in json.loads(embedded[1])[0]["names"]


def test_a_profile_without_memory_and_steps(tmp_path):
    data = {"op": rows()["op"][1:3], "task": rows()["task"][:1]}
    make_profile(tmp_path / "run", data)
    text = page(tmp_path / "run", tmp_path / "r.html")
    assert "collect with profile_memory=True" in text and 'class="communication">None' in text


def test_json_for_programs(directory, tmp_path):
    output = tmp_path / "page.html"
    done = CliRunner().invoke(main, ["report", str(directory), "-o", str(output), "--json"])
    found = json.loads(done.stdout)
    assert found["page"] == str(output) and output.exists()
    (profile,) = found["profiles"]
    assert profile["name"].endswith("_ascend_pt") and profile["steps"]
    assert all(kernel["count"] > 0 and kernel["total"] > 0 for kernel in profile["kernels"])


def test_many_profiles_and_none(tmp_path):
    for name in ("a", "b"):
        make_profile(tmp_path / name).rename(tmp_path / f"{name}_ascend_pt")
        (tmp_path / name).rmdir()
    _analyse.many(str(tmp_path), 1, None)
    done = CliRunner().invoke(main, ["report", str(tmp_path), "-o", str(tmp_path / "r.html")])
    assert "2 profile(s)" in done.output
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(main, ["report", str(tmp_path / "empty")])
    assert done.exit_code == 1 and "there is no profile" in done.output


def test_a_long_timeline_keeps_its_longest_spans(directory, monkeypatch):
    _analyse.many(str(directory), 1, None)
    monkeypatch.setattr("softnpu.report.data._MAX_EVENTS", 3)
    profile = Profile.read(find(directory)[0])
    assert sum(len(track.spans) for track in profile.tracks) == 3 and profile.left_out > 0


TRACE, KERNELS, STEPS = "trace_view.json", "kernel_details.csv", "step_trace_time.csv"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (TRACE, "[{", "Expecting property name"),
        (TRACE, "{}", "it is no list of events"),
        (TRACE, "[1]", "not subscriptable"),
        (TRACE, "[{}]", "it has no 'ph'"),
        (TRACE, "[" * 100_000, "recursion"),
        (TRACE, '[{"ph": "X", "cat": "kernel", "pid": [], "tid": 0}]', "unhashable"),
        (TRACE, '[{"ph": "X", "cat": "kernel", "pid": 0, "tid": 0, "ts": NaN, "dur": 1, "name": ""}]', "nan is no number"),
        (TRACE, '[{"ph": "X", "cat": "kernel", "pid": 0, "tid": 0, "ts": 1, "dur": "x", "name": ""}]', "convert"),
        (TRACE, '[{"ph": "X", "cat": "kernel", "pid": 0, "tid": 0, "ts": 1, "dur": 1, "name": []}]', "is no text"),
        (KERNELS, "Name,Type\na,b\n", "it has no 'Accelerator Core'"),
        (KERNELS, "Name,Type,Accelerator Core,Duration(us)\na,b,c,inf\n", "no number of a profile"),
        (KERNELS, "Name,Type,Accelerator Core,Duration(us)\na,b,c,1,2\n", "a row has more than 4 columns"),
        (KERNELS, "Name\n" + "x" * 200_000, "field larger than field limit"),
        (KERNELS, "\xff", "codec can't decode"),
        (STEPS, "Device_id,Step,Computing\n0,1,2\n", "it has no 'Communication(Not Overlapped)'"),
        (STEPS, None, "it is no regular file"),
        (TRACE, None, "it is no regular file"),
    ],
)  # fmt: skip
def test_a_result_that_no_profiler_wrote(directory, tmp_path, file, content, said):
    """A line that names the file, where a pipe is no reason to wait."""
    _analyse.many(str(directory), 1, ["text"])
    path = find(directory)[0] / "ASCEND_PROFILER_OUTPUT" / file
    path.unlink()
    if content is None:
        os.mkfifo(path)
    else:
        path.write_text(content, "latin-1")
    done = CliRunner().invoke(main, ["report", str(directory), "-o", str(tmp_path / "r.html")])
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    assert f"{path} is no result of a profile" in done.output and said in done.output
    assert not (tmp_path / "r.html").exists()


def test_in_a_browser(directory, tmp_path):
    """Needs playwright, and a Chromium that it has installed or that CHROMIUM names."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    page(directory, tmp_path / "r.html")
    with playwright.sync_playwright() as tools:
        if program is None and not Path(tools.chromium.executable_path).exists():
            pytest.skip("there is no Chromium")
        browser = tools.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--no-zygote"], timeout=30_000
        )
        try:
            tab = browser.new_page(viewport={"width": 1200, "height": 900})
            wrong: list[str] = []
            tab.on("pageerror", lambda error: wrong.append(str(error)))
            tab.goto((tmp_path / "r.html").as_uri())
            tab.wait_for_selector("body[data-ready=yes]")
            canvas = tab.locator("canvas.timeline")
            everything = int(canvas.get_attribute("data-drawn"))
            box = canvas.bounding_box()
            tab.mouse.move(box["x"] + 400, box["y"] + 8)
            assert "ProfilerStep#3" in tab.locator(".hint").first.inner_text()
            for _ in range(15):
                tab.mouse.wheel(0, -100)
            tab.wait_for_timeout(200)
            assert int(canvas.get_attribute("data-drawn")) < everything
            picture = tab.screenshot(full_page=True, path=tmp_path / "report.png")
            assert picture[:4] == b"\x89PNG" and len(picture) > 10_000 and wrong == []
        finally:
            browser.close()
