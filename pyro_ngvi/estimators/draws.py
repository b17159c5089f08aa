"""Standard normal draws: independent, or in antithetic pairs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ngvi.families.points import spherical_points
from pyro_ngvi.host import on_device


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


def orthogonal_points(dim: int, num_groups: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the noise and the weights of some groups of points (:mod:`ngvi.families.points`).

    They come from torch's global generator, by a seed.

    :param like: of the dtype and device of the result.
    :return: shapes ``(num_groups (2 d + 1), d)`` and ``(num_groups (2 d + 1),)``; the weights sum
        to one.
    """
    rng = np.random.default_rng(int(torch.randint(2**63 - 1, (), device="cpu").numpy()))
    groups = spherical_points(rng, dim, num_groups)
    noise = np.concatenate([group.noise for group in groups])
    weights = np.concatenate([group.weights for group in groups]) / num_groups
    return on_device(noise, like), on_device(weights, like)
