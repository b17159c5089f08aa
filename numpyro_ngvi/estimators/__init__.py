"""``E_q[grad l]`` and ``E_q[hess l]`` as natural gradients; see :mod:`ngvi.estimators.table`."""

from __future__ import annotations

from typing import Any

from ngvi.estimators.from_gradients import Averages, Mean, Spherical, Stein, stein_direction
from ngvi.estimators.points import Families, PointsBySite, log_q, num_products
from ngvi.estimators.table import EstimateCost, new_estimator
from numpyro_ngvi.estimators.differentiate import Differentiator
from numpyro_ngvi.estimators.draws import orthogonal_points, standard_normal
from numpyro_ngvi.estimators.hessian import Hessian
from numpyro_ngvi.estimators.moments import in_passes
from numpyro_ngvi.estimators.quadrature import Quadrature, why_not_additive


def make_estimator(curvature: str, cost: EstimateCost, *, partners: bool = False) -> Any:
    """Return the estimator of a name.

    :param curvature: one of :data:`ngvi.estimators.table.ESTIMATORS`.
    :param cost: how many draws have a Hessian.
    :param partners: whether the guide draws more than latent vectors.
    """
    return new_estimator(curvature, "numpyro_ngvi", cost, partners=partners)
