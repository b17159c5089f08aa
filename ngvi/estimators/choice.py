"""Where ``E_q[grad l]`` and ``E_q[hess l]`` come from: names, costs, and the choice among them.

======================  =====================================================================
``"spherical"``         gradients at orthogonal points: ``2 d + 1`` of them make a group
``"quadrature"``        no points: integrals of single terms, where the log density is a sum of some
``"hessian"``           automatic differentiation, as much as the family needs, at random draws
``"gauss_newton"``      squared gradients of single examples in place of the likelihood's Hessian
``"stein"``             gradients at a few random draws
``"mean"``              gradient and Hessian at the mean of ``q`` (delta method)
``"auto"``              one of the above; see :func:`choose`
======================  =====================================================================

The estimators themselves are in the packages' ``curvature``, one file each; this page is what
both, and both ``NaturalELBO`` and ``fit``, share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

CURVATURES = ("auto", "spherical", "quadrature", "hessian", "gauss_newton", "stein", "mean")
#: Those with which a bound over fixed draws has the gradient that is asked for.
CURVATURES_OF_FIT = ("auto", "spherical", "quadrature", "hessian", "stein")
#: Those that differentiate the log density twice.
TWICE = ("hessian", "mean")

# Which serves a size best: the squared Fisher norm of an estimate's noise, in nats, measured for
# logistic regressions at their optima. Ten Hessians with their added gradients, five groups, and as
# many random draws with Stein's lemma, which cost about the same (in gradients and products):
#
#     d     dense: hessian, spherical, stein      diagonal: hessian, spherical, stein
#       2   0.0068   0.00003   0.0021             0.0066   0.00001   0.0020
#      10   0.45     0.024     0.13               0.87     0.055     0.14
#      50   0.14     0.017     0.024              0.052    0.0021    0.0082
#     200   0.46     0.055     0.061              0.14     0.0022    0.0074
#
# So orthogonal points are best at every size at which a step can afford a group. The Hessians of
# structured families take few products instead of ``d``.

#: ``"auto"`` takes Hessians where they take fewer products than ``d`` over the first number (those
#: of structured families), and fewer than the second.
CHEAP_HESSIAN = 8
MAX_PRODUCTS = 2000
#: Otherwise it takes groups of ``2 d + 1`` gradients up to this many latents, and beyond them
#: gradients at few draws.
MAX_SPHERICAL_DIM = 2000
#: From so many latents on it takes quadrature where the log density is a sum of terms that it can
#: integrate: a group of orthogonal points costs as much, and what single groups leave out of so
#: many dimensions is large (a logistic regression on 300 raw covariates and 400 rows: 0.2 nats over
#: 64 groups, a million gradients).
MIN_QUADRATURE_DIM = 100
#: Of structured families, which have few products, from so many on. Processor seconds of ``fit`` by
#: quadrature, and by points along the paths of the forest: mixed models of 120 to 220 latents 15 to
#: 21, and 5 to 8 (NumPyro; most of it compiles) or 8 to 40, and 2 to 14 (Pyro); HERS, 2,037
#: latents, 18 and 20; 16,397 latents 65 and 139, as the noise of points grows with the locals.
MIN_STRUCTURED_QUADRATURE_DIM = 2000
#: Numbers in the Jacobians of all terms, at most.
MAX_QUADRATURE_NUMBERS = 2**26

#: Gradients per Hessian, and the most that they may add to the Hessians' cost: nearly all of a
#: Hessian's noise is averaged out by its ``d`` products, and a gradient's is not.
GRADIENTS_PER_HESSIAN = 10
MAX_ADDED_COST = 0.25

#: Particles that make one group of orthogonal points: an antithetic pair of Hessians has two
#: gradients and ``2 d`` products, a group ``2 d + 1`` gradients.
PARTICLES_PER_GROUP = 2

#: A step goes on with as many groups again while its noise, as a squared Fisher norm in nats, of
#: which a whole step loses half, is above this ...
NOISY = 0.5
#: ... and above this part of the step's own, and at most so often. Logistic regressions at their
#: optima have a noise of 0.001 to 0.1, nearly separable ones of 4, horseshoes of 1 to 14.
NOISY_PART, MAX_BATCHES = 1e-3, 6
#: A batch of more noise lies in a tail, far from the optimum: six would not quieten it.
HOPELESS = 60 * NOISY

#: In a group of ``fit``: Hessians, in antithetic pairs, and draws with gradients only.
MIN_HESSIANS, MAX_HESSIANS = 4, 64
NUM_STEIN = 10

#: Draws that are evaluated at once: no more than this, and than so many times the data.
POINTS_AT_ONCE = 512
NUMBERS_AT_ONCE = 2**25


#: Of so many latents at most a refusal has the names.
MAX_NAMES = 5


def check_curvature(curvature: str, known: tuple[str, ...] = CURVATURES) -> None:
    """Raise a ``ValueError`` for a name that is none of these."""
    if curvature not in known:
        names = ", ".join(repr(name) for name in known)
        raise ValueError(f"Unknown curvature={curvature!r}. Choose one of {names}.")


class Choice(NamedTuple):
    """An estimator, and what kept ``"auto"`` from the one that it would rather have taken."""

    curvature: str
    obstacle: str | None = None


def choose(
    curvature: str,
    dim: int,
    products: int,
    obstacle: Callable[[], Exception | None],
    *,
    unlike: Callable[[], Exception | None] | None = None,
    partners: bool = False,
    has_paths: bool = False,
    guide: Any = None,
) -> Choice:
    """What ``"auto"`` stands for, and the others themselves.

    :param curvature: one of :data:`CURVATURES`.
    :param dim: ``d``, the number of latents of all Gaussians.
    :param products: Hessian-vector products that the Hessian takes, as much as is needed of it.
    :param obstacle: finds out why there is no Hessian; called only if one is wanted.
    :param unlike: finds out why the log density is no sum of terms, for ``"quadrature"``; called
        only if that is wanted. None where it cannot be taken.
    :param partners: whether the guide draws other values as well: their noise is that of random
        draws, of which there are more beside Hessians.
    :param has_paths: whether orthogonal points are spread along the paths of a forest
        (:mod:`ngvi.inference.paths`): they are few then, and need no Hessian.
    :param guide: whose latents a refusal names, where it has ``sites``.
    :raises ValueError: if Hessians are asked for, and there are none.
    """
    otherwise = "spherical" if dim <= MAX_SPHERICAL_DIM else "stein"
    is_cheap = partners or CHEAP_HESSIAN * products <= dim
    if curvature == "auto":
        least = MIN_QUADRATURE_DIM if products >= dim else MIN_STRUCTURED_QUADRATURE_DIM
        is_taken = dim >= least and products <= MAX_SPHERICAL_DIM and not partners
        if is_taken and unlike is not None and unlike() is None:
            return Choice("quadrature")
        if has_paths:
            return Choice("spherical")
        if not (is_cheap and products <= MAX_PRODUCTS):
            return Choice(otherwise)
    if curvature == "quadrature":
        none = "guide or model have draws or parameters of their own"
        reason = none if unlike is None else unlike()
        if reason is not None:
            raise ValueError(
                "curvature='quadrature' needs a log density that is a sum of smooth functions of "
                f"one or two affine functions of the Gaussian's latents{_names(guide)}, and this "
                f"is none ({reason}). Use curvature='spherical'."
            )
    if curvature not in ("auto", *TWICE):
        return Choice(curvature)
    error = obstacle()
    if error is None:
        return Choice("hessian" if curvature == "auto" else curvature)
    if curvature == "auto":
        return Choice(otherwise, str(error))
    raise ValueError(
        f"{error}. Use curvature='spherical' or curvature='stein', which need gradients only."
    ) from error


def _names(guide: Any) -> str:
    """The latents of a guide in brackets, the first few of many."""
    names = [repr(site.name) for site in getattr(guide, "sites", None) or ()]
    more = ", ..." if len(names) > MAX_NAMES else ""
    return f" ({', '.join(names[:MAX_NAMES])}{more})" if names else ""


class Cost(NamedTuple):
    """What one estimate is made from."""

    num_hessians: int  #: at the first draws; or values, where no draw has a Hessian
    num_gradients: int  #: at all draws
    num_products: int  #: Hessian-vector products
    num_groups: int = 0  #: of orthogonal points, with ``"spherical"``
    max_batches: int = 1  #: of as many groups each, while :func:`is_noisy`


def cost_of_step(
    curvature: str,
    dim: int,
    products: int,
    num_particles: int,
    num_gradients: int | None = None,
    *,
    adapts: bool = False,
) -> Cost:
    """What ``NaturalELBO`` evaluates in a step.

    :param curvature: not ``"auto"``.
    :param products: Hessian-vector products, or gradients, that a Hessian costs.
    :param num_particles: ``K``; see ``NaturalELBO``.
    :param num_gradients: over how many draws to average the gradient; None for the default.
    :param adapts: whether more groups may follow, if ``num_gradients`` does not say how many.
    """
    if curvature == "spherical":
        size = 2 * dim + 1
        wanted = -(-num_particles // PARTICLES_PER_GROUP)
        groups = wanted if num_gradients is None else max(1, -(-num_gradients // size))
        more = adapts and num_gradients is None and groups > 1
        return Cost(groups * size, groups * size, 0, groups, MAX_BATCHES if more else 1)
    if curvature == "quadrature":
        return Cost(num_particles, num_particles, products)
    if curvature in ("stein", "mean"):
        return Cost(num_particles, num_particles, products * (curvature == "mean"))
    if num_gradients is None:
        # Of a network the squares of all examples cost a few gradients, not ``d`` of them.
        is_cheap = curvature == "gauss_newton" and dim > MAX_SPHERICAL_DIM
        num_gradients = default_num_gradients(num_particles, 1 if is_cheap else products)
    return Cost(num_particles, num_gradients, num_particles * products)


def is_noisy(count: Any, noise: Any, square: Any) -> Any:
    """Whether another batch is worth its cost: the norm test of Byrd, Chin, Nocedal and Wu (2012).

    *Sample size selection in optimization methods for machine learning*, Math. Program. 134.

    :param count: batches so far.
    :param noise: the sum of the batches' noises, squared Fisher norms in nats; NaN is enough.
    :param square: the sum of the squared norms of their directions.
    """
    # The mean's noise is noise / count^2, its squared norm square / count.
    is_worth_it = (noise > NOISY_PART * square * count) & (noise < HOPELESS * count)
    return (noise > NOISY * count**2) & is_worth_it & (count < MAX_BATCHES)


def cost_of_group(curvature: str, dim: int, products: int, data_size: int) -> Cost:
    """What ``fit`` evaluates in a group: about as much, whatever the curvature.

    :param data_size: numbers in the model's largest argument.
    """
    if curvature == "spherical":
        return Cost(2 * dim + 1, 2 * dim + 1, 0, 1)
    if curvature == "quadrature":
        return Cost(1, 1, products)  # as many with the terms' Jacobians
    if curvature == "stein":
        return Cost(NUM_STEIN, NUM_STEIN, 0)
    affordable = min(dim // products, MAX_HESSIANS, NUMBERS_AT_ONCE // data_size)
    hessians = max(MIN_HESSIANS, 2 * (affordable // 2))
    return Cost(hessians, default_num_gradients(hessians, products), hessians * products)


def default_num_gradients(num_hessians: int, products: int) -> int:
    """How many draws to average the gradient over.

    :param num_hessians: ``K``, at how many draws a Hessian is taken.
    :param products: Hessian-vector products, or gradients, that a Hessian costs.
    """
    added = min(GRADIENTS_PER_HESSIAN - 1, int(MAX_ADDED_COST * products))
    return num_hessians * (1 + added)


def points_at_once(data_size: int) -> int:
    """How many draws share a pass.

    :param data_size: numbers in the model's largest argument.
    """
    return max(8, min(POINTS_AT_ONCE, NUMBERS_AT_ONCE // max(data_size, 1)))
