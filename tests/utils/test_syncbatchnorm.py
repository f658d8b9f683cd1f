"""torch_npu.utils.syncbatchnorm.SyncBatchNorm in a group of one rank, against batch normalization in fp64."""

import pytest
import torch
import torch.distributed as dist

from torch_npu.utils.syncbatchnorm import SyncBatchNorm


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("hccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_values_and_gradients(group):
    x = torch.randn(4, 3, 5)
    weight, bias, outer = torch.rand(3) + 0.5, torch.randn(3), torch.randn(4, 3, 5)
    given = [t.clone().npu().requires_grad_() for t in (x, weight, bias)]
    mean, var = torch.zeros(3).npu(), torch.ones(3).npu()
    y = SyncBatchNorm.apply(*given, mean, var, 1e-5, 0.1, group, 1)
    y.backward(outer.npu())
    plain = [t.double().requires_grad_() for t in (x, weight, bias)]
    means, vars_ = torch.zeros(3).double(), torch.ones(3).double()
    right = torch.nn.functional.batch_norm(
        plain[0], means, vars_, plain[1], plain[2], training=True, momentum=0.1, eps=1e-5
    )
    right.backward(outer.double())
    pairs = [(y, right), (mean, means), (var, vars_)]
    pairs += [(mine.grad, leaf.grad) for mine, leaf in zip(given, plain, strict=True)]
    for mine, want in pairs:
        torch.testing.assert_close(
            mine.detach().cpu().double(), want.detach(), rtol=1e-4, atol=1e-5
        )


def test_one_value_cannot_be_normalized(group):
    with pytest.raises(ValueError, match="more than one value a channel"):
        SyncBatchNorm.apply(torch.ones(1, 2, 1).npu(), None, None, None, None, 1e-5, 0.1, group, 1)
