"""What the tests of npu_max and npu_min share: the loop, and the cases."""

import itertools

import torch

CASES = [((7,), 0), ((3, 4), 0), ((3, 4), -1), ((2, 3, 4), 1), ((5, 1, 2), 1), ((0, 3), 1), ((), 0)]
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]


def reference(x, dim, keepdim, better):
    """Values and places of the first element that no other beats, by a loop."""
    if x.dim() == 0:
        return x.clone(), torch.tensor(0)
    dim %= x.dim()
    shape = [s for i, s in enumerate(x.shape) if i != dim]
    values, places = torch.empty(shape, dtype=x.dtype), torch.empty(shape, dtype=torch.int64)
    for rest in itertools.product(*map(range, shape)):
        line = [x[rest[:dim] + (i,) + rest[dim:]].item() for i in range(x.shape[dim])]
        best = 0
        for i, value in enumerate(line):
            if better(value, line[best]):
                best = i
        values[rest], places[rest] = line[best], best
    return (values.unsqueeze(dim), places.unsqueeze(dim)) if keepdim else (values, places)
