"""The shared part of both packages' ``ConjugateGuide``, with the declarations that it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np

from ngvi.conjugate.conjugacy import Density, with_columns
from ngvi.conjugate.families import FAMILIES
from ngvi.conjugate.site import ConjugateSite
from ngvi.errors import check_finite, check_model
from ngvi.latents.subsampling import SubsampledLatent

#: Relative differences of values or gradients that rounding explains.
TOLERANCE = {"float64": 1e-6, "float32": 5e-3}


class ConjugateGuide:
    """A Gaussian, with exact exponential families for conditionally conjugate sites.

    A site is conditionally conjugate if its log density, given all other latents, is linear in the
    sufficient statistics of its family. Examples are a precision with a Gamma prior, a variance
    with an inverse Gamma prior, and a mean with a normal prior. If it is declared, every step moves
    its natural parameters by the exact natural gradient (Khan and Lin, 2017; Tan, section 8.4),

        lambda <- (1 - rho) lambda + rho E_q[c],

    where ``c`` are the natural parameters of its conditional, averaged over the Gaussian's draws
    and over the other conjugate sites. ``rho`` is the step size of the optimiser; ``rho = 1`` is
    coordinate ascent, for all conjugate sites at once. There is no table of conjugate pairs: ``c``
    follows exactly from the model's gradients (:mod:`ngvi.conjugate.site`), and the first call
    checks the declaration. All other latents have a ``NaturalGaussianGuide``::

        guide = ConjugateGuide(model, {"tau": "gamma"})
        svi = SVI(model, guide, BLR(), NaturalELBO())

    The model may multiply up to three such sites, and elements of one site must be conditionally
    independent. A step evaluates the model twice as often as without them (in a batch, which
    repeats only what depends on these sites), and more often if declared sites depend on each
    other.

    :param model: a model of the PPL.
    :param conjugate: the families of sites, by name: ``"gamma"``, ``"inverse_gamma"``,
        ``"normal"``, ``"inverse_gaussian"``; or ``"gamma_mode"``, a point at the mode of the
        conditional. Under a flat prior (``ImproperUniform``, or a masked one), the mode is the
        fixed point of type II maximum likelihood. If ``1/x`` is in a family, make ``1/x`` the
        latent; for instance, the scale of a normal-Gamma prior is inverse Gaussian.
    :param family: the family of the Gaussian, as for ``NaturalGaussianGuide``.
    :param relative_step_size: the step size of the conjugate sites relative to ``rho``, in (0, 1].
        For networks, 0.1 is better than 1 (``examples/deep_glm.py``): a shrinkage prior that adapts
        at once prunes inputs that the network has not learned to use yet.
    :raises ValueError: for an unknown family. On the first call, for a site that the model does not
        have, whose conditional is not in its family, or that is in a subsampled plate.
    """

    _site: ClassVar[type[ConjugateSite]]
    _array: ClassVar[Callable]  #: Make an array of the PPL like another one from numpy's.
    _density: Callable[..., Density]  #: Return the log density, given the names of other latents.

    def _take_options(self, model: Any, conjugate: Any, relative_step_size: Any) -> None:
        check_model(model)
        if not isinstance(conjugate, Mapping) or not conjugate:
            raise TypeError(
                "ConjugateGuide takes the families of sites by name, "
                f"ConjugateGuide(model, {{'tau': 'gamma'}}), got {conjugate!r}."
            )
        for site, family in conjugate.items():
            if family not in FAMILIES:
                words = ", ".join(map(repr, FAMILIES))
                raise ValueError(
                    f"Site '{site}' is declared {family!r}; the families are {words}. Leave others "
                    "to the Gaussian (out of conjugate=)."
                )
        if not 0 < check_finite(relative_step_size, "relative_step_size") <= 1:
            raise ValueError(f"relative_step_size must be in (0, 1], got {relative_step_size!r}.")
        self.conjugate = dict(conjugate)
        self._relative_step_size = float(relative_step_size)
        #: The Gaussian's model is given these values of the sites while it is set up.
        self._given: dict[str, Any] = {}

    def _set_up_sites(
        self,
        part: ConjugateSites,
        sites: Mapping[str, Any],
        subsampled: Iterable[SubsampledLatent],
        is_enumerated: Callable[[Any], bool],
        args: tuple,
        kwargs: dict,
    ) -> bool:
        """Check the declarations, and give each site its parameters.

        :param part: has the sites.
        :param sites: the model's sample sites by name, as the PPL traces them.
        :param subsampled: the latents in subsampled plates.
        :return: whether there are other latents.
        """
        latents = [name for name, site in sites.items() if not site["is_observed"]]
        for name in latents:
            if is_enumerated(sites[name]):
                raise ValueError(
                    f"Discrete latent '{name}' is summed out, after which no conditional is "
                    "conjugate: use NaturalGaussianGuide for all other latents."
                )
        for name, plate, *_ in subsampled:
            if name in self.conjugate:
                raise ValueError(
                    f"Site '{name}' is declared conjugate inside plate '{plate}', which is "
                    "subsampled: leave it to NaturalGaussianGuide, or leave subsample_size out."
                )
        plain: dict[str, ConjugateSite] = {}
        for name, family in self.conjugate.items():
            if name not in latents:
                words = ", ".join(map(repr, latents))
                raise ValueError(
                    f"Site '{name}' is declared conjugate, but the model's latents are {words}."
                )
            like, support = sites[name]["value"], FAMILIES[family].support
            value, fn = self._numpy(like), sites[name]["fn"]
            some = (self._array(np.full(value.shape, x), like) for x in (-1e4, 1e-4, 1e4))
            takes = [bool(self._contains(fn.support, x).all()) for x in some]
            if takes != [support == "real", True, True]:
                raise ValueError(
                    f"Site '{name}' is declared {family!r}, which is for {support} numbers, but it "
                    "takes other values: declare another family, or leave it to the Gaussian."
                )
            own = ConjugateSite.initial(family, name, value)
            plain[name] = dataclasses.replace(own, relative_step_size=self._relative_step_size)
        rest = [name for name in latents if name not in self.conjugate]
        tolerance = TOLERANCE.get(str(value.dtype), TOLERANCE["float32"])
        plain = with_columns(plain, self._density(rest, args, kwargs), tolerance)
        for name, one in plain.items():
            like = sites[name]["value"]
            fields = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
            part.start(self._site(**{**fields, "loc": self._array(one.loc, like)}), sites[name])
            self._given[name] = self._array(one.mean, like)
        return bool(rest)

    @staticmethod
    def _numpy(value: Any) -> np.ndarray:
        return np.asarray(value)

    @staticmethod
    def _contains(support: Any, value: Any) -> Any:
        """Say by element whether a support has a value."""
        return support(value)


class ConjugateSites:
    """Some conjugate sites; a part of :class:`ConjugateGuide`."""

    _ppl: ClassVar[Any]
    _distribution: ClassVar[Callable]  #: The package's :class:`ConjugateDistribution`.

    frames: dict[str, tuple]
    event_dims: dict[str, int]

    def start(self, one: Any, site: dict[str, Any]) -> None:
        """Add a site.

        :param site: as the model's trace has it.
        """
        frames = site["cond_indep_stack"]
        self.frames[one.site] = tuple(f for f in frames if getattr(f, "vectorized", True))
        self.event_dims[one.site] = site["fn"].event_dim

    def _sampled(self, sites: Mapping[str, Any], plates: Mapping[str, Any]) -> dict[str, Any]:
        values = {}
        for name, one in sites.items():
            with ExitStack() as stack:
                for frame in self.frames[name]:
                    stack.enter_context(plates[frame.name])
                fn = self._distribution(one, self.event_dims[name])
                values[name] = self._ppl.sample(name, fn)
        return values


class ConjugateDistribution:
    """The shared part of the packages' distributions of a conjugate site.

    :cvar constraints: the PPL's.
    :ivar conjugate_site: with natural parameters.
    """

    constraints: ClassVar[Any]
    conjugate_site: Any
    event_dim: int

    @property
    def support(self) -> Any:
        base = getattr(self.constraints, self.conjugate_site.family.support)
        return self.constraints.independent(base, self.event_dim) if self.event_dim else base

    def _summed(self, log_prob: Any) -> Any:
        """Sum a log density by elements of the site over its events."""
        return log_prob.sum(tuple(range(-self.event_dim, 0))) if self.event_dim else log_prob

    def _refuse(self, elbo: Any) -> None:
        raise NotImplementedError(
            f"{type(elbo).__name__} would draw site '{self.conjugate_site.site}', declared "
            "conjugate: use SVI(model, guide, BLR(), NaturalELBO())."
        )


def check_no_conjugate_sites(sites: Iterable[str]) -> None:
    """Refuse squares of single examples' gradients: no average of these over points is exact."""
    for site in sites:
        raise NotImplementedError(
            f"curvature='gauss_newton' does not support conjugate sites ('{site}'): use "
            "NaturalELBO(curvature='stein'), 'hessian' or 'auto'."
        )
