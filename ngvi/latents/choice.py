"""Which family a model gets: the one that its user names, or the one that suits its size."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ngvi.estimators.choice import MAX_SPHERICAL_DIM
from ngvi.latents.forest import Forest
from ngvi.latents.hierarchy import find_structure
from ngvi.latents.layout import Layout
from ngvi.latents.subsampling import SubsampledLatent

#: Other names of families.
ALIASES = {"full": "covariance_cholesky"}

#: ``family="auto"`` takes a dense covariance up to this dimension: 500,000 parameters, and
#: a factor that still fits the processor's caches.
MAX_DENSE_DIM = 1000

#: ... and up to this one where quadrature gives the expectations of the log density: a step is a
#: Newton step then, and needs no draws. A logistic regression of 8,992 rows on 1,024 covariates:
#: ``fit`` at the optimum after two minutes of one processor; with low rank no end in twelve.
MAX_DENSE_DIM_OF_SUMS = MAX_SPHERICAL_DIM

#: Where a model has locals, only up to this one: to its verdict ``fit`` then takes as long with
#: either family. Processor seconds, dense and sparse: epilepsy (127 latents) 0.9 and 1.7, radon
#: with slopes (175) 2.6 and 2.6, toenail (299) 57 and 9; the optimum is the same.
MAX_DENSE_DIM_WITH_LOCALS = 200

#: ... and only if a local and its ancestors are at most this part of all latents.
MAX_PART_OF_PATH = 1 / 8

#: Beyond that, where the model has no locals, ``LowRankPrecision()`` up to this dimension: its
#: gradient and momentum are six times as large as those of ``Diagonal``, and past the caches
#: a step costs four to five times as much unless the model dominates.
MAX_LOW_RANK_DIM = 100_000

#: The most entries of a sparse factor that ``family="auto"`` takes: 400 MB in float32.
MAX_SPARSE_ENTRIES = 100_000_000


class Choice(NamedTuple):
    """The specification of a family, and the reason for it in words."""

    family: Any
    reason: str


class Registry:
    """The families of a package by name.

    :param package: its ``families``, of whose public names they are.
    """

    def __init__(self, package: ModuleType) -> None:
        self.base = package.Family
        public: list[Any] = [getattr(package, name) for name in package.__all__]
        found: list[Any] = [
            one for one in public if isinstance(one, type) and issubclass(one, self.base)
        ]
        self.families = {one.name: one for one in found if one is not self.base}

    def requested(self, family: Any) -> Choice | None:
        """What the user asks for; None if that is ``"auto"``.

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
                    f"Unknown family={family!r}. Choose one of {known}, or pass a class: those of "
                    "'precision' and 'covariance' are in benchmarks/families."
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
        """What ``"auto"`` means for a model whose latent vector has this layout.

        Only where a dense family is large are locals looked for.
        """
        dim = layout.dim
        dense = f"auto: {dim} latents, dense up to {MAX_DENSE_DIM}"
        if dim <= MAX_DENSE_DIM_WITH_LOCALS:
            return self._choice("covariance_cholesky", dense)
        structure, obstacle = _locals(layout)
        if dim <= MAX_DENSE_DIM:
            if structure is None or max(structure.colours()) + 1 > MAX_PART_OF_PATH * dim:
                return self._choice("covariance_cholesky", dense)
            start = f"auto: {dim} latents, dense only up to {MAX_DENSE_DIM_WITH_LOCALS}"
        else:
            start = f"auto: {dim} latents, dense only up to {MAX_DENSE_DIM}"
        if structure is not None:
            return Choice(
                self.families["sparse_precision"](structure=structure),
                f"{start}, and it has locals",
            )
        if dim <= MAX_DENSE_DIM_OF_SUMS and layout.is_sum_of_terms():
            most = f"dense up to {MAX_DENSE_DIM_OF_SUMS} where quadrature can be taken"
            return self._choice("covariance_cholesky", f"auto: {dim} latents, {most}")
        start = f"{start}, not sparse ({obstacle})"
        if dim <= MAX_LOW_RANK_DIM:
            return self._choice("low_rank", f"{start}, low rank up to {MAX_LOW_RANK_DIM}")
        return self._choice("diagonal", f"{start}, low rank only up to {MAX_LOW_RANK_DIM}")

    def suitable(
        self, requested: Choice | None, subsampled: Sequence[SubsampledLatent], layout: Layout
    ) -> Choice:
        """What the user has requested, or what ``"auto"`` means for this latent vector.

        :param subsampled: its latents in plates of which a run of the model sees a part.
        """
        if requested is not None:
            return requested
        if subsampled:
            return self._choice(
                "sparse_precision", f"auto: plate '{subsampled[0].plate}' is subsampled"
            )
        return self.automatic(layout)

    def _choice(self, name: str, reason: str) -> Choice:
        return Choice(self.families[name](), reason)


def _locals(layout: Layout) -> tuple[Forest | None, str]:
    """The blocks of the sparse family if the model has locals, or why not."""
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
    if structure.num_lower > MAX_SPARSE_ENTRIES:
        return None, f"its factor would have {structure.num_lower} entries"
    return structure, ""
