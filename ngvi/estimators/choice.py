"""The choice among the estimators of ``E_q[grad l]`` and ``E_q[hess l]``, and what each costs.

======================  =====================================================================
``"spherical"``         gradients at orthogonal points: ``2 d + 1`` of them make a group
``"quadrature"``        no points: integrals of single terms, where the log density is a sum of some
``"hessian"``           automatic differentiation, as much as the family needs, at random draws
``"gauss_newton"``      squared gradients of single examples in place of the likelihood's Hessian
``"stein"``             gradients at a few random draws
``"mean"``              gradient and Hessian at the mean of ``q`` (delta method)
``"auto"``              one of the above; see :func:`choose`
======================  =====================================================================

Their table is :data:`ngvi.estimators.table.ESTIMATORS`, which ``NaturalELBO`` and ``fit`` share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from ngvi.estimators.options import DEFAULTS
from ngvi.estimators.table import ESTIMATORS, NUMBERS_AT_ONCE, Needs

#: Names of estimators of ``fit``, and those of ``NaturalELBO``.
CurvatureOfFit = Literal["auto", "spherical", "quadrature", "hessian", "stein"]
Curvature = Literal["auto", "spherical", "quadrature", "hessian", "gauss_newton", "stein", "mean"]
#: Those of ``NaturalELBO``.
CURVATURES = ("auto", *(name for name, one in ESTIMATORS.items() if one.of_step))
#: Those of ``fit``.
CURVATURES_OF_FIT = ("auto", *(name for name, one in ESTIMATORS.items() if one.of_fit))

#: A refusal names this many latents at most.
_MAX_NAMES = 5
#: More draws of a pass do not keep a processor busier.
DRAWS_AT_ONCE = 512


def check_curvature(curvature: str, known: tuple[str, ...] = CURVATURES) -> str:
    """Return a name; raise a ``ValueError`` for one that is none of these."""
    if curvature not in known:
        names = ", ".join(repr(name) for name in known)
        raise ValueError(f"Unknown curvature={curvature!r}. Choose one of {names}.")
    return curvature


class EstimatorChoice(NamedTuple):
    """An estimator, and what kept ``"auto"`` from the one that it would rather have taken."""

    curvature: str
    obstacle: str | None = None


class Case(NamedTuple):
    """Everything on which the choice of an estimator depends.

    :ivar dim: ``d``, the number of latents of all Gaussians.
    :ivar products: Hessian-vector products that the Hessian takes, as much as is needed of it.
    :ivar obstacle: finds out why there is no Hessian; called only if one is wanted.
    :ivar not_additive: finds out why the log density is no sum of terms, for ``"quadrature"``;
        called only if that is wanted. None where it cannot be taken.
    :ivar guide: whose latents a refusal names, where it has ``sites``.
    :ivar partners: whether the guide draws other values as well: their noise is that of random
        draws, of which there are more beside Hessians.
    :ivar has_paths: whether orthogonal points are spread along the paths of a forest
        (:mod:`ngvi.inference.samples`): they are few then, and need no Hessian.
    """

    dim: int
    products: int
    obstacle: Callable[[], Exception | None]
    not_additive: Callable[[], Exception | None] | None = None
    guide: Any = None
    partners: bool = False
    has_paths: bool = False


def choose(curvature: str, case: Case) -> EstimatorChoice:
    """Return what ``"auto"`` stands for, and the others themselves.

    :param curvature: ``"auto"``, or one of :data:`~ngvi.estimators.table.ESTIMATORS`.
    :raises ValueError: if Hessians are asked for, and there are none.
    """
    if getattr(getattr(case.guide, "family", None), "name", None) == "mixture":
        return _of_mixture(curvature)
    if curvature == "auto":
        return _automatic(case)
    needs = ESTIMATORS[curvature].needs
    if needs is Needs.TERMS:
        reason: Any = "guide or model have draws or parameters of their own"
        if case.not_additive is not None:
            reason = case.not_additive()
        if reason is not None:
            raise ValueError(
                "curvature='quadrature' needs a sum of smooth functions of one or two affine "
                f"functions of latents{_names(case.guide)}: {reason}. Use curvature='spherical'."
            )
    if needs is Needs.HESSIANS and (error := case.obstacle()) is not None:
        raise ValueError(
            f"{error}. Use curvature='spherical' or curvature='stein', which need gradients only."
        ) from error
    return EstimatorChoice(curvature)


def _automatic(case: Case) -> EstimatorChoice:
    """Return what ``"auto"`` stands for; see :func:`choose`."""
    most, dim, products = DEFAULTS.max_directions, case.dim, case.products
    least = most if products < dim else DEFAULTS.min_quadrature_dim
    may_integrate = dim >= least and products <= most and not case.partners
    if may_integrate and case.not_additive is not None and case.not_additive() is None:
        return EstimatorChoice("quadrature")
    if case.has_paths:
        return EstimatorChoice("spherical")
    otherwise = "spherical" if dim <= most else "stein"
    is_cheap = case.partners or DEFAULTS.cheap_hessian * products <= dim
    if not is_cheap or products > most:
        return EstimatorChoice(otherwise)
    error = case.obstacle()
    return EstimatorChoice("hessian") if error is None else EstimatorChoice(otherwise, str(error))


def _of_mixture(curvature: str) -> EstimatorChoice:
    """Choose for a mixture, of which ``h = l - log q`` has gradients alone."""
    if curvature not in ("auto", "spherical", "stein"):
        raise ValueError(
            f"curvature={curvature!r} is not for a mixture, which takes gradients at points of "
            "each component: leave it out, or say 'spherical' or 'stein'."
        )
    return EstimatorChoice("spherical" if curvature == "auto" else curvature)


def _names(guide: Any) -> str:
    """Return the latents of a guide in brackets, the first few of many."""
    names = [repr(site.name) for site in getattr(guide, "sites", None) or ()]
    more = ", ..." if len(names) > _MAX_NAMES else ""
    return f" ({', '.join(names[:_MAX_NAMES])}{more})" if names else ""


def is_noisy(count: Any, noise: Any, square: Any) -> Any:
    """Tell whether another batch is worth its cost, by the norm test of Byrd et al. (2012).

    *Sample size selection in optimization methods for machine learning*, Math. Program. 134.

    :param count: batches so far.
    :param noise: the sum of the batches' noises, squared Fisher norms in nats; NaN is enough.
    :param square: the sum of the squared norms of their directions.
    """
    # The mean's noise is noise / count^2, its squared norm square / count.
    is_seen = noise > DEFAULTS.noisy_part * square * count
    is_worth_it = is_seen & (noise < DEFAULTS.hopeless * count) & (count < DEFAULTS.max_batches)
    return (noise > DEFAULTS.noisy * count**2) & is_worth_it


def points_at_once(data_size: int) -> int:
    """Return how many draws share a pass: eight at least.

    :param data_size: numbers in the model's largest argument.
    """
    return max(8, min(DRAWS_AT_ONCE, NUMBERS_AT_ONCE // max(data_size, 1)))
