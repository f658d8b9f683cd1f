"""npu_top_k_top_p_sample: one token a row, out of the most probable ones."""

from __future__ import annotations

import torch

from torch_npu.ops import _check as must
from torch_npu.ops._registry import Sample, kernel_generator, npu_op

#: the largest k that takes part; a limit below it is rounded up to a multiple of 8
MAX = 1024


def _limit(ks_max, words):
    aligned = -(-(MAX if ks_max is None else ks_max) // 8) * 8
    return min(aligned, MAX, words)


def _kept(row, k, p, min_p, limit, input_is_logits):
    """Probabilities and indices of the tokens that pass, in the order in which sampling sees them."""

    def probabilities(x):
        return torch.softmax(x, -1) if input_is_logits else x

    by_k, by_p = 1 <= k <= limit, p < 1
    if not by_k and not by_p and min_p < 1:
        kept, index = probabilities(row), torch.arange(row.shape[0], device=row.device)
    else:
        values, index = torch.sort(row, descending=True, stable=True)
        if by_k:
            values, index = values[:k], index[:k]
        kept = probabilities(values)
        if by_p and p > 0:
            inside = kept.cumsum(-1) - kept < p
            inside[0] = True  # nothing is before it, also where the probabilities are NaN
            kept, index = kept[inside], index[inside]
        elif by_p:
            kept, index = kept[:1], index[:1]
            kept = torch.ones_like(kept) if input_is_logits else kept
    if min_p >= 1:
        return kept[:1], index[:1]
    if min_p > 0:
        inside = kept >= kept.max() * min_p
        inside[kept.argmax()] = True
        kept, index = kept[inside], index[inside]
    return kept, index


@npu_op(
    "npu_top_k_top_p_sample(Tensor logits, Tensor top_k, Tensor top_p, Tensor? q=None,"
    " float? eps=1e-8, bool? is_need_logits=False, int? top_k_guess=32, Tensor? min_ps=None,"
    " int? ks_max=1024, bool? input_is_logits=True, str? post_sample='qSample',"
    " Generator? generator=None) -> (Tensor, Tensor)",
    random=True,
)
def npu_top_k_top_p_sample(
    logits,
    top_k,
    top_p,
    q,
    eps,
    is_need_logits,
    min_ps,
    ks_max,
    input_is_logits,
    post_sample,
    generator,
):
    r"""A token of each row: the k most probable, of these a mass of p, of these those near the largest, then a draw.

    With P the softmax of the k largest logits, sorted, a token passes

    - top k where 1 <= k <= min(words, ks_max); any other k lets all pass,
    - top p where the sum of the probabilities before it is below p; p >= 1 lets all pass, p <= 0 the
      largest alone,
    - min p where its probability is at least min_p times the largest; min_p <= 0 lets all pass,
      min_p >= 1 the largest alone.

    Then the token of the largest probability is taken, with `q` that of the largest
    $P_i / (|q_i| + \mathrm{eps})$, where i counts the tokens that pass from the largest on (in the
    order of the words where neither k nor p takes part), with "multiNomial" one at random.

    Args:
        logits: (batch, words); float16, bfloat16 or float32.
        top_k: k, (batch,) int32.
        top_p: p, (batch,), of the dtype of `logits`.
        q: (batch, words) float32, exponentially distributed numbers; None takes the largest.
        eps: epsilon.
        is_need_logits: True returns the logits that pass.
        top_k_guess: a hint to upstream's kernel; the result does not depend on it.
        min_ps: min_p, (batch,), of the dtype of `logits`; None for none.
        ks_max: the largest k that takes part, rounded up to a multiple of 8, at most 1024.
        input_is_logits: False for logits that are probabilities already.
        post_sample: "multiNomial" draws at random; "qSample" and "None" read `q`.
        generator: the generator of "multiNomial"; None for the default one of the device.

    Returns:
        The index of each row's token, (batch,) int64; and (batch, words) float32: the logits that
        pass, the others -inf (0 without `input_is_logits`), or zeros without `is_need_logits`.

    Differs from upstream: without `is_need_logits` the card leaves the second result unwritten. With
    post_sample="None" upstream's page ignores `q`, its code does not, as here. The random numbers of
    "multiNomial" are PyTorch's: those of `torch.multinomial` with the same generator.
    """
    batch, words = logits.shape
    rows = logits.float()
    is_logits = input_is_logits is None or input_is_logits
    limit, epsilon = _limit(ks_max, words), 1e-8 if eps is None else eps
    ks, ps = top_k.tolist(), top_p.float().tolist()
    mins = [0.0] * batch if min_ps is None else min_ps.float().tolist()
    passed = rows.new_zeros(batch, words)
    if is_need_logits and is_logits:
        passed.fill_(-torch.inf)
    chosen = []
    drawn = post_sample == "multiNomial"
    masked, places = torch.zeros_like(passed), torch.zeros(batch, words, dtype=torch.long)
    for b in range(batch):
        kept, index = _kept(rows[b], ks[b], ps[b], mins[b], limit, is_logits)
        if is_need_logits:
            passed[b, index] = rows[b, index]
        if drawn:
            masked[b, : kept.shape[0]], places[b, : kept.shape[0]] = kept, index
            continue
        if q is None:
            place = kept.argmax()
        else:
            place = (kept / (q[b, : kept.shape[0]].abs() + epsilon)).argmax()
        chosen.append(index[place])
    if drawn:  # one call of multinomial for all rows, as upstream's host code does it
        place = torch.multinomial(
            masked, 1, replacement=True, generator=kernel_generator(generator)
        )
        return places.gather(1, place).flatten(), passed
    return torch.stack(chosen), passed


@npu_top_k_top_p_sample.check
def _(logits, top_k, top_p, q, top_k_guess, min_ps, ks_max, post_sample):
    must.dtype("logits", logits, torch.float16, torch.bfloat16, torch.float32)
    must.ndim("logits", logits, 2)
    batch, words = logits.shape
    must.hold(logits.numel() > 0, "logits", "not empty", (batch, words))
    must.hold(words <= 2**20, "logits", "of at most 1048576 words", words)
    must.dtype("top_k", top_k, torch.int32)
    must.shape("top_k", top_k, (batch,))
    must.same_dtype("top_p", top_p, "logits", logits)
    must.shape("top_p", top_p, (batch,))
    must.same_dtype("min_ps", min_ps, "logits", logits)
    must.shape("min_ps", min_ps, (batch,))
    must.choice("post_sample", post_sample, ("qSample", "multiNomial", "None", None))
    if post_sample != "multiNomial":
        must.dtype("q", q, torch.float32)
        must.shape("q", q, (batch, words))
    must.hold(ks_max is None or ks_max > 0, "ks_max", "positive", ks_max)
    must.hold(
        top_k_guess is None or isinstance(top_k_guess, int), "top_k_guess", "an int", top_k_guess
    )


@npu_top_k_top_p_sample.meta
def _(logits):
    batch = logits.shape[0]
    return logits.new_empty(batch, dtype=torch.int64), logits.new_empty(
        logits.shape, dtype=torch.float32
    )


def _tensor(make, values, dtype):
    return torch.tensor(values, dtype=dtype).to(make(1).device)


npu_top_k_top_p_sample.samples = [
    Sample(
        lambda make: (
            make(3, 24, low=-3, high=3),
            _tensor(make, [4, 0, 24], torch.int32),
            _tensor(make, [0.7, 0.5, 1.0], torch.float32),
            make(3, 24, low=0.1, high=2),
        ),
        {"is_need_logits": True},
    ),
    Sample(
        lambda make: (
            make(2, 16, dtype=torch.bfloat16),
            _tensor(make, [4, 8], torch.int32),
            _tensor(make, [0.9, 0.5], torch.bfloat16),
        ),
        lambda make: {"min_ps": _tensor(make, [0.1, 0.0], torch.bfloat16)},
    ),
]
