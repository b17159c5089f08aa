"""Orthogonal points; see :class:`ngvi.estimators.table.Spherical`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ngvi.families.points import spherical_points
from pyro_ngvi.host import on_device


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
