"""The variational bound with second-order natural gradients: its options, and its choices.

The packages' ``elbo`` draw the points, evaluate them, and make a gradient of the directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

from ngvi._door import not_made
from ngvi._warn import warn
from ngvi.errors import check_count, check_flag
from ngvi.estimators.choice import Case, check_curvature, choose
from ngvi.estimators.table import ESTIMATORS, EstimateCost, Size


class WatchedLosses:
    """The losses of a run, which warns once if they explode though they are finite."""

    #: Size of a loss beyond which it explodes, in sizes of the first step's.
    most: ClassVar[float] = 100.0
    #: Steps with such a loss, less those with others.
    num_steps: ClassVar[int] = 3

    def __init__(self) -> None:
        self._size, self._num_beyond = math.nan, 0

    def seen(self, loss: float) -> float:
        """Check the loss of the next step, in nats, and return it."""
        if not math.isfinite(loss):
            return loss
        if math.isnan(self._size):
            self._size = max(abs(loss), 1.0)
        is_beyond = loss > self.most * self._size
        self._num_beyond = max(0, self._num_beyond + (1 if is_beyond else -1))
        if self._num_beyond == self.num_steps:
            warn(
                f"The loss explodes: it was {self._size:,.3g} nats at the first step, and is "
                f"{loss:,.3g}. Write BLR() without a step size; for a network IVON(), "
                "NaturalELBO(1, 'stein') and NaturalGaussianGuide(model, 'diagonal')."
            )
            self._size = math.inf  # once is enough
        return loss


class NaturalELBO:
    """The bound on the log evidence, with second-order natural gradients.

    A loss for stock ``SVI`` with a ``NaturalGaussianGuide``. Its value estimates the bound; its
    gradient with respect to the guide's posterior is the natural gradient, by the theorems of
    Bonnet and Price from the model's gradients and Hessians,

        dL/dmu = E[grad log p],        dL/dSigma = (E[hess log p] + Sigma^-1) / 2,

    averaged over draws. Any other parameter, of the model or of other guides in an
    ``AutoGuideList``, gets its ordinary gradient. All draws of a step share its minibatch.
    The guide holds latents in a subsampled plate for all elements (``create_plates=``). Elements
    in the minibatch get their gradient in the bound of all data, others zero, and the gradient of
    the globals counts every visited element ``N / B`` times
    (:mod:`ngvi.guide.subsampled_latents`). ``"quadrature"`` does not support such latents, and
    ``"auto"`` then uses another curvature.
    Use it with ``BLR`` (or with ``Snngm``, as Tan's second-order variant)::

        svi = SVI(model, NaturalGaussianGuide(model), BLR(), NaturalELBO())

    :param num_particles: ``K``, the number of samples in a step: ``K`` draws with a gradient, and
        with ``"hessian"`` a Hessian each. ``"spherical"`` takes one group of ``2 d + 1`` points for
        every two particles, at the cost of about two Hessians. For a dense family, a step whose
        noise costs more than a quarter of a nat adds as many groups again, up to five times, unless
        ``num_gradients`` is given (:func:`ngvi.estimators.choice.is_noisy`).
    :param num_gradients: the number of draws that the gradient is averaged over, including the
        ``K``. With Hessians, the gradient causes nearly all of a step's noise, and costs no more
        than one of the Hessian's products. The default is ``10 K``, or fewer if they would add more
        than a quarter to the cost of the Hessians. For ``"gauss_newton"`` beyond 2000 latents it is
        ``K``, as squares are cheap. ``"spherical"`` rounds up to whole groups; ``"stein"`` and
        ``"mean"`` ignore it.
    :param curvature: where ``E[hess log p]`` comes from. ``"spherical"``: differences of gradients
        at orthogonal points, with far less noise than random draws, and exact for a cubic ``log p``
        (:mod:`ngvi.families.points`). ``"quadrature"``: no draws, if ``log p`` is a sum of smooth
        functions of one or two affine functions of the latents, as in regressions and many mixed
        models (:mod:`ngvi.estimators.additive_terms`). ``"hessian"``: automatic differentiation,
        exact, and only what the family needs. ``"gauss_newton"``: squared gradients of single
        examples, which requires the observations in a plate (Tan, S5.1). ``"stein"``: gradients
        alone (Lin, Khan and Schmidt, 2019). ``"mean"``: gradient and Hessian at the mean (delta
        method). ``"auto"`` chooses as in ``fit``: ``"quadrature"`` from 100 latents on, or 2000 for
        structured families, if possible. Otherwise ``"hessian"`` for structured families, if the
        model can be differentiated twice, ``"spherical"`` up to 2000 latents, and ``"stein"`` for
        more. If other guides draw values of their own, ``"hessian"`` replaces ``"spherical"``
        (:func:`ngvi.estimators.choice.choose`).
    :param antithetic: whether random draws come in pairs ``z, -z``; orthogonal points always do.
    :raises ValueError: for an unknown curvature or a ``num_particles`` below 1; on the first call,
        if the guide holds no ``NaturalGaussianGuide``, if the model has no Hessian and
        ``curvature="hessian"`` asks for it, or no examples for ``"gauss_newton"``.
    """

    curvature: str
    num_gradients: int | None
    num_particles: int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuse to be called as a loss, which Pyro does with a class.

        :raises TypeError: saying so.
        """
        if args and callable(args[0]):
            raise TypeError(not_made(cls.__name__))
        return super().__new__(cls)

    def _set_options(
        self, num_particles: int, curvature: str, num_gradients: int | None, antithetic: bool
    ) -> None:
        check_curvature(curvature)
        num_particles = check_count(num_particles, "num_particles")
        if num_gradients is not None:
            hint = f" num_particles={num_particles} are among them."
            num_gradients = check_count(num_gradients, "num_gradients", num_particles, hint)
        self.curvature, self.num_gradients = curvature, num_gradients
        self.antithetic = check_flag(antithetic, "antithetic")
        self._num_dropped = 0

    def _chosen(self, case: Case, families: Iterable[Any]) -> tuple[str, EstimateCost]:
        """Return the estimator's name, ``"auto"`` resolved, and what it evaluates.

        :param families: the Gaussians of the guide.
        """
        couples = [family.couples() for family in families]
        is_mixture = "mixture" in couples and self.curvature == "auto"
        curvature = "stein" if is_mixture else self.curvature
        choice = choose(curvature, case)
        if choice.obstacle is not None:
            warn(f"{choice.obstacle}: curvature={choice.curvature!r} is used instead.")
        name = choice.curvature
        adapts = not case.partners and all(one == "all" for one in couples)
        size = Size(case.dim, case.products, self.num_particles, self.num_gradients, adapts)
        return name, ESTIMATORS[name].cost_of_step(size)

    @property
    def num_dropped(self) -> int:
        """Draws left out so far because their value, gradient or Hessian was not finite."""
        return self._num_dropped

    def _count(self, num_dropped: int) -> None:
        is_first = num_dropped and not self._num_dropped
        self._num_dropped += int(num_dropped)
        if is_first:
            warn(
                f"NaturalELBO left out {int(num_dropped)} draws of a step whose value, gradient or "
                "Hessian is not finite (num_dropped). If this goes on, start elsewhere and narrow "
                "(init_loc_fn=, init_scale=), or bring covariates to a scale near one."
            )
