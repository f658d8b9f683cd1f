"""What is not a plain strided tensor: wrapped numbers, conj and neg bits, sparse, quantized, nested, packed."""

from __future__ import annotations

import pytest
import torch

import torch_npu  # noqa: F401

# --- wrapped numbers, conj and neg bits ---


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


# --- layouts without plain storage ---


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


def test_quantized():
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


def test_packed_sequences_of_device_tensors():
    parts = [torch.ones(3, 2), torch.zeros(1, 2)]
    packed = torch.nn.utils.rnn.pack_sequence([p.npu() for p in parts])
    assert packed.data.device.type == "npu" and packed.batch_sizes.device.type == "cpu"
    assert packed.batch_sizes.tolist() == [2, 1, 1]
    torch.manual_seed(0)
    module = torch.nn.GRU(2, 3)
    expected = module(torch.nn.utils.rnn.pack_sequence(parts))[0]
    torch.testing.assert_close(module.npu()(packed)[0].data.cpu(), expected.data)


def test_quantized_without_a_scale():
    bare = torch.empty(2, 3, dtype=torch.qint8, device="npu")
    assert bare.view(6).int_repr().dtype == torch.int8
    q = torch.quantize_per_tensor(torch.arange(6.0, device="npu"), 0.1, 0, torch.qint8)
    calls = {
        "fill_": lambda: torch.ops.aten.ldexp_(q, torch.ones(6, device="npu")),
        "empty_like": lambda: torch.empty_like(bare),
        "as_strided": lambda: bare.t(),
        "qscheme": lambda: bare.qscheme(),
        "dequantize": lambda: bare.dequantize(),
        "cat": lambda: torch.cat([q, bare.view(6)]),
    }
    for name, call in calls.items():
        with pytest.raises(
            RuntimeError, match=f"aten::{name}: .* must be a quantized tensor with a scale"
        ):
            call()
