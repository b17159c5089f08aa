"""Parameters that are the coordinates of a family, and the model's own.

A family is a Gaussian's, or the exponential family of a site (:mod:`ngvi.conjugate`). In JAX the
answer is in the types: a family is one node of the parameter pytree, and a gradient has the type
of its family. Optimisers move families jointly and leave the model's parameters to an optax
optimiser.
"""

from __future__ import annotations

from typing import Any

import jax

from ngvi.conjugate.site import ConjugateSite
from numpyro_ngvi.families.base import Family


def is_family(node: Any) -> bool:
    """Return whether ``node`` is a family."""
    return isinstance(node, (Family, ConjugateSite))


def families_in(tree: Any) -> list[Family]:
    """Return the families of a pytree of parameters (or of gradients), in the tree's order."""
    return [node for node in jax.tree.leaves(tree, is_leaf=is_family) if is_family(node)]


def model_parameter_mask(tree: Any) -> Any:
    """``tree`` with True for every leaf of no family and False for every family."""
    return jax.tree.map(lambda node: not is_family(node), tree, is_leaf=is_family)


def replace_families(tree: Any, families: list[Family]) -> Any:
    """``tree`` with its families replaced, in the order of :func:`families_in`."""
    remaining = iter(families)

    def replace(node: Any) -> Any:
        return next(remaining) if is_family(node) else node

    return jax.tree.map(replace, tree, is_leaf=is_family)
