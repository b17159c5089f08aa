"""Arguments of ``fit``, checked."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import Any

from ngvi._warn import warn
from ngvi.conjugate.guide import ConjugateGuide
from ngvi.inference.arguments import checked
from ngvi.inference.monitor import Monitor
from ngvi.inference.options import EFFORTS, FitOptions
from ngvi.inference.posterior import family_names


@dataclass(frozen=True)
class Request:
    """The numbers that the user asks for, checked; see ``fit``.

    :raises ValueError: for a number that is none, or not positive.
    """

    tolerance: float
    max_steps: int
    effort: str = "standard"
    progress_bar: bool = False
    time_limit: float = math.inf  #: Limit in seconds, from now on.
    callback: Callable[[int, float, float], object] | None = None
    options: FitOptions = field(default_factory=FitOptions)
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        for name, value in checked(dict(vars(self))).items():
            object.__setattr__(self, name, value)

    @property
    def seconds(self) -> float:
        """Since the fit has begun."""
        return time.perf_counter() - self.started

    @property
    def share(self) -> float:
        """Cost of the search for other optima, per cost of the way to the best."""
        return EFFORTS[self.effort]

    def monitor(self) -> Monitor:
        """Return what watches a search."""
        how = self.max_steps, self.progress_bar, self.time_limit, self.callback, self.started
        return Monitor(*how)


@dataclass(frozen=True, kw_only=True)
class FitArguments(Request):
    """All keyword arguments of ``fit``, of both packages; see there."""

    family: Any
    num_components: int | str
    guide: Any
    init: Any
    init_loc_fn: Callable | None
    reparametrize: bool | str
    curvature: str
    checkpoint: str | PathLike | None
    batches: Any
    allow_prior: bool
    draws: str
    rng_key: Any = None  #: Key of NumPyro.

    @classmethod
    def of(cls, given: dict[str, Any]) -> FitArguments:
        """Return those among the local names of ``fit``; each field without a default is needed."""
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})

    def of_one_family(self, mixture: Any) -> FitArguments:
        """Return these with the base of a mixture, and the number of its components.

        :param mixture: the package's family of this name.
        """
        family = mixture() if self.family in (mixture.name, mixture) else self.family
        if not isinstance(family, mixture) or self.num_components != 1:
            return self
        return replace(self, family=family.base_family, num_components=family.num_components)


def warn_of_names(fit: Callable, model: Callable, args: tuple, given: FitArguments) -> None:
    """Warn if an option of ``fit`` has the name of one of the model's own arguments.

    :param args: of the model, by place.
    :param given: the options' values.
    """
    try:
        own = list(inspect.signature(model).parameters)[len(args) :]
    except (TypeError, ValueError):
        return
    for name, option in inspect.signature(fit).parameters.items():
        is_option = option.kind is option.KEYWORD_ONLY
        if is_option and name in own and getattr(given, name) is not option.default:
            warn(
                f"{name}= is taken as fit's own, and the model, which has an argument of this "
                "name, does not see it. Pass the model's by its place."
            )


def check_guide(guide: Any) -> None:
    """Refuse what is no guide; None is none.

    :raises TypeError: naming it.
    """
    if guide is not None and (not callable(guide) or isinstance(guide, type)):
        raise TypeError(
            f"guide must be a guide, such as NaturalGaussianGuide(model), got {guide!r}. A name "
            "of a family is for family=."
        )


def check_start(result_type: Any, given: FitArguments) -> None:
    """Refuse arguments of ``fit`` of which one would be ignored.

    :param result_type: of the results of the package.
    :raises TypeError: if ``init`` is no result.
    :raises ValueError: naming the two arguments.
    """
    guide, init, family = given.guide, given.init, given.family
    if init is not None and not isinstance(init, result_type):
        raise TypeError(
            f"init must be the result of an earlier fit of {result_type._ppl.library}, got a "
            f"{type(init).__name__} of {type(init).__module__.partition('.')[0]}. To start the "
            "mean somewhere, use init_loc_fn=init_to_value(values={...})."
        )
    check_guide(guide)
    if isinstance(guide, ConjugateGuide):
        raise NotImplementedError(
            "fit has no factors of sites: use svi = SVI(model, guide, BLR(), NaturalELBO()) with a "
            "ConjugateGuide, or fit(model, ...), whose Gaussian takes those sites as well."
        )
    has = {
        "family": not (isinstance(family, str) and family == "auto"),
        "init_loc_fn": given.init_loc_fn is not None,
    }
    for name in has if guide is not None else ():
        if has[name]:
            raise ValueError(
                f"{name}= cannot be combined with guide=, which has its own. Give it to the guide, "
                f"NaturalGaussianGuide(model, ..., {name}=...), or leave guide= out."
            )
    if init is not None and has["family"] and family != family_names(init):
        raise ValueError(
            f"family={family!r} cannot be combined with init=, which has its own, "
            f"{family_names(init)!r}. Leave family= out, or start anew without init=."
        )


def check_same_latents(init: Any, parts: list[Any]) -> None:
    """Refuse the result of another model as ``init``.

    :param parts: the ``NaturalGaussianGuide`` in the guide, set up.
    :raises ValueError: naming the first site that differs.
    """
    old = {site.name: site.shape for part in init._gaussians() for site in part.sites}
    new = {site.name: site.shape for part in parts for site in part.sites}
    for name in {**new, **old}:
        if old.get(name) != new.get(name):
            has, needs = (
                f"of shape {sites[name]}" if name in sites else "missing" for sites in (old, new)
            )
            raise ValueError(
                f"init= is the result of another model: the latent site '{name}' is {has} there, "
                f"and {needs} here (unconstrained). It must have the same latents."
            )
