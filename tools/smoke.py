"""What an installed wheel must do: `make dist` runs this in an environment that has nothing but the wheel.

    python smoke.py

It stands alone: no test framework, nothing of the source tree.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path


def command(*words: str) -> str:
    """A command of this environment must be there and end well."""
    found = shutil.which(words[0], path=str(Path(sys.executable).parent))
    assert found, f"{words[0]} is not installed"
    return subprocess.run([found, *words[1:]], capture_output=True, text=True, check=True).stdout


def metadata() -> None:
    own, upstream = (importlib.metadata.version(name) for name in ("softnpu", "torch_npu"))
    import torch

    import softnpu
    import torch_npu

    plain, _, label = own.partition("+")  # a wheel of `make wheels` says which torch it is for
    torch_version = str(torch.__version__).split("+")[0]
    assert label in ("", f"torch{torch_version}"), own
    assert upstream == f"{torch_version}+softnpu{plain}", upstream
    assert softnpu.__version__ == plain and torch_npu.__version__ == upstream
    where = Path(torch_npu.__file__).parent
    assert where.parent.name == "site-packages", f"torch_npu comes from {where}"
    text = importlib.metadata.metadata("softnpu")
    assert text["License-Expression"] == "BSD-3-Clause", text["License-Expression"]
    files = {str(file) for file in importlib.metadata.files("softnpu") or ()}
    for name in ("softnpu/py.typed", "torch_npu/py.typed", "torchair/py.typed",
                 "torch_npu/__init__.pyi", "torch_npu/npu/__init__.pyi", "torch-stubs/npu/__init__.pyi", "torch-stubs/py.typed",
                 "torch-stubs/functional.pyi", "softnpu/chips.toml"):  # fmt: skip
        assert name in files, f"{name} is not in the wheel"
    assert any(name.endswith("licenses/LICENSE") for name in files), "no license in the wheel"
    for name in ("tests", "tools", "benchmarks", "examples"):
        assert importlib.util.find_spec(name) is None, f"{name} must not be installed"


def computation() -> None:
    import torch

    assert hasattr(torch, "npu"), "import torch alone makes the device known"
    import torch_npu

    x = torch.randn(8, 64)
    gamma = torch.rand(64)
    on_device = x.npu().requires_grad_()
    y, _ = torch_npu.npu_rms_norm(on_device, gamma.npu(), epsilon=1e-6)
    want = torch.nn.functional.rms_norm(x, (64,), gamma, eps=1e-6)
    torch.testing.assert_close(y.cpu(), want, rtol=1e-5, atol=1e-5)
    y.sum().backward()
    assert on_device.grad is not None
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        z = y.detach() * 2
    graph.replay()
    torch.testing.assert_close(z.cpu(), 2 * want, rtol=1e-5, atol=1e-5)


def commands() -> None:
    assert all(check["good"] or check["check"] == "compiler" for check in
               json.loads(command("softnpu", "doctor", "--json")))  # fmt: skip
    assert json.loads(command("softnpu", "info", "--json"))["emulated"] is True
    works = [
        e for e in json.loads(command("softnpu", "coverage", "--json")) if e["status"] == "works"
    ]
    assert len(works) > 200, f"only {len(works)} names work"
    assert "Ascend910B3" in command("softnpu", "chips")
    Path("hello.py").write_text("import torch; print(torch.ones(2, device='npu').sum().item())")
    assert command("softnpu", "run", "--json", "hello.py").startswith("2.0\n{")
    assert re.search(r"\| 0\s+910B3\s+\| OK", command("npu-smi", "info"))
    assert "_SOFTNPU_COMPLETE" in command("softnpu", "completion", "bash")


def main() -> None:
    for check in (metadata, computation, commands):
        check()
        print(f"smoke test: {check.__name__} is good")


if __name__ == "__main__":
    main()
