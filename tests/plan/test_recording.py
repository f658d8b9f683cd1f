"""A recording survives its file."""

from softnpu.plan.recording import Event, Mark, Origin, Recording, Steps
from softnpu.plan.tasks import Task, TensorSpec


def test_written_and_read(tmp_path):
    x = TensorSpec((2, 3), "bfloat16")
    task = Task(
        "npu::npu_fusion_attention", "kernel", 1, 2, (x, x), (x,), (("head_num", 8), ("lengths", (1, 2))), (0,),
        True, 4, (0, 1, 2, 3), "forward",
    )  # fmt: skip
    found = Recording(
        rank=3, ranks=4, device=1, tasks=[task], events=[Event("alloc", 512, 100, 1, 0)],
        origins=[Origin("a.py", 2, "f", "forward", ("", "layers.0"))], marks=[Mark(2, 512, "gradients")],
        backwards=[(1, 2)], steps=Steps("optimizer", 1, 0, [3]), capacity=64, groups=[(4, 5)], complete=True,
        notes=["a note"],
    )  # fmt: skip
    found.write(tmp_path / "r.json")
    assert Recording.read(tmp_path / "r.json") == found
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]
