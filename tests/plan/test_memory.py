"""The memory of a recording: kinds, lines, what is needed, the curve. Recordings are written by hand."""

from softnpu.plan.memory import analyze
from softnpu.plan.recording import Event, Mark, Origin, Recording, Steps

SEGMENT = 1 << 20
FORWARD = Origin("train.py", 10, "forward", "forward", ("", "layers.0"))
BACKWARD = Origin("train.py", 20, "main", "backward")
MAKE = Origin("train.py", 1, "main", "forward")


def recording(events, **more):
    """Events as (what, address, size, origin), at 10, 20, 30 ... in the order."""
    found = [Event("segment_alloc", 0, SEGMENT)]
    for number, (what, address, size, *origin) in enumerate(events, 1):
        if what == "alloc":
            found.append(Event("alloc", address, size, 10 * number, *origin))
        else:
            for action in ("free_requested", "free_completed"):
                found.append(Event(action, address, size, 10 * number))
    return Recording(0, 1, events=found, origins=[MAKE, FORWARD, BACKWARD], complete=True, **more)


def step():
    """A weight, a step with an activation, two temporaries and a gradient."""
    return recording(
        [
            ("alloc", 0, 1000, 0),  # the weight
            ("alloc", 1000, 500, 1),  # an activation
            ("alloc", 2000, 50, 1),  # a temporary of the forward pass
            ("free", 2000, 50),  # after it the backward pass begins
            ("alloc", 3000, 1000, 2),  # the gradient
            ("alloc", 2000, 70, 2),  # a temporary of the backward pass
            ("free", 2000, 70),
            ("free", 1000, 500),
        ],
        marks=[Mark(85, 0, "parameters"), Mark(85, 3000, "gradients")],
        backwards=[(45, 82)],
        steps=Steps("optimizer", 1, 15, [90]),
    )


def test_peak_by_kind():
    memory = analyze(step())
    assert memory.peak_allocated == 1000 + 500 + 1000 + 70
    assert memory.by_kind == {
        "parameters": 1000, "gradients": 1000, "optimizer state": 0, "activations": 500, "temporaries": 70,
        "communication": 0, "other": 0, "fragmentation": SEGMENT - 2570,
    }  # fmt: skip
    assert sum(memory.by_kind.values()) == memory.peak_reserved == SEGMENT


def test_line_with_the_most():
    lines = analyze(step()).lines
    assert [(line.origin.line, line.size) for line in lines] == [(20, 1070), (1, 1000), (10, 500)]
    assert lines[0].kinds == {"gradients": 1000, "temporaries": 70} and lines[0].blocks == 2


def test_a_mark_belongs_to_the_block_of_its_time():
    """The address of a temporary is used by a gradient later."""
    found = recording(
        [("alloc", 0, 10, 1), ("free", 0, 10), ("alloc", 0, 20, 2), ("alloc", 512, 1, 2)],
        marks=[Mark(35, 0, "gradients")],
    )
    assert [block.kind for block in analyze(found).blocks] == [
        "temporaries", "gradients", "temporaries",
    ]  # fmt: skip


def test_what_a_collective_wrote():
    """An activation stays one; a buffer that outlives steps is communication, and nobody's block is other."""
    found = recording(
        [
            ("alloc", 0, 10, 0),
            ("alloc", 512, 20, 0),
            ("alloc", 1024, 30, 1),
            ("free", 1024, 30),  # by the backward pass, which has allocated nothing yet
        ],
        marks=[Mark(35, 0, "communication"), Mark(35, 1024, "communication")],
        backwards=[(35, 45)],
        steps=Steps("optimizer", 3, 25, [50, 60, 70]),
    )
    kinds = [block.kind for block in analyze(found).blocks]
    assert kinds[:3] == ["communication", "other", "activations"]


def test_without_a_backward_pass_nothing_is_an_activation():
    found = recording([("alloc", 0, 10, 1), ("free", 0, 10)], steps=Steps("program", 1, 0, [99]))
    assert analyze(found).by_kind["activations"] == 0
    assert analyze(found).by_kind["temporaries"] == 10


def test_an_interrupted_forward_pass_holds_activations():
    found = recording([("alloc", 0, 10, 1)], steps=Steps("program", 1, 5, [99]))
    found.complete = False
    assert analyze(found).by_kind["activations"] == 10


def test_cached_segments_are_not_needed():
    """Two segments, one after the other in use: both are reserved, one is needed at a time."""
    found = Recording(0, 1, origins=[MAKE], complete=True)
    found.events = [
        Event("segment_alloc", 0, 1000),
        Event("alloc", 0, 900, 1, 0),
        Event("free_requested", 0, 900),
        Event("free_completed", 0, 900),
        Event("segment_alloc", 5000, 3000),
        Event("alloc", 5000, 2000, 2, 0),
    ]
    memory = analyze(found)
    assert (memory.peak_allocated, memory.peak_reserved, memory.peak_needed) == (2000, 4000, 3000)


def test_memory_in_use_by_another_stream_is_needed():
    """A block that was freed while a stream still works on it keeps its segment."""
    found = Recording(0, 1, origins=[MAKE], complete=True)
    found.events = [
        Event("segment_alloc", 0, 1000),
        Event("alloc", 0, 900, 1, 0),
        Event("free_requested", 0, 900),
        Event("segment_alloc", 5000, 3000),
        Event("alloc", 5000, 2000, 2, 0),
    ]
    memory = analyze(found)
    assert (memory.peak_allocated, memory.peak_needed) == (2000, 4000)


def test_expandable_segments_count_their_pages():
    found = Recording(0, 1, origins=[MAKE], complete=True)
    found.events = [
        Event("segment_map", 0, 4000),
        Event("alloc", 0, 900, 1, 0),
        Event("segment_unmap", 2000, 2000),
    ]
    memory = analyze(found)
    assert (memory.peak_reserved, memory.peak_needed) == (4000, 4000)


def test_curve_over_the_step_with_the_peak():
    found = step()
    memory = analyze(found)
    first, last = memory.window
    assert found.events[first].order == 20  # the first allocation of the step
    totals = {at: sum(kinds.values()) for at, kinds in memory.curve}
    assert totals[memory.peak_at] == memory.peak_allocated == max(totals.values())
    assert all(first <= at <= last for at in totals)


def test_a_coarse_curve_keeps_the_peak():
    events = [("alloc", 512 * i, 10 + i % 7, 1) for i in range(200)]
    found = recording(events, steps=Steps("program", 1, 0, [9999]))
    memory = analyze(found, points=10)
    assert len(memory.curve) < 30
    assert max(sum(kinds.values()) for _, kinds in memory.curve) == memory.peak_allocated


def test_nothing_was_allocated():
    memory = analyze(Recording(0, 1))
    assert memory.peak_allocated == 0 and not memory.curve and not memory.lines


def test_what_a_kernel_takes_and_gives_back_is_its_workspace():
    found = Recording(0, 1, origins=[MAKE], complete=True)
    found.events = [
        Event("segment_alloc", 0, 9000),
        Event("alloc", 0, 100, 1, 0, 7),  # a result
        Event("alloc", 512, 900, 2, 0, 7),
        Event("free_requested", 512, 900, 3, 0, 7),
        Event("free_completed", 512, 900, 3, 0, 7),
        Event("alloc", 512, 300, 4, 0, 8),  # freed by another launch
        Event("free_requested", 512, 300, 5, 0, 9),
        Event("free_completed", 512, 300, 5, 0, 9),
    ]
    memory = analyze(found)
    assert (memory.peak_allocated, memory.workspace) == (1000, 900)
    assert memory.peak_without_workspace == 400
