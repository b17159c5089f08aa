"""``E_q[grad l]`` and ``E_q[hess l]`` of a log density ``l``, as natural gradients of the bound.

An *estimator* takes what evaluates a log density, the families of all sites, and points; one
evaluation gives the natural gradients of all of them. ``NaturalELBO`` and ``fit`` use the same.

To add one: a file with a frozen dataclass that is an :class:`Estimator`; in :mod:`ngvi.curvature`
its name, what it costs, and when ``"auto"`` takes it; a line in :func:`make_estimator`; the same in
the other package. ``tests/curvature`` then compares it with moments by quadrature.
"""

from __future__ import annotations

from typing import Protocol

from ngvi.curvature import Cost
from pyro_ngvi.curvature.draws import standard_normal
from pyro_ngvi.curvature.evaluate import Evaluator, FromGradients
from pyro_ngvi.curvature.gauss_newton import GaussNewton
from pyro_ngvi.curvature.hessian import Hessian, HessianProducts, num_products
from pyro_ngvi.curvature.mean import Mean
from pyro_ngvi.curvature.moments import Estimate, Families, Points, log_q
from pyro_ngvi.curvature.plan import Plan, make_plan
from pyro_ngvi.curvature.spherical import Spherical, orthogonal_points, spherical_direction
from pyro_ngvi.curvature.stein import Stein, stein_direction

__all__ = [
    "Estimate",
    "Estimator",
    "Evaluator",
    "Families",
    "FromGradients",
    "GaussNewton",
    "Hessian",
    "HessianProducts",
    "Mean",
    "Plan",
    "Points",
    "Spherical",
    "Stein",
    "log_q",
    "make_estimator",
    "make_plan",
    "num_products",
    "orthogonal_points",
    "spherical_direction",
    "standard_normal",
    "stein_direction",
]


class Estimator(Protocol):
    """Estimates the natural gradients of the bound."""

    def __call__(self, evaluate: Evaluator, here: Families, points: Points) -> Estimate:
        """The estimate from some points.

        :param evaluate: runs the log density.
        :param here: the families, by site.
        :param points: at which to evaluate.
        """


def make_estimator(curvature: str, cost: Cost, plan: Plan) -> Estimator:
    """The estimator of this name.

    :param curvature: one of :data:`ngvi.curvature.CURVATURES`, not ``"auto"``.
    :param cost: how many draws have a Hessian.
    :param plan: what is known of the model.
    """
    if curvature == "spherical":
        return Spherical()
    if curvature == "hessian":
        return Hessian(cost.num_hessians)
    if curvature == "gauss_newton":
        return GaussNewton(cost.num_hessians, plan.bytes_per_draw)
    if curvature == "mean":
        return Mean(plan.facts.is_stochastic)
    return Stein()
