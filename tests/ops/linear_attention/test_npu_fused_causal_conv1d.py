"""npu_fused_causal_conv1d and its in-place form against the page's formula, token by token in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import make, max_error

HALF = torch.float16


def integers(*values):
    return torch.tensor(values, dtype=torch.int32).to(make(1).device)


def reference(x, w, states, bounds, **o):
    """The page's formula: the padded input, the cache, the convolution; everything in fp64 lists of tokens."""
    shape, x = x.shape, x.cpu().double().reshape(-1, x.shape[-1])
    w, states = w.cpu().double(), states.cpu().double().clone()
    y, skipped, capacity = torch.zeros_like(x), [], states.shape[1]
    get = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in o.items()}
    for b in range(len(bounds) - 1):
        tokens = [x[i] for i in range(bounds[b], bounds[b + 1])]
        lines = get.get("cache_indices")
        apc = get.get("initial_state_idx")
        if apc:
            read = lines[b][get["initial_state_idx"][b]]
            write = lines[b][get["block_idx_last_scheduled_token"][b]]
        else:
            read = write = lines[b] if lines else b
        if read == get.get("pad_slot_id", -1):
            skipped.append(b)
            continue
        computed = get["num_computed_tokens"][b] if get.get("num_computed_tokens") else None
        if computed == 0:
            cached, offset = [torch.zeros_like(w[0])] * 2, 0
        else:
            accepted = get.get("num_accepted_tokens")
            offset = accepted[b] - 1 if accepted else capacity - 2
            cached = [states[read, i].clone() for i in range(offset + 2)]
        padded = cached + tokens
        length = len(padded)
        count = min(capacity, length)
        for i in range(count):
            states[write, capacity - count + i] = padded[length - count + i]
        inner = padded[offset:]
        if apc:
            size, n = get["block_size"], len(tokens)
            first, last = (
                get["block_idx_first_scheduled_token"][b],
                get["block_idx_last_scheduled_token"][b],
            )
            end_offset = (n - (size - computed % size)) % size
            full = n - end_offset - (size if end_offset == 0 else 0)
            for chunk in range(last - first):
                at = full - (last - first - chunk - 1) * size
                for j in range(2):
                    states[lines[b][first + chunk], capacity - 2 + j] = inner[at + j]
        for i, token in enumerate(tokens):
            value = sum(w[k] * inner[i + k] for k in range(3))
            if get.get("conv_mode") == "pangu" and i < 2 - computed:
                value = torch.zeros_like(value)
            y[bounds[b] + i] = value + token if get.get("residual_connection") else value
    return y.reshape(shape), states, skipped


def compare(x, w, states, bounds, **options):
    want, cache, skipped = reference(x, w, states, bounds, **options)
    if x.dim() == 2:
        options["query_start_loc"] = integers(*bounds)
    kept, again, other = states.clone(), states.clone(), x.clone()
    y = torch_npu.npu_fused_causal_conv1d(x, w, kept, **options)
    assert y.dtype == x.dtype and y.shape == x.shape
    assert max_error(y, want) <= 1.05 * max_error(want.to(x.dtype), want) + 1e-6
    assert torch.equal(kept.cpu().double(), cache)
    assert torch_npu.npu_fused_causal_conv1d_v2(other, w, again, **options) is None
    assert torch.equal(again.cpu(), kept.cpu())
    flat, mine, given = (t.cpu().reshape(-1, x.shape[-1]) for t in (other, y, x))
    for b in range(len(bounds) - 1):
        part = slice(bounds[b], bounds[b + 1])
        assert torch.equal(flat[part], given[part] if b in skipped else mine[part])
    return y


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("residual", [0, 1])
@pytest.mark.parametrize("mode", ["default", "pangu"])
def test_prompts(mode, residual, dtype):
    x, w = make(13, 64, dtype=dtype), make(3, 64, dtype=dtype)
    compare(
        x,
        w,
        make(8, 2, 64, dtype=dtype),
        [0, 5, 6, 13],
        cache_indices=integers(6, 0, 3),
        num_computed_tokens=integers(0, 1, 9),
        conv_mode=mode,
        residual_connection=residual,
    )


def test_without_indices_the_line_is_the_sequence():
    compare(make(5, 64, dtype=HALF), make(3, 64, dtype=HALF), make(2, 2, 64, dtype=HALF), [0, 3, 5])


def test_longer_lines():
    """Without num_accepted_tokens the last 2 tokens of a line count; short prompts leave old tokens in it."""
    compare(
        make(4, 64, dtype=HALF),
        make(3, 64, dtype=HALF),
        make(3, 5, 64, dtype=HALF),
        [0, 1, 4],
        num_computed_tokens=integers(0, 3),
    )


@pytest.mark.parametrize("flat", [False, True])
def test_speculative_decoding(flat):
    x = make(4, 3, 64, dtype=HALF)
    compare(
        x.reshape(12, 64) if flat else x,
        make(3, 64, dtype=HALF),
        make(8, 4, 64, dtype=HALF),
        [0, 3, 6, 9, 12],
        cache_indices=integers(0, 2, 4, 6),
        num_accepted_tokens=integers(2, 1, 3, 2),
        num_computed_tokens=integers(100, 1, 0, 30),
        conv_mode="pangu",
        max_query_len=3,
    )


def test_skipped_sequences():
    compare(
        make(6, 64, dtype=HALF),
        make(3, 64, dtype=HALF),
        make(4, 2, 64, dtype=HALF),
        [0, 2, 4, 6],
        cache_indices=integers(1, -1, 3),
    )
    compare(
        make(6, 64, dtype=HALF),
        make(3, 64, dtype=HALF),
        make(4, 2, 64, dtype=HALF),
        [0, 2, 4, 6],
        cache_indices=integers(1, 0, 3),
        pad_slot_id=3,
    )


def test_prefix_caching():
    compare(
        make(21, 64, dtype=HALF),
        make(3, 64, dtype=HALF),
        make(12, 2, 64, dtype=HALF),
        [0, 10, 21],
        cache_indices=torch.arange(12, dtype=torch.int32).reshape(2, 6).to(make(1).device),
        num_computed_tokens=integers(0, 6),
        block_idx_first_scheduled_token=integers(0, 1),
        block_idx_last_scheduled_token=integers(2, 4),
        initial_state_idx=integers(0, 1),
        block_size=4,
        residual_connection=1,
    )


def test_none_stands_for_the_default():
    x, w, states = make(4, 64, dtype=HALF), make(3, 64, dtype=HALF), make(1, 2, 64, dtype=HALF)
    at = {"query_start_loc": integers(0, 4)}
    none = dict.fromkeys(
        ("pad_slot_id", "run_mode", "residual_connection", "block_size", "conv_mode", "activation")
    )
    one = torch_npu.npu_fused_causal_conv1d(x, w, states.clone(), **at, **none)
    other = torch_npu.npu_fused_causal_conv1d(x, w, states.clone(), **at)
    assert torch.equal(one.cpu(), other.cpu())


def test_unused_arguments_change_nothing():
    x, w, states = make(4, 64, dtype=HALF), make(3, 64, dtype=HALF), make(1, 2, 64, dtype=HALF)
    at = {"query_start_loc": integers(0, 4)}
    one = torch_npu.npu_fused_causal_conv1d(
        x,
        w,
        states.clone(),
        bias=make(64, dtype=HALF),
        activation="silu",
        run_mode=1,
        initial_state_mode=integers(1),
        **at,
    )
    other = torch_npu.npu_fused_causal_conv1d(x, w, states.clone(), **at)
    assert torch.equal(one.cpu(), other.cpu())


def test_non_contiguous():
    x = make(6, 128, dtype=HALF)[:, ::2]
    states = make(4, 2, 128, dtype=HALF)[..., ::2]
    compare(x, make(3, 64, dtype=HALF), states, [0, 2, 6], cache_indices=integers(3, 1))
    x = make(3, 2, 64, dtype=HALF).transpose(0, 1)
    compare(x, make(3, 64, dtype=HALF), make(2, 4, 64, dtype=HALF), [0, 3, 6])


def call(**changes):
    given = {
        "x": make(4, 64, dtype=HALF),
        "weight": make(3, 64, dtype=HALF),
        "conv_states": make(2, 2, 64, dtype=HALF),
        "query_start_loc": integers(0, 4),
    }
    return torch_npu.npu_fused_causal_conv1d(**{**given, **changes})


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"query_start_loc": None}, "'query_start_loc' must be given with 'x' of 2 dimensions"),
        ({"weight": (4, 64)}, r"'weight' must be of shape \(3, 64\).*\(4, 64\)"),
        ({"conv_states": (2, 1, 64)}, "'conv_states' must be of at least 2 steps"),
        ({"x": (4, 72)}, "'x' must be of a last size divisible by 16"),
        ({"conv_mode": "pangu"}, "'num_computed_tokens' must be given with automatic prefix"),
        ({"residual_connection": 2}, "'residual_connection' must be 0 or 1, but received 2"),
    ],
)
def test_refusals(changes, message):
    changes = {k: make(*v, dtype=HALF) if isinstance(v, tuple) else v for k, v in changes.items()}
    with pytest.raises(RuntimeError, match=message):
        call(**changes)


def test_line_out_of_range():
    with pytest.raises(RuntimeError, match=r"'cache_indices' must be in \[0, 1\] or -1.*\[2\]"):
        call(cache_indices=integers(2))


def test_prefix_caching_needs_all_indices():
    with pytest.raises(RuntimeError, match="'initial_state_idx' must be given with 'block_idx_"):
        call(
            num_computed_tokens=integers(0),
            block_idx_first_scheduled_token=integers(0),
            block_idx_last_scheduled_token=integers(0),
        )


def test_narrow_rows():
    """The kernel of long sequences takes rows of 16 elements, that of short ones 64."""
    x, weight, states = (make(*s, dtype=torch.float16) for s in ((5, 16), (3, 16), (2, 2, 16)))
    edges = {"query_start_loc": torch.tensor([0, 5], dtype=torch.int32).npu()}
    assert torch_npu.npu_fused_causal_conv1d(x, weight, states, **edges).any()
    with pytest.raises(RuntimeError, match=r"'x' must be of a last size in \[64, 16384\]"):
        torch_npu.npu_fused_causal_conv1d(x, weight, states, **edges, max_query_len=5)
