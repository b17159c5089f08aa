"""Families by name, and the automatic choice."""

from __future__ import annotations

import warnings

from ngvi.structure.layout import Layout
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.block_diagonal import BlockDiagonal
from pyro_ngvi.families.covariance import Covariance
from pyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.low_rank_precision import LowRankPrecision
from pyro_ngvi.families.precision import Precision
from pyro_ngvi.families.precision_cholesky import PrecisionCholesky
from pyro_ngvi.families.sparse_precision import SparsePrecision

FAMILIES: dict[str, type[Family]] = {
    family.name: family
    for family in (
        CovarianceCholesky,
        PrecisionCholesky,
        Precision,
        Covariance,
        Diagonal,
        BlockDiagonal,
        SparsePrecision,
        LowRankPrecision,
    )
}
ALIASES = {"full": CovarianceCholesky.name}

#: ``family="auto"`` takes a dense covariance up to this dimension: 500,000 parameters, and
#: a factor that still fits the processor's caches.
MAX_DENSE_DIM = 1000


#: Beyond that, where the model has no locals, ``LowRankPrecision()`` up to this dimension: its
#: gradient and momentum are six times as large as those of ``Diagonal``, and past the caches
#: a step costs four to five times as much unless the model dominates.
MAX_LOW_RANK_DIM = 100_000

#: The most entries of a sparse factor that ``family="auto"`` takes: 400 MB in float32.
MAX_SPARSE_ENTRIES = 100_000_000


def resolve_family(
    family: str | type[Family] | Family, dim: int, layout: Layout | None = None
) -> tuple[Family, str]:
    """The specification that ``family`` means for a model with ``dim`` latents.

    :param family: a name, a class, or a specification such as ``CovarianceCholesky()``.
    :param dim: the dimension of the unconstrained latent vector.
    :param layout: of the latent vector, in which ``"auto"`` looks for locals where ``dim`` is too
        large for a dense family.
    :return: the specification, and the reason for it in words.
    :raises ValueError: if the name is unknown, or the family already has coordinates.
    :raises TypeError: if ``family`` is none of the above.
    """
    if isinstance(family, str) and family == "auto":
        return _automatic(dim, layout)
    if isinstance(family, str):
        name = ALIASES.get(family, family)
        if name not in FAMILIES:
            known = ", ".join(repr(known) for known in ["auto", *ALIASES, *FAMILIES])
            raise ValueError(f"Unknown family={family!r}. Choose one of {known}.")
        return FAMILIES[name](), "chosen by name"
    if isinstance(family, type) and issubclass(family, Family):
        return family(), "chosen by class"
    if isinstance(family, Family):
        if family.loc is not None:
            raise ValueError(
                f"family={type(family).__name__}(...) already has coordinates. Pass "
                f"{type(family).__name__}() as the specification, and the starting point "
                "by init_loc_fn= and init_scale=."
            )
        return family, "chosen by the user"
    raise TypeError(
        f"family must be a name, a class or an instance of families.Family, got {family!r}."
    )


def _automatic(dim: int, layout: Layout | None) -> tuple[Family, str]:
    if dim <= MAX_DENSE_DIM:
        return CovarianceCholesky(), f"auto: {dim} latents, dense up to {MAX_DENSE_DIM}"
    start = f"auto: {dim} latents, dense only up to {MAX_DENSE_DIM}"
    sparse, obstacle = _sparse(layout)
    if sparse is not None:
        return sparse, f"{start}, and it has locals"
    if dim <= MAX_LOW_RANK_DIM:
        reason = f"low rank up to {MAX_LOW_RANK_DIM}"
        return LowRankPrecision(), f"{start}, not sparse ({obstacle}), {reason}"
    reason = f"low rank only up to {MAX_LOW_RANK_DIM}"
    return Diagonal(), f"{start}, not sparse ({obstacle}), {reason}"


def _sparse(layout: Layout | None) -> tuple[SparsePrecision | None, str]:
    """The sparse family if the model has locals, or why not."""
    if layout is None:
        return None, "its structure is not known"
    if not any(site.plates for site in layout.sites):
        return None, "no latent is in a plate"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            family = SparsePrecision().for_layout(layout)
        except Exception as error:  # noqa: BLE001  another family will do
            return None, str(error).removeprefix("family='sparse_precision' ").split(". ")[0]
    if not isinstance(family, SparsePrecision):
        return None, "no locals are independent given the rest"
    if all(group.num == 1 for group in family.structure.groups):
        return None, "no latent is in a plate of more than one element"
    if family.structure.num_lower > MAX_SPARSE_ENTRIES:
        return None, f"its factor would have {family.structure.num_lower} entries"
    return family, ""
