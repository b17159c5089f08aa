"""Results in files, but for their models, which are code."""

from __future__ import annotations

import dataclasses
import os
import stat
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ngvi.errors import DamagedFileError
from ngvi.guide.reparametrized import ReparametrizedGaussianGuide
from ngvi.inference.change import Change
from ngvi.inference.posterior import to_numpy
from ngvi.inference.problem import Cost, Prices
from ngvi.inference.saved import files, schema
from ngvi.inference.saved.files import of_tree, tree_of
from ngvi.inference.tables import Table
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.outcome import FoundOptimum, Restart
from ngvi.inference.verdict.validation import Validation

FORMAT, VERSION = "ngvi.result", 6
#: Fields of a result that JSON holds as they are, and options that a family finds by itself.
PLAIN = ("verdict", "reason", "seconds")
DERIVED = "structure", "independent", "shapes", "base_options"


def write_result(
    path: str | os.PathLike, result: Any, arguments: tuple | None, others: dict[str, Any]
) -> None:
    """Save a result.

    :param arguments: of the model, or None to leave them out.
    :param others: what a package adds, for JSON.
    :raises TypeError: for arguments that a file cannot hold.
    """
    hooks = result._files
    arrays = {f"params/{name}": array for name, array in hooks.flat(result.params).items()}
    arrays |= {f"trace/{name}": np.array(values) for name, values in vars(result.trace).items()}
    for index, one in enumerate(result.optima):
        arrays |= {f"optima/{index}/{k}": a for k, a in hooks.flat(one.params).items()}
    draws = vars(result).get("diagnostics")
    if draws is not None:
        arrays |= {f"draws/{name}": array for name, array in draws.arrays().items()}
    if result.change is not None:
        arrays |= {f"change/{name}": array for name, array in result.change.arrays().items()}
    of_arguments: dict[str, np.ndarray] = {}
    tree = None
    if arguments is not None:
        (args, kwargs), how = arguments, (of_arguments, hooks)
        places = [tree_of(value, f"argument {i}", *how) for i, value in enumerate(args)]
        named = {k: tree_of(value, f"argument {k}", *how) for k, value in kwargs.items()}
        tree = {"tuple": [{"tuple": places}, {"dict": named}]}
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "library": result._ppl.library,
        **{name: getattr(result, name) for name in PLAIN},
        "cost": dataclasses.asdict(result.cost),
        "change": result.change and result.change.numbers(),
        "asked_draws": result._draws,
        "draws": draws and draws.in_words(),
        "validation": result.validation and vars(result.validation),
        "restarts": [list(one) for one in result.restarts],
        "optima": [{k: v for k, v in vars(o).items() if k != "params"} for o in result.optima],
        "sites": sites_of(result._gaussians(), hooks.at_a_third),
        "structure": structure_of(result._gaussians()),
        "arguments": tree,
        **others,
    }
    content = files.packed(meta, {**arrays, **of_arguments})
    schema.check(*files.unpacked(content))  # now, rather than when it is loaded
    files.write(path, content)


def read_result(path: str | os.PathLike, library: str) -> Saved:
    """Read what :func:`write_result` has written.

    :raises DamagedFileError: for a file of something else, or of which a bit is another.
    :raises ValueError: for a result of another version or package.
    """
    name = os.fspath(path)
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise DamagedFileError(f"{name!r} is not a regular file.")
    words = f"is damaged, or no result that was saved by {library}"
    with open(path, "rb") as file, files.whole(path, words):
        saved = Saved(*files.unpacked(file), path=name)
        heads = (str(saved.meta[key])[:80] for key in ("format", "version", "library"))
        kind, version, other = map(schema.printable, heads)
    if (kind, version) != (FORMAT, str(VERSION)):
        raise ValueError(
            f"{name!r} is of version {version} of {kind!r}, and this {library} reads "
            f"version {VERSION}: use the version of {library} that wrote it, or fit again."
        )
    if other != library:
        raise ValueError(f"{name!r} is a result of {other}: load it by {other}.FitResult.load.")
    with saved.whole():
        schema.check(saved.meta, saved.arrays)
    return saved


@dataclasses.dataclass
class Saved:
    """The content of a result's file.

    :param meta: everything but numbers in arrays.
    """

    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]
    path: str

    def whole(self, words: str = "", *passed: type[Exception]) -> AbstractContextManager:
        """Blame the file for whatever fails inside.

        :param words: what may be the cause besides.
        :param passed: errors that are the user's.
        """
        return files.whole(self.path, f"is damaged{', ' * bool(words)}{words}", *passed)

    def under(self, folder: str) -> dict[str, np.ndarray]:
        """Return the arrays of a folder, by the rest of their names."""
        found = self.arrays.items()
        return {k.removeprefix(folder): a for k, a in found if k.startswith(folder)}

    def fields(self) -> dict[str, Any]:
        """Return a result's account of its fit, by field."""
        meta = self.meta
        with self.whole():
            return {
                **{name: meta[name] for name in PLAIN},
                "trace": Trace(**{k: a.tolist() for k, a in self.under("trace/").items()}),
                "cost": Cost(**{**meta["cost"], "prices": Prices(**meta["cost"]["prices"])}),
                "validation": meta["validation"] and Validation(**meta["validation"]),
                "change": meta["change"] and Change(**{**self.under("change/"), **meta["change"]}),
                "_draws": meta["asked_draws"],
                "restarts": Table(Restart(*one) for one in meta["restarts"]),
            }

    def optima(self, made: Callable[[dict[str, np.ndarray]], Any]) -> tuple[FoundOptimum, ...]:
        """Return the optima of a result.

        :param made: makes parameters of their numbers.
        """
        with self.whole():
            return Table(
                FoundOptimum(params=made(self.under(f"optima/{index}/")), **one)
                for index, one in enumerate(self.meta["optima"])
            )

    def arguments(self, own: Callable[[np.ndarray, str], Any]) -> tuple[tuple, dict[str, Any]]:
        """Return the model's arguments.

        :param own: makes the PPL's array of numpy's, for a device of this name.
        :raises ValueError: if they were not saved.
        """
        if self.meta["arguments"] is None:
            raise ValueError(
                "The result was saved without the model's arguments: give them, "
                "load(path, model, ...), as to fit(model, ...)."
            )
        with self.whole():  # before anything of the PPL's can fail
            args, kwargs = of_tree(self.meta["arguments"], self.arrays, lambda array, _: array)
            if not (isinstance(args, tuple) and isinstance(kwargs, dict)):
                raise ValueError("its arguments are none")
        return of_tree(self.meta["arguments"], self.arrays, own)

    def make_guide(self, hooks: Any, own: Callable | None = None) -> Callable[[Any, Any], Any]:
        """Return what makes the guide from a model and a strategy for its start.

        :param hooks: the package's :class:`~ngvi.inference.saved.file_hooks.FileHooks`.
        :param own: makes the guide, in place of what the file says of it.
        :raises ValueError: if only the user can make it.
        """
        saved = self.meta["guide"]
        name, family, others = saved["name"], saved["family"], dict(saved["others"])
        options = {key: _tuples(value) for key, value in saved["options"].items()}
        if family not in hooks.families and own is None:
            raise ValueError(
                f"The result's guide ({name}) is of a kind that a file does not hold. "
                "Make it again, and pass it: load(path, model, ..., guide=...)."
            )
        if is_of_file := own is None:
            with self.whole():
                (kind,) = [kind for kind in hooks.guides if kind.__name__ == name]
                family = "auto" if saved.get("is_auto") else hooks.families[family](**options)
                own = partial(kind, family=family, **others)

        def check(family: Any, sites: Sequence[Any]) -> None:
            _check_sites(self.meta["sites"], [[(site.name, site.shape, None) for site in sites]])
            dim = sum(site.size for site in sites)
            has = sum(array.size for array in self.under("params/").values())
            needs = dim * max((one for one in options.values() if type(one) is int), default=1)
            with self.whole():
                if needs > has or (needs := hooks.num_numbers(family, dim)) > has:
                    raise ValueError(f"it has {has:,} numbers of a Gaussian that has {needs:,}")

        def make(model: Any, init_loc_fn: Any) -> Any:
            with self.whole("", *(() if is_of_file else (Exception,))):
                guide = own(model, init_loc_fn=init_loc_fn)
            if (here := type(guide).__name__) != name:
                raise ValueError(f"The result's guide is a {name}, and this call makes a {here}.")
            if "start" in saved:
                with self.whole():
                    guide.begun_at(np.array(saved["start"]))
            if is_of_file:
                guide._check_layout = check
            return guide

        return make

    def check_same(
        self, parts: list[Any], at_a_third: Callable, params: dict[str, np.ndarray]
    ) -> None:
        """Refuse parameters that are not those of a model and guide.

        :param parts: the ``NaturalGaussianGuide`` in the guide.
        :param params: of model and guide, by their names.
        :raises ValueError: naming the first that differs.
        """
        folders = ["params/", *(f"optima/{index}/" for index in range(len(self.meta["optima"])))]
        for found in map(self.under, folders):
            for name in {**params, **found}:
                has, needs = (_kind(each.get(name)) for each in (found, params))
                if has != needs:
                    raise ValueError(
                        f"The result is of another model, guide or precision: the parameter "
                        f"{name!r} is {has} in the file, and {needs} here."
                    )
            self.check_finite(found, params)
        _check_sites(self.meta["sites"], sites_of(parts, at_a_third))
        if self.meta["structure"] != structure_of(parts):
            raise ValueError(
                "The result's Gaussian orders its latents in another way than the one of this "
                "model. Make its guide again, and pass it: load(path, model, ..., guide=...)."
            )

    def check_finite(self, found: dict[str, np.ndarray], like: dict[str, np.ndarray]) -> None:
        """Refuse parameters that are not finite, where those of a model as it begins are.

        :param found: constrained, or unconstrained, where NaN is outside of a constraint.
        """
        with self.whole():
            for name, array in found.items():
                if (np.isfinite(like[name]) & ~np.isfinite(array)).any():
                    raise ValueError(f"the parameter {name!r} is not finite in its constraint")

    def check_state(self, space: Any, state: Any) -> None:
        """Refuse Gaussians without density, and parameters outside of their constraints.

        :param space: the ``StateSpace`` of model and guide.
        """
        self.check_finite(*map(space.model_parameters, (state, space.initial)))
        noise = np.random.default_rng(0).standard_normal((8, space.noise_dim))
        if not all(np.isfinite(one).all() for one in space.draw(state, noise)):
            raise ValueError("its Gaussian has no density")


def guide_options(guide: Any, families: dict[str, type], kinds: tuple, **others: Any) -> dict:
    """Return what :meth:`Saved.make_guide` needs, for JSON.

    :param kinds: the classes of guides that a file holds.
    :param others: options of the guide.
    """
    family: Any = getattr(guide, "family", None)
    is_plain = type(guide) in kinds and guide.create_plates is None
    is_listed = is_plain and families.get(family.name) is type(family)
    found: Any = {"name": type(guide).__name__, "family": None, "options": {}, "others": others}
    if is_listed:
        found["family"] = family.name
        found["options"] = {
            field.name: getattr(family, field.name)
            for field in dataclasses.fields(family)
            if field.metadata.get("static") and field.name not in DERIVED
        }
    if isinstance(guide, ReparametrizedGaussianGuide):
        others["order"] = guide.order
        found["is_auto"] = guide._requested_family is None
        found["start"] = to_numpy(guide._reparametrization.start).tolist()
    return {"guide": found}


def structure_of(parts: list[Any]) -> int:
    """Return a number that tells apart where families have their coordinates."""
    found = 0
    for part in parts:
        structure = getattr(part.family, "structure", None)
        if structure is None:
            continue
        found = zlib.crc32(repr((structure.groups, structure.runs)).encode(), found)
        if structure.permutation is not None:
            found = zlib.crc32(np.asarray(structure.permutation.order, "<i8").tobytes(), found)
    return found


def sites_of(parts: list[Any], at_a_third: Callable) -> list[list[list]]:
    """Return what tells latents apart, by part, in the order of the latent vector.

    Name, unconstrained shape and, where its support is fixed, where that has a third.

    :param parts: ``NaturalGaussianGuide`` that are set up.
    """
    return [[_site_of(part, site, at_a_third) for site in part.sites] for part in parts]


def _site_of(part: Any, site: Any, at_a_third: Callable) -> list:
    value = None
    if site.name not in part._dynamic:
        trace = getattr(part.prototype_trace, "nodes", part.prototype_trace)
        prototype = trace[site.name]
        support = part._supports.get(site.name, prototype["fn"].support)
        value = at_a_third(support, site.shape, prototype["value"])
    return [site.name, list(site.shape), value]


def _check_sites(found: list[list[Any]], needed: list[list[Any]]) -> None:
    """Refuse a model whose latents are others, or elsewhere.

    :raises ValueError: naming them.
    """
    here, there = (
        [", ".join(f"{name!r} {tuple(shape)}" for name, shape, _ in part) for part in parts]
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
