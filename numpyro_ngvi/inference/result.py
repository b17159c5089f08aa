"""What a fit returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from jax.dtypes import prng_key
from numpyro import handlers
from numpyro.distributions.transforms import biject_to

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi._lock import serialised
from ngvi.errors import check_count
from ngvi.inference import serialize
from ngvi.inference.arguments import check_predictive
from ngvi.inference.new_groups import Asked
from ngvi.inference.nuts import WAY_OUT, Chains, NutsPlan, NutsRequest, NutsResult, WhitenedDensity
from ngvi.inference.posterior import check_corrected
from ngvi.inference.problem import Problem
from ngvi.inference.psis import Diagnostics
from ngvi.inference.serialize import Saved
from ngvi.workflow.arviz import ArvizGroups
from ngvi.workflow.result import WorkflowResult
from ngvi.workflow.rows_result import mean_and_factor
from ngvi.workflow.streaming import OneStep
from numpyro_ngvi.families import Family
from numpyro_ngvi.families.coordinates import replace_families
from numpyro_ngvi.families.registry import REGISTRY
from numpyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from numpyro_ngvi.guide.checks import check_key
from numpyro_ngvi.inference import nuts
from numpyro_ngvi.inference.first_look import look
from numpyro_ngvi.inference.metric import Metric
from numpyro_ngvi.inference.new_groups import out_of_bounds, predicted, replayed, which_are_new
from numpyro_ngvi.inference.objective import Objective
from numpyro_ngvi.inference.set_up import STARTS, set_up
from numpyro_ngvi.inference.space import (
    State,
    StateSpace,
    check_has_gaussian,
    gaussians,
    posteriors,
)
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.workflow.rows import ModelRows
from numpyro_ngvi.workflow.runs import ModelRuns

#: What a result draws from its key for.
_DIAGNOSTICS, _SAMPLE, _PREDICTIVE, _GROUPS_OF_ARVIZ, _GROUPS, _NUTS = range(6)

OF_KEY = ":param rng_key: a JAX random key; by default one of the fit's, the same every time."


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FitResult(WorkflowResult):
    """A fitted posterior, how the fit went, and whether to believe it.

    ``print(result)`` is a report. It takes thousands of evaluations of the log density for the
    diagnostics, once; ``repr(result)`` leaves them out until they have been asked for.
    """

    library: ClassVar[str] = "numpyro_ngvi"
    _mean_and_factor: ClassVar[Callable] = staticmethod(compiled(mean_and_factor, runs_once=True))
    _look: ClassVar[Callable] = staticmethod(look)
    _families, _guides = REGISTRY.families, (NaturalGaussianGuide, ReparametrizedGaussianGuide)

    #: The JAX random key for diagnostics, and for draws without a key of their own.
    rng_key: jax.Array

    @door
    @shared_doc(WorkflowResult.sample, OF_KEY)
    @serialised
    def sample(  # type: ignore[override]
        self,
        num_samples: int = 1000,
        *,
        corrected: bool | str = "auto",
        rng_key: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Deterministic sites are among them."""
        num_samples = check_count(num_samples, "num_samples")
        key, found = self._key(_SAMPLE, rng_key), None
        asked = check_corrected(corrected)
        if asked or (asked is None and self._is_worth_correcting()):
            found = self._corrected(num_samples, _numbers_of(key), is_asked=bool(asked))
        if found is not None:
            latents = jnp.asarray(found, self.family.loc.dtype)
            return self.guide._unpack_and_constrain(latents, dict(self.params))
        return self.guide.sample_posterior(
            key, dict(self.params), *self.args, sample_shape=(num_samples,), **self.kwargs
        )

    @shared_doc(WorkflowResult.predictive, OF_KEY)
    @serialised
    def predictive(
        self,
        *args: Any,
        num_samples: int = 1000,
        new_groups: Asked = None,
        rng_key: jax.Array | None = None,
        **kwargs: Any,
    ) -> dict[str, jax.Array]:
        """NumPyro's ``Predictive`` makes them, but for new groups."""
        num_samples = check_count(num_samples, "num_samples")
        check_predictive(self.predictive, self.model, args, kwargs, self.args)
        key = self._key(_PREDICTIVE, rng_key)
        of_fit, model, names = (self.args, self.kwargs), self.model, self._latent_names()
        run = (args, kwargs) if args or kwargs else of_fit
        new = which_are_new(model, names, new_groups, of_fit, run)
        if run is of_fit:
            model = handlers.uncondition(model)
        if new is None:
            found = replayed(model, self.guide, dict(self.params), num_samples, run, key)
        else:
            keys = random.split(key)
            draws = self.sample(num_samples, corrected=False, rng_key=keys[0])
            draws = {name: value for name, value in draws.items() if name in names}
            own = {k: v for k, v in self.params.items() if not isinstance(v, Family)}
            found = predicted(model, new, own, draws, run, keys[1])
        # A factor is an observed site, and has no numbers.
        return {name: value for name, value in found.items() if value[0].size}

    @shared_doc(WorkflowResult.sample_groups, OF_KEY)
    @serialised
    def sample_groups(
        self, *args: Any, num_samples: int = 1000, rng_key: jax.Array | None = None, **kwargs: Any
    ) -> dict[str, jax.Array]:
        num_samples = check_count(num_samples, "num_samples")
        guide = self._mode_centred_guide()
        new = guide.for_groups(self.model)
        with handlers.seed(rng_seed=0), handlers.block():
            new.set_up(*args, **kwargs)
        own, others = guide._pairs_of_globals(new)
        keys = random.split(self._key(_GROUPS, rng_key))
        family = self.family
        noise = random.normal(keys[0], (num_samples, family.dim), family.loc.dtype)
        latents = random.normal(keys[1], (num_samples, new.latent_dim), family.loc.dtype)
        latents = latents.at[:, others].set(family.sample(noise)[:, own])
        return new._unpack_and_constrain(latents, dict(self.params))

    @door
    @shared_doc(WorkflowResult.nuts, OF_KEY)
    @serialised
    def nuts(
        self,
        num_samples: int = 1000,
        *,
        num_warmup: int | None = None,
        num_chains: int = 4,
        target_accept_prob: float | None = None,
        progress_bar: bool = True,
        chain_method: str = "auto",
        rng_key: jax.Array | None = None,
    ) -> NutsResult:
        """:param chain_method: of NumPyro's ``MCMC``; ``"auto"`` has ``"parallel"`` chains on
        devices, if there are as many, and ``"vectorized"`` ones on one.
        """
        asked = num_samples, num_warmup, num_chains, target_accept_prob, progress_bar
        request, key = NutsRequest.checked(*asked), self._key(_NUTS, rng_key)

        def run(
            density: WhitenedDensity, starts: np.ndarray, plan: NutsPlan, num_warmup: int
        ) -> Chains:
            own = jnp.asarray(starts, self.family.loc.dtype)
            found = nuts.run(density, own, plan, num_warmup, request, chain_method, key)
            names = {site.name for site in self.guide.sites}
            return found._replace(draws={k: v for k, v in found.draws.items() if k in names})

        return self._by_nuts(request, _numbers_of(key), run)

    @door
    @shared_doc(WorkflowResult.whitened_density)
    @serialised
    def whitened_density(self) -> WhitenedDensity:
        """Both functions can be compiled, differentiated and mapped by JAX."""
        with self._at_end() as (problem, _):
            self._check_density(problem, "whitened_density()", WAY_OUT)
        return nuts.whitened_density(
            self.model, self.guide, self.family, dict(self.params), self.args, self.kwargs
        )

    def _state_of(self, problem: Problem, params: dict[str, Any]) -> State:
        return params

    def _whitened(self, latents: np.ndarray) -> np.ndarray:
        return np.asarray(self.family.whiten(jnp.asarray(latents, self.family.loc.dtype)))

    @door
    @shared_doc(WorkflowResult.diagnose, OF_KEY)
    @serialised
    def diagnose(
        self, num_draws: int | None = None, *, rng_key: jax.Array | None = None
    ) -> Diagnostics:
        return self._diagnosed(num_draws, _numbers_of(self._key(_DIAGNOSTICS, rng_key)))

    def _own_problem(self) -> tuple[Problem, State]:
        check_has_gaussian(self.guide, self.params)
        # What constrains parameters is not known here, and need not be: they stay as they are.
        space = StateSpace(self.guide, dict(self.params), lambda params: params)
        run = self.model, self.guide, self.args, self.kwargs
        return Problem(Objective(*run, space, "stein"), space, Metric), dict(self.params)

    @serialised
    def _groups(
        self, draws: dict[str, jax.Array], wanted: dict[str, bool]
    ) -> tuple[ArvizGroups, dict[str, str]]:
        own = {k: v for k, v in self.params.items() if not isinstance(v, Family)}
        keys = random.split(self._key(_GROUPS_OF_ARVIZ))
        runs = ModelRuns(self.model, own, self.args, self.kwargs, keys)
        return ArvizGroups.of_runs(runs, draws, wanted)

    @serialised
    def _in_supports(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        latents = jnp.asarray(theta, self.family.loc.dtype)
        found = self._gaussian()._unpack_and_constrain(latents, dict(self.params))
        names = {site.name for site in self._gaussian().sites}
        return {name: np.asarray(value) for name, value in found.items() if name in names}

    def _rows(self, problem: Any, state: State) -> ModelRows:
        own = state, posteriors(state), isinstance(self.guide, ReparametrizedGaussianGuide)
        return ModelRows(self.model, self.guide, self.args, self.kwargs, *own)

    def _out_of_bounds(self) -> str:
        return out_of_bounds(self.model, self.args, self.kwargs)

    def _moved_to(self, problem: Any, state: State, step: OneStep) -> FitResult:
        moved = step.of(self.family, lambda array: jnp.asarray(array, self.family.loc.dtype))
        return self._with_fields(params=replace_families(dict(self.params), [moved]))

    def _gaussians(self) -> list[NaturalGaussianGuide]:
        return gaussians(self.guide)

    def _distribution(self, params: dict[str, Any]) -> dist.Distribution:
        return self._gaussian().get_posterior(params)

    # -- files ------------------------------------------------------------------------

    @classmethod
    @shared_doc(WorkflowResult.load)
    def load(
        cls,
        path: str | PathLike,
        model: Callable,
        *args: Any,
        guide: Any = None,
        device: Any = None,
        **kwargs: Any,
    ) -> Self:
        """:param device: for arguments that are in the file, whatever they were on: a
        ``jax.Device``, a sharding, or a name such as ``"cpu"`` or ``"gpu:1"``.
        """
        return cls._loaded(path, model, args, kwargs, guide, _device(device))

    @staticmethod
    def _place(value: Any) -> str:
        devices = value.devices()
        if len(devices) > 1:
            return ""
        (device,) = devices
        return f"{device.platform}:{device.id}"

    @staticmethod
    def _flat(params: dict[str, Any]) -> dict[str, np.ndarray]:
        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}

    def _others(self) -> dict[str, Any]:
        options = {"prefix": getattr(self.guide, "prefix", None)}
        key = [str(random.key_impl(self.rng_key)), random.key_data(self.rng_key).tolist()]
        found = serialize.guide_options(self.guide, self._families, self._guides, **options)
        return {"rng_key": key, **found}

    @staticmethod
    def _as_array(value: Any) -> np.ndarray | None:
        is_array = isinstance(value, jax.Array) and not jnp.issubdtype(value.dtype, prng_key)
        return np.asarray(value) if is_array else None

    @staticmethod
    def _own(array: np.ndarray, place: Any = "") -> jax.Array:
        if isinstance(place, str):
            place = next(iter(_devices(place)), None)
        own = jnp.asarray(array)
        if place is not None and own.devices() != {place}:
            own = jax.device_put(own, place)
        if own.dtype != array.dtype:
            raise ValueError(
                f"The result is in {array.dtype}, of which JAX would make {own.dtype}: call "
                "numpyro.enable_x64() first."
            )
        return own

    @staticmethod
    def _at_a_third(support: Any, shape: tuple[int, ...], like: Any) -> float:
        return float(biject_to(support)(jnp.full(shape, 1 / 3, jnp.result_type(like))).sum())

    @classmethod
    @serialised
    def _rebuilt(
        cls,
        saved: Saved,
        model: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        guide: Any,
        make_guide: Any,
    ) -> dict[str, Any]:
        ready = set_up(model, args, kwargs, guide, make_guide, STARTS, random.key(0))
        parameters: Any = ready.problem.space
        own = parameters.constrain(parameters.initial)
        numbers = cls._flat(own)
        saved.check_same(gaussians(ready.guide), cls._at_a_third, numbers)

        def made(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
            leaves = [cls._own(arrays[name]) for name in numbers]
            return jax.tree.unflatten(jax.tree.structure(own), leaves)

        impl, data = saved.meta["rng_key"]
        return {
            "model": ready.model,
            "guide": ready.guide,
            "params": made(saved.under("params/")),
            "optima": saved.optima(made),
            "rng_key": random.wrap_key_data(jnp.array(data, jnp.uint32), impl=impl),
        }

    def _key(self, purpose: int, rng_key: jax.Array | None = None) -> jax.Array:
        return _folded(self.rng_key, purpose) if rng_key is None else check_key(rng_key)


@partial(compiled, runs_once=True)
def _folded(key: jax.Array, number: int) -> jax.Array:
    return random.fold_in(key, number)


def _devices(name: str) -> list[jax.Device]:
    """Those of a name, ``"gpu"`` or ``"gpu:1"``; none if there is no such."""
    platform, _, index = name.partition(":")
    try:
        found = jax.local_devices(backend=platform) if platform else []
    except RuntimeError:  # JAX without it
        return []
    return [device for device in found if not index or str(device.id) == index]


def _device(given: Any) -> Any:
    """What the user calls ``device``.

    :raises ValueError: if it is no device.
    """
    found = next(iter(_devices(given)), None) if isinstance(given, str) else given
    if given is not None and not isinstance(found, (jax.Device, jax.sharding.Sharding)):
        raise ValueError(
            "device must be a jax.Device, a sharding, or the name of a device that is here, such "
            f"as 'cpu' or 'gpu:0', got {given!r}."
        )
    return found


def _numbers_of(key: jax.Array) -> list[int]:
    """The numbers of a key, as a seed."""
    return np.asarray(random.key_data(key)).ravel().tolist()
