"""The end of the interpreter while daemon threads use the device: no message, no abort."""

from __future__ import annotations

import pytest

from tests.forking import program

WORK = {
    "an operator of PyTorch": "x = torch.tanh(x @ x)",
    "an operator of torch_npu": "torch_npu.npu_rms_norm(x, x[0])",
    "a value on the host": "x.sum().item()",
    "a gradient": "y = x.clone().requires_grad_(); (y * y).sum().backward()",
}


@pytest.mark.parametrize("work", list(WORK))
def test_daemon_threads_end_silently(tmp_path, work):
    done = program(
        tmp_path,
        f"""
        import threading
        runs = threading.Event()

        def work():
            x = torch.randn(100, 100, device="npu")
            while True:
                {WORK[work]}
                runs.set()

        threading.Thread(target=work, daemon=True).start()
        runs.wait()
        print("end")
        """,
        SOFTNPU_QUIET="1",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_handlers_at_exit_may_use_the_device(tmp_path):
    done = program(
        tmp_path,
        """
        import atexit, threading
        x = torch.ones(3, device="npu", requires_grad=True)

        def handler():
            (x * x).sum().backward()
            print(x.grad.tolist())

        atexit.register(handler)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        """,
        SOFTNPU_QUIET="1",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[2.0, 2.0, 2.0]\n", "")
