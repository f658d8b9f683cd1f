"""What the tests of elementwise operators share: shapes and a reference number by number."""

import torch

from tests.ops.support import assert_accurate, make

SHAPES = [(4, 33), (2, 3, 5, 7), (1,), (0, 8), ()]


def by_number(function, *tensors):
    """The scalar function applied to each element in Python's double precision."""
    flat = [t.detach().cpu().double().flatten().tolist() for t in tensors]
    values = [function(*numbers) for numbers in zip(*flat, strict=True)]
    return torch.tensor(values, dtype=torch.float64).reshape(tensors[0].shape)


def check_values(operator, scalar, plain, shape, dtype, low=-6, high=6):
    """The operator on random input against the scalar function; `plain` is the torch formula."""
    x = make(*shape, dtype=dtype, low=low, high=high)
    y = operator(x)
    assert y.dtype == dtype and y.device.type == x.device.type
    assert_accurate(y, by_number(scalar, x), plain(x.cpu()))


def check_extremes(operator, dtype=torch.float32):
    """Zero stays zero; a large positive number passes; a large negative one vanishes; NaN stays."""
    x = torch.tensor([0.0, 60.0, -60.0, float("nan"), float("inf")], dtype=dtype)
    y = operator(x.to(make(1).device)).cpu()
    assert y[0] == 0 and y[1] == 60 and abs(y[2]) < 1e-15 and y[3].isnan() and y[4] == float("inf")


def check_strided(operator, scalar, plain):
    """Transposed and sliced inputs."""
    for x in (make(6, 5).t(), make(4, 9)[:, ::2], make(3).expand(4, 3)):
        assert_accurate(operator(x), by_number(scalar, x), plain(x.cpu()))
