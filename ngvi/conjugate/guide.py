"""What both packages' ``ConjugateGuide`` are, and which declarations they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from ngvi.conjugate.conjugacy import ConjugacyCheck, Values
from ngvi.conjugate.families import FAMILIES
from ngvi.conjugate.numpy_sites import NUMPY_FAMILIES
from ngvi.errors import check_finite
from ngvi.latents.subsampling import SubsampledLatent

#: Relative differences of values or gradients that rounding explains.
TOLERANCE = {"float64": 1e-6, "float32": 5e-3}

#: Of each support: its name in words, values inside, and one outside.
SUPPORTS: dict[str, tuple[str, tuple[float, ...], float | None]] = {
    "positive": ("positive numbers", (1e-4, 1e4), -1.0),
    "real": ("real numbers", (-1e4, 1e4), None),
    "unit_interval": ("numbers between 0 and 1", (1e-4, 1 - 1e-4), 2.0),
    "simplex": ("a simplex", (), 2.0),
}

#: The error of a first call inside of ``jax.jit``.
NEEDS_DATA = (
    "The first call of a ConjugateGuide checks that its sites are conjugate, which takes the data: "
    "call svi.init(...), svi.step(...) or svi.run(...) outside of jax.jit once."
)


class ConjugateGuide:
    """A Gaussian, and beside it exact exponential families for conditionally conjugate sites.

    A site is conditionally conjugate if its log density, given all other latents, is linear in the
    sufficient statistics of its family: a precision with a Gamma prior, a variance with an
    inverse Gamma prior, probabilities with a Dirichlet prior, .... Declare it, and every step
    moves its natural parameters by the exact natural gradient (Khan and Lin, 2017; Tan, section
    8.4),

        lambda <- (1 - rho) lambda + rho E_q[c],

    where ``c`` are the natural parameters of its conditional, averaged over the Gaussian's draws
    and over the other conjugate sites. ``rho`` is the step size of the optimiser; ``rho = 1`` is
    coordinate ascent, all conjugate sites at once. There is no table of conjugate pairs: ``c`` is
    read off the model's gradients, exactly (:mod:`ngvi.conjugate.site`), and the first call checks
    that the declaration is right. All other latents have a ``NaturalGaussianGuide``::

        guide = ConjugateGuide(model, {"tau": "gamma"})
        svi = SVI(model, guide, BLR(), NaturalELBO())

    The model may multiply up to three such sites. A step evaluates it twice as often as without
    (in a batch, where only what depends on these sites is repeated), and more often where declared
    sites depend on each other.

    :param model: a model of the PPL.
    :param conjugate: the families of sites, by name: ``"gamma"``, ``"inverse_gamma"``,
        ``"normal"``, ``"beta"``, ``"dirichlet"``, ``"inverse_gaussian"``; or ``"gamma_mode"``, a
        point at the mode of the conditional. Under a flat prior (``ImproperUniform``, or one that
        is masked) that is the fixed point of a hyperparameter's maximum likelihood of type II. If
        ``1/x`` is of a family, as the scale of a normal-Gamma prior is inverse Gaussian, make
        ``1/x`` the latent.
    :param family: of the Gaussian, as for ``NaturalGaussianGuide``.
    :param relative_step_size: the step size of the conjugate sites relative to ``rho``, in (0, 1].
        Beside a network a shrinkage prior that adapts at once prunes inputs of which the network
        has not learned yet (``examples/deep_glm.py``): there 0.1 is better than 1.
    :raises ValueError: for an unknown family; on the first call, naming the site, for one that the
        model does not have, whose conditional is not of its family, or that is in a subsampled
        plate.
    """


def check_declared(conjugate: Any) -> dict[str, str]:
    """``conjugate``, if it names sites and families.

    :raises TypeError: if it is no mapping of names.
    :raises ValueError: if it is empty, or for an unknown family.
    """
    if not isinstance(conjugate, Mapping) or not all(isinstance(site, str) for site in conjugate):
        raise TypeError(
            "ConjugateGuide takes the families of sites by name, "
            f"ConjugateGuide(model, {{'tau': 'gamma'}}), got {conjugate!r}."
        )
    if not conjugate:
        raise ValueError("ConjugateGuide without a site is a NaturalGaussianGuide: use that.")
    for site, family in conjugate.items():
        if family not in FAMILIES:
            known = ", ".join(map(repr, FAMILIES))
            raise ValueError(f"Site '{site}' is declared {family!r}; the families are {known}.")
    return dict(conjugate)


def check_relative_step_size(value: Any) -> float:
    """``value``, if it is in (0, 1].

    :raises ValueError: if it is not.
    """
    if not 0 < check_finite(value, "relative_step_size") <= 1:
        raise ValueError(f"relative_step_size must be in (0, 1], got {value!r}.")
    return float(value)


def check_no_conjugate_sites(sites: Iterable[str]) -> None:
    """Refuse squares of single examples' gradients: no average of these over points is exact."""
    for site in sites:
        raise NotImplementedError(
            f"curvature='gauss_newton' does not support conjugate sites ('{site}'): use "
            "NaturalELBO(curvature='stein'), 'hessian' or 'auto'."
        )


class ConjugateDistribution:
    """What the packages' distributions of a conjugate site share.

    :cvar constraints: the PPL's.
    :ivar conjugate_site: with natural parameters.
    """

    constraints: ClassVar[Any]
    conjugate_site: Any
    event_dim: int

    @property
    def support(self) -> Any:
        base = getattr(self.constraints, self.conjugate_site.support)
        extra = self.event_dim - base.event_dim
        return self.constraints.independent(base, extra) if extra else base

    def _summed(self, log_prob: Any) -> Any:
        """A log density by elements of the site, by its events."""
        elements = len(self.conjugate_site.elements) - len(self.conjugate_site.shape)
        extra = self.event_dim + elements
        return log_prob.sum(tuple(range(-extra, 0))) if extra else log_prob

    def _refuse(self, elbo: Any) -> None:
        raise NotImplementedError(
            f"{type(elbo).__name__} would draw site '{self.conjugate_site.site}', declared "
            "conjugate, where exact steps need two points: use SVI(model, guide, BLR(), "
            "NaturalELBO()), or NaturalGaussianGuide for all latents."
        )


def initial_sites(
    declared: Mapping[str, str],
    sites: Mapping[str, Any],
    is_enumerated: Callable[[Any], bool],
    subsampled: Iterable[SubsampledLatent],
    start: Callable[[Any], np.ndarray],
    contains: Callable[[Any, np.ndarray], bool],
) -> dict[str, Any]:
    """The declared sites, of numpy, with broad densities around the model's start.

    :param declared: the families of sites, by name.
    :param sites: the model's sample sites by name, as the PPL traces them.
    :param subsampled: the latents in subsampled plates.
    :param start: the value of a site.
    :param contains: whether a site's support contains all of an array.
    :raises ValueError: for a site that cannot be declared so, naming it.
    """
    latents = [name for name, site in sites.items() if not site["is_observed"]]
    enumerated = [name for name in latents if is_enumerated(sites[name])]
    for name in declared:
        if name in sites and name not in latents:
            raise ValueError(f"Site '{name}' is observed: only latents are declared conjugate.")
        if name not in latents or name in enumerated:
            known = ", ".join(repr(other) for other in latents if other not in enumerated)
            raise ValueError(
                f"Site '{name}' is declared conjugate, but the model's latents are {known}."
            )
    if enumerated:
        raise ValueError(
            f"Discrete latent '{enumerated[0]}' is summed out, after which no conditional is "
            "conjugate: use NaturalGaussianGuide for all other latents."
        )
    for name, plate, *_ in subsampled:
        if name in declared:
            raise ValueError(
                f"Site '{name}' is declared conjugate inside plate '{plate}', which is subsampled, "
                "and a step of a conjugate site needs all of its elements. Leave the site to the "
                "Gaussian, with NaturalGaussianGuide(model, create_plates=...), or leave "
                "subsample_size out."
            )
    found = {}
    for name, family in declared.items():
        value = start(sites[name])
        _check_support(name, family, value.shape, sites[name], contains)
        found[name] = NUMPY_FAMILIES[family].initial(name, value)
    return found


def _check_support(
    name: str, family: str, shape: tuple[int, ...], site: Any, contains: Callable
) -> None:
    """Refuse a family for values that the site does not take."""
    support = FAMILIES[family].support
    words, numbers, outside = SUPPORTS[support]
    inside = [np.full(shape, number) for number in numbers]
    if support == "simplex" and shape:
        corner = np.full(shape, 1e-4)
        corner[..., 0] += 1 - corner.sum(-1)
        inside.append(corner)
    fits = bool(inside) and all(contains(site, x) for x in inside)
    if not fits or (outside is not None and contains(site, np.full(shape, outside))):
        raise ValueError(
            f"Site '{name}' is declared {family!r}, which is for {words}, but it takes other "
            "values: declare another family, or leave the site to the Gaussian."
        )


def checked(
    sites: dict[str, Any], density: Callable[[Values], tuple[float, Values]], dtype: str
) -> dict[str, Any]:
    """See :meth:`.ConjugacyCheck.checked`; ``dtype`` is that of the model."""
    return ConjugacyCheck(sites, density, TOLERANCE.get(dtype, TOLERANCE["float32"])).checked()
