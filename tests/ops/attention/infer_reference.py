"""What the tests of inference attention share: the formula row by row, and layouts."""

import torch

import torch_npu
from tests.ops.support import assert_accurate, make


def on_device(tensor):
    return tensor.to(make(1).device)


def draw(heads, tokens, size, dtype=torch.float64, seed=0):
    """(N, S, D) on the host, rounded to the dtype."""
    generator = torch.Generator().manual_seed(1000 * heads + 10 * tokens + size + seed)
    return (torch.rand(heads, tokens, size, generator=generator) * 2 - 1).to(dtype)


def attend(query, key, value, scale, hidden=None, bias=None, sink=None):
    """One sequence, (N, S, D), in its dtype: (out, lse). Row i may not see `hidden(i, j)`."""
    heads, rows, _ = query.shape
    group = heads // key.shape[0]
    out = torch.zeros(heads, rows, value.shape[2], dtype=value.dtype)
    lse = torch.full((heads, rows), torch.inf, dtype=torch.float64)
    for h in range(heads):
        for i in range(rows):
            seen = [j for j in range(key.shape[1]) if hidden is None or not hidden(i, j)]
            if not seen:
                continue
            scores = key[h // group][seen] @ query[h, i] * scale
            if bias is not None:
                scores = scores + bias[h, i][seen].to(scores.dtype)
            logits = (
                scores if sink is None else torch.cat((scores, sink[h : h + 1].to(scores.dtype)))
            )
            weights = (logits - logits.max()).exp()
            weights = weights / weights.sum()
            out[h, i] = weights[: len(seen)] @ value[h // group][seen]
            lse[h, i] = logits.double().logsumexp(0)
    return out, lse


def pack(sequences, layout):
    """Sequences (N, S, D), of equal length but in ragged layouts, as one tensor."""
    tokens_first = [s.transpose(0, 1) for s in sequences]
    if layout == "BSH":
        return torch.stack([s.flatten(1) for s in tokens_first])
    if layout == "BSND":
        return torch.stack(tokens_first)
    if layout == "BNSD":
        return torch.stack(list(sequences))
    if layout == "NSD":
        (only,) = sequences
        return only
    return torch.cat(tokens_first) if layout == "TND" else torch.cat(list(sequences), 1)


def unpack(out, layout, lengths, heads):
    """The sequences of an output, (N, S, D) each; padding rows cut off."""
    out = out.cpu()
    if layout in ("TND", "NTD"):
        rows = out if layout == "NTD" else out.transpose(0, 1)
        return list(rows.split(lengths, 1))
    if layout == "BSH":
        out = out.view(out.shape[0], out.shape[1], heads, -1)
    if layout in ("BSH", "BSND"):
        out = out.transpose(1, 2)
    elif layout == "NBSD":
        out = out.transpose(0, 1)
    elif layout == "NSD":
        out = out.unsqueeze(0)
    return [out[b, :, :n] for b, n in enumerate(lengths)]


def compare(found, query, key, value, dtype, slack=1e-6, **options):
    """One sequence of an output against the formula in fp64, by the accuracy rule."""
    want, _ = attend(query.double(), key.double(), value.double(), **options)
    plain, _ = attend(query.to(dtype), key.to(dtype), value.to(dtype), **options)
    assert_accurate(found, want, plain, slack)


def triangle():
    """The causal template of sparse_mode 2, 3 and 4."""
    return on_device(torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1))


def batch(rows, columns, heads=4, kv_heads=2, size=16, value=None, dtype=torch.float16):
    """Lists of query, key and value, one entry a sequence."""
    q = [draw(heads, n, size, dtype, seed=b) for b, n in enumerate(rows)]
    k = [draw(kv_heads, n, size, dtype, seed=b + 50) for b, n in enumerate(columns)]
    v = [draw(kv_heads, n, value or size, dtype, seed=b + 90) for b, n in enumerate(columns)]
    return q, k, v


def packed(sequences, layout):
    return [on_device(pack(s, layout)) for s in sequences]


def paginate(sequences, block, form, spare=3, fill=float("nan")):
    """Sequences (N, S, D) in shuffled pages; the block table ends with numbers out of range."""
    counts = [-(-s.shape[1] // block) for s in sequences]
    heads, _, size = sequences[0].shape
    dtype = sequences[0].dtype
    blocks = sum(counts) + spare
    fill = fill if dtype.is_floating_point else 99
    cache = torch.full((blocks, heads, block, size), fill, dtype=torch.float32).to(dtype)
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(3)).tolist()
    table = torch.full((len(sequences), max(counts) + 1), 10**6, dtype=torch.int32)
    for b, sequence in enumerate(sequences):
        for n in range(counts[b]):
            page = order.pop()
            table[b, n] = page
            part = sequence[:, n * block : (n + 1) * block]
            cache[page, :, : part.shape[1]] = part
    if form == "BnBsH":
        cache = cache.transpose(1, 2).reshape(blocks, block, heads * size)
    elif form == "NZ":
        width = 32 // cache.element_size()
        cache = cache.view(blocks, heads, block, size // width, width).transpose(2, 3)
    return on_device(cache.contiguous()), on_device(table)


SCALE = 0.25


def fia(*args, **kwargs):
    return torch_npu.npu_fused_infer_attention_score(*args, **kwargs)


def run(layout, q, k, v, source=None, **options):
    """Four heads in two groups unless the options say otherwise; `source` is the layout of the inputs."""
    options = {"num_heads": 4, "num_key_value_heads": 2, "scale": SCALE, **options}
    return fia(*packed((q, k, v), source or layout), input_layout=layout, **options)
