"""Between caches of the device, layer by layer, and pinned memory of the host, slot by slot or page by page."""

from __future__ import annotations

from softnpu.contrib.sgl_kernel_npu._define import sgl_op
from torch_npu.ops import _check as must

__all__ = [
    "transfer_kv_dim_exchange",
    "transfer_state_all_layer_direct_lf_pf",
    "transfer_state_per_layer_direct_pf_lf",
]

TO_DEVICE, TO_HOST = 1, 2
#: copies of two dimensions, the only way there is
FAST2D = 2


def _nothing():
    return None


@sgl_op(
    "transfer_kv_dim_exchange(Tensor device_k, Tensor host_k, Tensor device_v, Tensor host_v, "
    "Tensor device_indices, Tensor host_indices, int page_size, int direct, int flags) -> ()",
    direct=True,
    host_ok=True,
)
def transfer_kv_dim_exchange(
    device_k, host_k, device_v, host_v, device_indices, host_indices, page_size, direct
):
    """Copies pages between device (layers, pages, page, heads, D) and host (pages, layers, page, heads, D).

    The first of each `page_size` indices of tokens names a page. `direct` 1 is to the device, 2 to the host; caches of
    values without elements are left out.
    """
    pairs = [(device_k, host_k)]
    if device_v.numel() and host_v.numel():
        pairs.append((device_v, host_v))
    for device, host in pairs:
        places = zip(
            (device_indices[::page_size].cpu() // page_size).tolist(),
            (host_indices[::page_size].cpu() // page_size).tolist(),
            strict=True,
        )
        for own, other in places:
            inside = 0 <= own < device.shape[1]
            must.hold(inside, "device_indices", f"in one of {device.shape[1]} pages", own)
            inside = 0 <= other < host.shape[0]
            must.hold(inside, "host_indices", f"in one of {host.shape[0]} pages", other)
            source, target = device[:, own], host[other]
            if direct == TO_DEVICE:
                source, target = target, source
            target.copy_(source)


transfer_kv_dim_exchange.meta(_nothing)


@transfer_kv_dim_exchange.check
def _(device_k, host_k, device_v, host_v, device_indices, host_indices, page_size, direct, flags):
    must.hold(page_size > 0, "page_size", "positive", page_size)
    must.choice("direct", direct, (TO_DEVICE, TO_HOST))
    must.hold(flags & FAST2D, "flags", f"{FAST2D}, copies of two dimensions", flags)
    both = device_v.numel() and host_v.numel()
    for name, device, host in (("k", device_k, host_k), ("v", device_v, host_v)):
        if name == "v" and not both:
            continue
        must.hold(device.numel() and host.numel(), f"device_{name}", "not empty", device.shape)
        must.ndim(f"device_{name}", device, 5)
        layers, _, _, *rest = device.shape
        must.shape(f"device_{name}", device, (layers, None, page_size, *rest))
        must.shape(f"host_{name}", host, (None, layers, page_size, *rest))
        must.same_dtype(f"host_{name}", host, f"device_{name}", device)
    must.ndim("device_indices", device_indices, 1)
    must.shape("host_indices", host_indices, tuple(device_indices.shape))
    count = device_indices.shape[0]
    must.hold(count % page_size == 0, "device_indices", f"of a multiple of {page_size}", count)


@sgl_op(
    "transfer_state_per_layer_direct_pf_lf(Tensor src, Tensor dst, Tensor src_indices, "
    "Tensor dst_indices, int layer_id, int flags) -> ()",
    direct=True,
    host_ok=True,
)
def transfer_state_per_layer_direct_pf_lf(src, dst, src_indices, dst_indices, layer_id):
    """dst[dst_indices[i]] = src[src_indices[i], layer_id, 0]: slots of the host into one layer of the device.

    A slot is copied as it lies in memory, also where the dimensions of `dst` lie in another order.
    """
    source, target = src_indices.cpu().tolist(), dst_indices.cpu().tolist()
    _inside("dst_indices", target, dst.shape[0])
    _inside("src_indices", source, src.shape[0])
    slots, rows = _flat(dst, 1), src.view(*src.shape[:2], -1)
    for own, other in zip(target, source, strict=True):
        slots[own].copy_(rows[other, layer_id])


transfer_state_per_layer_direct_pf_lf.meta(_nothing)


@transfer_state_per_layer_direct_pf_lf.check
def _(src, dst, src_indices, dst_indices, layer_id, flags):
    must.hold(flags & FAST2D, "flags", f"{FAST2D}, copies of two dimensions", flags)
    count = src_indices.numel()
    must.hold(dst_indices.numel() == count, "dst_indices", f"of {count} slots", dst_indices.numel())
    if not count:
        return
    _check_host("src", src)
    must.hold(dst.device.type != "cpu", "dst", "on the device", dst.device)
    must.hold(dst.dim() >= 2, "dst", "of at least 2 dimensions", tuple(dst.shape))
    must.same_dtype("src", src, "dst", dst)
    must.shape("src", src, (None, None, 1, *dst.shape[1:]))
    must.hold(0 <= layer_id < src.shape[1], "layer_id", f"in [0, {src.shape[1]})", layer_id)
    _check_dense("dst", dst, 1)


@sgl_op(
    "transfer_state_all_layer_direct_lf_pf(Tensor[] device_states, Tensor[] host_states, "
    "Tensor device_indices, Tensor host_indices, int flags) -> ()",
    direct=True,
    host_ok=True,
)
def transfer_state_all_layer_direct_lf_pf(device_states, host_states, device_indices, host_indices):
    """host[host_indices[i], :, 0] = device[:, device_indices[i]], for each pair of states: all layers of a slot.

    A slot is copied as it lies in memory, also where the dimensions of a state lie in another order.
    """
    source, target = device_indices.cpu().tolist(), host_indices.cpu().tolist()
    if not source:
        return
    _inside("device_indices", source, min(device.shape[1] for device in device_states))
    _inside("host_indices", target, min(host.shape[0] for host in host_states))
    for device, host in zip(device_states, host_states, strict=True):
        slots, rows = _flat(device, 2), host.view(*host.shape[:2], -1)
        for own, other in zip(source, target, strict=True):
            rows[other].copy_(slots[:, own])


transfer_state_all_layer_direct_lf_pf.meta(_nothing)


@transfer_state_all_layer_direct_lf_pf.check
def _(device_states, host_states, device_indices, host_indices, flags):
    must.hold(flags & FAST2D, "flags", f"{FAST2D}, copies of two dimensions", flags)
    count = len(device_states)
    must.hold(count > 0, "device_states", "not empty", count)
    must.hold(len(host_states) == count, "host_states", f"of {count} tensors", len(host_states))
    slots = device_indices.numel()
    same = host_indices.numel() == slots
    must.hold(same, "host_indices", f"of {slots} slots", host_indices.numel())
    if not slots:
        return
    layers = device_states[0].shape[0]
    for device, host in zip(device_states, host_states, strict=True):
        _check_host("host_states", host)
        must.hold(device.device.type != "cpu", "device_states", "on the device", device.device)
        must.hold(
            device.dim() >= 3, "device_states", "of at least 3 dimensions", tuple(device.shape)
        )
        must.hold(device.shape[0] >= layers, "device_states", f"of {layers} layers", device.shape)
        must.same_dtype("host_states", host, "device_states", device)
        must.shape("host_states", host, (None, device.shape[0], 1, *device.shape[2:]))
        must.hold(device.numel() > 0, "device_states", "not empty", tuple(device.shape))
        _check_dense("device_states", device, 2)


def _check_host(name, tensor):
    must.hold(tensor.device.type in ("cpu", "meta"), name, "on the host", tensor.device)
    must.hold(tensor.numel() > 0, name, "not empty", tuple(tensor.shape))
    pinned = tensor.is_meta or tensor.is_pinned()
    must.hold(pinned, name, "in pinned memory", "memory that is not")
    must.hold(tensor.is_contiguous(), name, "contiguous", tensor.stride())


def _flat(tensor, leading):
    """The tensor with one dimension, in the order of memory, behind the leading ones."""
    size = tensor.shape[leading:].numel()
    return tensor.as_strided((*tensor.shape[:leading], size), (*tensor.stride()[:leading], 1))


def _check_dense(name, tensor, leading):
    """Behind the leading dimensions no gaps, in whatever order; slots one after the other."""
    expected = 1
    pairs = sorted(zip(tensor.stride()[leading:], tensor.shape[leading:], strict=True))
    for stride, size in pairs:
        must.hold(size == 1 or stride == expected, name, "of dense slots", tensor.stride())
        expected *= size
    after = tensor.stride(leading - 1) == expected
    must.hold(after, name, "of slots one after the other", tensor.stride())


def _inside(name, indices, count):
    must.hold(all(0 <= i < count for i in indices), name, f"in [0, {count})", indices)
