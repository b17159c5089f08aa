"""Groups of draws: where their points are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ngvi.estimators.choice import cost_of_group
from ngvi.estimators.options import DEFAULTS
from ngvi.estimators.table import EstimateCost
from ngvi.families.points import Points, spherical_points
from ngvi.inference.engine import Draws
from ngvi.inference.paths import Paths

#: Gradients of a group of orthogonal points that are dear.
DEAR = 200


class Groups(NamedTuple):
    """What a group of draws is made of."""

    dim: int
    cost: EstimateCost  #: of one
    paths: Paths | None = None  #: that orthogonal points are spread over

    @classmethod
    def of(
        cls, curvature: str, dim: int, products: int, data_size: int, paths: Paths | None = None
    ) -> Groups:
        """As many draws as cost about what a group of orthogonal points would.

        :param products: Hessian-vector products that a Hessian takes.
        :param data_size: numbers in the model's largest argument.
        :param paths: of the log density, if it is a sum over locals.
        """
        if curvature != "spherical" or paths is None:
            return cls(dim, cost_of_group(curvature, dim, products, data_size))
        return cls(dim, EstimateCost(paths.num_points, paths.num_points, 0, 1), paths)

    @property
    def is_dear(self) -> bool:
        """Whether a group costs so much that independent latents shall come first."""
        return self.paths is None and self.cost.num_groups > 0 and self.cost.num_gradients > DEAR

    def few(
        self, rng: np.random.Generator, num_groups: int, count: int = DEFAULTS.num_stein
    ) -> list[Draws]:
        """Groups of few random draws, which see one minibatch each; see
        :mod:`~ngvi.inference.independent`.
        """
        groups = Groups(self.dim, EstimateCost(count, count, 0)).draws(rng, num_groups)
        return [group._replace(is_rough=True) for group in groups]

    def draws(self, rng: np.random.Generator, num_groups: int) -> list[Draws]:
        """Fresh groups of draws."""
        if self.paths is not None:
            points = self.paths.draws(rng, num_groups)
        elif self.cost.num_groups:
            points = spherical_points(rng, self.dim, num_groups)
        else:
            points = [self._antithetic(rng) for _ in range(num_groups)]
        seeds = rng.integers(2**31, size=num_groups)
        return [Draws(group, int(seed)) for group, seed in zip(points, seeds, strict=True)]

    def _antithetic(self, rng: np.random.Generator) -> Points:
        parts: list[np.ndarray] = []
        for count in (self.cost.num_hessians, self.cost.num_gradients - self.cost.num_hessians):
            half = rng.standard_normal((-(-count // 2), self.dim))
            parts.extend((half, -half[: count // 2]))
        noise = np.concatenate(parts)
        return Points(noise, np.full(len(noise), 1.0 / len(noise)))
