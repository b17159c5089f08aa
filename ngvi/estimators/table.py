"""``E_q[grad l]`` and ``E_q[hess l]`` of a log density ``l``, as natural gradients of the bound.

An *estimator* takes what evaluates a log density, the families of all sites, and points; one
evaluation gives the natural gradients of all of them. ``NaturalELBO`` and ``fit`` use the same.

To add one: a class here, with its equation, what it needs and what it costs, and a line in
:data:`ESTIMATORS`. A frozen dataclass of the same name stands in
:mod:`ngvi.estimators.from_gradients`, or in both packages' ``estimators``.
:func:`ngvi.estimators.choice.choose` says when ``"auto"`` takes it, and ``tests/estimators``
compares it with moments by quadrature.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
from typing import Any, ClassVar, NamedTuple

from ngvi.estimators.options import DEFAULTS

#: Draws of a pass times the numbers of the model's largest argument.
NUMBERS_AT_ONCE = 2**25


class Needs(enum.Enum):
    """Derivatives that an estimator asks of the log density."""

    GRADIENTS = "gradients"
    HESSIANS = "second derivatives"
    EXAMPLES = "gradients of single examples"
    TERMS = "a sum of terms of a few affine functions"


class EstimateCost(NamedTuple):
    """Numbers of evaluations that an estimate is made from."""

    num_hessians: int  #: Hessians, or values if there are none, at the first draws.
    num_gradients: int  #: Gradients, or values if there are none, at all draws.
    num_products: int  #: Hessian-vector products.
    num_groups: int  #: Groups of orthogonal points, with ``"spherical"``.
    max_batches: int  #: Most batches of as many groups, while they are noisy.

    @classmethod
    def of_draws(cls, num_hessians: int, num_gradients: int, num_products: int) -> EstimateCost:
        """Return the cost of draws that are in no groups."""
        return cls(num_hessians, num_gradients, num_products, 0, 1)


class Size(NamedTuple):
    """Sizes that decide the cost of a step."""

    dim: int  #: ``d``, the number of latents of all Gaussians.
    products: int  #: Hessian-vector products that the Hessian takes, as much as is needed of it.
    num_particles: int  #: ``K``; see ``NaturalELBO``.
    num_gradients: int | None  #: Draws that the gradient is averaged over, if given.
    adapts: bool  #: True if more groups may follow.


class Estimator:
    """An estimator of the natural gradient of the bound.

    :cvar needs: what it asks of the log density.
    :cvar of_step: whether ``NaturalELBO`` offers it.
    :cvar of_fit: whether ``fit`` does: a bound over fixed draws has the gradient that it gives.
    """

    needs: ClassVar[Needs] = Needs.GRADIENTS
    #: The module of the packages that computes it, which is imported when it is asked for.
    module: ClassVar[str] = "estimators"
    of_step: ClassVar[bool] = True
    of_fit: ClassVar[bool] = True

    @classmethod
    def cost_of_step(cls, size: Size) -> EstimateCost:
        """Return what ``NaturalELBO`` evaluates in a step."""
        has_products = cls.needs in (Needs.HESSIANS, Needs.TERMS)
        count = size.num_particles
        return EstimateCost.of_draws(count, count, has_products * size.products)

    @classmethod
    def cost_of_group(cls, dim: int, products: int, data_size: int) -> EstimateCost:
        """Return what ``fit`` evaluates in a group of draws: as much, whatever the estimator."""
        return EstimateCost.of_draws(DEFAULTS.num_gradients, DEFAULTS.num_gradients, 0)


class Spherical(Estimator):
    """The natural gradient of the bound from gradients at orthogonal points.

    There is no Hessian, and little noise. The points and weights ``w_k`` are those of
    :mod:`ngvi.families.points`: the weighted second moment of a group is exactly ``I``, so that by
    Bonnet's theorem and Stein's lemma

        E[grad l] = sum_k w_k grad l(theta_k),
        E[hess l] = sum_k w_k grad l(theta_k) (S (theta_k - mu))^T

    are exact for a quadratic log density; the second is a central difference of gradients in
    ``d`` orthogonal directions, with steps of the size of ``q`` itself. At an optimum the noise is
    far smaller than with a pair of exact Hessians and their gradients, which costs as much.
    """

    @classmethod
    def cost_of_step(cls, size: Size) -> EstimateCost:
        points, given = 2 * size.dim + 1, size.num_gradients
        groups = -(-size.num_particles // DEFAULTS.particles_per_group)
        if given is not None:
            groups = max(1, -(-given // points))
        batches = DEFAULTS.max_batches if size.adapts and given is None and groups > 1 else 1
        return EstimateCost(groups * points, groups * points, 0, groups, batches)

    @classmethod
    def cost_of_group(cls, dim: int, products: int, data_size: int) -> EstimateCost:
        return EstimateCost(2 * dim + 1, 2 * dim + 1, 0, 1, 1)


class Hessian(Estimator):
    """``E[grad l]`` and ``E[hess l]`` by automatic differentiation.

    A family names its probes (:meth:`~ngvi.families.base.Family.hessian_probes`); one
    Hessian-vector product each gives its part of the Hessian. A gradient costs as much as one of
    these many products, and most of the noise is the gradient's: it is averaged over more draws.

    :param num_hessians: ``K``, at how many of the draws Hessians are taken, the first.
    """

    needs = Needs.HESSIANS

    @classmethod
    def cost_of_step(cls, size: Size) -> EstimateCost:
        return _with_gradients(size.num_particles, size.products, size.products, size.num_gradients)

    @classmethod
    def cost_of_group(cls, dim: int, products: int, data_size: int) -> EstimateCost:
        in_memory = NUMBERS_AT_ONCE // data_size
        affordable = min(dim // products, DEFAULTS.max_hessians, in_memory)
        hessians = max(DEFAULTS.min_hessians, 2 * (affordable // 2))
        return _with_gradients(hessians, products, products, None)


class GaussNewton(Estimator):
    """Squares of the gradients of single examples in place of the Hessian, as in VOGN.

    For a likelihood of independent examples, ``-hess log p(y_i | theta)`` is replaced by
    ``g_i g_i^T``, positive semi-definite, and equal to it in expectation over the model's own
    data (Tan, S5.1; Swaroop, VOGN). What is not an example, the prior above all, keeps its exact
    Hessian; beside a low-rank precision of many latents its diagonal, as in SLANG.
    """

    needs = Needs.EXAMPLES
    module = "networks.gauss_newton"
    of_fit = False

    @classmethod
    def cost_of_step(cls, size: Size) -> EstimateCost:
        # Of a network the squares of all examples cost a few gradients, not ``d`` of them.
        of_one = 1 if size.dim > DEFAULTS.max_directions else size.products
        return _with_gradients(size.num_particles, of_one, size.products, size.num_gradients)


class Stein(Estimator):
    """The natural gradient of the bound from gradients of the log density, by Stein's lemma.

    ``E[hess l] = E[S (theta - mu) grad l^T]`` (Lin, Khan and Schmidt, 2019, *Stein's lemma for the
    reparameterization trick with exponential family mixtures*): the estimate behind IVON. It
    equals the reparameterised gradient of the bound, which the families turn into a natural
    gradient without forming a matrix; ``log q`` is differentiated through the draws alone
    (sticking the landing), so that the noise vanishes where ``q`` is exact.
    """


class Mean(Estimator):
    """``grad l`` and ``hess l`` at the mean of ``q`` in place of their averages: the delta method.

    :param partners: whether the guide draws more than latent vectors: over its other draws the
        mean's gradient is averaged.
    """

    needs = Needs.HESSIANS
    of_fit = False


class Quadrature(Estimator):
    """``E[l]``, ``E[grad l]`` and ``E[hess l]`` by quadrature, term by term.

    For a log density that is a sum of terms of one or two affine functions ``a = J theta + b`` of
    the latents (:mod:`ngvi.estimators.additive_terms`), which under ``q`` are Gaussian, with means
    ``J mu + b`` and covariances ``J Sigma J^T``:

        E[grad l] = sum J^T E[f'(a)],   E[hess l] = sum J^T E[f''(a)] J.

    There are no draws, and no noise. The cost is that of the products with the ``J``, ``n d^2``
    for ``n`` terms of ``d`` latents, about as much as ``d`` gradients of a linear model. Of a
    model with locals ``n m^2`` with ``m`` coordinates of a local and its ancestors.
    """

    needs = Needs.TERMS

    @classmethod
    def cost_of_group(cls, dim: int, products: int, data_size: int) -> EstimateCost:
        return EstimateCost.of_draws(1, 1, products)  # as many with the terms' Jacobians


#: All estimators by name.
ESTIMATORS: dict[str, type[Estimator]] = {
    "spherical": Spherical,
    "quadrature": Quadrature,
    "hessian": Hessian,
    "gauss_newton": GaussNewton,
    "stein": Stein,
    "mean": Mean,
}


def new_estimator(name: str, package: str, cost: EstimateCost, **given: Any) -> Any:
    """Make a package's estimator.

    :param name: in :data:`ESTIMATORS`.
    :param package: whose class of the same name it is.
    :param cost: how many draws have a Hessian, and whether the spread of groups is wanted.
    :param given: other fields of it, and those of others.
    """
    num_groups = cost.num_groups if cost.max_batches > 1 else 1
    given.update(num_hessians=cost.num_hessians, num_groups=num_groups)
    base = ESTIMATORS[name]
    module = importlib.import_module(f"{package}.{base.module}")
    cls = getattr(module, base.__name__)
    names = [field.name for field in dataclasses.fields(cls)]
    return cls(**{name: value for name, value in given.items() if name in names})


def _with_gradients(
    num_hessians: int, cost: int, products: int, gradients: int | None
) -> EstimateCost:
    """Return the cost of Hessians, and of gradients at more draws.

    :param cost: of a Hessian in gradients.
    :param products: Hessian-vector products of one.
    :param gradients: how many there are in all; None for as many as add little to the cost.
    """
    if gradients is None:
        added = min(DEFAULTS.num_gradients - 1, int(DEFAULTS.max_added_cost * cost))
        gradients = num_hessians * (1 + added)
    return EstimateCost.of_draws(num_hessians, gradients, num_hessians * products)
