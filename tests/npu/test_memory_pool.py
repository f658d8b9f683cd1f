"""MemPool, and allocators from a shared library that a test compiles."""

import subprocess

import pytest
import torch

import torch_npu
from tests.device.process import output

SOURCE = r"""
#include <sys/types.h>
#include <cstdio>
#include <cstdlib>
static long allocated = 0, freed = 0;
extern "C" {
void* my_malloc(ssize_t size, int device, void* stream) {
  ++allocated;
  return size > (1 << 30) ? nullptr : std::malloc(size);
}
void my_free(void* ptr, ssize_t size, int device, void* stream) { ++freed; std::free(ptr); }
long allocations() { return allocated; }
long frees() { return freed; }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("allocator")
    (folder / "a.cpp").write_text(SOURCE)
    so = folder / "liballocator.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", so, folder / "a.cpp"], check=True)
    return str(so)


def test_a_compiled_allocator_serves_every_tensor(library):
    code = f"""
        import ctypes, gc, torch, torch_npu
        new = torch_npu.npu.NPUPluggableAllocator({library!r}, "my_malloc", "my_free")
        torch_npu.npu.change_current_allocator(new)
        lib = ctypes.CDLL({library!r})
        x = torch.zeros(10, device="npu")
        y = (x + 1) @ torch.ones(10, 3, device="npu")
        print(lib.allocations() >= 3, y.tolist(), torch.npu.get_allocator_backend())
        loss = torch.nn.Linear(3, 1).npu()(y).sum()
        loss.backward()
        try:
            torch.empty(2**31, dtype=torch.uint8, device="npu")
        except torch.OutOfMemoryError as error:
            print("out of memory" in str(error))
        for name in ("memory_allocated", "empty_cache", "memory_snapshot"):
            try:
                getattr(torch.npu, name)()
            except RuntimeError as error:
                print("does not yet support" in str(error))
        del x, y, loss
        gc.collect()
        print(lib.allocations() - lib.frees() in (0, 1))  # the refused one
    """
    assert output(code).splitlines() == [
        "True [10.0, 10.0, 10.0] pluggable",
        "True",
        "True",
        "True",
        "True",
        "True",
    ]


def test_a_used_allocator_cannot_be_swapped(library):
    torch.ones(1, device="npu")
    new = torch_npu.npu.NPUPluggableAllocator(library, "my_malloc", "my_free")
    with pytest.raises(RuntimeError, match="Can't swap an already initialized allocator"):
        torch.npu.change_current_allocator(new)
    assert torch.npu.get_allocator_backend() == "native"


def test_bad_libraries_are_refused(library, tmp_path):
    make = torch_npu.npu.memory.NPUPluggableAllocator
    with pytest.raises(RuntimeError, match="does not exist"):
        make(str(tmp_path / "none.so"), "my_malloc", "my_free")
    broken = tmp_path / "broken.so"
    broken.write_text("not a library")
    with pytest.raises(RuntimeError, match="not a shared library"):
        make(str(broken), "my_malloc", "my_free")
    with pytest.raises(RuntimeError, match="has no function 'your_malloc'"):
        make(library, "your_malloc", "my_free")
    with pytest.raises(TypeError, match="must be an NPUPluggableAllocator"):
        torch.npu.change_current_allocator(library)


def test_a_pool_keeps_its_own_segments():
    pool = torch.npu.MemPool()
    with torch.npu.use_mem_pool(pool):
        inside = torch.ones(1000, device="npu")
        assert pool.use_count() == 2
    outside = torch.ones(1000, device="npu")
    held = [(s["address"], s["address"] + s["total_size"]) for s in pool.snapshot()]
    assert any(a <= inside.data_ptr() < b for a, b in held)
    assert not any(a <= outside.data_ptr() < b for a, b in held)
    assert pool.use_count() == 1
    del inside
    again = len(pool.snapshot())
    assert again == len(held)  # the pool keeps its memory while it lives
    number = pool.id
    del pool
    assert not torch_npu._C._npu_memorySnapshot(number)["segments"]


def test_a_pool_with_a_users_allocator(library):
    import ctypes

    lib = ctypes.CDLL(library)
    before = lib.allocations(), lib.frees()
    new = torch_npu.npu.NPUPluggableAllocator(library, "my_malloc", "my_free")
    pool = torch.npu.MemPool(new.allocator())
    with torch.npu.use_mem_pool(pool):
        x = torch.full((100,), 2.0, device="npu")
        y = x * x
    assert lib.allocations() > before[0]
    assert y.sum().item() == 400
    z = torch.ones(1, device="npu")
    count = lib.allocations()
    z = z + 1
    assert lib.allocations() == count
    del x, y
    assert lib.frees() - before[1] == lib.allocations() - before[0]


def test_a_pool_is_of_one_thread():
    import threading

    pool, found = torch.npu.MemPool(), []

    def other():
        found.append(torch.ones(1000, device="npu"))

    with torch.npu.use_mem_pool(pool):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    address = found[0].data_ptr()
    assert not any(
        s["address"] <= address < s["address"] + s["total_size"] for s in pool.snapshot()
    )


def test_wrong_arguments_of_pools():
    with pytest.raises(TypeError, match="pool must be a MemPool"), torch.npu.use_mem_pool((0, 1)):
        pass
    with pytest.raises(TypeError, match="allocator must be"):
        torch.npu.MemPool("malloc")
    with (
        pytest.raises(RuntimeError, match="invalid NPU device index 9"),
        torch.npu.use_mem_pool(torch.npu.MemPool(), 9),
    ):
        pass
