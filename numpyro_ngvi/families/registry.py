"""Families by name, and the automatic choice."""

from __future__ import annotations

from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from numpyro_ngvi.families.diagonal import Diagonal

FAMILIES: dict[str, type[Family]] = {
    family.name: family for family in (CovarianceCholesky, Diagonal)
}
ALIASES = {"full": CovarianceCholesky.name}

#: ``family="auto"`` takes a dense covariance up to this dimension: 500,000 parameters, and
#: a factor that still fits the processor's caches.
MAX_DENSE_DIM = 1000


def resolve_family(family: str | type[Family] | Family, dim: int) -> tuple[Family, str]:
    """The specification that ``family`` means for a model with ``dim`` latents.

    :param family: a name, a class, or a specification such as ``CovarianceCholesky()``.
    :param dim: the dimension of the unconstrained latent vector.
    :return: the specification, and the reason for it in words.
    :raises ValueError: if the name is unknown, or the family already has coordinates.
    :raises TypeError: if ``family`` is none of the above.
    """
    if family == "auto":
        if dim <= MAX_DENSE_DIM:
            return (
                CovarianceCholesky(),
                f"auto: {dim} latents, dense up to {MAX_DENSE_DIM}",
            )
        return Diagonal(), f"auto: {dim} latents, dense only up to {MAX_DENSE_DIM}"
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
