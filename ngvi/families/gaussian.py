"""A Gaussian in some coordinates: its moments, its density and its natural gradient."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

from ngvi.latents.forest import Forest, check_dense
from ngvi.latents.layout import Layout
from ngvi.linalg.definite import Definite

#: A tensor of whichever library.
Array = Any


class Gaussian:
    """``q = N(mu, Sigma)``. See :mod:`ngvi.families.base` for what a family writes."""

    #: What ``NaturalGaussianGuide(family=...)`` knows the family by; by default that of the class.
    name: ClassVar[str] = ""
    ops: ClassVar[Definite]  #: A package's operations on matrices.
    xp: ClassVar[Any]  #: Torch or ``jax.numpy``, for functions that both spell alike.

    loc: Any  #: The mean, shape ``(d,)``; None in a specification.

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.name and "loc" in vars(cls):
            cls.name = cls.__name__.lower()

    # -- construction -----------------------------------------------------------------

    def for_layout(self, layout: Layout) -> Gaussian:
        """Return the specification for a model whose latent vector has this layout.

        Structured families find their blocks here; the others are what they are.

        :raises ValueError: if the family does not fit the model.
        """
        return self

    def initial(self, loc: Array, scale: float | Array) -> Self:
        """``N(loc, diag(scale^2))`` in this family.

        :param loc: mean, shape ``(d,)``; its dtype and device are the family's.
        :param scale: standard deviation of every element, or of each; positive.
        """
        raise NotImplementedError

    def _bound(self) -> Self:
        if self.loc is None:
            raise ValueError(
                f"{type(self).__name__}() has no coordinates yet. Call .initial(loc, scale), or "
                "pass it as family= to NaturalGaussianGuide."
            )
        return self

    # -- coordinates ------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the Gaussian."""
        return self._bound().loc.shape[-1]

    @property
    def num_parameters(self) -> int:
        """Number of free coordinates, ``len(lambda)`` in Tan's Table 5; by default of all."""
        return sum(math.prod(value.shape) for value in self._bound().coordinates().values())

    def coordinates(self) -> dict[str, Any]:
        """Return the coordinate tensors by name."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)  # type: ignore[arg-type]  # its subclasses are
            if not field.metadata.get("static")
        }

    def map(self, function: Callable[..., Array], *others: Self) -> Self:
        """Return ``function`` of each coordinate, and of the same coordinate of ``others``."""
        raise NotImplementedError

    def detach(self) -> Self:
        """Return the same Gaussian, through which no gradient flows."""
        raise NotImplementedError

    def couples(self) -> str | Forest:
        """Return which latents the precision couples.

        It is ``"all"``, ``"none"``, ``"low_rank"`` or blocks; a mixture, whose density has no
        precision, says ``"mixture"``.
        """
        return "all"

    def describe(self) -> str:
        """Return the structure in words."""
        return "independent latents" if self.couples() == "none" else "one dense block"

    # -- moments ----------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        """Mean, shape ``(d,)``."""
        return self._bound().loc

    @property
    def stddev(self) -> Array:
        """Marginal standard deviations, shape ``(d,)``; a family writes them or their squares."""
        return self.xp.sqrt(self.variance)

    @property
    def variance(self) -> Array:
        """Marginal variances, shape ``(d,)``."""
        return self.stddev**2

    @property
    def covariance_matrix(self) -> Array:
        """Dense covariance, shape ``(d, d)``.

        :raises ValueError: if it would not fit.
        """
        middle = centred(self)
        check_dense(self)
        columns = middle.sample(self.ops.eye(self.dim, self.loc))
        return columns.mT @ columns

    @property
    def precision_matrix(self) -> Array:
        """Dense inverse covariance, shape ``(d, d)``.

        :raises ValueError: if it would not fit.
        """
        middle = centred(self)
        check_dense(self)
        columns = middle.whiten(self.ops.eye(self.dim, self.loc))
        return columns @ columns.mT

    # -- density ----------------------------------------------------------------------

    def log_det_scale(self) -> Array:
        """``log |Sigma| / 2``, a scalar."""
        raise NotImplementedError

    def whiten(self, value: Array) -> Array:
        """``z`` of :meth:`sample` for ``theta = value``; shape ``(..., d)``."""
        raise NotImplementedError

    def sample(self, noise: Array) -> Array:
        """``theta = mu + C z`` for standard normal ``z``.

        :param noise: ``z``, shape ``(..., d)``.
        :return: ``theta``, shape ``(..., d)``.
        """
        raise NotImplementedError

    def log_prob(self, value: Array) -> Array:
        """``log q(value)`` in nats; ``value`` has shape ``(..., d)``, the result ``(...)``."""
        return noise_log_prob(self, self.whiten(value)) - self.log_det_scale()

    # -- the Fisher information and steps ----------------------------------------------

    def natural_gradient(self, gradient: Self) -> Self:
        """``F^-1 g``. Its inverse is :meth:`euclidean_gradient`."""
        raise NotImplementedError

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        """``F n``, the gradient whose natural gradient is ``n``."""
        raise NotImplementedError

    def retract(self, step: Self) -> Self:
        """Return the family at ``lambda + step``, kept off the border of its domain.

        A standard deviation (or the diagonal of a Cholesky factor) may cross zero: the sign
        of a column changes nothing about ``Sigma``. It may not land there, and keeps one
        hundredth of its size with the sign of the step's end.
        """
        raise NotImplementedError


def centred(family: Any) -> Any:
    """Return ``N(0, Sigma)``."""
    return dataclasses.replace(family, loc=family.xp.zeros_like(family._bound().loc))


def noise_log_prob(family: Gaussian, noise: Array) -> Array:
    """Return the log density of ``N(0, I)`` in nats; ``(..., d)`` to ``(...)``."""
    normaliser = 0.5 * noise.shape[-1] * math.log(2.0 * math.pi)
    return -0.5 * family.ops.row_products(noise, noise) - normaliser
