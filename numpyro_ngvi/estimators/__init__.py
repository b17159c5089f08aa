"""``E_q[grad l]`` and ``E_q[hess l]`` as natural gradients; see :mod:`ngvi.estimators.table`."""

from __future__ import annotations

from typing import Any, Protocol

from ngvi.estimators.points import Families, PointsBySite, log_q, num_products
from ngvi.estimators.table import EstimateCost, new_estimator
from numpyro_ngvi.estimators.draws import standard_normal
from numpyro_ngvi.estimators.hessian import Hessian
from numpyro_ngvi.estimators.mean import Mean
from numpyro_ngvi.estimators.moments import Averages, Density, in_passes
from numpyro_ngvi.estimators.quadrature import Quadrature, why_not_additive
from numpyro_ngvi.estimators.spherical import Spherical, orthogonal_points
from numpyro_ngvi.estimators.stein import Stein


class Estimator(Protocol):
    """Estimates the natural gradients of the bound."""

    def __call__(
        self, density: Density, here: Families, points: PointsBySite, params: Any = ()
    ) -> Averages:
        """The estimate from some points; it can be compiled.

        :param params: a pytree that the log density is differentiated for as well.
        """


def make_estimator(
    curvature: str,
    cost: EstimateCost,
    at_once: int,
    *,
    partners: bool = False,
) -> Estimator:
    """The estimator of this name.

    :param curvature: one of :data:`ngvi.estimators.table.ESTIMATORS`.
    :param cost: how many draws have a Hessian.
    :param at_once: how many draws share a pass.
    :param partners: whether the guide draws more than latent vectors.
    """
    return new_estimator(
        curvature,
        "numpyro_ngvi",
        num_hessians=cost.num_hessians,
        num_groups=cost.num_groups if cost.max_batches > 1 else 1,
        at_once=at_once,
        partners=partners,
    )
