"""A rule that moves conjugate sites together with its Gaussians.

Conjugate sites take step (2) of :mod:`ngvi.conjugate.site` with the rule's step size ``rho``, and
nothing else of the rule. Their directions have only the noise of the Gaussian's draws, so momentum
and a radius would only keep them from their conditionals. Rules without ``rho``, or with
``"auto"``, start with whole steps, which decrease as the slopes of conjugate sites change sign
(:mod:`~ngvi.optim.trust_region`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ngvi.conjugate.site import ConjugateSite
from ngvi.optim.blr import BlrRule
from ngvi.optim.rule import Families, Number
from ngvi.optim.step_decay import StepDecay


class States(NamedTuple):
    """The states of two rules."""

    gaussians: Any  #: None without any.
    conjugate: Any


class WithConjugate(NamedTuple):
    """A rule for the Gaussians, and another one for conjugate sites."""

    of_gaussians: Any
    of_conjugate: BlrRule

    def init(self, families: Families) -> Any:
        gaussians, conjugate = parted(families)
        if not conjugate:
            return self.of_gaussians.init(gaussians)
        state = self.of_gaussians.init(gaussians) if gaussians else None
        return States(state, self.of_conjugate.init(conjugate))

    def step(
        self, gradients: Families, state: Any, families: Families, count: Number
    ) -> tuple[Families, Any]:
        gaussians, conjugate = parted(families)
        of_gaussians, of_conjugate = parted(gradients)
        if not conjugate:
            return self.of_gaussians.step(of_gaussians, state, gaussians, count)
        conjugate, new = self.of_conjugate.step(of_conjugate, state.conjugate, conjugate, count)
        state = state._replace(conjugate=new)
        if gaussians:
            gaussians, new = self.of_gaussians.step(of_gaussians, state.gaussians, gaussians, count)
            state = state._replace(gaussians=new)
        return _merged(families, gaussians, conjugate), state

    @property
    def recovers(self) -> bool:
        """True if the Gaussians' rule can recover when something is not finite."""
        return hasattr(self.of_gaussians, "recover")

    def recover(self, state: Any, families: Families) -> tuple[Families, Any]:
        """Return the families to continue from, and the state; conjugate sites need no help."""
        gaussians, conjugate = parted(families)
        if not (self.recovers and gaussians):
            return families, state
        if not conjugate:
            return self.of_gaussians.recover(state, gaussians)
        gaussians, new = self.of_gaussians.recover(state.gaussians, gaussians)
        return _merged(families, gaussians, conjugate), state._replace(gaussians=new)


def with_conjugate(rule: Any) -> WithConjugate:
    """Return the rule, which moves conjugate sites as well."""
    step_size = rule.step_size if isinstance(rule, BlrRule) else "auto"
    if isinstance(step_size, StepDecay):
        step_size = step_size.of_conjugate
    return WithConjugate(rule, BlrRule(rule.algebra, step_size, None, 0.0, None))


def parted(families: Families) -> tuple[Families, Families]:
    """Gaussians and conjugate sites."""
    conjugate = [one for one in families if isinstance(one, ConjugateSite)]
    return [one for one in families if not isinstance(one, ConjugateSite)], conjugate


def _merged(like: Families, gaussians: Families, conjugate: Families) -> Families:
    """Return the inverse of :func:`parted`."""
    rest, others = iter(gaussians), iter(conjugate)
    return [next(others) if isinstance(one, ConjugateSite) else next(rest) for one in like]
