"""NumPyro's part in results; see :mod:`ngvi.inference.hooks`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro import handlers, primitives

from ngvi.errors import check_key
from ngvi.inference import hooks as shared
from ngvi.inference.around import Around
from ngvi.inference.draws.nuts import WhitenedDensity
from ngvi.inference.hooks import DIAGNOSTICS, GROUPS_OF_ARVIZ
from ngvi.inference.problem import Problem
from ngvi.workflow.arviz import ArvizGroups
from ngvi.workflow.rows_result import mean_and_factor
from numpyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from numpyro_ngvi.inference.first_look import log_densities, look
from numpyro_ngvi.inference.metric import Metric
from numpyro_ngvi.inference.new_groups import out_of_bounds, predictions
from numpyro_ngvi.inference.objective import Objective
from numpyro_ngvi.inference.set_up import make_problem
from numpyro_ngvi.inference.space import (
    State,
    StateSpace,
    check_has_gaussian,
    gaussians,
    not_gaussian,
    posteriors,
)
from numpyro_ngvi.tracing import LogDensity, latent_site
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.workflow.rows import ModelRows
from numpyro_ngvi.workflow.runs import ModelRuns


class Hooks(shared.Hooks):
    """Run a result's model as programs, with a random key for each purpose."""

    library, key_options = "numpyro_ngvi", ("rng_key",)
    around = Around(primitives._PYRO_STACK, "handlers")
    look, gaussians = staticmethod(look), staticmethod(gaussians)
    log_densities = staticmethod(log_densities)
    mean_and_factor = staticmethod(compiled(mean_and_factor, runs_once=True))

    def key(self, result: Any, purpose: int, *, rng_key: jax.Array | None = None) -> jax.Array:
        return _folded(result._rng_key, purpose) if rng_key is None else check_key(rng_key)

    def seed_of(self, key: jax.Array) -> list[int]:
        return np.asarray(random.key_data(key)).ravel().tolist()

    def seed_of_diagnostics(self, result: Any) -> list[int]:
        return self.seed_of(self.key(result, DIAGNOSTICS))

    # -- the guide --------------------------------------------------------------------

    def draws(self, result: Any, num_samples: int, key: jax.Array) -> dict[str, jax.Array]:
        return result.guide.sample_posterior(
            key, dict(result.params), *result.args, sample_shape=(num_samples,), **result.kwargs
        )

    def in_models(self, result: Any, latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        guide, own = result._gaussian(), jnp.asarray(latents, result.family.loc.dtype)
        theta, values, _ = guide._in_models_coordinates(own, dict(result.params))
        return np.asarray(theta, float), np.asarray(values, float)

    def at(self, result: Any, latents: np.ndarray) -> dict[str, jax.Array]:
        own = jnp.asarray(latents, result.family.loc.dtype)
        unpack = NaturalGaussianGuide._unpack_and_constrain
        return unpack(result._gaussian(), own, dict(result.params))

    def group_draws(
        self, result: Any, guide: Any, num_samples: int, run: shared.Run, key: jax.Array
    ) -> dict[str, jax.Array]:
        with handlers.seed(rng_seed=0), handlers.block():
            guide.set_up(*run[0], **run[1])
        own, others = result.guide._pairs_of_globals(guide)
        keys, family = random.split(key), result.family
        noise = random.normal(keys[0], (num_samples, family.dim), family.loc.dtype)
        latents = random.normal(keys[1], (num_samples, guide.latent_dim), family.loc.dtype)
        held = result._latents(num_samples, key)
        globals_ = family.sample(noise) if held is None else jnp.asarray(held, noise.dtype)
        latents = latents.at[:, others].set(globals_[:, own])
        return guide._unpack_and_constrain(latents, dict(result.params))

    # -- the model --------------------------------------------------------------------

    def problem(self, result: Any) -> tuple[Problem, State]:
        check_has_gaussian(result.guide, result.params)
        # What constrains parameters is not known here, and need not be: they stay as they are.
        space = StateSpace(result.guide, dict(result.params), lambda params: params)
        run = result.model, result.guide, result.args, result.kwargs
        return Problem(Objective(run, space, "stein"), space, Metric), dict(result.params)

    def problem_in_models(self, result: Any) -> Problem:
        guide = NaturalGaussianGuide(result.model, family="diagonal")
        run = result.model, guide, result.args, result.kwargs
        return make_problem(run, random.key(0), "stein")

    def state_of(self, problem: Problem, params: dict[str, Any]) -> State:
        return params

    def rows(self, result: Any, problem: Problem, state: State) -> ModelRows:
        own = state, posteriors(state), isinstance(result.guide, ReparametrizedGaussianGuide)
        return ModelRows((result.model, result.guide, result.args, result.kwargs), *own)

    def predictions(self, result: Any, *asked: Any) -> dict[str, jax.Array]:
        return jax.block_until_ready(predictions(result, *asked))

    def groups(
        self, result: Any, draws: dict[str, jax.Array], wanted: dict[str, bool]
    ) -> tuple[ArvizGroups, dict[str, str]]:
        keys = random.split(self.key(result, GROUPS_OF_ARVIZ))
        own = not_gaussian(result.params)
        runs = ModelRuns(result.model, own, result.args, result.kwargs, keys)
        return ArvizGroups.of_runs(runs, draws, wanted)

    def seconds_of_run(self, result: Any, run: shared.Run | None = None) -> float:
        # All draws are one program, which takes as long as its data.
        of_fit = result.args, result.kwargs
        sizes = [sum(map(np.size, jax.tree.leaves(one))) for one in (run or of_fit, of_fit)]
        return float(result.cost.prices.draw * sizes[0] / max(sizes[1], 1))

    def out_of_bounds(self, result: Any) -> str:
        return out_of_bounds(result.model, result.args, result.kwargs)

    # -- NUTS -------------------------------------------------------------------------

    def whitened_density(self, result: Any) -> WhitenedDensity:
        guide, family, params = result.guide, result.family, dict(result.params)
        density = LogDensity(result.model, guide, result.args, result.kwargs, random.key(0))
        site, log_det = latent_site(guide._parameter_name), family.log_det_scale()

        def theta(z: jax.Array) -> jax.Array:
            return family.sample(z[None])[0]

        def log_density(z: jax.Array) -> jax.Array:
            if jnp.ndim(z) > 1:
                return jax.vmap(log_density)(z)
            return density({site: theta(z)}, params, random.key(0)) + log_det

        def constrain(z: jax.Array) -> dict[str, jax.Array]:
            if jnp.ndim(z) > 1:
                return guide._unpack_and_constrain(family.sample(z), params)
            return guide._unpack_and_constrain(theta(z), params)

        return WhitenedDensity(family.dim, log_density, constrain)


@partial(compiled, runs_once=True)
def _folded(key: jax.Array, number: int) -> jax.Array:
    return random.fold_in(key, number)
