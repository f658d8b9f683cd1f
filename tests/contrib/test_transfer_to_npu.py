"""transfer_to_npu: CUDA programs run on the NPU, and torch is as it was when it is switched off."""

import inspect
import sys
import warnings

import pytest
import torch

import torch_npu
from examples import cuda_training
from tests.device.process import output

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_npu.contrib import transfer_to_npu
transfer_to_npu.disable()

OWNERS = {
    "torch": torch,
    "cuda": torch.cuda,
    "cuda.amp": torch.cuda.amp,
    "cuda.memory": torch.cuda.memory,
    "cuda.random": torch.cuda.random,
    "Tensor": torch.Tensor,
    "Module": torch.nn.Module,
    "storage": torch.UntypedStorage,
    "typed storage": torch.TypedStorage,
    "jit": torch.jit,
    "profiler": torch.profiler,
    "activity": torch.profiler.ProfilerActivity,
    "distributed": torch.distributed,
    "c10d": torch.distributed.distributed_c10d,
    "mesh": torch.distributed.device_mesh,
    "fft": torch.fft,
    "autocast": torch.amp.autocast_mode.autocast,
    "scaler": torch.amp.GradScaler,
    "npu.device": torch_npu.npu.device,
    "npu": torch_npu.npu,
    "_C": torch._C,
}


def state():
    """Every attribute of every owner by identity, and the tables."""
    found = {name: {k: id(v) for k, v in vars(owner).items()} for name, owner in OWNERS.items()}
    found["modules"] = {k: id(m) for k, m in sys.modules.items() if k.startswith("torch.cuda")}
    found["backends"] = dict(torch.distributed.Backend.default_device_backend_map)
    return found


@pytest.fixture
def on():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transfer_to_npu.enable()
    yield
    transfer_to_npu.disable()


def test_an_unmodified_training_program(on, monkeypatch):
    # PyTorch's own test helpers, where they are imported, forbid programs to set flags such as this one.
    flags = torch.backends.flags_frozen.__globals__
    monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)  # the program sets it
    result = cuda_training.train()
    assert result["device"] == "npu:0" and result["is_cuda"] is True
    assert result["losses"][-1] < 0.1 * result["losses"][0] and result["accuracy"] > 0.95
    assert result["peak"] > 0 and result["ms"] > 0 and result["name"].startswith("Ascend")


def test_the_program_knows_of_no_npu():
    assert "npu" not in inspect.getsource(cuda_training).replace(
        "torch_npu.contrib.transfer_to_npu", ""
    )


def test_torch_is_as_it_was():
    before = state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transfer_to_npu.enable()
        during = state()
        transfer_to_npu.enable()  # no second layer
        assert state() == during
    assert torch.cuda.is_available() and torch.zeros(2, device="cuda").is_cuda
    transfer_to_npu.disable()
    after = state()
    for name in before:
        assert after[name] == before[name], name
    assert any(during[name] != before[name] for name in before)
    transfer_to_npu.disable()  # nothing left to undo
    assert state() == before
    assert not torch.cuda.is_available()
    with pytest.raises((RuntimeError, AssertionError), match="CUDA|NVIDIA"):
        torch.zeros(2, device="cuda")
    assert torch.zeros(2).npu().is_cuda is False and isinstance(torch.Generator(), torch.Generator)


def test_it_says_what_it_does():
    with pytest.warns(ImportWarning, match="torch.cuda.* are torch.npu"):
        transfer_to_npu.enable()
    transfer_to_npu.disable()
    with pytest.warns(RuntimeWarning, match="torch.jit.script"):
        transfer_to_npu.enable()
    transfer_to_npu.disable()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, device="cuda"),
        lambda: torch.zeros(3, device="cuda:0"),
        lambda: torch.zeros(3, device=torch.device("cuda", 0)),
        lambda: torch.tensor([1.0], device=0),
        lambda: torch.rand(3, device="cuda"),
        lambda: torch.arange(3, device="cuda"),
        lambda: torch.full_like(torch.zeros(3), 2, device="cuda"),
        lambda: torch.ones(3).cuda(),
        lambda: torch.ones(3).cuda(0),
        lambda: torch.ones(3).cuda("cuda:0", non_blocking=True),
        lambda: torch.ones(3).cuda(device=torch.device("cuda")),
        lambda: torch.ones(3).to("cuda"),
        lambda: torch.ones(3).to(0),
        lambda: torch.ones(3).to(device="cuda:0", dtype=torch.float16),
        lambda: torch.ones(3).to(torch.device("cuda"), torch.float16),
        lambda: torch.ones(3).new_zeros(2, device="cuda"),
        lambda: torch.ones(3).type("torch.cuda.HalfTensor"),
        lambda: torch.cuda.FloatTensor(2),
        lambda: torch.fft.fftfreq(5, device="cuda"),
        lambda: torch.nn.Linear(2, 2).cuda().weight,
        lambda: torch.nn.Linear(2, 2, device="cuda").weight,
        lambda: torch.nn.Linear(2, 2).to("cuda", torch.float16).weight,
        lambda: torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight,
        lambda: torch.randperm(4, device="cuda", generator=torch.Generator("cuda").manual_seed(1)),
        lambda: torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), device="cuda").to_dense(),
    ],
)  # fmt: skip
def test_devices(on, make):
    made = make()
    assert made.device == torch.device("npu:0") and made.is_cuda


def test_context_and_default_device(on):
    with torch.device("cuda"):
        assert torch.empty(2).device.type == "npu"
    torch.set_default_device("cuda")
    try:
        assert torch.empty(2).device.type == "npu"
    finally:
        torch.set_default_device(None)
    with torch.device("meta"):
        assert torch.nn.Linear(2, 2).weight.device.type == "meta"


def test_only_whole_names_are_devices(on, tmp_path):
    file = tmp_path / "cuda"
    file.mkdir()
    torch.save({"cuda": torch.ones(2).cuda()}, file / "cuda:0.pt")
    loaded = torch.load(str(file / "cuda:0.pt"), map_location="cuda:0")
    assert list(loaded) == ["cuda"] and loaded["cuda"].device.type == "npu"
    assert (
        torch.load(file / "cuda:0.pt", map_location={"cuda:0": "cpu"})["cuda"].device.type == "cpu"
    )
    assert torch.load(file / "cuda:0.pt", map_location="cpu")["cuda"].device.type == "cpu"


def test_the_functions_of_cuda(on):
    device = torch.device("cuda", 0)
    assert torch.cuda.device_count() == torch.npu.device_count()
    torch.cuda.set_device("cuda:1")
    assert torch.cuda.current_device() == 1 == torch.npu.current_device()
    torch.cuda.set_device(device)
    with torch.cuda.device("cuda:1"):
        assert torch.empty(1, device="cuda").device.index == 1
    with torch.cuda.device(-1):
        assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_name(device) == torch.npu.get_device_name(0)
    assert torch.cuda.get_device_properties("cuda").name == torch.npu.get_device_properties(0).name
    assert torch.cuda.memory_allocated(device) == torch.npu.memory_allocated(0)
    assert torch.cuda.memory.memory_allocated("cuda:0") == torch.npu.memory_allocated(0)
    assert torch.cuda.current_stream(device) == torch.npu.current_stream(0)
    assert torch.cuda.default_generators == torch.npu.default_generators
    assert torch.get_device_module("cuda") is torch.npu
    assert torch.Event(device="cuda:0").device.type == "npu"
    torch.cuda.manual_seed_all(3)
    first = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(3)
    assert torch.equal(first, torch.rand(4, device="cuda"))
    torch.cuda.set_rng_state(torch.cuda.get_rng_state("cuda"), device="cuda:0")
    torch.cuda.empty_cache()
    torch.cuda.synchronize(device)


def test_amp(on):
    from torch.cuda.amp import GradScaler, autocast

    assert torch.cuda.amp.grad_scaler is torch_npu.npu.amp.grad_scaler
    assert sys.modules["torch.cuda.amp.autocast_mode"] is torch_npu.npu.amp.autocast_mode
    a = torch.randn(3, 3, device="cuda")
    for context in (autocast(), torch.autocast("cuda"), torch.amp.autocast(device_type="cuda")):
        with context:
            assert (a @ a).dtype == torch.float16
    for scaler in (GradScaler(), torch.amp.GradScaler("cuda"), torch.amp.GradScaler()):
        weight = torch.ones(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=1.0)
        scaler.scale(weight.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.is_enabled() and weight.tolist() == [0.0, 0.0, 0.0]


def test_scripting_leaves_functions_alone(on):
    @torch.jit.script
    def twice(x):
        return torch.cat([x, x.to("cuda")])

    assert twice(torch.ones(1).cuda()).tolist() == [1, 1]


def test_pinned_memory(on):
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    assert all(batch.is_pinned() for (batch,) in loader)
    assert torch.zeros(2).pin_memory("cuda").is_pinned()


def test_compiled_in_one_graph(on):
    torch._dynamo.reset()

    def body(x):
        return x + torch.ones(2, device="cuda") + torch.zeros(2).to("cuda")

    x = torch.zeros(2, device="cuda")
    assert torch.compile(body, backend="aot_eager", fullgraph=True)(x).tolist() == [1, 1]


def test_what_the_program_set_stays_with_the_first_compile(on):
    from torch._dynamo import trace_rules

    def unavailable():
        return False

    torch.cuda.is_available = unavailable  # as sglang does, after it has imported transfer_to_npu
    trace_rules.clear_lru_cache()  # Dynamo has not looked at torch's functions yet
    torch.compile(lambda x: x, backend="eager")
    assert torch.cuda.is_available is unavailable
    assert torch.ones(1, device="cuda").device.type == "npu"


@pytest.mark.parametrize(
    "given,wanted",
    [("nccl", "hccl"), ("cpu:gloo,cuda:nccl", "cpu:gloo,npu:hccl"), ("gloo", "gloo"), (None, None)],
)
def test_backends(on, monkeypatch, given, wanted):
    from torch_npu.contrib._cuda_words import with_hccl

    seen = []
    function = with_hccl(lambda *args, **kwargs: seen.append((args, kwargs)))
    function(given, 3)
    function(3, backend=given)
    assert seen == [((wanted, 3), {}), ((3,), {"backend": wanted})]


def test_process_groups_and_meshes_take_cuda_names(on):
    import torch.distributed as dist

    assert "cuda" not in dist.Backend.default_device_backend_map
    store = dist.HashStore()
    dist.init_process_group("cpu:gloo", store=store, rank=0, world_size=1)
    try:
        group = dist.new_group([0], backend="gloo")
        assert dist.get_world_size(group) == 1
        mesh = dist.device_mesh.DeviceMesh("cuda", [0], _init_backend=False)
        assert mesh.device_type == "npu"
    finally:
        dist.destroy_process_group()


def test_libraries_see_whether_cuda_is_there(on, monkeypatch):
    from torch_npu.contrib import _cuda_libraries

    looks = transfer_to_npu._wrapper_libraries_func(lambda: torch.cuda.is_available())
    assert torch.cuda.is_available() is True and looks() is False
    assert torch.cuda.is_available() is True
    module = type(sys)("softnpu_pretended")
    module.probe = lambda: torch.cuda.is_available()
    monkeypatch.setitem(sys.modules, "softnpu_pretended", module)
    monkeypatch.setattr(
        _cuda_libraries,
        "LIBRARIES",
        {
            "torch": (
                "1.0",
                {"softnpu_pretended": ("probe", "absent"), "softnpu_no_module": ("x",)},
            ),
            "no-such-library": ("1.0", {"json": ("loads",)}),
            "numpy": ("99.0", {"json": ("loads",)}),
        },
    )
    assert list(_cuda_libraries.found()) == [(module, "probe")]


def test_the_variable_switches_it_on_from_outside():
    code = "import torch_npu, torch; print(torch.zeros(1, device='cuda').device)"
    found = output(code, timeout=300, TORCH_TRANSFER_TO_NPU="1")
    assert found.splitlines()[-1] == "npu:0"


def test_a_bad_value_of_the_variable(monkeypatch):
    import importlib

    monkeypatch.setenv("TORCH_TRANSFER_TO_NPU", "yes")
    with pytest.raises(ValueError, match="TORCH_TRANSFER_TO_NPU must be 0 or 1, but is 'yes'"):
        importlib.reload(torch_npu.contrib)
