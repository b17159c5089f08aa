"""The parameters of model and guide: a *state* is their pytree, unconstrained."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.families.draws import density_of_draw, has_free_scales, noise_dim
from ngvi.inference import problem
from ngvi.inference.posterior import Parameters
from ngvi.inference.set_up import NO_GAUSSIAN, check_coordinates
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.coordinates import families_in, replace_families
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.tracing import latent_site, posteriors_in
from numpyro_ngvi.tracing.compilation import blocks, compiled

State = dict[str, Any]

#: Draws are made in blocks of one shape. 1,000 are four at d = 10; one draw is a block as well,
#: which is to be cheap.
MOST_DRAWS_AT_ONCE, NUMBERS_AT_ONCE = 256, 2**16


class StateSpace(problem.StateSpace):
    """Makes states, and reads them; see :class:`ngvi.inference.problem.StateSpace`.

    :param initial: the parameters before the first step.
    :param constrain: from unconstrained to constrained parameters; with ``invert=True`` back.
    """

    def __init__(self, guide: Any, initial: State, constrain: Callable[..., State]) -> None:
        self.guide, self.initial, self.constrain = guide, initial, constrain
        families = posteriors(initial)
        self.dims = {site: family.dim for site, family in families.items()}
        self.dim, self.noise_dim = sum(self.dims.values()), sum(map(noise_dim, families.values()))
        self.has_free_scales = all(map(has_free_scales, families.values()))
        self.dtype = families_in(initial)[0].loc.dtype
        self.eps = max(float(jnp.finfo(q.loc.dtype).eps) for q in families.values())
        self.has_model_parameters = bool(jax.tree.leaves(not_gaussian(initial)))

    def families(self, state: State) -> list[Family]:
        return families_in(state)

    def with_families(self, state: State, families: list[Family]) -> State:
        return replace_families(state, families)

    def array(self, values: np.ndarray) -> np.ndarray:
        return values.astype(self.dtype)

    def numbers(self, array: Any) -> np.ndarray:
        return np.asarray(array, float)

    def gaussians(self) -> dict[str, NaturalGaussianGuide]:
        return {latent_site(part._parameter_name): part for part in gaussians(self.guide)}

    def new_families(self, locs: list[np.ndarray], scales: list[np.ndarray]) -> list[Family]:
        return _initial(families_in(self.initial), locs, scales)

    def all_stddevs(self, families: list[Family]) -> list[jax.Array]:
        return _stddevs(families)

    def draw(self, state: State, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at_once = max(1, min(MOST_DRAWS_AT_ONCE, NUMBERS_AT_ONCE // self.dim))
        some, families = blocks(noise, at_once), families_in(state)
        theta, log_q = zip(*(_draws(families, self._arrays(block)) for block in some), strict=True)
        found = (np.concatenate(parts)[: len(noise)] for parts in (theta, log_q))
        return tuple(part.astype(float) for part in found)

    def log_q(self, state: State, theta: np.ndarray) -> np.ndarray:
        families, found = families_in(state), []
        for block in blocks(theta, MOST_DRAWS_AT_ONCE):
            found.append(np.asarray(_log_q(families, self._arrays(block)), float))
        return np.concatenate(found)[: len(theta)]

    def square_distance(self, state: State, theta: np.ndarray) -> float:
        return float(_square_distance(families_in(state), self._arrays(theta)))

    def _arrays(self, vectors: np.ndarray) -> list[np.ndarray]:
        return list(map(self.array, self.split(vectors)))

    def model_parameters(self, state: State) -> dict[str, np.ndarray]:
        found, _ = jax.tree.flatten_with_path(not_gaussian(state))
        names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found)
        return {name: np.asarray(leaf) for name, (_, leaf) in zip(names, found, strict=True)}

    def moved(self, state: State, steps: list[np.ndarray]) -> State:
        leaves, structure = jax.tree.flatten(not_gaussian(state))
        new = [np.asarray(leaf) + step for leaf, step in zip(leaves, steps, strict=True)]
        return {**state, **jax.tree.unflatten(structure, new)}

    def params(self, state: State) -> dict[str, Any]:
        """All parameters of model and guide, constrained, by their names."""
        return jax.tree.map(jnp.asarray, self.constrain(state))

    def with_family(self, params: dict[str, Any], family: Family) -> dict[str, Any]:
        """Return parameters with another Gaussian in the place of the only one."""
        return replace_families(dict(params), [family])

    def write(self, state: State) -> None:
        """Nothing: the guide keeps no parameters."""

    def restored(self, params: dict[str, Any]) -> State:
        """Return the state of an earlier result's parameters.

        Parameters of the model's own that have other shapes are the initial ones.

        :param params: constrained, as a result has them.
        :raises ValueError: if its latents are not this model's.
        """
        state = dict(self.initial)
        found = self.constrain(params, invert=True) if self.has_model_parameters else {}
        for name, own in self.initial.items():
            if isinstance(own, Family):
                check_coordinates(name, _shapes(params.get(name)), _shapes(own), own.dim)
                state[name] = jax.tree.map(
                    lambda new, dtype=own.loc.dtype: jnp.asarray(new, dtype), params[name]
                )
            elif name in found and jax.tree.map(jnp.shape, own) == jax.tree.map(
                jnp.shape, found[name]
            ):
                state[name] = jax.tree.map(
                    lambda new, old: jnp.asarray(new, old.dtype), found[name], own
                )
        return state


def gaussians(guide: Any) -> list[NaturalGaussianGuide]:
    """Return the ``NaturalGaussianGuide`` in a guide: itself, or parts of an ``AutoGuideList``."""
    if isinstance(guide, NaturalGaussianGuide):
        return [guide]
    parts = getattr(guide, "_guides", ())
    return [gaussian for part in parts for gaussian in gaussians(part)]


def check_has_gaussian(guide: Any, params: dict[str, Any]) -> None:
    """Raise a ``ValueError`` if no ``NaturalGaussianGuide`` is behind the parameters."""
    if not any(isinstance(value, Family) for value in params.values()):
        raise ValueError(NO_GAUSSIAN.format(guide=type(guide).__name__, library="numpyro"))


def posteriors(state: State) -> dict[str, Family]:
    """Return families by site, in the order of ``families_in``: the parameters' sorted names."""
    return posteriors_in({name: state[name] for name in sorted(state)})


def not_gaussian(state: State) -> State:
    """Return the parameters that are not Gaussian."""
    return {name: value for name, value in state.items() if not isinstance(value, Family)}


def _shapes(family: Any) -> dict[str, tuple] | None:
    if not isinstance(family, Family):
        return None
    return {name: np.shape(value) for name, value in family.coordinates().items()}


@partial(compiled, runs_once=True)
def _initial(
    families: list[Family], locs: list[jax.Array], scales: list[jax.Array]
) -> list[Family]:
    parts = zip(families, locs, scales, strict=True)
    return [family.initial(loc, scale) for family, loc, scale in parts]


@partial(compiled, runs_few=True)
def _draws(families: list[Family], noise: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    pairs = list(zip(families, noise, strict=True))
    log_q = sum(density_of_draw(family, z) for family, z in pairs)
    return jnp.concatenate([family.sample(z) for family, z in pairs], -1), log_q


@partial(compiled, runs_few=True)
def _log_q(families: list[Family], theta: list[jax.Array]) -> jax.Array:
    return sum(family.log_prob(one) for family, one in zip(families, theta, strict=True))


@partial(compiled, runs_once=True)
def _square_distance(families: list[Family], theta: list[jax.Array]) -> jax.Array:
    pairs = zip(families, theta, strict=True)
    return sum(jnp.sum(family.whiten(one[None]) ** 2) for family, one in pairs)


@partial(compiled, runs_once=True)
def _stddevs(families: list[Family]) -> list[jax.Array]:
    return [family.stddev for family in families]


def _with_keys(params: Parameters) -> tuple[list, tuple[str, ...]]:
    names = tuple(sorted(params))
    return [(jax.tree_util.DictKey(name), params[name]) for name in names], names


# Programs of a fit have a plain dictionary in their arguments: a result gives them dict(params).
jax.tree_util.register_pytree_with_keys(
    Parameters, _with_keys, lambda names, values: Parameters(zip(names, values, strict=True))
)
