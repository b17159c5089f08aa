"""Containers of draws for ArviZ.

ArviZ 1 has another one than ArviZ 0. It is imported on first use, for it takes seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ngvi.inference.draws.chains import import_arviz
from ngvi.inference.posterior import to_numpy
from ngvi.latents.layout import Plate, Site, plates_of

#: Arrays by site, each with a leading axis of draws.
Draws = dict[str, np.ndarray]


class Observed(NamedTuple):
    """An observed site."""

    value: np.ndarray
    plates: tuple[Plate, ...]  #: Around it, whose axes are the value's.


class ArvizGroups(NamedTuple):
    """Groups of an ``InferenceData``; those that a model does not have are empty."""

    posterior: Draws
    observed: dict[str, Observed]
    latent_shapes: dict[str, tuple[int, ...]] = {}  # noqa: RUF012  they are not written into
    log_likelihood: Draws = {}  # noqa: RUF012
    posterior_predictive: Draws = {}  # noqa: RUF012
    prior: Draws = {}  # noqa: RUF012
    constant_data: dict[str, np.ndarray] = {}  # noqa: RUF012
    sample_stats: Draws = {}  # noqa: RUF012
    num_chains: int = 1  #: One after another, of which the draws are.

    @classmethod
    def of_runs(
        cls, runs: Any, draws: Mapping[str, Any], wanted: Mapping[str, bool]
    ) -> tuple[ArvizGroups, dict[str, str]]:
        """Return groups that runs of the model give, and why others are left out.

        :param runs: the package's ``ModelRuns``.
        :param draws: of the latents, by site.
        """
        left_out, found = {}, {}
        first = runs.first({name: value[0] for name, value in draws.items()})
        observed = {
            name: Observed(to_numpy(site["value"]), plates_of(site, len(site["fn"].batch_shape)))
            for name, site in first.items()
            if runs.has_data(site)  # a factor is an observed site, and has none
        }
        shapes = {k: tuple(first[k]["fn"].shape()) for k in draws if k in first}
        if drawn := runs.drawn_besides(first):
            left_out["log_likelihood"] = f"the model draws {', '.join(map(repr, drawn))}"
        elif wanted["log_likelihood"] and observed:
            found["log_likelihood"] = runs.log_likelihood(draws)
        if wanted["predictive"]:
            replicated = runs.replicated(draws)
            found["posterior_predictive"] = {k: v for k, v in replicated.items() if k in observed}
        if wanted["prior"]:
            try:
                found["prior"] = runs.prior(len(next(iter(draws.values()))))
            except Exception as error:  # noqa: BLE001  an improper one cannot be sampled
                left_out["prior"] = str(error).partition("\n")[0]
        return cls({}, observed, shapes, **found), left_out

    def of_arviz(self) -> dict[str, dict[str, np.ndarray]]:
        """Return arrays by ArviZ's names, with axes of chains and draws."""
        of_prior = {k: v for k, v in self.prior.items() if k not in self.observed}
        replicated = {k: v for k, v in self.prior.items() if k in self.observed}
        draws = {
            "posterior": self.posterior,
            "sample_stats": self.sample_stats,
            "posterior_predictive": self.posterior_predictive,
            "log_likelihood": self.log_likelihood,
            "prior": of_prior,
            "prior_predictive": replicated,
        }
        found = {
            group: {k: self._by_chain(v, group) for k, v in some.items()}
            for group, some in draws.items()
        }
        found["observed_data"] = {name: site.value for name, site in self.observed.items()}
        found["constant_data"] = dict(self.constant_data)
        return {group: some for group, some in found.items() if some}

    def _by_chain(self, draws: np.ndarray, group: str) -> np.ndarray:
        num_chains = 1 if group.startswith("prior") else self.num_chains
        return draws.reshape(num_chains, -1, *draws.shape[1:])


class Labels(NamedTuple):
    """The user's words for axes."""

    coords: Mapping[str, Sequence]  #: Labels by dimension.
    dims: Mapping[str, Sequence[str]]  #: Names of a variable's axes.


def inference_data(groups: ArvizGroups, sites: Iterable[Site], labels: Labels) -> Any:
    """Return groups as ``arviz.InferenceData``, or as ``xarray.DataTree`` from ArviZ 1 on.

    :param sites: latent ones, whose plates are known.
    :raises ModuleNotFoundError: without ArviZ.
    :raises ValueError: for names or labels that fit no variable.
    """
    arviz = import_arviz()
    found = groups.of_arviz()
    dims = axis_names(sites, groups, labels)
    options = {"dims": dims, "coords": {k: list(own) for k, own in labels.coords.items()}}
    if arviz.__version__.startswith("0."):  # ArviZ 1 still has names that it warns of
        return arviz.from_dict(**found, **options)
    return arviz.from_dict(found, **options)


def axis_names(sites: Iterable[Site], groups: ArvizGroups, labels: Labels) -> dict[str, list[str]]:
    """Return names of the axes of variables in plates: a plate's axis is called like the plate.

    An array among the model's arguments whose first axis is as long as exactly one plate is taken
    for one of that plate's.

    :param sites: latent ones, whose plates are known.
    :raises ValueError: for names or labels that fit no variable.
    """
    for name, named in labels._asdict().items():
        if not isinstance(named, Mapping):
            raise TypeError(f"{name} must be a dictionary of lists by name, got {named!r}.")
    shapes = {name: value.shape[1:] for name, value in groups.posterior.items()}
    plates = {site.name: site.plates for site in sites}
    for name, site in groups.observed.items():
        shapes[name], plates[name] = site.value.shape, site.plates
    sizes: dict[int, set[str]] = {}
    for plate in (plate for some in plates.values() for plate in some):
        sizes.setdefault(plate.size, set()).add(plate.name)
    for name, value in groups.constant_data.items():
        alike = sizes.get(value.shape[0], set()) if value.ndim else set()
        shapes[name] = value.shape
        plates[name] = tuple(Plate(one, len(value), 0) for one in alike if len(alike) == 1)
    found = {}
    for name, shape in shapes.items():
        # A variable may not be called like an axis that it does not have.
        around = {p.axis: p.name for p in plates.get(name, ()) if p.name not in shapes}
        if around:
            axes = range(len(shape))
            found[name] = [around.get(axis, f"{name}_dim_{axis}") for axis in axes]
    found |= {name: list(own) for name, own in labels.dims.items()}
    _check_names(groups.of_arviz(), found, labels)
    return found


def _check_names(
    groups: dict[str, dict[str, np.ndarray]], all_dims: dict[str, list[str]], labels: Labels
) -> None:
    """Refuse the user's names and labels of axes that are not there.

    :raises ValueError: naming the first.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for group, some in groups.items():
        leading = 0 if group.endswith("_data") else 2
        shapes = {name: value.shape[leading:] for name, value in some.items()} | shapes
    for name, own in labels.dims.items():
        if len(own) != len(shapes.get(name, ())) or name not in shapes:
            raise ValueError(f"dims= gives {name!r} the axes {list(own)}; shapes are {shapes}.")
    sizes: dict[str, int] = {}
    for name, own in all_dims.items():
        sizes.update(zip(own, shapes.get(name, ()), strict=False))
    for name, labelled in labels.coords.items():
        if len(labelled) != sizes.get(name):
            raise ValueError(
                f"coords= has {len(labelled)} labels of {name!r}; the axes with names are {sizes}, "
                "and dims={'variable': ['axis', ...]} names others."
            )


def constant_data(
    model: Callable, args: tuple, kwargs: dict[str, Any], observed: dict[str, Observed]
) -> dict[str, np.ndarray]:
    """Return arrays and numbers among a model's arguments, without the observed values."""
    try:
        bound = inspect.signature(model).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # of a callable that does not say
        bound = {f"argument_{index}": value for index, value in enumerate(args)} | kwargs
    found = {}
    for name, value in bound.items():
        array = _as_array(value)
        if array is None or name in observed:
            continue
        if not any(np.array_equal(array, site.value) for site in observed.values()):
            found[name] = array
    return found


def _as_array(value: Any) -> np.ndarray | None:
    if isinstance(value, bool | int | float):
        return np.asarray(value)
    if not hasattr(value, "__array__"):
        return None
    array = to_numpy(value)
    return array if array.dtype.kind in "biuf" else None
