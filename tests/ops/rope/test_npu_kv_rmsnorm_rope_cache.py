"""npu_kv_rmsnorm_rope_cache against loops over tokens in fp64, in every cache mode."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.rope._loops import rotate
from tests.ops.support import assert_accurate, make

BATCH, LENGTH, BLOCK, BLOCKS = 2, 5, 4, 6
MODES = ["Norm", "PA", "PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"]


def index_for(mode):
    """Distinct places out of order, one of them negative: that token (or block) is skipped."""
    if mode == "Norm":
        return torch.tensor([[3, 0, 7, 1, -1], [4, 5, 2, 0, 6]])
    if "BLK" in mode:
        return torch.tensor([8, 0, -1, 20])
    return torch.tensor([5, 0, 23, -1, 9, 8, 2, 11, 14, 13])


def arguments(mode, dtype=torch.float16, quantized=False, value=False, heads=1):
    device = make(1).device
    width, key, ckv = (192, 192, 128) if value else (576, 64, 512)
    shape = (BATCH, heads, 8) if mode == "Norm" else (BLOCKS, BLOCK, heads)
    kind = {"dtype": torch.int8, "low": -9, "high": 9} if quantized else {"dtype": dtype}
    tensors = [
        make(BATCH, heads, LENGTH, width, dtype=dtype, low=-3, high=3),
        make(192 if value else 512, dtype=dtype, seed=2),
        make(BATCH, heads, LENGTH, 64, dtype=dtype, seed=3),
        make(BATCH, heads, LENGTH, 64, dtype=dtype, seed=4),
        index_for(mode).to(device),
        make(*shape, key, **kind),
        make(*shape, ckv, **kind),
    ]
    options = {"cache_mode": mode}
    if quantized:
        rows = (heads,) if heads > 1 else ()
        options["k_rope_scale"] = make(*rows, key, low=5, high=60, seed=5)
        options["c_kv_scale"] = make(*rows, ckv, low=5, high=60, seed=6)
    if value:
        options["v"] = make(BATCH, heads, LENGTH, 128, dtype=dtype, seed=7)
    return tensors, options


def key_and_value(kv, gamma, cos, sin, v=None, epsilon=1e-5):
    def normalize(x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * gamma

    if v is None:
        return rotate(kv[..., 512:], cos, sin, "interleave-half"), normalize(kv[..., :512])
    key = normalize(kv)
    turned = rotate(key[..., :64], cos, sin, "interleave-half")
    return torch.cat((turned, key[..., 64:]), -1), v


def place(cache, index, mode, batch, token, head, row):
    """Puts one token's row of a head into the cache, element by element."""
    if mode == "Norm":
        if index[batch, token] >= 0:
            cache[batch, head, index[batch, token]] = row
        return
    if "BLK" in mode:
        start = index[batch * -(-LENGTH // BLOCK) + token // BLOCK]
        page, slot = start // BLOCK, token % BLOCK
    else:
        start = index[batch * LENGTH + token]
        page, slot = start // BLOCK, start % BLOCK
    if start < 0:
        return
    if not mode.endswith("NZ"):
        cache[page, slot, head] = row
        return
    d0 = 32 if cache.dtype == torch.int8 else 16
    flat = cache.view(-1)
    size = row.numel()
    start = (page * cache.shape[2] + head) * BLOCK * size
    for d in range(size):
        flat[start + (d // d0) * BLOCK * d0 + slot * d0 + d % d0] = row[d]


def expected(cache, rows, index, mode):
    cache = cache.clone()
    for batch in range(BATCH):
        for head in range(rows.shape[1]):
            for token in range(LENGTH):
                place(cache, index, mode, batch, token, head, rows[batch, head, token])
    return cache


def check(tensors, options):
    mode = options["cache_mode"]
    host = [t.cpu() for t in tensors]
    v = options.get("v")
    epsilon = options.get("epsilon", 1e-5)
    wide = [t.double() for t in host[:4]] + [None if v is None else v.cpu().double(), epsilon]
    wants = key_and_value(*wide)
    plains = key_and_value(*host[:4], None if v is None else v.cpu(), epsilon)
    got = torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)
    scales = (options.get("k_rope_scale"), options.get("c_kv_scale"))
    for i in (0, 1):
        given, old = tensors[5 + i], host[5 + i]
        assert got[i].data_ptr() == given.data_ptr() and torch.equal(got[i], given)
        if scales[i] is None:
            want = expected(old.double(), wants[i], host[4], mode)
            assert_accurate(given, want, expected(old, plains[i], host[4], mode))
        else:
            factors = scales[i].cpu().double()
            exact = wants[i] * (factors.unsqueeze(1) if factors.dim() == 2 else factors)
            want = expected(old, exact.round().clamp(-128, 127).to(torch.int8), host[4], mode)
            off = (given.cpu().int() - want.int()).abs()
            assert off.max() <= 1 and (off == 0).double().mean() > 0.999
        output = got[2 + i]
        assert output.dtype == tensors[0].dtype
        if options.get("is_output_kv") and mode != "Norm":
            assert_accurate(output, wants[i], plains[i])
        else:
            assert output.shape == wants[i].shape and not output.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", MODES)
def test_plain(mode, dtype):
    tensors, options = arguments(mode, dtype)
    check(tensors, options | {"is_output_kv": True})


@pytest.mark.parametrize("mode", MODES[1:])
def test_quantized(mode):
    tensors, options = arguments(mode, quantized=True)
    check(tensors, options | {"is_output_kv": mode == "PA_NZ"})


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("mode", ["PA_BNSD", "PA_NZ", "PA_BLK_BNSD", "PA_BLK_NZ"])
def test_with_a_value(mode, quantized):
    tensors, options = arguments(mode, quantized=quantized, value=True)
    check(tensors, options | {"is_output_kv": True})


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_heads_with_a_value(mode, quantized):
    tensors, options = arguments(mode, quantized=quantized, value=True, heads=2)
    check(tensors, options | {"is_output_kv": True})


def test_epsilon_and_default_mode():
    tensors, options = arguments("Norm")
    tensors[0] *= 1e-2
    options = {"epsilon": 0.5}
    again = [t.clone() for t in tensors]
    torch_npu.npu_kv_rmsnorm_rope_cache(*again, epsilon=0.5)
    check(tensors, options | {"cache_mode": "Norm"})
    assert torch.equal(again[6], tensors[6])


def test_saturates():
    tensors, options = arguments("PA", quantized=True)
    options["k_rope_scale"] = options["k_rope_scale"] * 1e4
    torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)
    written = tensors[5].cpu().view(-1, 64)[index_for("PA")[0]]
    assert (written.int().abs() >= 127).double().mean() > 0.95


@pytest.mark.parametrize("mode", MODES)
def test_nothing_to_write(mode):
    tensors, options = arguments(mode)
    tensors[4] = torch.full_like(tensors[4], -1)
    check(tensors, options)


def test_no_tokens():
    tensors, options = arguments("PA")
    before = tensors[5].cpu()
    tensors[:5] = [t if i == 1 else t[:0] for i, t in enumerate(tensors[:5])]
    got = torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)
    assert torch.equal(got[0].cpu(), before) and got[2].shape == (0, 1, LENGTH, 64)


@pytest.mark.parametrize("mode", ["Norm", "PA", "PA_BLK_NZ"])
def test_an_index_beyond_the_cache_leaves_it_untouched(mode):
    tensors, options = arguments(mode)
    room = tensors[5].shape[2] if mode == "Norm" else BLOCKS * BLOCK
    tensors[4].view(-1)[1] = room
    before = [cache.clone() for cache in tensors[5:7]]
    place = r"\(0, 1\)" if mode == "Norm" else "1"
    with pytest.raises(
        RuntimeError, match=f"'index' must be in .* {room}.*{room} at index {place}"
    ):
        torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)
    assert all(torch.equal(*pair) for pair in zip(before, tensors[5:7], strict=True))


def test_caches_that_are_views():
    tensors, options = arguments("PA_BNSD")
    base = make(BLOCKS, BLOCK, 1, 600, dtype=torch.float16)
    tensors[5], tensors[6] = base[..., :64], base[..., 80:592]
    check(tensors, options)


def test_one_scale_on_ascend950():
    tensors, options = arguments("Norm", quantized=True)
    plain, _ = arguments("Norm")
    del options["k_rope_scale"]
    with on("A5"):
        check([*tensors[:5], plain[5], tensors[6]], options)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_cache_on_ascend950(dtype):
    tensors, options = arguments("PA", quantized=True)
    plain, _ = arguments("PA")
    del options["k_rope_scale"]
    cache = tensors[6].new_zeros(1, 32, 1, 512).view(dtype)
    keys = plain[5].new_zeros(1, 32, 1, 64)
    with on("A5"):
        torch_npu.npu_kv_rmsnorm_rope_cache(*tensors[:5], keys, cache, **options)
    _, value = key_and_value(*(t.cpu().double() for t in tensors[:4]))
    want = (value * options["c_kv_scale"].cpu().double())[0, 0, 0].float()
    top = torch.finfo(dtype).max
    have = cache.cpu().view(-1, 512)[index_for("PA")[0]]
    assert_accurate(have.float(), want.clamp(-top, top), want.clamp(-top, top).to(dtype).float())


def test_one_scale_alone_and_as_a_row():
    """Each cache is int8 if its own scale is given; (1, D) is (D,)."""
    tensors, options = arguments("PA", quantized=True)
    plain, _ = arguments("PA")
    both = [t.clone() for t in tensors]
    torch_npu.npu_kv_rmsnorm_rope_cache(*both, **options)
    scale = options.pop("k_rope_scale")
    alone = [t.clone() for t in (*tensors[:5], plain[5], tensors[6])]
    options["c_kv_scale"] = options["c_kv_scale"].view(1, -1)
    torch_npu.npu_kv_rmsnorm_rope_cache(*alone, **options)
    assert torch.equal(alone[6].cpu(), both[6].cpu()) and alone[5].dtype == torch.float16
    assert scale is not None and alone[5].abs().sum() > 0


def test_one_angle_for_all_tokens():
    tensors, options = arguments("PA")
    few = [t.clone() for t in tensors]
    few[2], few[3] = tensors[2][:, :, :1], tensors[3][:, :, :1]
    full = [t.clone() for t in tensors]
    full[2], full[3] = (t.expand(-1, -1, tensors[0].shape[2], -1) for t in (few[2], few[3]))
    for have, want in zip(
        torch_npu.npu_kv_rmsnorm_rope_cache(*few, **options),
        torch_npu.npu_kv_rmsnorm_rope_cache(*full, **options),
        strict=True,
    ):
        assert torch.equal(have.cpu(), want.cpu())


def test_v2_writes_and_returns_the_outputs():
    tensors, options = arguments("PA_NZ")
    want = torch_npu.npu_kv_rmsnorm_rope_cache(
        *(t.clone() for t in tensors), **options, is_output_kv=True
    )
    again = [t.clone() for t in tensors]
    got = torch_npu.npu_kv_rmsnorm_rope_cache_v2(*again, **options, is_output_kv=True)
    assert torch.equal(got[0], want[2]) and torch.equal(got[1], want[3])
    assert torch.equal(again[5], want[0]) and torch.equal(again[6], want[1])
    assert again[5]._version > 0


def test_v2_functional_leaves_the_caches():
    tensors, options = arguments("PA_BLK_BNSD")
    before = [t.cpu() for t in tensors]
    got = torch_npu.npu_kv_rmsnorm_rope_cache_v2_functional(*tensors, **options, is_output_kv=True)
    assert all(torch.equal(t.cpu(), b) for t, b in zip(tensors, before, strict=True))
    want = torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options, is_output_kv=True)
    order = (want[2], want[3], want[0], want[1])
    assert all(torch.equal(a, b) for a, b in zip(got, order, strict=True))


def test_v2_cache_dtypes():
    tensors, options = arguments("PA")
    with pytest.raises(
        NotImplementedError, match="npu_kv_rmsnorm_rope_cache_v2: argument 'k_cache_dtype' .*290"
    ):
        torch_npu.npu_kv_rmsnorm_rope_cache_v2(*tensors, **options, k_cache_dtype=290)


#: a few magnitudes of hifloat8 and their bytes
HIFLOAT8 = {1.0: 0x08, 1.5: 0x0C, 2.0: 0x10, 0.0: 0x00, -1.0: 0x88}


def test_hifloat8_caches():
    kv = torch.zeros(1, 1, 1, 24, dtype=torch.float16)
    kv[..., :8] = 1  # normalized: 1
    kv[..., 8:] = torch.tensor([1.0, 1.5, -1.0, 2.0] * 4)
    device = make(1).device
    caches = [torch.zeros(1, 32, 1, n, dtype=torch.uint8, device=device) for n in (16, 8)]
    cos, sin = torch.ones(1, 1, 1, 16), torch.zeros(1, 1, 1, 16)
    tensors = [t.half().to(device) for t in (kv, torch.ones(8), cos, sin)]
    index = torch.tensor([3], device=device)
    scales = {"k_rope_scale": torch.ones(16), "c_kv_scale": torch.full((8,), 1.5)}
    with on("A5"):
        torch_npu.npu_kv_rmsnorm_rope_cache_v2(
            *tensors, index, *caches, **{n: s.to(device) for n, s in scales.items()},
            cache_mode="PA", k_cache_dtype=torch_npu.hifloat8, ckv_cache_dtype=torch_npu.hifloat8,
        )  # fmt: skip
    split = [1.0, -1.0] * 4 + [1.5, 2.0] * 4  # even elements before odd ones
    assert caches[0][0, 3, 0].tolist() == [HIFLOAT8[v] for v in split]
    assert caches[1][0, 3, 0].tolist() == [HIFLOAT8[1.5]] * 8
    assert not caches[0][0, 2].any() and not caches[0][0, 4].any()


def test_blocks_on_ascend950():
    with on("A5"):
        fails("'k_cache' must be of blocks divisible by 16", {})
        tensors, options = arguments("PA", quantized=True)
        for i in (5, 6):
            tensors[i] = tensors[i].new_zeros(2, 16, 1, tensors[i].shape[3])
        with pytest.raises(RuntimeError, match="'k_cache' must be of blocks divisible by 32"):
            torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)


def test_offsets_with_a_value():
    tensors, options = arguments("PA", quantized=True, value=True)
    options["c_kv_offset"] = make(128, low=-20, high=20, seed=8)
    torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)
    v, scale = options["v"].cpu().double(), options["c_kv_scale"].cpu().double()
    exact = v.reshape(-1, 128) * scale + options["c_kv_offset"].cpu().double()
    for token, place_ in enumerate(tensors[4].cpu().tolist()):
        if place_ >= 0:
            found = tensors[6].cpu()[place_ // BLOCK, place_ % BLOCK, 0].double()
            assert (found - exact[token].round().clamp(-128, 127)).abs().max() <= 1


def fails(message, change, mode="PA", **changes):
    tensors, options = arguments(mode)
    for position, tensor in change.items():
        tensors[position] = tensor
    with pytest.raises(RuntimeError, match=f"npu_kv_rmsnorm_rope_cache: argument {message}"):
        torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **(options | changes))


def test_unknown_mode():
    fails("'cache_mode' must be 'Norm', .*'PB'", {}, cache_mode="PB")


def test_offsets_need_scales():
    fails("'k_rope_offset' must be left at None", {}, k_rope_offset=make(64))
    fails("'c_kv_offset' must be left at None", {}, c_kv_offset=make(512))


def test_offsets_without_a_value():
    """A2 and A3 take them and read them nowhere."""
    tensors, options = arguments("PA", quantized=True)
    plain = [t.clone() for t in tensors]
    torch_npu.npu_kv_rmsnorm_rope_cache(*plain, **options)
    options |= {"k_rope_offset": make(64), "c_kv_offset": make(512)}
    torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)
    assert torch.equal(plain[5], tensors[5]) and torch.equal(plain[6], tensors[6])


@pytest.mark.family("A2")
def test_norm_is_not_quantized_without_a_value():
    tensors, options = arguments("Norm", quantized=True)
    with pytest.raises(RuntimeError, match="'k_rope_scale' must be None in the mode Norm"):
        torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)
    with on("A5"):
        check(tensors, options)


def test_one_factor_on_ascend950():
    tensors, options = arguments("Norm", quantized=True)
    single = {"k_rope_scale": make(1, low=5, high=60), "c_kv_scale": make(1, 1, low=5, high=60)}
    again = [t.clone() for t in tensors]
    with on("A5"):
        torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **(options | single))
        rows = {
            n: t.flatten().expand(s) for (n, t), s in zip(single.items(), (64, 512), strict=True)
        }
        torch_npu.npu_kv_rmsnorm_rope_cache(*again, **(options | rows))
    assert torch.equal(again[5], tensors[5]) and torch.equal(again[6], tensors[6])


def test_heads():
    half = torch.float16
    fails("'kv' must be of 1, 2, 4 or 8 heads", {0: make(2, 3, 5, 192, dtype=half)},
          v=make(2, 3, 5, 128, dtype=half))  # fmt: skip


def test_widths():
    half = torch.float16
    fails(r"'kv' must be of shape \(\*, 1, \*, 576\)", {0: make(BATCH, 1, LENGTH, 512, dtype=half)})
    fails(r"'gamma' must be of shape \(512\)", {1: make(64, dtype=half)})
    fails(r"'cos' must be of shape \(2, 1, 5, 64\)", {2: make(BATCH, 1, 2, 64, dtype=half)})
    fails(r"'k_cache' must be of shape \(\*, \*, 1, 64\)", {5: make(6, 4, 1, 32, dtype=half)})
    fails(r"'v' must be of shape", {0: make(2, 1, 5, 192, dtype=half), 1: make(192, dtype=half)},
          v=make(BATCH, 1, LENGTH, 64, dtype=half))  # fmt: skip


def test_index_elements_and_dtype():
    index = index_for("PA").to(make(1).device)
    fails(r"'index' must be of 10 elements.*\(9,\)", {4: index[:9]})
    fails("'index' must be of dtype torch.int64", {4: index.int()})
    fails(r"'index' must be of 10 elements", {4: index[:5]}, mode="Norm")
    fails(r"'index' must be of 4 elements", {4: index}, mode="PA_BLK_NZ")


@pytest.mark.parametrize("mode", MODES)
def test_index_of_any_shape(mode):
    tensors, options = arguments(mode)
    other = [t.clone() for t in tensors]
    other[4] = tensors[4].reshape(-1) if mode == "Norm" else tensors[4].view(2, -1)
    torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)
    torch_npu.npu_kv_rmsnorm_rope_cache(*other, **options)
    assert torch.equal(other[5], tensors[5]) and torch.equal(other[6], tensors[6])


def test_caches_with_less_room_than_tokens():
    """Padded tokens are skipped, so that a cache may be smaller than the batch."""
    tensors, options = arguments("PA")
    tensors[4] = torch.full_like(tensors[4], -1)
    tensors[4][3] = 2
    tensors[5], tensors[6] = tensors[5][:1].clone(), tensors[6][:1].clone()
    check(tensors, options)


def test_caches_of_more_batches():
    tensors, options = arguments("Norm")
    for i in (5, 6):
        tensors[i] = torch.cat([tensors[i], tensors[i]])
    check(tensors, options)
    few = make(1, 1, 8, 64, dtype=torch.float16)
    fails("'k_cache' must be of at least 2 batches", {5: few}, mode="Norm")


def test_scales():
    fails("'k_cache' must be of dtype torch.int8.*float16", {},
          k_rope_scale=make(64), c_kv_scale=make(512))  # fmt: skip
    fails(
        "'k_cache' must be of the dtype of 'kv'", {5: make(6, 4, 1, 64, dtype=torch.int8, high=2)}
    )
    fails(r"'c_kv_scale' must be of shape \(512\)", {5: make(6, 4, 1, 64, dtype=torch.int8, high=2)},
          k_rope_scale=make(64), c_kv_scale=make(1))  # fmt: skip


def test_nz_needs_contiguous_caches():
    cache = make(BLOCKS, BLOCK, 1, 128, dtype=torch.float16)[..., :64]
    fails("'k_cache' must be contiguous in the NZ modes", {5: cache}, mode="PA_NZ")


def test_chips():
    tensors, options = arguments("PA")
    with on("310P"), pytest.raises(NotImplementedError, match="npu_kv_rmsnorm_rope_cache.* A2 or"):
        torch_npu.npu_kv_rmsnorm_rope_cache(*tensors, **options)
