"""``E_q[grad l]`` and ``E_q[hess l]`` of a log density ``l``, as natural gradients of the bound.

An *estimator* takes what evaluates a log density, the families of all sites, and points; one
evaluation gives the natural gradients of all of them. ``NaturalELBO`` and ``fit`` use the same.

To add one: its docstring here; a file with a frozen dataclass in the packages' ``curvature``, and a
line in their ``make_estimator``; in :mod:`ngvi.estimators.choice` its name, what it costs, and when
``"auto"`` takes it. ``tests/estimators`` then compares it with moments by quadrature.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ngvi.families.base import Array, Family

#: Families, noise or latent vectors, by the site of the guide that draws them.
Families = dict[str, Any]
Arrays = dict[str, Array]


class Spherical:
    """The natural gradient of the bound from gradients at orthogonal points.

    There is no Hessian, and little noise. The points and weights ``w_k`` are those of
    :mod:`ngvi.families.points`: the weighted second moment of a group is exactly ``I``, so that by
    Bonnet's theorem and Stein's lemma

        E[grad l] = sum_k w_k grad l(theta_k),
        E[hess l] = sum_k w_k grad l(theta_k) (S (theta_k - mu))^T

    are exact for a quadratic log density; the second is a central difference of gradients in
    ``d`` orthogonal directions, with steps of the size of ``q`` itself. Measured on 22 posteriors
    of posteriordb, at their optima: the squared Fisher norm of the noise is 20 to 10^6 times
    smaller than with a pair of exact Hessians and their gradients, which costs as much.
    """


class Hessian:
    """``E[grad l]`` and ``E[hess l]`` by automatic differentiation.

    A family names its probes (:meth:`~ngvi.families.base.Family.hessian_probes`); one
    Hessian-vector product each gives its part of the Hessian. A gradient costs as much as one of
    these many products, and most of the noise is the gradient's: it is averaged over more draws.

    :param num_hessians: ``K``, at how many of the draws Hessians are taken, the first.
    """


class GaussNewton:
    """Squares of the gradients of single examples in place of the Hessian, as in VOGN.

    For a likelihood of independent examples, ``-hess log p(y_i | theta)`` is replaced by
    ``g_i g_i^T``, positive semi-definite, and equal to it in expectation over the model's own
    data (Tan, S5.1; Swaroop, VOGN). What is not an example, the prior above all, keeps its exact
    Hessian; beside a low-rank precision of many latents its diagonal, as in SLANG.
    """


class Stein:
    """The natural gradient of the bound from gradients of the log density, by Stein's lemma.

    ``E[hess l] = E[S (theta - mu) grad l^T]`` (Lin, Khan and Schmidt, 2019, *Stein's lemma for the
    reparameterization trick with exponential family mixtures*): the estimate behind IVON. It
    equals the reparameterised gradient of the bound, which the families turn into a natural
    gradient without forming a matrix; ``log q`` is differentiated through the draws alone
    (sticking the landing), so that the noise vanishes where ``q`` is exact.
    """


class Mean:
    """``grad l`` and ``hess l`` at the mean of ``q`` in place of their averages: the delta method.

    :param partners: whether the guide draws more than latent vectors: over its other draws the
        mean's gradient is averaged.
    """


class Quadrature:
    """``E[l]``, ``E[grad l]`` and ``E[hess l]`` by quadrature, term by term.

    For a log density that is a sum of terms of one or two affine functions ``a = J theta + b`` of
    the latents (:mod:`ngvi.estimators.additive_terms`), which under ``q`` are Gaussian, with means
    ``J mu + b`` and covariances ``J Sigma J^T``:

        E[grad l] = sum J^T E[f'(a)],   E[hess l] = sum J^T E[f''(a)] J.

    There are no draws, and no noise. The cost is that of the products with the ``J``, ``n d^2``
    for ``n`` terms of ``d`` latents, about as much as ``d`` gradients of a linear model; of a
    model with locals ``n m^2`` with ``m`` coordinates of a local and its ancestors.
    """


class Points(NamedTuple):
    """Draws of all sites' latent vectors."""

    noise: Arrays  #: by site, shapes ``(N, d)``
    weights: Array  #: shape ``(N,)``, which sum to one
    keys: Array | None = None  #: of JAX, for what else is drawn, shape ``(N,)``

    def of(self, here: Families) -> Arrays:
        """``theta`` by site, shapes ``(N, d)``."""
        return {site: family.sample(self.noise[site]) for site, family in here.items()}

    def some(self, kept: Any) -> Points:
        """The draws at some indices."""
        noise = {site: z[kept] for site, z in self.noise.items()}
        keys = None if self.keys is None else self.keys[kept]
        return Points(noise, self.weights[kept], keys)


def log_q(here: Families, noise: Arrays) -> Array:
    """``log q`` of the draws, summed over sites; shape ``(N,)``."""
    return sum(
        family.noise_log_prob(noise[site]) - family.log_det_scale() for site, family in here.items()
    )


#: The diagonal of a Hessian of more coordinates is read off two products, if there is nothing else
#: in the Hessian: those of independent priors of a network's weights, say.
MAX_PROBED_DIAGONAL = 256


@functools.cache
def scales(dim: int) -> np.ndarray:
    """A random ``s``: if ``H s`` is ``s`` times ``H 1``, elementwise, ``H`` is diagonal.

    :return: between 0.5 and 1.5 in size, of either sign, shape ``(dim,)``.
    """
    rng = np.random.default_rng(0)
    return rng.uniform(0.5, 1.5, dim) * rng.choice([-1.0, 1.0], dim)


def num_products(family: Family) -> int:
    """How many Hessian-vector products the family's part of a Hessian takes."""
    return int(family.hessian_probes().max()) + 1


def aligned(groups: Iterable[Sequence[tuple[Array, Array]]]) -> tuple[list[Array], list[Array]]:
    """The log likelihoods by example of groups of sites, and how their sums are scaled.

    :param groups: of the sites that share their examples log likelihoods and scales, a vector each.
    :raises ValueError: if there are none.
    """
    log_likelihoods, scales = [], []
    for members in groups:
        scale = members[0][1]
        # Sites of one group may be scaled differently (by the handler ``scale``).
        log_likelihoods.append(sum(value * (s / scale) for value, s in members))
        scales.append(scale)
    if not scales:
        raise ValueError(
            "curvature='gauss_newton' needs observed sites, and the model has none: use "
            "curvature='hessian'."
        )
    return log_likelihoods, scales
