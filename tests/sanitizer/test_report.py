"""The ways in and what comes out: the command, variables, exit codes, the terminal, JSON, the page, shuffled runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from softnpu import findings, settings
from softnpu.findings import page, terminal
from tests import PYTHONPATH
from tests.sanitizer import found_in
from tests.sanitizer.test_stream_race import _two_writes

PROGRAM = """
import sys, torch
x, side = torch.zeros(64, device="npu"), torch.npu.Stream()
torch.npu.synchronize()
x.fill_(3)
if "right" in sys.argv:
    side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side):
    print(x.sum().item())
"""


def _run(tmp_path, *command, **environment):
    (tmp_path / "prog.py").write_text(PROGRAM)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SOFTNPU", "TORCH_NPU"))}
    return subprocess.run(
        [sys.executable, *command],
        env={**clean, "PYTHONPATH": PYTHONPATH, "SOFTNPU_QUIET": "1", **environment},
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_the_command(tmp_path):
    done = _run(tmp_path, "-m", "softnpu", "run", "--html", "out.html", "--json", "prog.py")
    assert done.returncode == findings.EXIT_CODE
    result = json.loads(done.stdout.splitlines()[-1])
    (found,) = result["findings"]
    assert (found["kind"], result["exit_code"]) == ("a", 66)
    assert [a["operator"] for a in found["accesses"]] == ["aten::fill_", "aten::sum"]
    text = (tmp_path / "out.html").read_text()
    assert text.count("<svg") == 1 and "missing order" in text and "prog.py:5" in text
    assert "192.0" in done.stdout  # the program itself is not disturbed


def test_the_command_with_warn_and_of_a_right_program(tmp_path):
    done = _run(tmp_path, "-m", "softnpu", "run", "--sanitize", "--warn", "prog.py")
    assert done.returncode == 0 and "race between streams" in done.stderr
    done = _run(tmp_path, "-m", "softnpu", "run", "--sanitize", "prog.py", "right")
    assert done.returncode == 0 and "race" not in done.stderr


@pytest.mark.parametrize(
    "environment,code",
    [({"SOFTNPU_SANITIZE": "1"}, 66), ({"TORCH_NPU_SANITIZER": "1"}, 66), ({"SOFTNPU_SANITIZE": "warn"}, 0)],
)  # fmt: skip
def test_the_variables(tmp_path, environment, code):
    done = _run(tmp_path, "prog.py", **environment)
    assert done.returncode == code and done.stdout == "192.0\n"
    assert "race between streams [a]" in done.stderr and "missing: " in done.stderr


def test_upstreams_function(tmp_path):
    start = "import torch_npu; torch_npu.npu._sanitizer.enable_npu_sanitizer();"
    done = _run(tmp_path, "-c", start + PROGRAM)
    assert done.returncode == 66 and "1 finding" in done.stderr


def test_a_finding_takes_ten_lines():
    for found in found_in(lambda: _two_writes(False)):
        assert len(terminal.lines(found)) <= 10
        assert findings.from_dict(json.loads(json.dumps(found.as_dict()))) == found


def test_the_page_escapes_what_it_shows():
    (found,) = found_in(lambda: _two_writes(False))
    evil = {**found.as_dict(), "text": "<script>alert(1)</script>"}
    text = page.render(findings.read([evil, evil]))
    assert "<script" not in text and "&lt;script&gt;" in text
    assert "1 finding<" in text and 'class="missing"' in text


@pytest.mark.parametrize("value", ["2", "yes"])
def test_a_wrong_value_is_refused(value):
    with pytest.raises(ValueError, match="SOFTNPU_SANITIZE must be 0, 1 or warn"):
        settings.read({"SOFTNPU_SANITIZE": value})
    with pytest.raises(ValueError, match="SOFTNPU_SHUFFLE must be a number"):
        settings.read({"SOFTNPU_SHUFFLE": "x" + value})


def test_shuffled_runs(tmp_path):
    done = _run(tmp_path, "-m", "softnpu", "run", "--shuffle", "1..8", "prog.py")
    assert done.returncode == 1 and "differs from the order of the launches" in done.stderr
    seed = done.stderr.split("seed ")[1].split()[0]
    again = _run(tmp_path, "-m", "softnpu", "run", "--shuffle", seed, "prog.py")
    assert "192.0" not in again.stdout
    right = _run(tmp_path, "-m", "softnpu", "run", "--shuffle", "1..4", "prog.py", "right")
    assert right.returncode == 0 and "4 orders give the same output" in right.stderr


@pytest.mark.parametrize("text", ["0", "5..1", "a", "1..", "-3"])
def test_wrong_seeds_are_refused(tmp_path, text):
    done = _run(tmp_path, "-m", "softnpu", "run", f"--shuffle={text}", "prog.py")
    assert done.returncode == 2 and "neither a seed" in done.stderr


@pytest.fixture
def tab(request):
    """A tab of a real browser, light or dark: needs playwright, and a Chromium that it has installed or that CHROMIUM
    names."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with playwright.sync_playwright() as tools:
        if program is None and not Path(tools.chromium.executable_path).exists():
            pytest.skip("there is no Chromium")
        browser = tools.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--no-zygote"], timeout=60_000
        )
        try:
            scheme = getattr(request, "param", "light")
            yield browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
        finally:
            browser.close()


#: where a line begins and ends in the window
_ENDS = """line => [0, line.getTotalLength()].map(at => {
  const point = line.getPointAtLength(at).matrixTransform(line.getScreenCTM());
  return [point.x, point.y];
})"""
#: brightness of what is behind an element and of its text, 0 to 1
_CONTRAST = """element => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const part = value => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = rgb => 0.2126 * part(rgb[0]) + 0.7152 * part(rgb[1]) + 0.0722 * part(rgb[2]);
  const svg = element.namespaceURI.endsWith("svg");
  const ink = light(numbers(getComputedStyle(element)[svg ? "fill" : "color"]));
  let under = element.previousElementSibling, paper = null;
  if (svg && under && under.tagName === "rect") paper = light(numbers(getComputedStyle(under).fill));
  for (let at = element; paper === null && at; at = at.parentElement) {
    const color = numbers(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] > 0) paper = light(color);
  }
  const [low, high] = [ink, paper ?? 1].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}"""


@pytest.mark.parametrize("tab", ["light", "dark"], indirect=True)
def test_the_page_in_a_browser(tab, tmp_path):
    wrong: list[str] = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda message: wrong.append(message.text))
    (tmp_path / "races.html").write_text(page.render(found_in(lambda: _two_writes(False))))
    tab.goto((tmp_path / "races.html").as_uri())
    timeline, edge = tab.locator("svg.timeline"), tab.locator("line.missing")
    assert (timeline.count(), edge.count(), wrong) == (1, 1, [])
    outer, (start, end) = timeline.bounding_box(), edge.evaluate(_ENDS)
    marked = [box.bounding_box() for box in tab.locator("rect[stroke='#d32f2f']").all()]
    assert len(marked) == 2
    first, second = marked
    # The edge leads from the first access to the second, and everything is inside of the picture.
    assert abs(start[0] - (first["x"] + first["width"])) < 3 and abs(end[0] - second["x"]) < 3
    assert first["y"] < start[1] < first["y"] + first["height"]
    assert second["y"] < end[1] < second["y"] + second["height"]
    for box in marked:
        assert outer["x"] <= box["x"] and box["x"] + box["width"] <= outer["x"] + outer["width"]
        assert outer["y"] <= box["y"] and box["y"] + box["height"] <= outer["y"] + outer["height"]
    label = tab.locator("text.label").bounding_box()  # between the two boxes
    assert first["x"] + first["width"] < label["x"] and label["x"] + label["width"] < second["x"]
    assert edge.evaluate("e => getComputedStyle(e).strokeDasharray") != "none"
    # Every text can be read: large enough, in contrast to what is behind it, and inside of its box.
    texts = tab.locator("svg text, h1, h2, p, pre span").all()
    assert {"aten::fill_", "missing order"} <= {text.text_content() for text in texts}
    for text in texts:
        assert text.evaluate(_CONTRAST) >= 4.5, text.text_content()
        assert float(text.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")) >= 11
    for group in tab.locator("svg g").all():
        box = group.locator("rect").bounding_box()
        text = group.locator("text").bounding_box()
        assert text["x"] + text["width"] <= box["x"] + box["width"]
    picture = tab.screenshot(full_page=True, path=tmp_path / "races.png")
    assert picture[:4] == b"\x89PNG" and len(picture) > 10_000
