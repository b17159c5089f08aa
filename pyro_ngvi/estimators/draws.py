"""Standard normal draws: independent, or in antithetic pairs."""

from __future__ import annotations

import torch
from torch import Tensor


def standard_normal(num_draws: int, like: Tensor, *, antithetic: bool = True) -> Tensor:
    """Draw ``z`` from ``N(0, I)``, with torch's global generator.

    With pairs ``z, -z`` the noise of a linear function's mean vanishes: for a quadratic log
    density, the gradient of the bound with respect to the mean is then exact.

    :param num_draws: ``K``.
    :param like: a vector of the draws' dimension, dtype and device; shape ``(d,)``.
    :param antithetic: whether draws come in pairs; an odd one out is independent.
    :return: shape ``(K, d)``.
    """
    num_free = -(-num_draws // 2) if antithetic else num_draws
    free = torch.randn(num_free, like.shape[-1], dtype=like.dtype, device=like.device)
    partners = num_draws - num_free
    return torch.cat([free, -free[:partners]]) if partners else free
