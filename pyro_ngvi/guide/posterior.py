"""Families as Pyro parameters and as the distribution that a guide samples from.

:class:`PosteriorParameters` keeps a family's coordinates in the parameter store. Draws of
:class:`NaturalNormal` carry natural gradients.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from pyro.distributions import constraints
from pyro.nn.module import PyroModule, PyroParam
from pyro.ops.provenance import extract_provenance
from torch import Tensor

from ngvi.families.draws import draw_at, sticking_log_prob
from pyro_ngvi.families import Family
from pyro_ngvi.families.coordinates import Coordinate, mark
from pyro_ngvi.guide.distributions import StructuredNormal


class PosteriorParameters(PyroModule):
    """The coordinates of one family, each a real ``PyroParam``.

    They are stored as they are. A constraint's transform, with Jacobian ``J``, would turn
    the natural gradient from ``n`` to ``J^T n`` where ``J^-1 n`` is wanted;
    :meth:`~pyro_ngvi.families.Family.retract` keeps the family in its domain instead.

    :param initial: the family to start from.
    """

    def __init__(self, initial: Family) -> None:
        super().__init__()
        self._specification = initial.specification()
        self._shapes = {name: value.shape for name, value in initial.coordinates().items()}
        for name, value in initial.coordinates().items():
            setattr(self, name, PyroParam(value.detach().clone(), constraints.real))

    def family(self) -> Family:
        """Return the family at the parameters' current values, which are registered with Pyro."""
        values = {}
        for name in self._specification.coordinates():
            values[name] = getattr(self, name)
            if values[name].shape != self._shapes[name]:
                raise ValueError(
                    f"The parameter store has '{self._pyro_name}.{name}' of another guide, of "
                    f"shape {tuple(values[name].shape)} in place of {tuple(self._shapes[name])}: "
                    "call pyro.clear_param_store() before a new model, or, if it is this guide's "
                    "own, call the guide once with data of these shapes, guide(X, y)."
                )
            leaf = getattr(values[name], "unconstrained", lambda value=values[name]: value)()
            mark(leaf, Coordinate(self._specification, self._pyro_name, name))
        return dataclasses.replace(self._specification, **values)


class NaturalNormal(StructuredNormal):
    """``N(mu, Sigma)`` whose derivatives are natural gradients of a family.

    It remembers the noise of its last draw, so that ``log_prob`` of its own draw costs no
    triangular solve. Any other value goes through the preconditioned family.

    :param family: the Gaussian, with coordinates.
    :param sticking_the_landing: whether ``log_prob`` of its own draw ignores the derivative of the
        family's coordinates.
    :param batch_shape: shape of independent draws.
    """

    def __init__(
        self, family: Family, sticking_the_landing: bool = False, batch_shape: tuple[int, ...] = ()
    ) -> None:
        self.sticking_the_landing = sticking_the_landing
        self._last_draw: tuple[Tensor, Tensor, Tensor] | None = None
        super().__init__(family, batch_shape, validate_args=False)

    def expand(self, batch_shape: tuple[int, ...], _instance: Any = None) -> NaturalNormal:
        return NaturalNormal(self.family, self.sticking_the_landing, batch_shape)

    def rsample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        loc = self.family.loc
        shape = self._extended_shape(torch.Size(sample_shape))
        noise = torch.randn(shape, dtype=loc.dtype, device=loc.device)
        reparametrised = self.family.reparametrised(noise)
        value = draw_at(self.family, reparametrised)
        self._last_draw = value, noise, reparametrised
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        value, _ = extract_provenance(value)  # TraceGraph_ELBO wraps values
        if self._last_draw is None or value is not self._last_draw[0]:
            return self.family.precondition().log_prob(value)
        _, noise, reparametrised = self._last_draw
        if self.sticking_the_landing:
            return sticking_log_prob(self.family, reparametrised)
        return self.family.draw_log_prob(noise)
