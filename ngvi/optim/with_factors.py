"""A rule that moves exponential families of sites beside its Gaussians.

Step (2) of :mod:`ngvi.conjugate.site` with the rule's own step size ``rho``. Nothing else of a
rule is for factors: their directions have no noise but that of the Gaussian's draws, so that
momentum and a radius would only keep them from their conditionals. Rules without a ``rho``, and
those that choose it (``"auto"``), begin with whole steps, which decrease as factors turn
(:mod:`~ngvi.optim.trust_region`). All factors and Gaussians move at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ngvi.conjugate.site import ConjugateSite
from ngvi.optim.blr import BlrRule
from ngvi.optim.rule import Families, Number, Recovering, Rule
from ngvi.optim.slowing import Slowing


class States(NamedTuple):
    """The states of two rules."""

    gaussians: Any  #: None without any
    factors: Any


class WithFactors(NamedTuple):
    """A rule for the Gaussians, and another one for the factors."""

    of_gaussians: Any
    of_factors: BlrRule

    def init(self, families: Families) -> Any:
        gaussians, factors = parted(families)
        if not factors:
            return self.of_gaussians.init(gaussians)
        of_gaussians = self.of_gaussians.init(gaussians) if gaussians else None
        return States(of_gaussians, self.of_factors.init(factors))

    def step(
        self, gradients: Families, state: Any, families: Families, count: Number
    ) -> tuple[Families, Any]:
        gaussians, factors = parted(families)
        of_gaussians, of_factors = parted(gradients)
        if not factors:
            return self.of_gaussians.step(of_gaussians, state, gaussians, count)
        factors, factor_state = self.of_factors.step(of_factors, state.factors, factors, count)
        state = state._replace(factors=factor_state)
        if gaussians:
            gaussians, inner = self.of_gaussians.step(
                of_gaussians, state.gaussians, gaussians, count
            )
            state = state._replace(gaussians=inner)
        return merged(families, gaussians, factors), state


class RecoveringWithFactors(WithFactors):
    """The same, where the rule of the Gaussians can recover; factors find back by themselves."""

    def recover(self, state: Any, families: Families) -> tuple[Families, Any]:
        """See :class:`~ngvi.optim.rule.Recovering`."""
        gaussians, factors = parted(families)
        if not factors:
            return self.of_gaussians.recover(state, gaussians)
        if gaussians:
            gaussians, inner = self.of_gaussians.recover(state.gaussians, gaussians)
            state = state._replace(gaussians=inner)
        return merged(families, gaussians, factors), state


def with_factors(rule: Any) -> Rule:
    """The rule, which moves factors as well."""
    step_size = rule.step_size if isinstance(rule, BlrRule) else "auto"
    if isinstance(step_size, Slowing):
        step_size = step_size.of_factors
    of_factors = BlrRule(rule.algebra, step_size, None, 0.0, None)
    kind = RecoveringWithFactors if isinstance(rule, Recovering) else WithFactors
    return kind(rule, of_factors)


def parted(families: Families) -> tuple[Families, Families]:
    """Gaussians and factors."""
    factors = [one for one in families if isinstance(one, ConjugateSite)]
    return [one for one in families if not isinstance(one, ConjugateSite)], factors


def merged(like: Families, gaussians: Families, factors: Families) -> Families:
    """The inverse of :func:`parted`."""
    rest, others = iter(gaussians), iter(factors)
    return [next(others) if isinstance(one, ConjugateSite) else next(rest) for one in like]
