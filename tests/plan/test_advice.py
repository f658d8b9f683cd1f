"""What to try, and what it saves: small recordings whose savings can be counted by hand."""

from softnpu.plan.advice import advise, layer_of, replicas
from softnpu.plan.memory import analyze, peak_of
from softnpu.plan.recording import Event, Mark, Origin, Recording, Steps
from softnpu.plan.tasks import Task, TensorSpec

LAYERS = [Origin("m.py", 5, "forward", "forward", ("", f"layers.{i}")) for i in range(3)]
BACKWARD = Origin("m.py", 9, "main", "backward")
OPTIMIZER = Origin("m.py", 9, "main", "optimizer")
ORIGINS = [*LAYERS, BACKWARD, OPTIMIZER, Origin("m.py", 1, "main", "forward")]
BACK, STEP, MAKE = 3, 4, 5


class Writer:
    """Allocates and frees; addresses are never used again."""

    def __init__(self):
        self.events, self.order, self.sizes = [Event("segment_alloc", 0, 1 << 30)], 0, {}

    def take(self, size, origin):
        self.order += 1
        address = 512 * self.order
        self.sizes[address] = size
        self.events.append(Event("alloc", address, size, self.order, origin))
        return address

    def free(self, address):
        self.order += 1
        for action in ("free_requested", "free_completed"):
            self.events.append(Event(action, address, self.sizes[address], self.order))


def training(ranks=1, tasks=()):
    """Three layers, each with 100 bytes inside and an output of 10; a weight of 40 with gradient and state of 80; the
    optimizer needs 500 bytes for a moment."""
    w = Writer()
    weight, state = w.take(40, MAKE), w.take(80, MAKE)
    first = w.order + 1
    layers = [(w.take(100, i), w.take(10, i)) for i in range(3)]
    begin = w.order + 1
    w.order += 1
    gradient = w.take(40, BACK)
    for inner, output in reversed(layers):
        w.free(w.take(1, BACK))
        w.free(output)
        w.free(inner)
    end = w.order
    w.free(w.take(500, STEP))
    last = w.order + 1
    marks = [Mark(last, weight, "parameters"), Mark(last, state, "optimizer state"), Mark(end, gradient, "gradients")]  # fmt: skip
    return Recording(
        0, ranks, tasks=list(tasks), events=w.events, origins=ORIGINS, marks=marks, backwards=[(begin, end)],
        steps=Steps("optimizer", 1, first, [last]), complete=True,
    )  # fmt: skip


def without_optimizer_peak():
    found = training()
    found.events = [e for e in found.events if e.size != 500]
    return found


def advice_of(found, **more):
    memory = analyze(found)
    return memory, {one.name: one for one in advise(found, memory, **more)}


def test_peak_of_spans():
    assert peak_of([(0, 4, 10), (2, 6, 5), (4, 9, 7)], (0, 9)) == 15
    assert peak_of([(0, 4, 10), (2, 6, 5)], (4, 9)) == 5  # within the window alone


def test_a_fused_optimizer_removes_its_temporaries():
    memory, found = advice_of(training())
    assert memory.peak_allocated == 40 + 80 + 40 + 500
    # what is left is the peak of the backward pass: all activations, the gradient and one byte
    assert found["fused optimizer"].peak == 40 + 80 + 3 * 110 + 40 + 1
    assert found["fused optimizer"].saves == 660 - 491
    assert "batch" not in found and "recompute" not in found  # the peak is elsewhere


def test_recomputation_keeps_outputs_and_one_layer():
    memory, found = advice_of(without_optimizer_peak())
    assert memory.peak_allocated == 40 + 80 + 330 + 40 + 1
    # weight, state, three outputs, gradient, the inside of one layer, a byte
    assert found["recompute"].peak == 40 + 80 + 30 + 40 + 100 + 1
    assert "3 layers" in found["recompute"].text


def test_half_the_batch():
    _, found = advice_of(without_optimizer_peak())
    assert found["batch"].saves == 330 // 2


def test_sharding_over_a_server_that_one_rank_would_need():
    _, found = advice_of(without_optimizer_peak(), node_devices=8)
    assert found["shard optimizer"].saves == 70
    assert found["shard gradients"].saves == 70 + 35
    assert found["shard parameters"].saves == 70 + 35 + 35
    assert "8 ranks" in found["shard optimizer"].text


def reduction(ranks, count):
    spec = TensorSpec((count,), "uint8")
    return Task("hccl::all_reduce", "collective", 0, 1000, (spec,), (spec,), ranks=ranks, phase="backward")  # fmt: skip


def test_sharding_over_the_ranks_that_reduce_gradients():
    found = training(ranks=16, tasks=[reduction(4, 40), reduction(2, 1)])
    memory = analyze(found)
    assert replicas(found, memory) == 4
    texts = {one.name: one for one in advise(found, memory)}
    assert "the 4 ranks that reduce gradients" in texts["shard optimizer"].text
    assert texts["shard optimizer"].saves == 60


def test_gradients_that_nobody_reduces_are_sharded_already():
    found = training(ranks=16, tasks=[reduction(16, 4)])  # of a loss, say
    memory = analyze(found)
    assert replicas(found, memory) == 1
    assert not any(one.name.startswith("shard") for one in advise(found, memory))


def test_fragmentation():
    memory, found = advice_of(training())
    assert found["expandable segments"].saves == memory.peak_reserved - memory.peak_allocated


def test_layer_around_a_line():
    around = Origin("m.py", 1, "f", "forward", ("", "model", "model.layers.12", "model.layers.12.mlp.3"))  # fmt: skip
    assert layer_of(around) == "model.layers.12"
    assert layer_of(Origin("m.py", 1, "f", "forward", ("", "head"))) == ""
