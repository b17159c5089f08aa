"""``E_q[grad l]`` and ``E_q[hess l]`` as natural gradients; see :mod:`ngvi.estimators.table`."""

from __future__ import annotations

from typing import Any

from ngvi.estimators.from_gradients import Averages, Mean, Quadrature, Spherical, Stein
from ngvi.estimators.points import Families, PointsBySite, log_q, num_products
from ngvi.estimators.table import EstimateCost, new_estimator
from pyro_ngvi.estimators.differentiate import Differentiator
from pyro_ngvi.estimators.draws import orthogonal_points, standard_normal
from pyro_ngvi.estimators.groups import BY_GROUPS, directions_of_groups
from pyro_ngvi.estimators.hessian import Hessian, HessianProducts
from pyro_ngvi.estimators.plan import Plan, make_plan
from pyro_ngvi.estimators.quadrature import why_not_additive


def make_estimator(curvature: str, cost: EstimateCost, plan: Plan) -> Any:
    """Return the estimator of a name.

    :param curvature: one of :data:`ngvi.estimators.table.ESTIMATORS`.
    :param cost: how many draws have a Hessian.
    :param plan: what is known of the model.
    """
    given = {"bytes_per_draw": plan.bytes_per_draw, "partners": plan.facts.is_stochastic}
    return new_estimator(curvature, "pyro_ngvi", cost, **given)
