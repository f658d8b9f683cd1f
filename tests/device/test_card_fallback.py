"""Operators for which the card has no kernel: a warning that it would run them on the CPU, an error where that is forbidden."""

from __future__ import annotations

from tests.device.process import run_python

CALLS = {
    "torch.fmax(x, x)": "aten::fmax.out",
    "torch.fmin(x, x, out=x)": "aten::fmin.out",
    "x.digamma_()": "aten::digamma.out",
    "torch.linalg.inv(torch.eye(2, device='npu'))": "aten::linalg_inv_ex.inverse",
    "torch.poisson(torch.ones(3, device='npu'))": "aten::poisson",
}


def run(*calls: str, **environment: str) -> tuple[int, str]:
    lines = ["import torch, torch_npu", "x = torch.rand(4, device='npu')", *calls, "print('done')"]
    found = run_python("\n".join(lines), **environment)
    return found.returncode, found.stdout + found.stderr


def test_warns_once():
    code, said = run(*CALLS, *CALLS)
    assert code == 0, said
    for name in CALLS.values():
        assert said.count(f"'{name}' has no kernel on the card and will fall back to CPU") == 1


def test_raises_where_it_is_forbidden():
    code, said = run("torch.fmax(x, x)", TORCH_NPU_FALLBACK_CPU_DISABLE="1")
    assert code != 0 and "done" not in said
    assert "NotImplementedError: 'aten::fmax.out' has no kernel on the card" in said


def test_operators_of_the_card_say_nothing():
    calls = (
        "(x + 1).exp().sum()",
        "x.reshape(2, 2) @ x.reshape(2, 2)",
        "torch.nn.functional.gelu(x)",
        "x.sort()",
    )
    code, said = run(*calls, TORCH_NPU_FALLBACK_CPU_DISABLE="1")
    assert code == 0 and "done" in said and "fall back" not in said
