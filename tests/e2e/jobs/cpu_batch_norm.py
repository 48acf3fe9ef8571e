"""Kernels that torch.nn.SyncBatchNorm lacks on CPU, so that the real layer runs under gloo.

torch ships these five functions for GPUs only and refuses CPU tensors before it calls them. Only the arithmetic is
replaced here: layer, autograd function and collectives stay torch's own, and so do the stacks of a hung rank.
"""

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


def install() -> None:
    """Put the kernels in place and let CPU tensors pass the two checks that ask for a GPU."""
    torch.batch_norm_stats = local_statistics
    torch.batch_norm_gather_stats_with_counts = joint_statistics
    torch.batch_norm_elemt = normalise
    torch.batch_norm_backward_reduce = gradient_sums
    torch.batch_norm_backward_elemt = input_gradient
    torch._C._get_privateuse1_backend_name = lambda: "cpu"
    DistributedDataParallel._passing_sync_batchnorm_handle = lambda self, module: None


def local_statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation of each channel on this rank."""
    var, mean = torch.var_mean(x, _others(x), correction=0)
    return mean, (var + eps).rsqrt()


def joint_statistics(
    x: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation over all ranks (rows of `means` and `invstds`); updates the running ones."""
    weight = (counts / counts.sum()).unsqueeze(1)
    mean = (weight * means).sum(0)
    var = (weight * (invstds.pow(-2) - eps + means.square())).sum(0) - mean.square()
    if running_mean is not None and running_var is not None:
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * counts.sum() / (counts.sum() - 1), momentum)
    return mean, (var + eps).rsqrt()


def normalise(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    """The layer's output."""
    return functional.batch_norm(x, mean, invstd.pow(-2) - eps, weight, bias, training=False, eps=eps)


def gradient_sums(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, *_: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums of the gradient and of gradient times centred input, and the gradients of weight and bias."""
    total = grad.sum(_others(x))
    against = (grad * (x - _wide(mean, x))).sum(_others(x))
    return total, against, against * invstd, total


def input_gradient(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor,
    total: Tensor,
    against: Tensor,
    counts: Tensor,
) -> Tensor:
    """The gradient of the input, from sums over all ranks."""
    number = counts.sum()
    centred = (x - _wide(mean, x)) * _wide(invstd.square() * against / number, x)
    return (grad - _wide(total / number, x) - centred) * _wide(invstd * weight, x)


def _others(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _wide(channels: Tensor, x: Tensor) -> Tensor:
    return channels.view(1, -1, *[1] * (x.dim() - 2))
