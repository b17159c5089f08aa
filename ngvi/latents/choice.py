"""Choice of a family: the one that the user names, or the one that suits the size."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple, cast

from ngvi.latents.forest import Forest
from ngvi.latents.hierarchy import find_structure
from ngvi.latents.layout import Layout
from ngvi.latents.subsampling import SubsampledLatent

#: Names of families.
FamilyName = Literal[
    "auto",
    "full",
    "block_diagonal",
    "covariance_cholesky",
    "diagonal",
    "low_rank",
    "matrix_normal",
    "mixture",
    "precision_cholesky",
    "sparse_precision",
]
#: Other names of families.
ALIASES = {"full": "covariance_cholesky"}
#: Families of networks, by name, which are imported when they are asked for.
IN_NETWORKS = {"matrix_normal": "MatrixNormal"}


def found_later(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package's ``families``."""

    def find(name: str) -> Any:
        if name in IN_NETWORKS.values():
            return getattr(importlib.import_module(f"{package}.networks.matrix_normal"), name)
        if name == "plot_structure":
            raise AttributeError("plot_structure is gone: print(guide) says which are coupled.")
        raise AttributeError(f"module '{package}.families' has no attribute {name!r}")

    return find


class FamilyLimits(NamedTuple):
    """Largest sizes for ``family="auto"``; every number counts latents but the last."""

    #: A dense covariance: 500,000 parameters, which fit the processor's caches. It is twice as many
    #: where quadrature gives the expected log density, without draws.
    dense: int = 1000
    #: A dense covariance where the model has locals: beyond it the sparse family is faster.
    dense_with_locals: int = 200
    #: A local and its ancestors, as a part of all latents, for the sparse family to be worth it.
    part_of_path: float = 1 / 8
    #: ``LowRankPrecision()``, whose gradient is six times as large as that of ``Diagonal``.
    low_rank: int = 100_000
    #: Entries of a sparse factor: 400 MB in float32.
    sparse_entries: int = 100_000_000


class Choice(NamedTuple):
    """The specification of a family, and the reason for it in words."""

    family: Any
    reason: str


class Families(Mapping[str, Any]):
    """The classes of a package by name; those of networks are imported when they are asked for."""

    def __init__(self, package: ModuleType) -> None:
        self._package, self._names, base = package, dict(IN_NETWORKS), package.Family
        for name in package.__all__:
            found: Any = vars(package).get(name)
            if isinstance(found, type) and issubclass(found, base) and found is not base:
                self._names[cast(Any, found).name] = name

    def __getitem__(self, name: str) -> Any:
        return getattr(self._package, self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Registry:
    """The families of a package by name.

    :param package: its ``families``, of whose public names they are.
    :ivar limits: of ``"auto"``.
    """

    limits = FamilyLimits()

    def __init__(self, package: ModuleType) -> None:
        self.base, self.families = package.Family, Families(package)

    def requested(self, family: Any) -> Choice | None:
        """Return what the user asks for; None if that is ``"auto"``.

        :param family: a name, a class, or a specification such as ``CovarianceCholesky()``.
        :raises ValueError: if the name is unknown, or the family already has coordinates.
        :raises TypeError: if ``family`` is none of the above.
        """
        if isinstance(family, str):
            if family == "auto":
                return None
            name = ALIASES.get(family, family)
            if name not in self.families:
                known = ", ".join(repr(known) for known in ["auto", *ALIASES, *self.families])
                raise ValueError(
                    f"Unknown family={family!r}. Choose one of {known}, or pass a class."
                )
            return Choice(self.families[name](), "chosen by name")
        if isinstance(family, type) and issubclass(family, self.base):
            return Choice(family(), "chosen by class")
        if isinstance(family, self.base):
            if family.loc is not None:
                raise ValueError(
                    f"family={type(family).__name__}(...) already has coordinates. Pass "
                    f"{type(family).__name__}() as the specification, and the starting point "
                    "by init_loc_fn= and init_scale=."
                )
            return Choice(family, "chosen by the user")
        raise TypeError(
            f"family must be a name, a class or an instance of families.Family, got {family!r}."
        )

    def automatic(self, layout: Layout) -> Choice:
        """Return what ``"auto"`` means for a model whose latent vector has this layout.

        Only where a dense family is large are locals looked for.
        """
        dim, limits = layout.dim, self.limits
        dense = f"auto: {dim} latents, dense up to {limits.dense}"
        if dim <= limits.dense_with_locals:
            return self._choice("covariance_cholesky", dense)
        structure, obstacle = _locals(layout, limits.sparse_entries)
        if dim <= limits.dense:
            if structure is None or max(structure.colours()) + 1 > limits.part_of_path * dim:
                return self._choice("covariance_cholesky", dense)
            start = f"auto: {dim} latents, dense only up to {limits.dense_with_locals}"
        else:
            start = f"auto: {dim} latents, dense only up to {limits.dense}"
        if structure is not None:
            return self._choice(
                "sparse_precision", f"{start}, and it has locals", structure=structure
            )
        if dim <= 2 * limits.dense and layout.is_sum_of_terms():
            most = f"dense up to {2 * limits.dense} where quadrature can be taken"
            return self._choice("covariance_cholesky", f"auto: {dim} latents, {most}")
        start = f"{start}, not sparse ({obstacle})"
        if dim <= limits.low_rank:
            return self._choice("low_rank", f"{start}, low rank up to {limits.low_rank}")
        return self._choice("diagonal", f"{start}, low rank only up to {limits.low_rank}")

    def suitable(
        self, requested: Choice | None, subsampled: Sequence[SubsampledLatent], layout: Layout
    ) -> Choice:
        """Return what the user has requested, or what ``"auto"`` means for this latent vector.

        :param subsampled: its latents in plates of which a run of the model sees a part.
        """
        if requested is not None:
            return requested
        if subsampled:
            return self._choice(
                "sparse_precision", f"auto: plate '{subsampled[0].plate}' is subsampled"
            )
        return self.automatic(layout)

    def _choice(self, name: str, reason: str, **options: Any) -> Choice:
        return Choice(self.families[name](**options), reason)


def _locals(layout: Layout, max_entries: int) -> tuple[Forest | None, str]:
    """Return the blocks of the sparse family if the model has locals, or why not."""
    if not any(site.plates for site in layout.sites):
        return None, "no latent is in a plate"
    try:
        structure, obstacle = find_structure(layout)
    except Exception as error:  # noqa: BLE001  another family will do
        return None, f"looking for locals failed: {error}"
    if structure is None:
        return None, obstacle
    if all(group.num == 1 for group in structure.groups):
        return None, "no latent is in a plate of more than one element"
    if structure.num_lower > max_entries:
        return None, f"its factor would have {structure.num_lower} entries"
    return structure, ""
