"""Families as Pyro parameters and as Pyro distributions.

:class:`PosteriorParameters` keeps a family's coordinates in the parameter store.
:class:`NaturalNormal` is what the guide samples from: its draws carry natural gradients.
:func:`to_distribution` and :func:`to_transform` hand a family to the user as Pyro's own
objects. Families for which Pyro has none of its own are a ``StructuredNormal``.
"""

from __future__ import annotations

import dataclasses
import gc
import uuid
import weakref
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.nn.module import PyroModule, PyroParam
from pyro.ops.provenance import extract_provenance
from torch import Tensor
from torch.distributions import Transform
from torch.utils.weak import WeakIdKeyDictionary

from ngvi.families.draws import draw_at, sticking_log_prob
from ngvi.guide.distributions import check_not_mixture
from pyro_ngvi.families import Diagonal, Family, Mixture
from pyro_ngvi.families.coordinates import Coordinate, mark
from pyro_ngvi.families.dense import DenseFamily
from pyro_ngvi.guide.distributions import StructuredNormal, StructuredTransform
from pyro_ngvi.guide.sticking_the_landing import calling_elbo

#: Whose a parameter was when an ELBO last asked for it.
_TRAINED = WeakIdKeyDictionary()


class PosteriorParameters(PyroModule):
    """The coordinates of one family, each a real ``PyroParam``.

    They are stored as they are. A constraint's transform, with Jacobian ``J``, would turn
    the natural gradient from ``n`` to ``J^T n`` where ``J^-1 n`` is wanted;
    :meth:`~pyro_ngvi.families.Family.retract` keeps the family in its domain instead.

    :param initial: the family to start from.
    """

    def __init__(self, initial: Family) -> None:
        super().__init__()
        self._identity = uuid.uuid4().hex  # a copy has it too
        self._specification = initial.specification()
        self._shapes = {name: value.shape for name, value in initial.coordinates().items()}
        for name, value in initial.coordinates().items():
            setattr(self, name, PyroParam(value.detach().clone(), constraints.real))

    def family(self) -> Family:
        """The family at the parameters' current values, which are registered with Pyro."""
        values = {}
        for name in self._specification.coordinates():
            values[name] = getattr(self, name)
            if values[name].shape != self._shapes[name]:
                raise ValueError(
                    f"The parameter store has '{self._pyro_name}.{name}' of another guide, of "
                    f"shape {tuple(values[name].shape)} in place of {tuple(self._shapes[name])}: "
                    "call pyro.clear_param_store() before a new model. If it is this guide's own, "
                    "from an earlier process, its first call has no data: call it once with data "
                    "of these shapes, of which zeros will do, guide(X, y)."
                )
            leaf = getattr(values[name], "unconstrained", lambda value=values[name]: value)()
            self._claim(leaf, name)
            mark(leaf, Coordinate(self._specification, self._pyro_name, name))
        return dataclasses.replace(self._specification, **values)

    def _claim(self, leaf: Tensor, name: str) -> None:
        """Refuse to be trained by the parameter of another guide of the same name, which is too."""

        def trained() -> PosteriorParameters | None:
            return _TRAINED.get(leaf, lambda: None)()

        def is_anothers() -> bool:
            found = trained()
            return found is not None and found._identity != self._identity

        if trained() is self or calling_elbo() is None:
            return
        if is_anothers():
            gc.collect()  # a guide that nobody holds any more may still be there
        if is_anothers():
            raise ValueError(
                f"The parameter store has '{self._pyro_name}.{name}' of another guide, which "
                "has been trained and is still there: each would move the other's parameters. "
                "Call pyro.clear_param_store() before a new guide if the other has done its "
                "work. For several at once, let each have its own: by "
                "pyro.settings.set(module_local_params=True), or by running each in a "
                "pyro.get_param_store().scope() of its own."
            )
        _TRAINED[leaf] = weakref.ref(self)


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


def to_distribution(family: Family) -> TorchDistribution:
    """The family as a Pyro distribution over vectors of length ``d``."""
    if isinstance(family, DenseFamily):
        return dist.MultivariateNormal(family.loc, scale_tril=family.lower_factor)
    if isinstance(family, Diagonal):
        return dist.Normal(family.loc, family.stddev).to_event(1)
    if isinstance(family, Mixture):
        return _mixture(family)
    return StructuredNormal(family)


def _mixture(family: Mixture) -> TorchDistribution:
    """Pyro's own where the components are one batch of it."""
    parts, each = family.components, None
    if isinstance(parts[0], DenseFamily):
        factors = torch.stack([one.lower_factor for one in parts])
        each = dist.MultivariateNormal(family.loc, scale_tril=factors)
    elif isinstance(parts[0], Diagonal):
        each = dist.Normal(family.loc, torch.stack([one.stddev for one in parts])).to_event(1)
    if each is None:
        return StructuredNormal(family)
    return dist.MixtureSameFamily(dist.Categorical(logits=family.log_weights), each)


def to_transform(family: Family) -> Transform:
    """The transform that takes ``N(0, I)`` to the family.

    :raises ValueError: for a mixture, which has none.
    """
    check_not_mixture(family)
    if isinstance(family, DenseFamily):
        return dist.transforms.LowerCholeskyAffine(family.loc, scale_tril=family.lower_factor)
    if isinstance(family, Diagonal):
        return dist.transforms.AffineTransform(family.loc, family.stddev, event_dim=1)
    return StructuredTransform(family)
