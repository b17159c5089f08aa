"""A result in a file, but for its model, which is code."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ngvi.guide.reparametrized import ReparametrizedGaussianGuide
from ngvi.inference import store
from ngvi.inference.outcome import Restart
from ngvi.inference.problem import Cost
from ngvi.inference.trace import Trace
from ngvi.inference.validation import Validation

#: See ``Result._at_a_third``.
AtAThird = Callable[[Any, tuple[int, ...], Any], float]
FORMAT, VERSION = "ngvi.result", 2
#: Fields of a result that JSON holds as they are.
PLAIN = ("verdict", "reason", "seconds")


@dataclasses.dataclass
class Saved:
    """What is in such a file.

    :param meta: everything but numbers in arrays.
    :param arrays: the rest.
    """

    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def under(self, folder: str) -> dict[str, np.ndarray]:
        """The arrays whose names begin so, by the rest of their names."""
        names = {name.removeprefix(folder): name for name in self.arrays if name.startswith(folder)}
        return {rest: self.arrays[name] for rest, name in names.items()}

    def fields(self) -> dict[str, Any]:
        """Of a result: how the fit went."""
        found = {name: self.meta[name] for name in PLAIN}
        found["trace"] = Trace(**{k: a.tolist() for k, a in self.under("trace/").items()})
        found["cost"] = Cost(**self.meta["cost"])
        found["validation"] = self.meta["validation"] and Validation(**self.meta["validation"])
        found["restarts"] = tuple(Restart(*one) for one in self.meta["restarts"])
        return found

    def arguments(self, own: Callable[[np.ndarray], Any]) -> tuple[tuple, dict[str, Any]]:
        """The model's.

        :param own: makes the PPL's array of numpy's.
        :raises ValueError: if they were not saved.
        """
        if self.meta["arguments"] is None:
            raise ValueError(
                "The result was saved without the model's arguments: give them, "
                "load(path, model, ...), as to fit(model, ...)."
            )
        return store.read(self.meta["arguments"], self.arrays, own)

    def guide(self, families: dict[str, type]) -> dict[str, Any]:
        """The options that made the guide.

        :param families: of the package, by name.
        :raises ValueError: if only the user can make it.
        """
        saved = self.meta["guide"]
        if saved["family"] not in families:
            raise ValueError(
                f"The result's guide ({saved['name']}) is of a kind that a file does not hold. "
                "Make it again, and pass it: load(path, model, ..., guide=...)."
            )
        options = {name: _tuples(value) for name, value in saved["options"].items()}
        return {"family": families[saved["family"]](**options), **saved["others"]}

    def make_guide(
        self, families: dict[str, type], kinds: tuple[Any, ...]
    ) -> Callable[[Any, Any], Any]:
        """Makes the guide of a model and a strategy for its start.

        :param kinds: the classes of guides that a file holds.
        :raises ValueError: if only the user can make it.
        """
        options, saved = self.guide(families), self.meta["guide"]
        (kind,) = [kind for kind in kinds if kind.__name__ == saved["name"]]
        if saved.get("is_auto"):
            options["family"] = "auto"

        def make(model: Any, init_loc_fn: Any) -> Any:
            guide = kind(model, init_loc_fn=init_loc_fn, **options)
            if "start" in saved:
                guide.begun_at(np.array(saved["start"]))
            return guide

        return make

    def check_same(
        self, parts: list[Any], at_a_third: AtAThird, params: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The parameters, if they are those of a model and guide.

        :param parts: the ``NaturalGaussianGuide`` in the guide.
        :param at_a_third: the package's.
        :param params: of model and guide, by their names.
        :raises ValueError: naming the first that differs.
        """
        found = self.under("params/")
        for name in {**params, **found}:
            has, needs = (_kind(each.get(name)) for each in (found, params))
            if has != needs:
                raise ValueError(
                    f"The result is of another model, guide or precision: the parameter '{name}' "
                    f"is {has} in the file, and {needs} here."
                )
        if "sites" in self.meta:  # earlier files have none
            _check_sites(self.meta["sites"], sites_of(parts, at_a_third))
        if self.meta["structure"] != structure_of(parts):
            raise ValueError(
                "The result's Gaussian orders its latents in another way than the one of this "
                "model. Make its guide again, and pass it: load(path, model, ..., guide=...)."
            )
        return found


def write(
    path: str | os.PathLike,
    result: Any,
    params: dict[str, np.ndarray],
    arguments: tuple | None,
    others: dict[str, Any],
    as_array: Callable[[Any], np.ndarray | None],
) -> None:
    """Save a result.

    :param params: its parameters, by flat names.
    :param arguments: of the model, or None to leave them out.
    :param others: what a package adds, for JSON.
    :param as_array: of one of the PPL's arrays, or None for anything else.
    :raises TypeError: for arguments that a file cannot hold.
    """
    written = store.Written(as_array)
    tree = None
    if arguments is not None:
        args, kwargs = arguments
        places = [written.of(value, f"argument {index}") for index, value in enumerate(args)]
        named = {name: written.of(value, f"argument {name}") for name, value in kwargs.items()}
        tree = {"tuple": [{"tuple": places}, {"dict": named}]}
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "library": result.library,
        **{name: getattr(result, name) for name in PLAIN},
        "cost": vars(result.cost),
        "validation": result.validation
        and {name: _number(value) for name, value in vars(result.validation).items()},
        "restarts": [list(one) for one in result.restarts],
        "sites": sites_of(result._gaussians(), result._at_a_third),
        "structure": structure_of(result._gaussians()),
        "arguments": tree,
        **others,
    }
    arrays = {f"params/{name}": array for name, array in params.items()}
    arrays |= {f"trace/{name}": np.array(values) for name, values in vars(result.trace).items()}
    store.write(path, store.packed(meta, {**arrays, **written.arrays}))


def read(path: str | os.PathLike, library: str) -> Saved:
    """What :func:`write` has written.

    :raises ValueError: for a file of something else.
    """
    content = Path(path).read_bytes()
    try:
        saved = Saved(*store.unpacked(content))
        kind, version = saved.meta["format"], saved.meta["version"]
    except store.UNREADABLE as error:
        raise ValueError(
            f"{str(path)!r} is no result that was saved by {library}, or a part of one: {error}"
        ) from error
    if kind != FORMAT:
        raise ValueError(f"{str(path)!r} is no saved result, but of the kind {kind!r}.")
    if version != VERSION:
        raise ValueError(
            f"{str(path)!r} is of version {version} of the format, and this {library} reads "
            f"version {VERSION}: use the version of {library} that wrote it, or fit again."
        )
    if saved.meta["library"] != library:
        other = saved.meta["library"]
        raise ValueError(
            f"{str(path)!r} is a result of {other}: load it by {other}.FitResult.load."
        )
    return saved


def guide_options(guide: Any, families: dict[str, type], is_plain: bool, **others: Any) -> dict:
    """What :meth:`Saved.guide` needs, for JSON.

    :param families: of the package, by name.
    :param is_plain: whether such options make it.
    :param others: of them.
    """
    family: Any = getattr(guide, "family", None)
    options = {}
    if not is_plain or families.get(family.name) is not type(family):
        family = None
    else:
        options = {
            field.name: getattr(family, field.name)
            for field in dataclasses.fields(family)  # type: ignore[arg-type]
            if field.metadata.get("static") and field.name not in ("structure", "independent")
        }
    found = {
        "name": type(guide).__name__,
        "family": family and family.name,
        "options": options,
        "others": others,
    }
    if isinstance(guide, ReparametrizedGaussianGuide):
        others["order"] = guide.order
        found["is_auto"] = guide._requested_family is None
        start = guide._reparametrization.start
        found["start"] = np.asarray(start.cpu() if hasattr(start, "cpu") else start).tolist()
    return {"guide": found}


def structure_of(parts: list[Any]) -> int:
    """A number that tells apart where families have their coordinates."""
    found = 0
    for part in parts:
        structure = getattr(part.family, "structure", None)
        if structure is None:
            continue
        found = zlib.crc32(repr((structure.groups, structure.runs)).encode(), found)
        if structure.permutation is not None:
            found = zlib.crc32(np.asarray(structure.permutation.order, "<i8").tobytes(), found)
    return found


def sites_of(parts: list[Any], at_a_third: AtAThird) -> list[list[list]]:
    """By part, what tells latents apart in the order of the latent vector: name, unconstrained
    shape and, where its support is fixed, where that has a third.

    :param parts: ``NaturalGaussianGuide`` that are set up.
    :param at_a_third: the package's.
    """
    return [[_site_of(part, site, at_a_third) for site in part.sites] for part in parts]


def _site_of(part: Any, site: Any, at_a_third: AtAThird) -> list:
    value = None
    if site.name not in part._dynamic:
        trace = getattr(part.prototype_trace, "nodes", part.prototype_trace)
        prototype = trace[site.name]
        support = part._supports.get(site.name, prototype["fn"].support)
        value = at_a_third(support, site.shape, prototype["value"])
    return [site.name, list(site.shape), value]


def _check_sites(found: list[list[list]], needed: list[list[list]]) -> None:
    """Refuse a model whose latents are others, or elsewhere.

    :raises ValueError: naming them.
    """
    here, there = (
        [", ".join(f"'{name}' {tuple(shape)}" for name, shape, _ in part) for part in parts]
        for parts in (needed, found)
    )
    if here != there:
        raise ValueError(
            "The result is of another model: the latents, in their order and by their "
            f"unconstrained shapes, are {'; '.join(there)} in the file, and {'; '.join(here)} here."
        )
    for one, other in zip(chain(*found), chain(*needed), strict=True):
        if None not in (one[2], other[2]) and not np.isclose(
            one[2], other[2], rtol=1e-3, atol=1e-4, equal_nan=True
        ):
            raise ValueError(
                f"The result is of another model: '{one[0]}' has another support here than in the "
                "file, a positive one for a real one, say, or other bounds."
            )


def _kind(array: np.ndarray | None) -> str:
    return "missing" if array is None else f"{array.dtype} {array.shape}"


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _number(value: Any) -> bool | float:
    return value if isinstance(value, bool) else float(value)
