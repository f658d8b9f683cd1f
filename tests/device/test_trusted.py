"""Gradients and other inner operators of PyTorch, called directly: its kernels trust sizes and indices, the device does not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torch_npu  # noqa: F401

aten = torch.ops.aten


def pooled(dims, adaptive):
    """Input, gradient and indices of a max pooling on the CPU, and the operator of its gradient with further arguments."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, *[6] * dims)
    if adaptive:
        y, indices = getattr(F, f"adaptive_max_pool{dims}d")(x, 3, return_indices=True)
        return (
            x,
            torch.randn_like(y),
            indices,
            getattr(aten, f"adaptive_max_pool{dims}d_backward"),
            (),
        )
    y, indices = getattr(F, f"max_pool{dims}d")(x, 2, return_indices=True)
    window = [2] * dims, [2] * dims, [0] * dims, [1] * dims, False
    return (
        x,
        torch.randn_like(y),
        indices,
        getattr(aten, f"max_pool{dims}d_with_indices_backward"),
        window,
    )


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("adaptive", [False, True])
def test_indices_of_pooling(dims, adaptive):
    x, grad, indices, backward, window = pooled(dims, adaptive)
    expected = backward(grad, x, *window, indices)
    found = backward(grad.npu(), x.npu(), *window, indices.npu())
    torch.testing.assert_close(found.cpu(), expected)
    for wrong in (6**dims, -2, 2**62):
        spoiled = indices.clone()
        spoiled.view(-1)[5] = wrong
        message = (
            rf"argument 'indices' must hold indices from (0|-1) to {6**dims - 1}, but holds {wrong}"
        )
        with pytest.raises(RuntimeError, match=message):
            backward(grad.npu(), x.npu(), *window, spoiled.npu())
    with pytest.raises(RuntimeError, match="argument 'indices' must have the sizes"):
        backward(grad.npu(), x.npu(), *window, indices[:, :1].npu())
    with pytest.raises(RuntimeError, match="argument 'grad_output' must have the batch"):
        backward(grad[:1].npu(), x.npu(), *window, indices[:1].npu())


def test_indices_with_strides_are_looked_at():
    x, grad, indices, backward, window = pooled(2, adaptive=False)
    wide = torch.stack([indices, indices], -1).npu()
    wide[..., 1] = 2**40  # beside the elements
    found = backward(grad.npu(), x.npu(), *window, wide[..., 0])
    torch.testing.assert_close(found.cpu(), backward(grad, x, *window, indices))
    wide[1, 2, 2, 2, 0] = 36
    with pytest.raises(RuntimeError, match="from -1 to 35, but holds 36"):
        backward(grad.npu(), x.npu(), *window, wide[..., 0])


def test_distances():
    x1, x2 = torch.randn(4, 3), torch.randn(5, 3)
    distances, grad = torch.cdist(x1, x2), torch.randn(4, 5)
    given = [t.npu() for t in (grad, x1, x2)]
    found = aten._cdist_backward(*given, 2.0, distances.npu())
    torch.testing.assert_close(found.cpu(), aten._cdist_backward(grad, x1, x2, 2.0, distances))
    with pytest.raises(
        RuntimeError, match=r"_cdist_backward: argument 'grad' must have the sizes \[4, 5\]"
    ):
        aten._cdist_backward(given[0][0], *given[1:], 2.0, distances.npu())
    with pytest.raises(
        RuntimeError, match="argument 'cdist' must have a row for each of 4 rows of 'x1'"
    ):
        aten._cdist_backward(given[0].t(), *given[1:], 2.0, distances.t().npu())


def bags():
    """The arguments of the gradient of embedding_bag: 5 indices into 7 rows, in 3 bags."""
    indices, bag = torch.tensor([1, 4, 6, 0, 2]), torch.tensor([0, 0, 1, 2, 2])
    return [
        torch.randn(3, 3),
        indices,
        bag,
        torch.tensor([2, 1, 2]),
        torch.zeros(3, dtype=torch.int64),
    ]


def backward_of_bags(grad, indices, bag, size, most):
    return aten._embedding_bag_dense_backward(grad, indices, bag, size, most, 7, False, 0, None, -1)


def test_embedding_bags():
    given = bags()
    found = backward_of_bags(*[t.npu() for t in given])
    torch.testing.assert_close(found.cpu(), backward_of_bags(*given))


@pytest.mark.parametrize(
    ("which", "value", "said"),
    [
        (1, 7, "argument 'indices' must hold indices from 0 to 6, but holds 7"),
        (1, -1, "argument 'indices' must hold indices from 0 to 6, but holds -1"),
        (2, 3, "argument 'offset2bag' must hold indices from 0 to 2, but holds 3"),
    ],
)
def test_embedding_bags_with_wrong_indices(which, value, said):
    given = [t.npu() for t in bags()]
    given[which][1] = value
    with pytest.raises(RuntimeError, match=said):
        backward_of_bags(*given)


def test_a_replayed_graph_looks_again():
    x, grad, indices, backward, window = (
        t.npu() if isinstance(t, torch.Tensor) else t for t in pooled(2, adaptive=True)
    )
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        backward(grad, x, *window, indices)
    graph.replay()
    indices.fill_(1000)
    with pytest.raises(RuntimeError, match="must hold indices from 0 to 35, but holds 1000"):
        graph.replay()
        torch.npu.synchronize()


def test_a_required_tensor_is_there():
    """PyTorch's own check is part of autograd; below it the kernel is asked."""
    x = torch.ones(3, device="npu")
    with torch.inference_mode():
        with pytest.raises(
            RuntimeError, match="_fft_r2c: argument 'self' must be a tensor, but is None"
        ):
            aten._fft_r2c.out(None, [0], 0, True, out=x)
        with pytest.raises(RuntimeError, match="backward_data: argument 'output' must be a tensor"):
            aten._softmax_backward_data(x, None, 0, torch.float32)
        with pytest.raises(
            RuntimeError, match="aten::copy: argument 'self' must be a tensor, but is None"
        ):
            aten.copy.out(None, x, out=x)
        with pytest.raises(
            RuntimeError, match="aten::copy: argument 'self' must be a tensor, but is None"
        ):
            aten.copy(None, x)


def test_copies_between_devices_go_on():
    x, y = torch.randn(2, 3), torch.zeros(2, 3, device="npu")
    assert torch.equal(aten.copy(y, x).cpu(), x) and not y.any()
    aten.copy.out(y, x, out=(z := torch.empty(2, 3, device="npu")))
    assert torch.equal(z.cpu(), x)
    assert torch.equal(aten.copy(torch.empty(2, 3), z), x)


def test_points_of_a_grid():
    x, grid, grad = torch.randn(2, 3, 5, 5), torch.rand(2, 4, 4, 2), torch.randn(2, 3, 4, 4)
    rest = 0, 0, False, [True, True]
    found = aten.grid_sampler_2d_backward(grad.npu(), x.npu(), grid.npu(), *rest)
    torch.testing.assert_close(
        found[0].cpu(), aten.grid_sampler_2d_backward(grad, x, grid, *rest)[0]
    )
    with pytest.raises(
        RuntimeError, match=r"argument 'grad_output' must have the sizes \[2, 3, 4, 4\]"
    ):
        aten.grid_sampler_2d_backward(grad[..., :2].npu(), x.npu(), grid.npu(), *rest)


def normalized():
    torch.manual_seed(0)
    x, weight = torch.randn(3, 2, 4), torch.randn(2)
    _, mean, invstd = aten.native_batch_norm(x, weight, None, None, None, True, 0.1, 1e-5)
    return [torch.randn(3, 2, 4), x, weight, torch.zeros(2), torch.ones(2), mean, invstd]


@pytest.mark.parametrize("train", [True, False])
def test_statistics_of_batch_norm(train):
    given = normalized()
    rest = train, 1e-5, [True, True, True]
    npu = [t.npu() for t in given]
    found, expected = (aten.native_batch_norm_backward(*g, *rest) for g in (npu, given))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
    missing = 5 if train else 3
    label = "save_mean" if train else "running_mean"
    with pytest.raises(
        RuntimeError, match=f"argument '{label}' must be a tensor (after|without) training"
    ):
        aten.native_batch_norm_backward(*npu[:missing], None, *npu[missing + 1 :], *rest)
    with pytest.raises(RuntimeError, match=r"argument 'grad_out' must have the sizes \[3, 2, 4\]"):
        aten.native_batch_norm_backward(npu[0][:1], *npu[1:], *rest)
    if not train:
        with pytest.raises(
            RuntimeError, match="argument 'running_mean' must be a tensor without training"
        ):
            aten._native_batch_norm_legit.no_stats(npu[1], npu[2], None, False, 0.1, 1e-5)


def test_rows_of_layer_norm():
    x, grad, weight = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6)
    _, mean, rstd = aten.native_layer_norm(x, [6], weight, None, 1e-5)

    def call(grad, x, mean, rstd, weight, shape=(6,)):
        return aten.native_layer_norm_backward(
            grad, x, shape, mean, rstd, weight, None, [True, True, False]
        )

    given = grad, x, mean, rstd, weight
    npu = [t.npu() for t in given]
    for mine, theirs in zip(call(*npu)[:2], call(*given)[:2], strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
    with pytest.raises(
        RuntimeError, match="argument 'rstd' must have 4 elements, one for each row"
    ):
        call(*npu[:3], npu[3][:2], npu[4])
    with pytest.raises(
        RuntimeError, match="argument 'normalized_shape' must be the last sizes of 'input'"
    ):
        call(*npu, shape=[4])
    with pytest.raises(RuntimeError, match="argument 'grad_out' must have the sizes"):
        call(npu[0][:2], *npu[1:])


def test_numbers_of_group_norm():
    x = torch.randn(2, 4, 3)
    found = aten.native_group_norm(x.npu(), None, None, 2, 4, 3, 2, 1e-5)
    torch.testing.assert_close(found[0].cpu(), F.group_norm(x, 2))
    with pytest.raises(
        RuntimeError, match="arguments 'N', 'C' and 'HxW' must be the sizes of 'input'"
    ):
        aten.native_group_norm(x.npu(), None, None, 2, 4, 30, 2, 1e-5)
    with pytest.raises(RuntimeError, match=r"argument 'group' must divide 'C' \(4\), but is 0"):
        aten.native_group_norm(x.npu(), None, None, 2, 4, 3, 0, 1e-5)
    with pytest.raises(
        RuntimeError, match="argument 'mean' must have 4 elements, one for each group"
    ):
        short = torch.ones(2, 1, device="npu")
        aten.native_group_norm_backward(
            x.npu(), x.npu(), short, short, None, 2, 4, 3, 2, [True] * 3
        )


def test_dimensions_of_transforms():
    x = torch.randn(3, 8)
    spectrum = torch.fft.rfft(x)
    torch.testing.assert_close(aten._fft_r2c(x.npu(), [1], 0, True).cpu(), spectrum)
    torch.testing.assert_close(aten._fft_c2r(spectrum.npu(), [1], 2, 8).cpu(), x)
    for dim in (-1, 2, 2**40):
        with pytest.raises(
            RuntimeError, match=f"must hold dimensions from 0 to 1, but holds {dim}"
        ):
            aten._fft_r2c(x.npu(), [dim], 0, True)
    with pytest.raises(RuntimeError, match=r"must hold each dimension once, but is \[1, 1\]"):
        aten._fft_c2c(spectrum.npu(), [1, 1], 0, True)
    torch.testing.assert_close(
        aten._fft_c2r(spectrum.npu(), [1], 2, 9).cpu(), torch.fft.irfft(spectrum, 9)
    )
    for size in (0, 3, 4, 7, 10, 40):  # 4: the kernel would transform 5 numbers into a result for 4
        with pytest.raises(
            RuntimeError, match=f"'last_dim_size' must be 5 or such .* but is {size}$"
        ):
            aten._fft_c2r(spectrum.npu(), [1], 2, size)


@pytest.mark.filterwarnings("ignore")
def test_nested_tensors_of_a_quantized_dtype():
    q = torch.quantize_per_tensor(torch.ones(2, 3, device="npu"), 0.1, 0, torch.qint8)
    with pytest.raises(RuntimeError, match="a quantized tensor with a scale"):
        torch.nested.nested_tensor([q, q]).clone()


@pytest.mark.filterwarnings("ignore")
def test_none_beside_tensors_of_other_layouts():
    x = torch.ones(3, device="npu")
    q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)
    with torch.inference_mode():  # else PyTorch's autograd looks at it first
        with pytest.raises(RuntimeError, match="aten::sub: argument 'self' must be a tensor"):
            aten.sub.Tensor(None, q)
        with pytest.raises(RuntimeError, match="aten::addr: argument 'vec2' must be a tensor"):
            aten.addr(x, q, None)


def test_paddings_and_planes():
    grad, x = torch.ones(1, 2, 6, device="npu"), torch.ones(1, 2, 4, device="npu")
    assert aten.reflection_pad1d_backward(grad, x, [1, 1]).shape == (1, 2, 4)
    with pytest.raises(
        RuntimeError, match="reflection_pad1d_backward: argument 'padding' must have 2 numbers"
    ):
        aten.reflection_pad1d_backward(grad, x, [])
    with pytest.raises(
        RuntimeError, match="'grad_output' must have the batch and the channels of 'self'"
    ):
        grads = torch.ones(1, 8, 1, 5, device="npu")
        aten._adaptive_avg_pool2d_backward(grads, torch.ones(0, 8, 1, 8, device="npu"))


def test_pivots():
    a, b = torch.randn(4, 4), torch.randn(4, 2)
    factors, pivots = torch.linalg.lu_factor(a)
    found = torch.linalg.lu_solve(factors.npu(), pivots.npu(), b.npu())
    torch.testing.assert_close(found.cpu(), torch.linalg.solve(a, b), rtol=1e-3, atol=1e-4)
    pivots[2] = 2**30
    with pytest.raises(
        RuntimeError, match=f"'pivots' must hold indices from 1 to 4, but holds {2**30}"
    ):
        torch.linalg.lu_solve(factors.npu(), pivots.npu(), b.npu())
    with pytest.raises(RuntimeError, match="'LU_pivots' must hold indices from 1 to 4"):
        torch.lu_unpack(factors.npu(), pivots.npu())
    with pytest.raises(
        RuntimeError, match=r"'LU_pivots' must have the sizes \[4\] that 'LU_data' says"
    ):
        torch.lu_unpack(factors.npu(), pivots[:0].npu())


def test_states_of_optimizers():
    full, short = torch.ones(8, device="npu"), torch.ones(2, device="npu")
    step = torch.ones((), device="npu")
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8}
    flags = {"amsgrad": False, "maximize": False}
    with pytest.raises(
        RuntimeError, match="tensor 0 of argument 'exp_avgs' must have the elements of tensor 0"
    ):
        aten._fused_adam_([full], [full], [short], [full], [], [step], **numbers, **flags)
    with pytest.raises(
        RuntimeError, match="argument 'grads' must have 1 tensors, as many as 'self', but has 0"
    ):
        aten._fused_adam_([full], [], [full], [full], [], [step], **numbers, **flags)


def test_numbers_that_stay_symbolic():
    x = torch.ones(1, 2, 4, 4, device="npu")
    with pytest.raises(RuntimeError, match="sizes should be greater than 0"):
        aten._upsample_bilinear2d_aa(x, [-(2**62) - 1, 3], False)


def test_rows_that_an_embedding_counts():
    grad, indices = torch.randn(3, 2), torch.tensor([0, 4, 1])
    rest = 5, -1, True
    found = aten.embedding_dense_backward(grad.npu(), indices.npu(), *rest)
    torch.testing.assert_close(found.cpu(), aten.embedding_dense_backward(grad, indices, *rest))
    for wrong in (5, -1):
        indices[1] = wrong
        with pytest.raises(
            RuntimeError, match=f"'indices' must hold indices from 0 to 4, but holds {wrong}"
        ):
            aten.embedding_dense_backward(grad.npu(), indices.npu(), *rest)


def test_pairs_of_rows():
    x = torch.randn(4, 3)
    distances, grad = F.pdist(x), torch.randn(6)
    found = aten._pdist_backward(grad.npu(), x.npu(), 2.0, distances.npu())
    torch.testing.assert_close(found.cpu(), aten._pdist_backward(grad, x, 2.0, distances))
    with pytest.raises(
        RuntimeError, match="argument 'pdist' must have the sizes .6., one for each pair of rows"
    ):
        aten._pdist_backward(grad.npu(), x.npu(), 2.0, distances[:2].npu())


def test_segments():
    data, lengths = torch.randn(6, 2), torch.tensor([1, 3, 2])
    found = torch.segment_reduce(data.npu(), "sum", lengths=lengths.npu())
    expected = torch.stack([part.sum(0) for part in data.split(lengths.tolist())])
    torch.testing.assert_close(found.cpu(), expected)
    grad = torch.randn(3, 2)

    def backward(grad, output, data, lengths):
        return aten._segment_reduce_backward(grad, output, data, "sum", lengths=lengths, axis=0)

    npu = [t.npu() for t in (grad, expected, data, lengths)]
    torch.testing.assert_close(backward(*npu).cpu(), backward(grad, expected, data, lengths))
    for call in (
        lambda lengths: backward(*npu[:3], lengths),
        lambda lengths: torch.segment_reduce(data.npu(), "sum", lengths=lengths, unsafe=True),
    ):
        with pytest.raises(
            RuntimeError, match="'lengths' must sum up to at most 6, .* but sums up to 7"
        ):
            call(torch.tensor([1, 3, 3], device="npu"))
        with pytest.raises(
            RuntimeError, match="'lengths' must hold indices from 0 to 6, but holds -1"
        ):
            call(torch.tensor([1, 3, -1], device="npu"))
    with pytest.raises(RuntimeError, match=r"argument 'output' must have the sizes \[3, 2\]"):
        backward(npu[0], npu[1][:2], *npu[2:])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_least_integer_divided_by_minus_one(dtype):
    least = torch.iinfo(dtype).min
    x, ones = torch.tensor([least, 7, least], dtype=dtype), torch.tensor([3, -1, 1], dtype=dtype)
    found = torch.div(x.npu(), ones.npu(), rounding_mode="trunc")
    assert found.tolist() == [-(-least // 3), -7, least]
    minus = torch.tensor([3, 1, -1], dtype=dtype)
    for call in (
        lambda: torch.div(x.npu(), minus.npu(), rounding_mode="trunc"),
        lambda: torch.div(x.npu(), -1, rounding_mode="trunc"),
        lambda: x.npu().div_(minus.npu(), rounding_mode="trunc"),
    ):
        with pytest.raises(
            RuntimeError, match="aten::div_?: argument 'self' must not hold the least"
        ):
            call()
    with pytest.raises(RuntimeError, match="aten::lcm: argument 'self' must not hold the least"):
        torch.lcm(x.npu(), x.npu() + 1)
    assert torch.lcm(torch.tensor([4, 6], dtype=dtype).npu(), 10 + x.npu()[:1] * 0).tolist() == [
        20,
        30,
    ]


def test_windows():
    grad = torch.randn(3, 2, 4)
    found = aten.unfold_backward(grad.npu(), [8, 2], 0, 4, 2)
    torch.testing.assert_close(found.cpu(), aten.unfold_backward(grad, [8, 2], 0, 4, 2))
    with pytest.raises(
        RuntimeError, match="'size' and 'step' must be from 0 to 8 and positive, but are 255 and 2"
    ):
        aten.unfold_backward(grad.npu(), [8, 2], 0, 255, 2)
    with pytest.raises(RuntimeError, match=r"argument 'grad_in' must have the sizes \[3, 2, 4\]"):
        aten.unfold_backward(grad[:1].npu(), [8, 2], 0, 4, 2)


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("dim", [0, -1])
def test_gradient_of_unfold_of_a_number(dim, size):
    grads = []
    for device in ("cpu", "npu"):
        x = torch.tensor(2.0, device=device, requires_grad=True)
        (3 * x.unfold(dim, size, 1)).sum().backward()
        grads.append(x.grad.item())
    assert grads == [3.0 * size] * 2
    with pytest.raises(RuntimeError, match="grad_in"):
        aten.unfold_backward(torch.ones(2).npu(), [], dim, 1, 1)


def test_offsets_of_bags():
    grad, weight, indices = torch.randn(3, 2), torch.randn(7, 2), torch.tensor([1, 4, 6, 0, 2])
    empty = torch.empty(0, dtype=torch.int64)

    def call(offsets, device):
        given = [t.to(device) for t in (grad, weight, indices, torch.tensor(offsets), empty)]
        return aten._embedding_bag_per_sample_weights_backward(*given, 0)

    for offsets in ([0, 2, 3], [0, 2, 3, 5]):
        torch.testing.assert_close(call(offsets, "npu").cpu(), call(offsets, "cpu"))
    with pytest.raises(RuntimeError, match="'offsets' must begin at most 3 bags, .* but begins 6"):
        call([0, 2, 3, 0, 2, 3], "npu")
    with pytest.raises(RuntimeError, match="'offsets' must hold indices from 0 to 5, but holds 9"):
        call([0, 2, 9], "npu")


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("scale", [0.3, 0.9, 1.7, (2.5, 0.45)])
def test_filtered_resampling(mode, scale):
    x = torch.randn(2, 3, 11, 20)
    options = {"scale_factor": scale, "mode": mode, "antialias": True}
    torch.testing.assert_close(F.interpolate(x.npu(), **options).cpu(), F.interpolate(x, **options))
    with pytest.raises(
        RuntimeError, match=r"'output_size' must hold at most 11 times 1.7, but holds 128"
    ):
        aten._upsample_bilinear2d_aa(x.npu(), [128, 18], False, 1.7, 0.9)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("batched", [False, True])
def test_gradients_of_padding(mode, dims, batched):
    x = torch.randn(*([2] if batched else []), 3, *range(4, 4 + dims))
    pads = [1, 2, 0, 3, 2, 1][: 2 * dims]
    found = {}
    for device in ("cpu", "npu"):
        leaf = x.to(device, copy=True).requires_grad_()
        padded = F.pad(leaf, pads, mode)
        padded.backward(torch.arange(float(padded.numel()), device=device).view(padded.shape))
        found[device] = leaf.grad.cpu()
    torch.testing.assert_close(found["npu"], found["cpu"])
    backward = getattr(
        aten, f"{'reflection' if mode == 'reflect' else 'replication'}_pad{dims}d_backward"
    )
    with pytest.raises(RuntimeError, match="'grad_output' must have the sizes .* that 'self' and"):
        backward(padded.detach()[..., :-1].contiguous(), x.npu(), pads)


def test_pivots_of_a_symmetric_factorization():
    x = torch.randn(4, 6, 6)
    x = x + x.mT
    b = torch.randn(4, 6, 2)
    factors, pivots = torch.linalg.ldl_factor(x)
    assert (pivots < 0).any()  # a block of two rows
    solved = torch.linalg.ldl_solve(factors.npu(), pivots.npu(), b.npu()).cpu()
    torch.testing.assert_close(solved, torch.linalg.ldl_solve(factors, pivots, b))
    for wrong in (torch.full_like(pivots, -1)[:, :5], torch.zeros_like(pivots)):
        size = wrong.shape[-1]
        part = factors[:, :size, :size].contiguous().npu()
        with pytest.raises(RuntimeError, match="'pivots' must hold rows from 1 to"):
            torch.linalg.ldl_solve(part, wrong.npu(), b[:, :size].npu())


@pytest.mark.parametrize("indices", [[], [None], [None, None]])
def test_indices_without_a_tensor(indices):
    aten = torch.ops.aten
    x, one = torch.zeros(3, 4, device="npu"), torch.ones((), device="npu")
    calls = {
        "index": lambda: aten.index(x, indices),
        "_unsafe_index": lambda: aten._unsafe_index(x, indices),
        "index_put": lambda: aten.index_put(x, indices, one),
        "index_put_": lambda: aten.index_put_(x, indices, one),
        "_index_put_impl_": lambda: aten._index_put_impl_(x, indices, one),
    }
    for name, call in calls.items():
        with pytest.raises(
            IndexError, match=f"aten::{name}: argument 'indices' must have at least"
        ):
            call()
    x[1, torch.tensor([0, 2], device="npu")] = 1
    assert x[None, :, torch.tensor(2, device="npu")].tolist() == [[0, 1, 0]] and x[()] is not None
