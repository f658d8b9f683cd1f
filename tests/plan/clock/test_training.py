"""Steps of whole models: layouts, pipeline, decoding."""

import dataclasses

import pytest

from softnpu import chips
from softnpu.plan import sweep
from softnpu.plan.clock import ClockError, architectures, serving, training
from softnpu.plan.clock.training import Layout

CHIP = chips.get("Ascend910B1")
LLAMA = architectures.get("llama2-7b")
LAYOUT = Layout(seq=4096, micro_batch=1, batch=64, tp=2, pp=2, dp=2, sharded_optimizer=True)


def test_step_adds_up():
    step = training.step(LLAMA, LAYOUT, CHIP)
    passes = 32 * (step.forward + step.backward)
    assert step.bubble == pytest.approx(step.forward + step.backward)  # pp - 1 micro-batches
    assert step.seconds >= passes + step.bubble + step.optimizer
    assert step.tokens_per_second == pytest.approx(64 * 4096 / 8 / step.seconds)
    assert 0.2 < step.mfu < 0.8


def test_operations_of_a_token():
    """6 a parameter that multiplies, and attention over half of the sequence: 12 x layers x hidden x seq / 2."""
    multiplying = LLAMA.parameters() - 32000 * 4096
    expected = 6 * multiplying + 12 * 32 * 4096 * 2048
    assert training.flops_of_token(LLAMA, 4096) == pytest.approx(expected)


def test_backward_takes_about_twice_the_forward():
    step = training.step(LLAMA, LAYOUT, CHIP)
    assert 1.6 < step.backward / step.forward < 2.6


def test_recomputing_adds_a_forward_pass():
    plain = training.step(LLAMA, LAYOUT, CHIP)
    again = training.step(LLAMA, dataclasses.replace(LAYOUT, recompute=True), CHIP)
    assert again.backward == pytest.approx(plain.backward + plain.forward)


def test_interleaved_stages_have_a_smaller_bubble():
    plain = training.step(LLAMA, LAYOUT, CHIP)
    chunks = training.step(LLAMA, dataclasses.replace(LAYOUT, chunk=4), CHIP)
    assert chunks.bubble == pytest.approx(plain.bubble / 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": 3}, "32 heads over tp"),
        ({"batch": 63}, "batch of 63"),
        ({"cp": 3}, "sequence of 4096 over cp"),
        ({"pp": 64}, "too few for pp 64"),
    ],
)
def test_layouts_that_do_not_divide(change, message):
    with pytest.raises(ClockError, match=message):
        training.step(LLAMA, dataclasses.replace(LAYOUT, **change), CHIP)


def test_world_that_does_not_fill_servers():
    layout = Layout(seq=4096, micro_batch=1, batch=12, dp=12)
    with pytest.raises(ClockError, match="12 ranks does not fill"):
        training.step(LLAMA, layout, CHIP)


def test_decoding_of_one_request_reads_the_weights():
    """A step cannot be faster than the weights pass the memory."""
    how = serving.Serving(batch=1, keys=128)
    least = 2 * (LLAMA.parameters() - 32000 * 4096) / CHIP.memory_bandwidth
    found = serving.decode(LLAMA, how, CHIP)
    assert least < found < 3 * least


def test_decoding_grows_with_keys_and_batch():
    times = [
        serving.decode(LLAMA, serving.Serving(batch=b, keys=k), CHIP)
        for b, k in ((1, 128), (16, 128), (16, 8192))
    ]
    assert times == sorted(times)


def test_sweep_of_a_model():
    points = sweep.estimate("llama3-70b", [8, 64, 512], CHIP)
    assert [point.ranks for point in points] == [8, 64, 512]
    assert [point.fits for point in points] == [False, True, True]
    assert points[0].step_seconds > points[1].step_seconds > points[2].step_seconds


def test_sweep_page(tmp_path):
    series = {"a <b>": [sweep.Point(8, 2.0, 0.4, 70 * 2**30, 64 * 2**30), sweep.Point(64, 0.3, 0.35, 2**34, 64 * 2**30)]}  # fmt: skip
    page = tmp_path / "sweep.html"
    sweep.write_page(page, "A sweep", series, CHIP.name)
    text = page.read_text("utf-8")
    assert text.count("<figure>") == 3
    assert "a &lt;b&gt;" in text and "<b>" not in text
    assert '<td class="no">no</td>' in text and '<td class="yes">yes</td>' in text
    assert "40.0 %" in text and "not measured" in text


def test_sweep_without_points(tmp_path):
    with pytest.raises(ClockError, match="without points"):
        sweep.write_page(tmp_path / "x.html", "x", {"a": []}, CHIP.name)


def test_ranks_that_no_layout_divides():
    with pytest.raises(ClockError, match="no layout of llama3-70b divides 24"):
        sweep.estimate("llama3-70b", [24], CHIP)
