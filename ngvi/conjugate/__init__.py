"""Exponential families for sites whose conditional density is one of them; see :mod:`.factor`."""

from ngvi.conjugate import kinds
from ngvi.conjugate.factor import Factor

#: By the name that a user declares a site by.
KINDS: dict[str, type[Factor]] = {
    kind.name: kind
    for kind in (
        kinds.Beta,
        kinds.Dirichlet,
        kinds.Gamma,
        kinds.GammaMode,
        kinds.InverseGamma,
        kinds.InverseGammaMode,
        kinds.InverseGaussian,
        kinds.Normal,
        kinds.ReciprocalInverseGaussian,
    )
}
