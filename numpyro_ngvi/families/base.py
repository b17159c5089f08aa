"""Base of every Gaussian family; see :mod:`ngvi.families.base` for the contract.

Families are pytrees, usable with plain JAX. What hooks a derivative, ``precondition`` above all,
is a ``jax.custom_jvp``, so that forward mode, reverse mode, ``vmap`` and ``jit`` all work and
evaluating it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp

from ngvi.families import base as family
from ngvi.families.gaussian import noise_log_prob
from numpyro_ngvi.linalg.matrices import matrices


class Family(family.Family):
    """A Gaussian in some coordinates, which are arrays; a family of your own derives from it.

    >>> narrow, wide = (families.CovarianceCholesky().initial(y, scale) for scale in (0.1, 0.2))
    >>> isinstance(wide, families.Family), f"{narrow.kl_divergence(wide):.2f} nats"
    (True, '0.95 nats')
    """

    ops, xp = matrices, jnp

    #: Shape of a family as the value of a site: NumPyro's ``scan`` finds no rows to take.
    shape = ()

    loc: jax.Array | None

    # XLA compiles it once for all directions.
    natural_step = jax.jit(family.Family.natural_step)

    def map(self, function: Callable[..., jax.Array], *others: Self) -> Self:
        return jax.tree.map(function, self, *others)

    def detach(self) -> Self:
        return jax.lax.stop_gradient(self)

    def precondition(self) -> Self:
        return _precondition(self)

    def reparametrised(self, noise: jax.Array) -> jax.Array:
        return _reparametrised(self, noise)

    def draw_log_prob(self, noise: jax.Array) -> jax.Array:
        return noise_log_prob(self, noise) - _log_det_scale(self)

    def scores(self, noise: jax.Array) -> jax.Array:
        # The transpose of whitening, which is affine: one solve for all.
        _, transposed = jax.vjp(self.whiten, noise)
        return transposed(noise)[0]

    def _derivative(self, function: Callable[[Self], jax.Array], change: Self) -> jax.Array:
        return jax.jvp(function, (self,), (self.natural_gradient(change),))[1]


def compiled(names: str) -> Callable[[type], type]:
    """Compile a family's methods of these names, once for all calls."""

    def decorate(cls: type) -> type:
        for name in names.split():
            method = getattr(cls, name)
            is_property = isinstance(method, property)
            setattr(cls, name, property(jax.jit(method.fget)) if is_property else jax.jit(method))
        return cls

    return decorate


@jax.custom_jvp
def _precondition(family: Family) -> Family:
    return family


@_precondition.defjvp
def _precondition_jvp(primals: Any, tangents: Any) -> Any:
    (family,), (tangent,) = primals, tangents
    return family, family.natural_gradient(tangent)


@jax.custom_jvp
def _reparametrised(family: Family, noise: jax.Array) -> jax.Array:
    return noise


@_reparametrised.defjvp
def _displaced_jvp(primals: Any, tangents: Any) -> Any:
    (family, noise), (tangent, noise_tangent) = primals, tangents
    return noise, noise_tangent + family.draw_jvp(tangent, noise)


@jax.custom_jvp
def _log_det_scale(family: Family) -> jax.Array:
    return family.log_det_scale()


@_log_det_scale.defjvp
def _log_det_scale_jvp(primals: Any, tangents: Any) -> Any:
    (family,), (tangent,) = primals, tangents
    return family.log_det_scale(), family.log_det_jvp(tangent)
