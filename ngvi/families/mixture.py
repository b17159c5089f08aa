"""A mixture of Gaussians of one family, in the joint coordinates of weights and components.

A draw takes one number of noise more than a Gaussian's, which chooses the component.

With ``q(theta) = sum_k pi_k q_k(theta)``, a draw and the component that it is of have the density
``q(k, theta) = pi_k q_k(theta)``. Its Fisher information is made of blocks: that of the weights,
and ``pi_k F_k`` for each component (Lin, Khan and Schmidt, 2019, *Fast and simple natural-gradient
variational inference with mixture of exponential-family approximations*, ICML). The bound is that
of ``q(theta)`` itself. With ``h = l - log q`` its derivative for the coordinates of component
``k`` is ``pi_k`` times that of ``E_k[h]`` with ``h`` held fixed, and for ``log pi_k``, up to a
constant, ``pi_k E_k[h]``. So the weights cancel, and the natural gradient is, for each component,

    F_k^-1 grad E_k[h],        and for the log weights        E_k[h] - const.

A component climbs ``l + log (q_k / q)`` as if it were alone; a step of size 1 of the weights sets
them to ``pi_k exp(E_k[h])``. At the optimum ``h`` has the same expectation under every component.

The Fisher information of ``q(theta)`` itself has no closed form; where the components do not
overlap it is the joint one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from ngvi.errors import check_count
from ngvi.families import draws
from ngvi.families.base import Array, Family
from ngvi.families.curvature import direction_of_expectation, slopes
from ngvi.latents.layout import Layout

#: Parts into which the interval of a quantile is cut, and how often: to a unit of rounding.
SECTIONS, CUTS = 32, 10
NO_COORDINATES = (
    "NUTS needs coordinates in which the fit is N(0, I), and a mixture has none: fit one "
    "Gaussian, fit(model, ...).nuts(), which starts from all optima that were found."
)


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture(Family):
    """A mixture of Gaussians of one family.

    ``fit(model, ..., num_components="auto")`` finds one. As for other families, one without tensors
    is a specification:

    >>> one, other = (families.CovarianceCholesky().initial(y + at, 0.1) for at in (-1.0, 2.0))
    >>> q = families.Mixture.of([one, other], 0.0 * y[:2])  # logarithms of the weights
    >>> [round(float(x), 2) for x in q.mean]
    [1.5, 2.5, 3.5]

    :param base: of the components: a family's name, its class, or a specification.
    :param num_components: ``K``, one at least.
    :param loc: means, shape ``(K, d)``.
    :param logits: logarithms of the weights, up to a constant, shape ``(K,)``.
    :param packed: the other coordinates of each component, one after another, shape ``(K, m)``.
    :param shapes: of these, by name; :meth:`initial` and :meth:`of` find them.
    :param base_options: of the base, once it has found its blocks.
    """

    base: Any = dataclasses.field(default="covariance_cholesky", metadata={"static": True})
    num_components: int = dataclasses.field(default=2, metadata={"static": True})
    loc: Array = None
    logits: Array = None
    packed: Array = None
    shapes: tuple = dataclasses.field(default=(), metadata={"static": True})
    base_options: tuple = dataclasses.field(default=(), metadata={"static": True})

    name: ClassVar[str] = "mixture"
    #: Additions of a package: its families by name, the normal distribution function, and
    #: ``log(sum(exp))`` over the first axis.
    bases: ClassVar[dict[str, Any]]
    _ndtr: ClassVar[Callable[[Array], Array]]
    _log_sum_exp: ClassVar[Callable[[Array], Array]]

    def __post_init__(self) -> None:
        check_count(self.num_components, "num_components")
        if isinstance(self.base, tuple):
            return
        base = self.base() if isinstance(self.base, type) else self.base
        if isinstance(base, str):
            base = self.bases.get({"full": "covariance_cholesky"}.get(base, base))
            base = base and base()
        is_known = isinstance(base, Family) and base.name in self.bases
        if not is_known or base.loc is not None:
            known = ", ".join(map(repr, self.bases))
            raise ValueError(
                f"base={self.base!r} of a Mixture must be a family without coordinates: one of "
                f"{known}, or a class or specification such as CovarianceCholesky()."
            )
        object.__setattr__(self, "base", (base.name, _options(base, ("structure", "independent"))))
        object.__setattr__(self, "base_options", _options(base))

    @classmethod
    def of(cls, components: Sequence[Any], logits: Array) -> Self:
        """Return the mixture of some components, or of directions at them.

        :param components: Gaussians of one family and dimension.
        :param logits: shape ``(K,)``.
        """
        first, xp = components[0], cls.xp
        others = [[one.coordinates()[name] for one in components] for name in _others(first)]
        packed = [xp.stack(values).reshape(len(components), -1) for values in others]
        return cls(
            dataclasses.replace(first, **dict.fromkeys(first.coordinates())),
            len(components),
            xp.stack([one.loc for one in components]),
            logits,
            xp.concatenate(packed, 1),
            tuple((name, tuple(first.coordinates()[name].shape)) for name in _others(first)),
        )

    def for_layout(self, layout: Layout) -> Self:
        found: Any = self._specification.for_layout(layout)
        return dataclasses.replace(self, base_options=_options(found))

    def initial(self, loc: Array, scale: float | Array) -> Self:
        """Components of this scale, whose means are spread by it about ``loc``."""
        offsets = np.random.default_rng(self.num_components).standard_normal(
            (self.num_components, loc.shape[-1])
        )
        spread = scale * self.ops.tensor(offsets - offsets.mean(0), loc)
        components = [self._specification.initial(loc + row, scale) for row in spread]
        return self.of(components, 0.0 * spread[:, 0])

    # -- components -------------------------------------------------------------------

    @property
    def components(self) -> list[Any]:
        """The Gaussians, in the order of :attr:`weights`."""
        sizes = [int(np.prod(shape)) for _, shape in self.shapes]
        found = []
        for index in range(self.num_components):
            parts = self.ops.split(self._bound().packed[index], sizes)
            values = {n: x.reshape(s) for (n, s), x in zip(self.shapes, parts, strict=True)}
            found.append(dataclasses.replace(self._specification, loc=self.loc[index], **values))
        return found

    @property
    def log_weights(self) -> Array:
        """Logarithms of the weights, which sum to one; shape ``(K,)``."""
        return self._bound().logits - type(self)._log_sum_exp(self.logits)

    @property
    def weights(self) -> Array:
        """Weights of the components, shape ``(K,)``."""
        return self.xp.exp(self.log_weights)

    @property
    def num_parameters(self) -> int:
        each = sum(one.num_parameters for one in self.components)
        return each + self.num_components - 1

    def couples(self) -> str:
        return "mixture"

    def describe(self) -> str:
        """Return the components in words."""
        return f"{self.num_components} components, each {self._specification.describe()}"

    # -- moments ----------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        return self.weights @ self._bound().loc

    @property
    def variance(self) -> Array:
        own = self.xp.stack([one.variance for one in self.components])
        return self.weights @ (own + (self.loc - self.mean) ** 2)

    @property
    def covariance_matrix(self) -> Array:
        gaps = self.loc - self.mean
        pairs = zip(self.weights, self.components, strict=True)
        own = sum(weight * one.covariance_matrix for weight, one in pairs)
        return own + (self.weights[:, None] * gaps).mT @ gaps

    # -- density ----------------------------------------------------------------------

    def sample(self, noise: Array) -> Array:
        """Draw from the component that the first number of the noise chooses.

        :param noise: standard normal, shape ``(..., d + 1)``.
        """
        level, rest, found, below = type(self)._ndtr(noise[..., :1]), noise[..., 1:], None, 0.0
        for weight, one in zip(self.weights, self.components, strict=True):
            here = one.sample(rest)
            found = here if found is None else self.xp.where(level >= below, here, found)
            below = below + weight
        return found

    def log_prob(self, value: Array) -> Array:
        parts = [one.log_prob(value) for one in self.components]
        pairs = zip(self.log_weights, parts, strict=True)
        return type(self)._log_sum_exp(self.xp.stack([weight + part for weight, part in pairs]))

    def whiten(self, value: Array) -> Array:
        raise ValueError(NO_COORDINATES)

    def log_det_scale(self) -> Array:
        raise ValueError(NO_COORDINATES)

    # -- natural gradients in the joint coordinates ------------------------------------

    def bound_direction(
        self, values: Array, gradients: Array, noise: Array, weights: Array
    ) -> Self:
        """Return the natural gradient of the bound from values and gradients of the log density.

        Where the mixture is the posterior, ``h`` is constant and the direction zero, without noise.

        :param values: at ``one.sample(noise)`` of each component, shape ``(K, N)``.
        :param gradients: there, shape ``(K, N, d)``.
        :param noise: points, shape ``(N, d)``, at which ``N(0, I)`` is integrated.
        :param weights: of the points, shape ``(N,)``, which sum to one.
        """
        directions, heights = [], []
        for one, value, gradient in zip(self.components, values, gradients, strict=True):
            theta = one.sample(noise)
            slope = gradient - slopes(self, theta)
            directions.append(direction_of_expectation(one, weights[:, None] * slope, noise))
            heights.append(weights @ (value - self.log_prob(theta)))
        found = self.xp.stack(heights)
        return self.of(directions, found - found.mean())

    def natural_gradient(self, gradient: Self) -> Self:
        """``F^-1 g`` in the joint coordinates; log weights have a mean of zero, as they may."""
        weights = self.weights
        parts = zip(weights, self.components, gradient.components, strict=True)
        found = [one.natural_gradient(g.map(lambda x, w=w: x / w)) for w, one, g in parts]
        of_weights = (gradient.logits - weights * gradient.logits.sum()) / weights
        return self.of(found, of_weights - of_weights.mean())

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        weights, changes = self.weights, natural_gradient.logits
        parts = zip(weights, self.components, natural_gradient.components, strict=True)
        found = [one.euclidean_gradient(n).map(lambda x, w=w: x * w) for w, one, n in parts]
        return self.of(found, weights * (changes - weights @ changes))

    def natural_step(self, direction: Self, step_size: Array | float) -> Self:
        """Each component's own step, and ``pi_k exp(rho n_k)``, normalised."""
        pairs = zip(self.components, direction.components, strict=True)
        logits = self.log_weights + step_size * direction.logits
        found = [one.natural_step(change, step_size) for one, change in pairs]
        return self.of(found, logits - type(self)._log_sum_exp(logits))

    def retract(self, step: Self) -> Self:
        pairs = zip(self.components, step.components, strict=True)
        logits = self.log_weights + step.logits
        found = [one.retract(change) for one, change in pairs]
        return self.of(found, logits - type(self)._log_sum_exp(logits))

    def kl_divergence(self, other: Self) -> Array:
        """Return the divergence of draw and component, which is no less than that of draws."""
        pairs = zip(self.components, other.components, strict=True)
        found = self.xp.stack([one.kl_divergence(another) for one, another in pairs])
        divergence = self.weights @ (found + self.log_weights - other.log_weights)
        return self.ops.at_least(divergence, 0.0)

    # -- helpers ----------------------------------------------------------------------

    @property
    def base_family(self) -> Any:
        """The specification of the components' family."""
        return self.bases[self.base[0]](**dict(self.base[1]))

    @property
    def _specification(self) -> Any:
        return self.bases[self.base[0]](**dict(self.base_options or self.base[1]))


draws.has_free_scales.register(Mixture, lambda family: True)


@draws.noise_dim.register(Mixture)
def _(family: Mixture) -> int:
    return family.dim + 1


@draws.density_of_draw.register(Mixture)
def _(family: Mixture, noise: Array) -> Array:
    return family.log_prob(family.sample(noise))


@draws.density_of_point.register(Mixture)
def _(family: Mixture, noise: Array) -> Array:
    """Return the average of ``log q`` over a draw of each component, by their weights."""
    parts = [family.log_prob(one.sample(noise)) for one in family.components]
    return sum(weight * part for weight, part in zip(family.weights, parts, strict=True))


@slopes.register(Mixture)
def _(family: Mixture, value: Array) -> Array:
    """``grad log q`` at some vectors, shape ``(N, d)``."""
    logs = [one.log_prob(value) for one in family.components]
    pairs = zip(family.log_weights, logs, strict=True)
    shares = family.xp.stack([weight + part for weight, part in pairs])
    shares = family.xp.exp(shares - type(family)._log_sum_exp(shares))
    found = zip(shares, family.components, strict=True)
    return sum(share[..., None] * slopes(one, value) for share, one in found)


@draws.marginal_quantiles.register(Mixture)
def _(family: Mixture, normal: Callable[..., Any], levels: Array) -> Array:
    means = family._bound().loc
    sds = family.xp.stack([one.stddev for one in family.components])
    ends = normal(means, sds).icdf(levels[..., None, None])
    low, high = family.xp.amin(ends, -2), family.xp.amax(ends, -2)
    parts = family.ops.tensor(np.linspace(0.0, 1.0, SECTIONS + 1), means)[:, None]
    each, weights = normal(means, sds), family.weights[:, None]
    for _ in range(CUTS):
        points = low[..., None, :] + (high - low)[..., None, :] * parts
        reached = (weights * each.cdf(points[..., None, :])).sum(-2)
        num_below = (reached < levels[..., None, None]).sum(-2)
        width = (high - low) / SECTIONS
        high = low + width * family.xp.clip(num_below, 0, SECTIONS)
        low = low + width * family.xp.clip(num_below - 1, 0, SECTIONS)
    return 0.5 * (low + high)


def _others(family: Any) -> list[str]:
    """Return the names of all coordinates but the mean."""
    return [name for name in family.coordinates() if name != "loc"]


def _options(base: Any, without: tuple[str, ...] = ()) -> tuple:
    """Return the options of a specification, by name."""
    static = [one for one in dataclasses.fields(base) if one.metadata.get("static")]
    names = [one.name for one in static if one.name not in without]
    return tuple((name, getattr(base, name)) for name in names)
