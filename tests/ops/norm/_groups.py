"""Group normalization by loops in fp64, for the tests of the operators that fuse it."""

import torch


def group_norm(x, groups, weight, bias, eps):
    """Normalized x, and mean and 1 / std of each group; channel after channel."""
    n, c = x.shape[:2]
    per = c // groups
    y = torch.empty_like(x)
    mean, rstd = torch.empty(n, groups, dtype=x.dtype), torch.empty(n, groups, dtype=x.dtype)
    for i in range(n):
        for g in range(groups):
            part = x[i, g * per : (g + 1) * per]
            m = part.mean()
            s = 1 / torch.sqrt(((part - m) ** 2).mean() + eps)
            mean[i, g], rstd[i, g] = m, s
            for k in range(g * per, (g + 1) * per):
                z = (x[i, k] - m) * s
                z = z if weight is None else z * weight[k]
                y[i, k] = z if bias is None else z + bias[k]
    return y, mean, rstd
