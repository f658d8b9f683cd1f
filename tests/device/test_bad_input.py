"""Bad input: an error that names the thing, never a crash; the device works afterwards."""

from __future__ import annotations

import pytest
import torch

import torch_npu  # noqa: F401


@pytest.fixture(autouse=True)
def the_device_still_works():
    yield
    assert torch.npu.current_device() == 0
    assert (torch.ones(2, device="npu") + 1).tolist() == [2, 2]


# --- devices -----------------------------------------------------------------------------------------

WRONG_INDEX = {
    "empty": lambda: torch.empty(2, device="npu:8"),
    "ones": lambda: torch.ones(2, device="npu:8"),
    "empty_strided": lambda: torch.empty_strided((2,), (1,), device="npu:8"),
    "tensor": lambda: torch.tensor([1, 2], device="npu:8"),
    "arange": lambda: torch.arange(3, device="npu:8"),
    "randn": lambda: torch.randn(3, device="npu:8"),
    "to": lambda: torch.ones(2).to("npu:8"),
    "npu": lambda: torch.ones(2).npu(8),
    "between": lambda: torch.ones(2, device="npu").to("npu:8"),
    "module": lambda: torch.nn.Linear(2, 2).npu(8),
    "set_device": lambda: torch.npu.set_device(8),
    "context manager": lambda: torch.npu.device(8).__enter__(),
    "synchronize": lambda: torch.npu.synchronize(8),
    "stream": lambda: torch.npu.Stream(8),
    "torch.Stream": lambda: torch.Stream("npu:8"),
    "current_stream": lambda: torch.npu.current_stream(8),
    "memory_allocated": lambda: torch.npu.memory_allocated(8),
    "name": lambda: torch.npu.get_device_name(8),
    "properties": lambda: torch.npu.get_device_properties("npu:8"),
    "generator": lambda: torch.Generator("npu:8"),
    "rng state": lambda: torch.npu.get_rng_state("npu:8"),
    "accelerator": lambda: torch.accelerator.set_device_index(8),
    "storage": lambda: torch.UntypedStorage(4, device="npu:8"),
}


@pytest.mark.parametrize("name", WRONG_INDEX)
def test_a_device_that_does_not_exist_is_named(name):
    with pytest.raises((RuntimeError, AssertionError), match="8") as error:
        WRONG_INDEX[name]()
    message = str(error.value)
    assert "device" in message and "INTERNAL ASSERT" not in message
    assert "8 NPU device" in message, message  # how many there are


def test_negative_indices():
    with pytest.raises(RuntimeError, match="[Ii]nvalid device|index|negative"):
        torch.empty(2, device="npu:-1")
    with pytest.raises(RuntimeError, match="-2|negative"):
        torch.device("npu", -2)
    torch.npu.set_device(-1)  # as on CUDA: nothing happens


@pytest.mark.parametrize(
    "text", ["npu:x", "npu:", "npu:1:2", "npux", "NPU", "npu 0", "npu:99999999999"]
)
def test_garbled_device_strings(text):
    with pytest.raises((RuntimeError, ValueError)) as error:
        torch.empty(1, device=text)
    assert text.split(":")[0] in str(error.value) or "device" in str(error.value)


@pytest.mark.parametrize("wrong", ["cpu", "cuda:0", torch.device("meta")])
def test_other_devices_are_refused_by_npu_functions(wrong):
    for function in (
        torch.npu.set_device,
        torch.npu.synchronize,
        torch.npu.memory_stats,
        torch.npu.Stream,
    ):
        with pytest.raises((ValueError, RuntimeError), match="npu.*(cpu|cuda|meta)"):
            function(wrong)


@pytest.mark.parametrize("wrong", [1.5, [0], True])
def test_wrong_types_for_a_device(wrong):
    with pytest.raises(TypeError, match="device"):
        torch.npu.set_device(wrong)


def test_npu_method_refuses_other_devices():
    with pytest.raises((ValueError, RuntimeError), match="[Ii]nvalid device|must be npu"):
        torch.ones(2).npu("cpu")


# --- sizes, strides, storages ----------------------------------------------------------------------

SIZES = {
    "negative": (lambda: torch.empty(-1, device="npu"), "negative dimension -1"),
    "negative zeros": (
        lambda: torch.zeros(2, -3, device="npu"),
        "zeros: Dimension size must be non-negative",
    ),
    "negative strided": (lambda: torch.empty_strided((-2,), (1,), device="npu"), "negative"),
    "negative stride": (
        lambda: torch.empty_strided((2,), (-1,), device="npu"),
        r"strides=\[-1\]",
    ),
    "stride count": (
        lambda: torch.empty_strided((2, 2), (1,), device="npu"),
        "dimensionality|length|mismatch",
    ),
    "negative resize": (lambda: torch.ones(2, device="npu").resize_(-5), "overflow|negative"),
    "overflow": (
        lambda: torch.empty(2**62, 8, device="npu"),
        "overflow|out of memory|too large|numel",
    ),
    "bytes overflow": (
        lambda: torch.empty(2**62, dtype=torch.float64, device="npu"),
        "overflow|calculating",
    ),
    "huge": (
        lambda: torch.empty(2**50, device="npu"),
        "NPU out of memory. Tried to allocate 4194304.00 GiB",
    ),
    "view": (
        lambda: torch.ones(6, device="npu").view(4),
        r"shape '\[4\]' is invalid for input of size 6",
    ),
    "reshape": (
        lambda: torch.ones(6, device="npu").reshape(-1, 4),
        "shape.*invalid for input of size 6",
    ),
    "expand": (lambda: torch.ones(3, device="npu").expand(4), "expanded size"),
    "as_strided": (lambda: torch.ones(3, device="npu").as_strided((9,), (5,)), "out of bounds"),
    "as_strided offset": (
        lambda: torch.ones(3, device="npu").as_strided((1,), (1,), -1),
        "storage.offset",
    ),
    "narrow": (lambda: torch.ones(3, device="npu").narrow(0, 2, 5), "exceeds|length|Invalid"),
    "index": (lambda: torch.ones(3, device="npu")[5], "index 5 is out of bounds"),
    "dim": (lambda: torch.ones(3, device="npu").sum(4), "Dimension out of range"),
    "unfold": (lambda: torch.ones(3, device="npu").unfold(0, 9, 1), "size is 9|maximum size"),
    "cat": (
        lambda: torch.cat([torch.ones(2, 2, device="npu"), torch.ones(2, 3, device="npu")]),
        "Sizes of tensors",
    ),
    "storage": (
        lambda: torch.ones(3, device="npu").untyped_storage().resize_(-4),
        "negative|size|overflow|convert|more than 1EB",
    ),
    "set_ offset": (
        lambda: torch.ones(3, device="npu").set_(
            torch.ones(3, device="npu").untyped_storage(), -1, (1,), (1,)
        ),
        "offset",
    ),
    "item": (
        lambda: torch.ones(3, device="npu").item(),
        "3 elements cannot be converted to Scalar",
    ),
    "bool": (lambda: bool(torch.ones(3, device="npu")), "ambiguous"),
    "broadcast": (
        lambda: torch.ones(3, device="npu") + torch.ones(4, device="npu"),
        "must match the size",
    ),
    "repeat": (lambda: torch.ones(3, device="npu").repeat(-1), "negative"),
    "linspace": (lambda: torch.linspace(0, 1, -2, device="npu"), "non-negative"),
    "eye": (lambda: torch.eye(-1, device="npu"), "greater or equal to 0"),
    "randperm": (lambda: torch.randperm(-1, device="npu"), "non-negative|negative"),
}


@pytest.mark.parametrize("name", SIZES)
def test_bad_sizes(name):
    function, message = SIZES[name]
    with pytest.raises(
        (RuntimeError, IndexError, OverflowError, TypeError, ValueError), match=message
    ) as error:
        function()
    assert "INTERNAL ASSERT" not in str(error.value)


# --- dtypes --------------------------------------------------------------------------------------------

DTYPES = {
    "mm": (
        lambda: torch.ones(2, 2, device="npu") @ torch.ones(2, 2, device="npu").int(),
        "same dtype",
    ),
    "float index": (
        lambda: torch.ones(3, device="npu")[torch.ones(1, device="npu")],
        "tensors used as indices",
    ),
    "embedding": (
        lambda: torch.nn.functional.embedding(
            torch.ones(1, device="npu"), torch.ones(2, 2, device="npu")
        ),
        "Long, Int",
    ),
    "bitwise": (lambda: torch.ones(2, device="npu") & 1, "not (implemented|supported) for '?Float"),
    "out": (
        lambda: torch.add(
            torch.ones(2, device="npu"), 0.5, out=torch.ones(2, dtype=torch.long, device="npu")
        ),
        "can't be cast to the desired output type Long",
    ),
    "in-place": (lambda: torch.ones(2, dtype=torch.int, device="npu").mul_(1.5), "can't be cast"),
    "gradient": (
        lambda: torch.ones(2, dtype=torch.long, device="npu", requires_grad=True),
        "[Oo]nly Tensors of floating point",
    ),
    "complex": (
        lambda: torch.ones(2, dtype=torch.complex64, device="npu") > 1,
        "complex|ComplexFloat",
    ),
    "int mean": (lambda: torch.ones(2, dtype=torch.int, device="npu").mean(), "dtype.*Int"),
    "int softmax": (
        lambda: torch.ones(2, dtype=torch.int, device="npu").softmax(0),
        "not implemented for 'Int'",
    ),
    "conv": (
        lambda: torch.nn.functional.conv1d(
            torch.ones(1, 1, 3, device="npu"), torch.ones(1, 1, 1, device="npu").half()
        ),
        "dtype|type",
    ),
    "linear": (
        lambda: torch.nn.functional.linear(
            torch.ones(1, 2, device="npu").half(), torch.ones(1, 2, device="npu").int()
        ),
        "dtype",
    ),
    "int_mm": (
        lambda: torch._int_mm(torch.ones(2, 2, device="npu"), torch.ones(2, 2, device="npu")),
        "int8",
    ),
    "cholesky": (lambda: torch.linalg.cholesky(torch.eye(2, device="npu").half()), "Half|floating"),
}


@pytest.mark.parametrize("name", DTYPES)
def test_wrong_dtypes(name):
    function, message = DTYPES[name]
    with pytest.raises(
        (RuntimeError, IndexError, TypeError, NotImplementedError), match=message
    ) as error:
        function()
    assert "INTERNAL ASSERT" not in str(error.value)


# --- the rest ------------------------------------------------------------------------------------------


def test_meta_tensors_hold_no_data():
    with pytest.raises((RuntimeError, NotImplementedError), match="Cannot copy out of meta tensor"):
        torch.empty(2, device="meta").to("npu")
    assert torch.empty_like(torch.ones(2, device="npu"), device="meta").is_meta


def test_a_stream_of_the_wrong_kind():
    with pytest.raises((TypeError, RuntimeError, AttributeError)):
        torch.npu.set_stream("stream")
    with pytest.raises((TypeError, RuntimeError)):
        torch.ones(2, device="npu").record_stream("stream")


def test_raw_free_of_a_foreign_pointer():
    from softnpu import _C

    with pytest.raises(RuntimeError, match="invalid device pointer: 4096"):
        _C.raw_free(4096)


def test_devices_cannot_be_configured_again():
    from softnpu import _C

    torch.ones(1, device="npu")
    with pytest.raises(RuntimeError, match="have started"):
        _C.configure(2, 2**30)


def test_host_view_refuses_cpu_tensors():
    from softnpu import _C

    with pytest.raises(RuntimeError, match="expected an NPU tensor.*cpu"):
        _C.host_view(torch.ones(1))


def test_a_python_kernel_names_the_operator_that_mixes_devices():
    from softnpu import _C

    with pytest.raises(RuntimeError, match="same device.*my_operator"):
        _C.run_kernel(
            "my_operator", lambda a, b: a + b, (torch.ones(2, device="npu"), torch.ones(2)), {}
        )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_batch_norm_wants_an_element_for_each_channel(place, training):
    """PyTorch's kernel, called directly, would write beside a vector that is too short."""
    arguments = [
        torch.ones(3, 2, 4, device="npu"),
        *(torch.ones(2, device="npu") for _ in range(4)),
    ]
    good = torch.native_batch_norm(*arguments, training, 0.1, 1e-5)[0]
    assert good.shape == (3, 2, 4)
    arguments[place] = torch.ones(1, device="npu")
    with pytest.raises(
        RuntimeError, match=r"must have 2 elements, one for each channel.*but has 1"
    ):
        torch.native_batch_norm(*arguments, training, 0.1, 1e-5)
