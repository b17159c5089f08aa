"""Standard normal draws: independent, in antithetic pairs, or quasi-random."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine


def standard_normal(
    num_draws: int, like: Tensor, *, antithetic: bool = True, quasi_random: bool = False
) -> Tensor:
    """Draws ``z`` from ``N(0, I)``, with torch's global generator.

    With pairs ``z, -z`` the noise of a linear function's mean vanishes: for a quadratic log
    density, the gradient of the bound with respect to the mean is then exact.

    :param num_draws: ``K``.
    :param like: a vector of the draws' dimension, dtype and device; shape ``(d,)``.
    :param antithetic: whether draws come in pairs; an odd one out is independent.
    :param quasi_random: whether the draws are a Sobol sequence, scrambled at random.
    :return: shape ``(K, d)``.
    """
    dim = like.shape[-1]
    num_free = -(-num_draws // 2) if antithetic else num_draws
    if quasi_random and dim <= SobolEngine.MAXDIM:
        free = torch.special.ndtri(_sobol(num_free, like))
    else:
        free = torch.randn(num_free, dim, dtype=like.dtype, device=like.device)
    partners = num_draws - num_free
    return torch.cat([free, -free[:partners]]) if partners else free


def _sobol(num_points: int, like: Tensor) -> Tensor:
    seed = int(torch.randint(2**31 - 1, (), device="cpu").numpy())
    engine = SobolEngine(like.shape[-1], scramble=True, seed=seed)
    eps = torch.finfo(like.dtype).eps
    return engine.draw(num_points, dtype=like.dtype).clamp(eps, 1.0 - eps).to(like.device)
