"""``E_q[grad l]`` and ``E_q[hess l]`` as natural gradients; see :mod:`ngvi.estimators.kinds`."""

from __future__ import annotations

from typing import Any, Protocol

from ngvi.estimators.choice import Cost
from ngvi.estimators.kinds import Families, Points, log_q, num_products
from numpyro_ngvi.estimators.draws import standard_normal
from numpyro_ngvi.estimators.gauss_newton import GaussNewton, Split
from numpyro_ngvi.estimators.hessian import Hessian
from numpyro_ngvi.estimators.mean import Mean
from numpyro_ngvi.estimators.moments import Density, Estimate, in_passes
from numpyro_ngvi.estimators.quadrature import Quadrature, unlike
from numpyro_ngvi.estimators.spherical import Spherical, orthogonal_points
from numpyro_ngvi.estimators.stein import Stein


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

    :param curvature: one of :data:`ngvi.estimators.choice.CURVATURES`, not ``"auto"``.
    :param cost: how many draws have a Hessian.
    :param at_once: how many draws share a pass.
    :param split: the log density by examples, for ``"gauss_newton"``.
    :param partners: whether the guide draws more than latent vectors.
    """
    if curvature == "spherical":
        return Spherical(at_once, cost.num_groups if cost.max_batches > 1 else 1)
    if curvature == "quadrature":
        return Quadrature()
    if curvature == "hessian":
        return Hessian(cost.num_hessians, at_once)
    if curvature == "gauss_newton":
        return GaussNewton(cost.num_hessians, at_once, split)
    if curvature == "mean":
        return Mean(partners)
    return Stein(at_once)
