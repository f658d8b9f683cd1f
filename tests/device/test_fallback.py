"""CPU kernels on NPU bytes: no copies, shared storage, aliases, values in and out, kernel state."""

from __future__ import annotations

import math

import pytest
import torch

import torch_npu  # noqa: F401
from softnpu import _C
from tests.device.process import output


def npu(*values, **options):
    return torch.tensor(values, device="npu", **options)


# --- views and in-place ---


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[1],
        lambda x: x[:, ::2],
        lambda x: x.t(),
        lambda x: x.view(-1),
        lambda x: x.reshape(2, 12),
        lambda x: x.unsqueeze(0).expand(3, 4, 6),
        lambda x: x.diagonal(),
        lambda x: x.unfold(1, 2, 2),
        lambda x: x.as_strided((3, 2), (6, 1), 2),
        lambda x: x.split(2)[1],
        lambda x: x.chunk(2, 1)[1],
        lambda x: x.unbind(1)[3],
        lambda x: x.permute(1, 0).narrow(0, 1, 2),
        lambda x: x.view(torch.int32),
        lambda x: x.detach(),
        lambda x: x.squeeze(0),
        lambda x: x.movedim(0, 1),
        lambda x: x.unflatten(1, (2, 3)),
        lambda x: x.tensor_split(2)[1],
    ],
)
def test_views_share_the_storage(view):
    host = torch.arange(24.0).reshape(4, 6)
    x = host.npu()
    seen, expected = view(x), view(host)
    assert seen.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (seen.shape, seen.stride(), seen.storage_offset()) == (
        expected.shape,
        expected.stride(),
        expected.storage_offset(),
    )
    assert torch.equal(seen.cpu(), expected)
    x.mul_(3)
    assert torch.equal(seen.cpu(), view(host * 3))


def test_complex_views_share_the_storage():
    x = torch.randn(3, 2, device="npu")
    z = torch.view_as_complex(x)
    assert z.data_ptr() == x.data_ptr()
    assert torch.view_as_real(z).data_ptr() == x.data_ptr()
    assert z.real.data_ptr() == x.data_ptr() and z.imag.data_ptr() == x.data_ptr() + 4
    z.mul_(1j)
    assert torch.equal(x[:, 1].cpu(), z.imag.cpu())


def test_in_place_operators_write_the_callers_memory():
    x = torch.zeros(4, 4, device="npu")
    at, version = x.data_ptr(), x._version
    returned = x.add_(1)
    assert returned is x and x.data_ptr() == at and x._version == version + 1
    x[1:3, 1:3].fill_(5)
    x[0] = torch.arange(4.0, device="npu")
    x[:, 3] = 9
    expected = torch.tensor([[0, 1, 2, 9], [1, 5, 5, 9], [1, 5, 5, 9], [1, 1, 1, 9.0]])
    assert torch.equal(x.cpu(), expected)
    assert x.data_ptr() == at


def test_host_view_sees_writes_without_a_copy():
    x = torch.zeros(3, device="npu")
    host = _C.host_view(x)
    x.add_(2)
    assert host.tolist() == [2, 2, 2] and host.data_ptr() == x.data_ptr()
    host[1] = 7
    assert x.tolist() == [2, 7, 2]


@pytest.mark.usefixtures("own_segments")
def test_a_kernel_copies_no_bytes():
    x = torch.ones(1 << 20, device="npu")
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    y = x + x
    assert torch.npu.max_memory_allocated() - before == 4 << 20  # the result and nothing else
    x.mul_(x)
    torch.add(x, x, out=y)
    assert torch.npu.max_memory_allocated() - before == 4 << 20


def test_results_that_are_inputs_come_back_as_the_same_tensor():
    x = torch.ones(2, device="npu")
    assert x.contiguous() is x
    assert torch.add(x, 1, out=x) is x
    assert x.float() is x
    assert x.to("npu") is x


def test_overlapping_inputs_of_one_storage():
    x = torch.arange(6.0, device="npu")
    assert torch.equal((x[:4] * x[2:]).cpu(), torch.arange(4.0) * torch.arange(2.0, 6.0))
    with pytest.raises(RuntimeError, match="internal overlap|memory location"):
        torch.zeros(1, device="npu").expand(3).add_(1)


# --- aliases ---


def _foreach(x):
    torch._foreach_add_([x[:2], x[2:4]], [x[2:4], x[:2]])


def _complex(x):
    z = torch.view_as_complex(x.view(3, 2))
    z.real.add_(1)
    z.imag.mul_(2)
    z.conj().imag.sub_(3)


def _resized_view(x):
    torch.abs(x[:5] - 9, out=x[1:3].resize_(0))


def _set(x):
    torch.empty(0, device=x.device).set_(x).add_(1)


ALIASED = {
    "foreach on two halves": _foreach,
    "parts of complex numbers": _complex,
    "a resized view": _resized_view,
    "set_": _set,
    "out= beside an input": lambda x: torch.add(x[:3], 1, out=x[3:]),
    "transposed copy": lambda x: x.view(2, 3).copy_(x.view(3, 2).t().clone()),
    "masked": lambda x: x.__setitem__(x > 2, 9.0),
    "index_put with repeats": lambda x: x.index_put_(
        (torch.tensor([0, 0, 5], device=x.device),), torch.ones(3, device=x.device), accumulate=True
    ),
    "diagonal": lambda x: x[:4].view(2, 2).diagonal().zero_(),
    "as_strided": lambda x: x.as_strided((2, 2), (3, 1), 1).neg_(),
    "another dtype": lambda x: x.view(torch.int32)[::2].zero_(),
    "unbind": lambda x: [part.mul_(i) for i, part in enumerate(x.view(3, 2).unbind())],
}


@pytest.mark.parametrize("name", ALIASED)
def test_writes_through_aliases_are_the_cpus(name):
    host, device = torch.arange(6.0), torch.arange(6.0, device="npu")
    at = device.data_ptr()
    ALIASED[name](host)
    ALIASED[name](device)
    assert torch.equal(device.cpu(), host) and device.data_ptr() == at
    assert device._version == host._version


def test_overlapping_out_is_refused_as_on_the_cpu():
    x = torch.arange(6.0, device="npu")
    with pytest.raises(RuntimeError, match="unsupported operation.*overlap|memory location"):
        torch.add(x[:4], 1, out=x[2:])
    with pytest.raises(RuntimeError, match="overlap|memory location"):
        torch.cat([x[:3], x[:3]], out=x)


# --- traps: allocations that outlive a kernel, unwinding ---


def test_static_tensors_of_cpu_kernels_do_not_stay_on_the_device():
    """Kernels that build a table or a cached primitive at first use: nothing may remain counted."""
    printed = output(
        """
        import gc, torch, torch_npu
        def work():
            x = torch.randn(2, 3, 16, 16, device="npu")
            w = torch.randn(4, 3, 3, 3, device="npu")
            torch.nn.functional.conv2d(x, w)
            torch.nn.functional.interpolate(x, scale_factor=2, mode="bicubic", antialias=True)
            torch.fft.fft2(x)
            torch.linalg.svd(x[0, 0])
            torch.special.zeta(x.abs() + 2, x.abs() + 1)
            torch.randn(100, device="npu").histc()
            torch.quasirandom.SobolEngine(3).draw(4)
            torch.linalg.matrix_exp(x[0, 0])
            torch.kaiser_window(16, device="npu"), torch.bartlett_window(9, device="npu")
            torch.nn.LSTM(16, 4, device="npu")(x[0])
            torch.nn.functional.scaled_dot_product_attention(x, x, x)
            torch.bucketize(x, torch.arange(4.0, device="npu"))
            torch.mm(x[0, 0].half(), x[0, 1].half())
        work(); gc.collect()
        print(torch.npu.memory_allocated())
        """
    )
    assert printed == "0"


def test_an_exception_unwinds_the_kernel_state():
    x = torch.ones(2, 3, device="npu")
    before = torch.npu.memory_allocated()
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        x @ x
    host = torch.empty(1 << 16)  # a CPU tensor again, not drawn from the device
    assert torch.npu.memory_allocated() == before
    assert host.device.type == "cpu" and (x + 1).sum().item() == 12


def test_cpu_tensors_made_after_a_kernel_do_not_count():
    torch.ones(2, device="npu").add(1)
    before = torch.npu.memory_allocated()
    kept = [torch.empty(1 << 18) for _ in range(4)]
    assert torch.npu.memory_allocated() == before
    del kept


# --- values out of and into the device ---


def test_scalars_and_printing():
    x = npu(1.5, -2.0, math.inf)
    assert x[0].item() == 1.5 and x.tolist() == [1.5, -2.0, math.inf]
    assert repr(x) == "tensor([ 1.5000, -2.0000,     inf], device='npu:0')"
    assert bool(x.isinf().any()) and int(x[1]) == -2
    assert f"{x[0]:.2f}" == "1.50"
    assert [v.item() for v in x[:2]] == [1.5, -2.0] and len(x) == 3 and 1.5 in x


def test_host_copies_are_copies():
    x = torch.zeros(3, device="npu")
    host = x.cpu()
    host.add_(1)
    assert x.tolist() == [0, 0, 0]
    x.copy_(host)
    host.add_(1)
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 1, 3)])
def test_odd_shapes_round_trip(shape):
    host = torch.randn(shape)
    x = host.npu()
    assert torch.equal((x + 1).cpu(), host + 1)
    assert torch.equal(x.sum().cpu(), host.sum())
    assert x.clone().shape == shape


def test_copies_convert_dtype_and_strides():
    host = torch.arange(6.0).reshape(2, 3).t()
    x = torch.empty(3, 2, dtype=torch.float16, device="npu").copy_(host)
    assert x.tolist() == host.tolist()
    back = torch.empty(2, 3).t().copy_(x)
    assert torch.equal(back, host)
    channels_last = torch.randn(2, 3, 4, 4).npu().to(memory_format=torch.channels_last)
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    assert (channels_last + 1).stride() == channels_last.stride()


def test_uninitialized_memory_is_filled_in_deterministic_mode():
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device="npu").isnan().all()
        assert torch.empty_strided((2, 2), (2, 1), device="npu").isnan().all()
        assert torch.empty(2, dtype=torch.int32, device="npu").tolist() == [2**31 - 1] * 2
        grown = torch.ones(1, device="npu").resize_(3)
        assert grown[0].item() == 1 and grown[1:].isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_dispatch_modes_see_the_operators():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    x = torch.ones(1, 3, device="npu")
    with Log() as log:
        torch.nn.functional.linear(x, x).relu()
    assert log.seen == ["aten.t.default", "aten.mm.default", "aten.relu.default"]


def test_fake_tensors_of_the_device():
    from torch._subclasses import FakeTensorMode

    before = torch.npu.memory_allocated()
    with FakeTensorMode():
        x = torch.empty(2**20, 2**20, device="npu:1")
        y = (x @ x).sum(0)
    assert y.shape == (2**20,) and y.device == torch.device("npu:1")
    assert torch.npu.memory_allocated() == before


def test_modules_leave_the_meta_device():
    module = torch.nn.Linear(2, 3, device="meta").to_empty(device="npu")
    assert module.weight.device.type == "npu"
    module.reset_parameters()
    assert module(torch.ones(1, 2, device="npu")).shape == (1, 3)


def test_an_operator_without_a_kernel_says_so():
    library = torch.library.Library("softnpu_test", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="softnpu_test::nothing.*NPU"):
        torch.ops.softnpu_test.nothing(torch.ones(1, device="npu"))
    library.impl("nothing", lambda x: x * 2, "CPU")
    assert torch.ops.softnpu_test.nothing(torch.ones(1, device="npu")).tolist() == [2]
