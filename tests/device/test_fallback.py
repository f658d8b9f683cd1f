"""CPU kernels on NPU bytes: no copies, shared storage, write-back of outputs, mixed devices, odd layouts."""

from __future__ import annotations

import gc
import math

import pytest
import torch

import torch_npu  # noqa: F401
from softnpu import _C
from tests.device.process import output

SAME_DEVICE = "Expected all tensors to be on the same device"


def npu(*values, **options):
    return torch.tensor(values, device="npu", **options)


# --- views and in-place ---------------------------------------------------------------------------


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


# --- out= -----------------------------------------------------------------------------------------


def test_out_writes_the_given_memory():
    out = torch.empty(3, device="npu")
    at = out.data_ptr()
    torch.add(npu(1.0, 2, 3), 1, out=out)
    assert out.tolist() == [2, 3, 4] and out.data_ptr() == at


def test_out_may_be_a_strided_view():
    base = torch.zeros(3, 4, device="npu")
    torch.exp(torch.zeros(3, device="npu"), out=base[:, 1])
    assert base.cpu().sum() == 3 and base[:, 1].tolist() == [1, 1, 1]


RESIZED = {
    "abs": lambda x, o: torch.abs(x, out=o),
    "logsumexp": lambda x, o: torch.logsumexp(x, 1, out=o),
    "logical_not": lambda x, o: torch.logical_not(x, out=o),
    "logical_and": lambda x, o: torch.logical_and(x, x, out=o),
    "polar": lambda x, o: torch.polar(x.abs(), x, out=o),
    "complex": lambda x, o: torch.complex(x, x, out=o),
    "mm": lambda x, o: torch.mm(x, x.t(), out=o),
    "cat": lambda x, o: torch.cat([x, x], out=o),
    "stack": lambda x, o: torch.stack([x, x], out=o),
    "index_select": lambda x, o: torch.index_select(
        x, 1, torch.tensor([0, 2], device=x.device), out=o
    ),
    "nonzero": lambda x, o: torch.nonzero(x, out=o),
    "masked_select": lambda x, o: torch.masked_select(x, x > 0, out=o),
    "linalg.norm": lambda x, o: torch.linalg.norm(x, out=o),
    "sum": lambda x, o: torch.sum(x, 0, out=o),
    "arange": lambda x, o: torch.arange(7, out=o),
    "fft": lambda x, o: torch.fft.fft(x, out=o),
    "isin": lambda x, o: torch.isin(x, x[0], out=o),
}


@pytest.mark.parametrize("name", RESIZED)
def test_empty_outputs_are_resized_and_written_back(name):
    host = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    dtype = RESIZED[name](host, torch.empty(0, dtype=_dtype(name))).dtype
    expected = RESIZED[name](host, torch.empty(0, dtype=dtype))
    out = torch.empty(0, dtype=dtype, device="npu")
    returned = RESIZED[name](host.npu(), out)
    assert returned is out
    assert (out.shape, out.stride()) == (expected.shape, expected.stride())
    assert out.device.type == "npu" and out.untyped_storage().device.type == "npu"
    torch.testing.assert_close(out.cpu(), expected)
    out.add_(out)  # the new storage is whole and writable
    torch.testing.assert_close(out.cpu(), expected + expected)


def _dtype(name):
    return {
        "logical_not": torch.bool,
        "logical_and": torch.bool,
        "isin": torch.bool,
        "polar": torch.complex64,
        "complex": torch.complex64,
        "fft": torch.complex64,
        "nonzero": torch.int64,
        "arange": torch.int64,
    }.get(name, torch.float32)


@pytest.mark.parametrize("name", ["kthvalue", "median", "max", "sort", "topk", "mode", "cummax"])
def test_pairs_of_outputs_are_resized(name):
    host = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    arguments = {"kthvalue": (2, 1), "topk": (3,)}.get(name, (1,))
    function = getattr(torch, name)
    values = torch.empty(0, device="npu")
    indices = torch.empty(0, dtype=torch.int64, device="npu")
    function(host.npu(), *arguments, out=(values, indices))
    expected = function(host, *arguments)
    assert torch.equal(values.cpu(), expected[0]) and torch.equal(indices.cpu(), expected[1])


def test_resizing_many_outputs_leaves_the_heap_sound():
    x = torch.randn(1000, device="npu")
    before = torch.npu.memory_allocated()
    for size in range(1, 200, 7):
        out = torch.empty(0, device="npu")
        torch.abs(x[:size], out=out)
        torch.abs(x[: size * 3], out=out.resize_(0))
        assert torch.equal(out, x[: size * 3].abs())
    del out
    gc.collect()
    assert torch.npu.memory_allocated() == before


def test_a_wrongly_sized_output_warns_as_on_the_cpu():
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        torch.add(npu(1.0, 2.0), 1, out=torch.empty(3, device="npu"))


def test_views_of_a_resized_output_stay_valid():
    out = torch.zeros(2, device="npu")
    view = out[1:]
    out.resize_(1000)
    out.fill_(4)
    assert view.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    assert view.tolist() == [4]


# --- resize_ and set_ -----------------------------------------------------------------------------


def test_resize_keeps_the_bytes_and_draws_from_the_device():
    x = torch.arange(4.0, device="npu")
    before = torch.npu.memory_allocated()
    x.resize_(1000)
    assert x[:4].tolist() == [0, 1, 2, 3]
    assert torch.npu.memory_allocated() - before == 4096 - 512
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    x.resize_as_(torch.empty(5, 1, device="npu"))
    assert x.shape == (5, 1)


def test_storage_resize_gives_memory_back_and_takes_it_again():
    x = torch.ones(1 << 20, device="npu")
    before = torch.npu.memory_allocated()
    x.untyped_storage().resize_(0)
    assert before - torch.npu.memory_allocated() == 4 << 20
    x.untyped_storage().resize_(4 << 20)
    assert torch.npu.memory_allocated() == before
    x.fill_(2)
    assert x.sum().item() == 2 << 20


def test_set_shares_the_source():
    source = torch.arange(6.0, device="npu")
    x = torch.empty(0, device="npu")
    x.set_(source)
    assert x.data_ptr() == source.data_ptr() and x.shape == (6,)
    x.set_(source.untyped_storage(), 2, (2, 2), (2, 1))
    assert x.tolist() == [[2, 3], [4, 5]]
    source.add_(1)
    assert x.tolist() == [[3, 4], [5, 6]]
    x.set_()
    assert x.shape == (0,) and x.device.type == "npu"
    assert source.tolist() == [1, 2, 3, 4, 5, 6]


def test_set_refuses_another_devices_storage():
    with pytest.raises(RuntimeError, match='device "npu:0".*different device "npu:1"'):
        torch.empty(0, device="npu:0").set_(torch.ones(2, device="npu:1").untyped_storage())
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(0, device="npu:0").set_(torch.ones(2).untyped_storage())


def test_data_assignment_swaps_the_storage():
    p = torch.nn.Parameter(torch.zeros(2, device="npu"))
    fresh = torch.ones(3, device="npu")
    p.data = fresh
    assert p.data_ptr() == fresh.data_ptr() and p.shape == (3,)


# --- devices ----------------------------------------------------------------------------------------


MIXED = {
    "add": lambda a, b: a + b,
    "mm": lambda a, b: a @ b,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "in-place": lambda a, b: a.mul_(b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "linear": lambda a, b: torch.nn.functional.linear(a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "conv": lambda a, b: torch.nn.functional.conv1d(a[None], b[:, :, None]),
    "layer_norm": lambda a, b: torch.nn.functional.layer_norm(a, (2,), b[0]),
    "embedding": lambda a, b: torch.nn.functional.embedding(a.long(), b),
    "foreach": lambda a, b: torch._foreach_add([a], [b]),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize(
    ("first", "second"), [("npu:0", "cpu"), ("cpu", "npu:0"), ("npu:0", "npu:1")]
)
def test_mixed_devices_raise_pytorchs_error(name, first, second):
    a, b = torch.ones(2, 2, device=first), torch.ones(2, 2, device=second)
    with pytest.raises(RuntimeError, match=SAME_DEVICE) as error:
        MIXED[name](a, b)
    assert "npu:0" in str(error.value) and {"cpu", "npu:1"} & set(
        str(error.value).replace(",", " ").replace("!", " ").split()
    )
    assert (torch.ones(2, device="npu") + 1).tolist() == [2, 2]


def test_zero_dim_cpu_scalars_are_accepted():
    x = torch.ones(3, device="npu")
    scalar = torch.tensor(2.5)
    for result in (x * scalar, scalar * x, torch.where(x > 0, scalar, x) + 0, x.add(scalar) - 1):
        assert result.device == x.device and result.tolist() == [2.5, 2.5, 2.5]
    x.mul_(scalar)
    assert x.tolist() == [2.5, 2.5, 2.5]
    assert (torch.ones(3, dtype=torch.float16, device="npu") * scalar).dtype == torch.float16


def test_a_zero_dim_npu_tensor_does_not_join_cpu_tensors():
    with pytest.raises(RuntimeError, match=SAME_DEVICE):
        torch.ones(3) + torch.tensor(1.0, device="npu")


def test_a_cpu_index_is_accepted_but_not_the_reverse():
    x = torch.arange(5.0, device="npu")
    assert x[torch.tensor([3, 1])].tolist() == [3, 1]
    x[torch.tensor([0])] = 9
    assert x[torch.tensor([True, False, False, False, True])].tolist() == [9, 4]
    with pytest.raises((RuntimeError, IndexError), match="device"):
        torch.arange(5.0)[torch.tensor([1], device="npu")]


# --- traps: wrapped numbers, conj and neg bits ----------------------------------------------------


def test_wrapped_numbers_survive_the_border():
    half = torch.ones(2, dtype=torch.float16, device="npu")
    integers = torch.ones(2, dtype=torch.int32, device="npu")
    assert (half * 2.5).dtype == torch.float16
    assert (integers + 1).dtype == torch.int32 and (integers * 1.5).dtype == torch.float32
    assert (2.0**half).dtype == torch.float16
    assert torch.where(half > 0, half, 0.0).dtype == torch.float16
    assert (half + torch.tensor(1.0, device="npu")).dtype == torch.float16
    assert (integers + torch.tensor(1.5, device="npu")).dtype == torch.float32
    assert torch.result_type(half, 1.0) == torch.float16
    assert (torch.tensor(3, device="npu").to(torch.int8) + 1).dtype == torch.int8


@pytest.mark.parametrize("name", ["conj", "neg", "imag of conj"])
def test_lazy_bits_are_resolved_before_a_kernel(name):
    host = torch.randn(3, 4, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))

    def lazy(z):
        return {"conj": z.conj(), "neg": torch._neg_view(z), "imag of conj": z.conj().imag}[name]

    x, expected = lazy(host.npu()), lazy(host)
    assert x.is_conj() == expected.is_conj() and x.is_neg() == expected.is_neg()
    torch.testing.assert_close((x * 2 + x).cpu(), expected * 2 + expected)
    torch.testing.assert_close((x @ x.mT).cpu(), expected @ expected.mT)
    torch.testing.assert_close(x.cpu().resolve_conj(), expected.resolve_conj())
    torch.testing.assert_close(torch.cat([x, x]).cpu(), torch.cat([expected, expected]))
    assert x.sum().item() == pytest.approx(expected.sum().item(), rel=1e-5)


@pytest.mark.parametrize("function", ["hfft", "ihfft", "irfft", "fft", "hfft2", "irfftn"])
def test_fft_of_lazily_conjugated_inputs(function):
    host = torch.randn(4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(4))
    if function == "ihfft":
        host = host.real
    apply = getattr(torch.fft, function)
    torch.testing.assert_close(apply(host.npu().conj()).cpu(), apply(host.conj()))


def test_writing_through_a_conjugated_view():
    z = torch.zeros(3, dtype=torch.complex64, device="npu")
    z.conj().add_(1 + 2j)
    assert z.tolist() == [1 - 2j] * 3
    torch._neg_view(z).mul_(2)
    assert z.tolist() == [2 - 4j] * 3
    torch.add(z, 0, out=z.conj())
    assert z.tolist() == [2 + 4j] * 3


# --- traps: layouts without plain storage -----------------------------------------------------------


def test_sparse_coo():
    dense = torch.tensor([[0, 2.0, 0], [3, 0, 4]])
    s = dense.npu().to_sparse()
    assert s.layout == torch.sparse_coo and s.device.type == "npu"
    assert s.indices().device.type == "npu" and s.values().tolist() == [2, 3, 4]
    assert torch.equal(s.to_dense().cpu(), dense)
    assert torch.equal(s.cpu().to_dense(), dense)
    assert torch.equal(dense.to_sparse().npu().to_dense().cpu(), dense)
    torch.testing.assert_close(torch.sparse.mm(s, dense.t().npu()).cpu(), dense @ dense.t())
    assert torch.equal((s + s).to_dense().cpu(), 2 * dense)
    assert torch.equal((s * 2).coalesce().to_dense().cpu(), 2 * dense)
    assert s.t().to_dense().cpu().equal(dense.t())


def test_sparse_coo_built_on_the_device_coalesces():
    i = torch.tensor([[0, 0, 1], [1, 1, 0]], device="npu")
    s = torch.sparse_coo_tensor(i, torch.ones(3, device="npu"), (2, 2))
    assert not s.is_coalesced()
    merged = s.coalesce()
    assert merged.is_coalesced() and merged._nnz() == 2
    assert merged.to_dense().tolist() == [[0, 2], [1, 0]]


def test_sparse_gradients():
    embedding = torch.nn.Embedding(5, 3, sparse=True, device="npu")
    embedding(torch.tensor([1, 1, 4], device="npu")).sum().backward()
    grad = embedding.weight.grad
    assert grad.layout == torch.sparse_coo and grad.device.type == "npu"
    assert grad.to_dense().sum(1).tolist() == [0, 6, 0, 0, 3]
    before = embedding.weight.detach().clone()
    torch.optim.SGD(embedding.parameters(), lr=1.0).step()
    torch.testing.assert_close(before - embedding.weight.detach(), grad.to_dense())


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc"])
def test_sparse_compressed(layout):
    dense = torch.tensor([[0, 2.0], [3, 0], [0, 0], [5, 6]])
    block = {"blocksize": (2, 2)} if layout.startswith("b") else {}
    s = getattr(dense.npu(), f"to_sparse_{layout}")(**block)
    assert s.layout == getattr(torch, f"sparse_{layout}") and s.device.type == "npu"
    assert s.values().device.type == "npu"
    assert torch.equal(s.to_dense().cpu(), dense)
    assert torch.equal(s.cpu().to_dense(), dense)
    if layout == "csr":
        vector = torch.tensor([1.0, 2.0], device="npu")
        torch.testing.assert_close((s @ vector).cpu(), dense @ vector.cpu())


def test_quantised():
    host = torch.tensor([-1.0, 0.0, 0.5, 1.0])
    q = torch.quantize_per_tensor(host.npu(), 0.1, 10, torch.quint8)
    assert q.is_quantized and q.device.type == "npu"
    expected = torch.quantize_per_tensor(host, 0.1, 10, torch.quint8)
    assert torch.equal(q.int_repr().cpu(), expected.int_repr())
    assert q.q_scale() == expected.q_scale() and q.q_zero_point() == 10
    torch.testing.assert_close(q.dequantize().cpu(), expected.dequantize())


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested(layout):
    parts = [torch.ones(2, 3), torch.full((4, 3), 2.0)]
    nested = torch.nested.nested_tensor([p.npu() for p in parts], layout=layout)
    assert nested.is_nested and nested.device.type == "npu"
    for got, part in zip((nested * 2).unbind(), parts, strict=True):
        assert torch.equal(got.cpu(), part * 2)
    padded = torch.nested.to_padded_tensor(nested, 0.0)
    assert padded.shape == (2, 4, 3) and padded.sum().item() == 6 + 24


# --- traps: allocations that outlive a kernel, unwinding ---------------------------------------------


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
            torch.nn.LSTM(3, 4, device="npu")(x[0])
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


# --- values out of and into the device ---------------------------------------------------------------


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


def test_an_operator_without_a_kernel_says_so():
    library = torch.library.Library("softnpu_test", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    with pytest.raises(NotImplementedError, match="softnpu_test::nothing.*NPU"):
        torch.ops.softnpu_test.nothing(torch.ones(1, device="npu"))
    library.impl("nothing", lambda x: x * 2, "CPU")
    assert torch.ops.softnpu_test.nothing(torch.ones(1, device="npu")).tolist() == [2]
