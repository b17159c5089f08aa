"""``E_q[grad l]`` and ``E_q[hess l]`` of a log density ``l``, as natural gradients of the bound.

An *estimator* takes a log density, the families of all sites, and points; one evaluation gives
the natural gradients of all of them. ``NaturalELBO`` and ``fit`` use the same.

To add one: a file with a frozen dataclass that is an :class:`Estimator`; in :mod:`ngvi.curvature`
its name, what it costs, and when ``"auto"`` takes it; a line in :func:`make_estimator`; the same in
the other package. ``tests/curvature`` then compares it with moments by quadrature.
"""

from __future__ import annotations

from typing import Any, Protocol

from ngvi.curvature import Cost
from numpyro_ngvi.curvature.draws import standard_normal
from numpyro_ngvi.curvature.gauss_newton import GaussNewton, Split
from numpyro_ngvi.curvature.hessian import Hessian, num_products
from numpyro_ngvi.curvature.mean import Mean
from numpyro_ngvi.curvature.moments import Density, Estimate, Families, Points, log_q
from numpyro_ngvi.curvature.spherical import Spherical, orthogonal_points, spherical_direction
from numpyro_ngvi.curvature.stein import Stein

__all__ = [
    "Estimate",
    "Estimator",
    "Families",
    "GaussNewton",
    "Hessian",
    "Mean",
    "Points",
    "Spherical",
    "Stein",
    "log_q",
    "make_estimator",
    "num_products",
    "orthogonal_points",
    "spherical_direction",
    "standard_normal",
]


class Estimator(Protocol):
    """Estimates the natural gradients of the bound."""

    def __call__(
        self, density: Density, here: Families, points: Points, ordinary: Any = ()
    ) -> Estimate:
        """The estimate from some points; it can be compiled.

        :param density: the log density.
        :param here: the families, by site.
        :param points: at which to evaluate.
        :param ordinary: a pytree that the log density is differentiated for as well.
        """


def make_estimator(
    curvature: str, cost: Cost, at_once: int, *, split: Split | None = None, partners: bool = False
) -> Estimator:
    """The estimator of this name.

    :param curvature: one of :data:`ngvi.curvature.CURVATURES`, not ``"auto"``.
    :param cost: how many draws have a Hessian.
    :param at_once: how many draws share a pass.
    :param split: the log density by examples, for ``"gauss_newton"``.
    :param partners: whether the guide draws more than latent vectors.
    """
    if curvature == "spherical":
        return Spherical(at_once)
    if curvature == "hessian":
        return Hessian(cost.num_hessians, at_once)
    if curvature == "gauss_newton":
        return GaussNewton(cost.num_hessians, at_once, split)
    if curvature == "mean":
        return Mean(partners)
    return Stein(at_once)
