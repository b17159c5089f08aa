"""``E_q[grad l]`` and ``E_q[hess l]`` as natural gradients; see :mod:`ngvi.estimators.kinds`."""

from __future__ import annotations

from typing import Protocol

from ngvi.estimators.choice import Cost
from ngvi.estimators.kinds import Families, Points, log_q, num_products
from pyro_ngvi.estimators.draws import standard_normal
from pyro_ngvi.estimators.evaluate import Evaluator, FromGradients
from pyro_ngvi.estimators.gauss_newton import GaussNewton
from pyro_ngvi.estimators.hessian import Hessian, HessianProducts
from pyro_ngvi.estimators.mean import Mean
from pyro_ngvi.estimators.moments import Estimate
from pyro_ngvi.estimators.plan import Plan, make_plan
from pyro_ngvi.estimators.quadrature import Quadrature, unlike
from pyro_ngvi.estimators.spherical import Spherical, orthogonal_points
from pyro_ngvi.estimators.stein import Stein, stein_direction


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

    :param curvature: one of :data:`ngvi.estimators.choice.CURVATURES`, not ``"auto"``.
    :param cost: how many draws have a Hessian.
    :param plan: what is known of the model.
    """
    if curvature == "spherical":
        return Spherical(cost.num_groups if cost.max_batches > 1 else 1)
    if curvature == "quadrature":
        return Quadrature()
    if curvature == "hessian":
        return Hessian(cost.num_hessians)
    if curvature == "gauss_newton":
        return GaussNewton(cost.num_hessians, plan.bytes_per_draw)
    if curvature == "mean":
        return Mean(plan.facts.is_stochastic)
    return Stein()
