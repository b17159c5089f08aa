"""VOGN for a training loop without a PPL: the equations, for arrays of any library.

:mod:`ngvi.torch` and :mod:`ngvi.optax` have its optimisers. :mod:`ngvi.optim.von` has the VOGN that
moves the guide of a PPL's model.
"""

from __future__ import annotations

from dataclasses import dataclass

from ngvi.optim.ivon import IvonEquations, defaults_of
from ngvi.optim.rule import Array


@dataclass(frozen=True)
class VognEquations(IvonEquations):
    """Variational online Gauss-Newton in a plain training loop.

    Khan et al. (2018; Swaroop, eqs. for VOGN), with the momentum of Tan (S5.1). Learns a Gaussian
    with independent weights, ``q = N(m, diag(sigma^2))``. The gradients ``g_i`` of a minibatch's
    examples are taken at a sample ``theta`` of ``q``. With ``lambda = ess``,
    ``delta = weight_decay`` and means over the examples::

        g <- beta1 g + (1 - beta1) (mean_i g_i + delta m)
        h <- beta2 h + (1 - beta2) mean_i g_i^2
        m <- m - alpha g / (1 - beta1^t) / (h + delta)
        sigma = (lambda (h + delta))^(-1/2)

    The curvature is never negative and much less noisy than IVON's, and costs the gradient of each
    example: a few times a minibatch's in time, and as many copies of the weights as there are
    examples in memory. ``ess`` is the number of training examples; the posterior of a temperature
    ``T`` has ``ess / T``. The prior of the weights is ``N(0, 1 / (ess weight_decay))``. A step
    whose gradients are not finite is not taken, and counted.

    :param beta2: how much of the curvature a step keeps, in [0, 1); by default as in Adam (Tan,
        S5.1). The average over all steps, which is the default in ``SVI``, is for ``SVI`` only.
    :param clip_radius: the most that an entry of the direction, before ``alpha``, is.
    """

    beta2: float = 0.999

    rule = "VOGN"
    room = 1.0
    of_examples = True

    def slope(self, gradient: Array, mean: Array) -> Array:
        """See above."""
        return gradient + self.weight_decay * mean

    def new_hess(self, hess: Array, product: Array) -> Array:
        """``h``.

        :param product: ``g_i^2``, averaged over examples and samples.
        """
        new = self.beta2 * hess
        new += (1 - self.beta2) * product
        return new

    def _with_prior(self, momentum: Array, mean: Array) -> Array:
        return momentum


VOGN_DEFAULTS = defaults_of(VognEquations)
