"""A first run of the model, before anything is compiled: that it observes, and numbers.

A response that was forgotten makes a latent of the data, and the posterior is then the prior. Data
with NaN have no density anywhere, and finding no start takes long.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ngvi._foreign import in_arguments, places, where_not
from ngvi._warn import warn
from ngvi.inference.tells import signature_of


@dataclass
class Seen:
    """The sites of one run.

    :ivar arguments: the model's, with arrays of numpy.
    :ivar latents: names.
    :ivar others: names of what follows from latents: deterministic sites.
    :ivar data: the values of observed sites that are known and that no mask covers; None of others.
    :ivar odd: what data of a site have that its distribution has not, whatever its parameters are,
        in words.
    :ivar beyond: what was found of indices beyond the end of an array, or nothing.
    :ivar unrepeatable: where another run for the same latents differs from this one, in words.
    :ivar state: what the model keeps from one run to the next, by the site's name, or nothing.
    :ivar unknown: which handler around the model has a value for what is no site, by that name.
    :ivar has_loops: whether the model runs a loop, which takes long to differentiate.
    """

    arguments: tuple[tuple, dict[str, Any]]
    latents: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    data: dict[str, np.ndarray | None] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    beyond: str = ""
    unrepeatable: str = ""
    state: str = ""
    unknown: dict[str, str] = field(default_factory=dict)
    has_loops: bool = False

    def observe(
        self, name: str, value: np.ndarray | None, support: Any, is_in: Callable | None = None
    ) -> None:
        """Note an observed site.

        :param support: see :func:`oddity`, as ``is_in``.
        """
        self.data[name] = value
        if value is not None and (words := oddity(value, support, is_in)):
            self.odd[name] = words


def check_seen(
    seen: Seen, model: Callable, allow_prior: bool, log_densities: Callable[[], dict[str, Any]]
) -> None:
    """Refuse a model that observes nothing, and data with NaN.

    :param allow_prior: whether it may observe nothing.
    :param log_densities: gives those of observed sites at a run.
    :raises ValueError: naming sites or arguments, and what to do.
    :raises TypeError: for the name of a site.
    """
    for name in (*seen.latents, *seen.data):
        if not isinstance(name, str):
            raise TypeError(f"The name of a sample site must be a string, got {name!r}.")
    if seen.latents and not seen.data and not allow_prior:
        raise ValueError(_nothing_observed(seen, model))
    if seen.state:
        raise ValueError(
            f"The model keeps a state, '{seen.state}', from one run to the next, and changes "
            "from call to call. SVI with BLR() or Snngm() carries it; for fit leave mutable= out, "
            "and take a layer without statistics of batches, such as LayerNorm."
        )
    if seen.unrepeatable:
        raise ValueError(
            f"The model changes from call to call, {seen.unrepeatable}, for the same latents: it "
            "draws random numbers outside sample statements, or it counts calls. Draw data "
            "before fit, take minibatches by a plate with subsample_size=, and noise as a latent."
        )
    for name, value in seen.data.items():
        if value is not None and (where := nan_in(value)):
            raise ValueError(
                f"Observed site '{name}' holds NaN {where}, which has no density: leave these "
                "rows out, give them a latent of their own, or cover them with a mask."
            )
    if seen.beyond:
        warn(
            f"The model asks for an element beyond the end of an array ({seen.beyond}): are there "
            "more groups than the plate has, or are they counted from one?"
        )
    for name, words in seen.odd.items():
        raise ValueError(
            f"Observed site '{name}' {words}, where its density is zero: leave these rows out, "
            "cover them with a mask, or take a distribution that has such data."
        )
    if nan := in_arguments(nan_in, *seen.arguments):
        try:
            found = log_densities()
        except Exception:  # noqa: BLE001  the set-up fails as well, and says why
            return
        where = "; ".join(f"{name} holds NaN {words}" for name, words in nan.items())
        if names := ", ".join(f"'{name}'" for name in found if np.isnan(found[name]).any()):
            raise ValueError(
                f"The log density of observed {names} is NaN: {where} (arguments of the model are "
                "counted from zero). Leave these rows out, or impute what is missing by latents."
            )


def warn_of_unknown_sites(seen: Seen, init_loc_fn: Any) -> None:
    """Warn of values, for a start or a handler around the model, that are of no site of it.

    :param init_loc_fn: the user's, such as ``init_to_value(values={...})``, or None.
    """
    values = getattr(init_loc_fn, "keywords", {}).get("values")
    known = list(dict.fromkeys((*seen.latents, *seen.others, *seen.data)))
    lower = {str(name).lower(): name for name in known}
    of_start = dict.fromkeys(values if isinstance(values, Mapping) else (), "init_loc_fn=")
    for name, where in {**of_start, **seen.unknown}.items():
        if name not in known:
            near = difflib.get_close_matches(str(name).lower(), lower, 1)
            meant = f": is {lower[near[0]]!r} meant?" if near else f": it has {known}."
            warn(f"{where} has a value for '{name}', which is not a site of the model{meant}")


def check_handlers(handlers: Iterable[tuple[Any, Callable]]) -> None:
    """Refuse handlers around a model whose values are not by site.

    :param handlers: each with what it is around.
    :raises TypeError: naming the handler.
    """
    for handler, _ in handlers:
        data = getattr(handler, "data", None)
        if isinstance(data, (list, tuple)) or hasattr(data, "shape"):
            raise TypeError(
                f"{_words(handler)} around the model takes data= by the names of sites, a dict "
                f"such as {{'y': y}}, got {type(data).__name__}."
            )


def _words(handler: Any) -> str:
    return f"Handler {type(handler).__name__.removesuffix('Messenger').lower()}"


def unknown_sites(
    handlers: Iterable[tuple[Any, Callable]],
    known: Iterable[str],
    sites_of: Callable[[Callable], Iterable[str]],
) -> dict[str, str]:
    """Return names for which handlers around a model have a value, and that no site has.

    :param handlers: each with what it is around.
    :param known: the sites of the model with all of its handlers, which may rename some.
    :param sites_of: those of what a handler is around.
    :return: which handler, by that name.
    """
    found = {}
    for handler, inner in handlers:
        given = [getattr(handler, one, None) for one in ("data", "config")]
        names = {name for one in given if isinstance(one, Mapping) for name in one}
        names.difference_update(known)
        if names and (missing := names.difference(sites_of(inner))):
            found.update(dict.fromkeys(sorted(map(str, missing)), _words(handler)))
    return found


def without_density(log_densities: Mapping[str, np.ndarray]) -> str:
    """Say which elements of observed sites have no finite log density at a run, if there are any.

    :param log_densities: by site.
    """
    found = {name: places(~np.isfinite(values)) for name, values in log_densities.items()}
    return "; ".join(
        f"that of observed '{name}' is not finite {where}, as where data are at the edge of a "
        "support"
        for name, where in found.items()
        if where
    )


def oddity(value: np.ndarray, support: Any, is_in: Callable | None = None) -> str:
    """Return what data hold that their distribution does not have, in words; or nothing.

    :param support: in which they have to be, or None.
    :param is_in: tells it; by default the support itself.
    """
    if support is None or not value.size or nan_in(value):
        return ""
    good = np.asarray((is_in or support)(value))
    if good.shape == value.shape and value.dtype.kind == "f":
        good = good & np.isfinite(value)
    answers = np.atleast_1d(good) if value.ndim else good  # of an event there is one
    words = where_not(answers, f"values outside its support, {support},")
    shown = good.shape == value.shape and not good.all()
    return f"{words}, {value[~good].flat[0]:g}" if shown else words


def constant_support(fn: Any, kind: type) -> Any:
    """Return the support of a distribution, if it is the same whatever the parameters are; or None.

    :param kind: of constraints.
    """
    while type(fn).__name__ in ("ExpandedDistribution", "Independent"):
        fn = fn.base_dist
    support = inspect.getattr_static(type(fn), "support", None)
    if isinstance(support, property):  # of so many categories, which is a plain number
        support = fn.support
        bounds = [getattr(support, f"{end}_bound", None) for end in ("lower", "upper")]
        return support if all(isinstance(one, (int, np.integer)) for one in bounds) else None
    return support if isinstance(support, kind) else None


def known_data(site: Any, as_numpy: Callable) -> np.ndarray | None:
    """Return the data of an observed site, if nothing masks them and this process has them."""
    fn = site["fn"]
    while hasattr(fn, "base_dist"):
        if type(fn).__name__ == "MaskedDistribution":
            return None
        fn = fn.base_dist
    value = None if site.get("mask") is not None else as_numpy(site["value"])
    return value if isinstance(value, np.ndarray) else None


def nan_in(value: Any) -> str:
    """Say where an array holds NaN, if it does."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(nan_in, value)), "")
    if not isinstance(value, (np.ndarray, np.floating, float)):
        return ""
    array = np.asarray(value)
    return places(np.isnan(array)) if array.dtype.kind == "f" else ""


def _nothing_observed(seen: Seen, model: Callable) -> str:
    names = ", ".join(map(repr, seen.latents[:8])) + ", ..." * (len(seen.latents) > 8)
    words = f"The model observes nothing: all of its sites ({names}) are latent, and their "
    words += "posterior is the prior."
    if missing := _left_out(model, *seen.arguments):
        words += f" Was {' or '.join(f'{name}=' for name in missing)} forgotten, which is None?"
    return (
        f"{words} Give the data to fit, and to obs= of a sample statement. For a density that has "
        "no data, pass allow_prior=True."
    )


def _left_out(model: Callable, args: tuple, kwargs: Mapping[str, Any]) -> list[str]:
    """Arguments of the model that are None."""
    signature = signature_of(model, follow=True)
    if signature is None:
        return []
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError:
        return []
    given.apply_defaults()
    return [name for name, value in given.arguments.items() if value is None]
