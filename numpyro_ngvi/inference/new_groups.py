"""Predictions for groups that a fit has not seen; see :mod:`ngvi.inference.new_groups`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import checkify
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.primitives import Messenger

from ngvi._foreign import note_foreign_arguments
from ngvi.inference.hooks import Run
from ngvi.inference.new_groups import Asked, NewGroups, beyond, latent_names, new_groups
from ngvi.latents.layout import Site
from numpyro_ngvi.guide.checks import sites_of_run
from numpyro_ngvi.inference.space import not_gaussian
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.log_density import Latents
from numpyro_ngvi.tracing.programs import what_it_does


class KnownElements(Messenger):
    """Give the fit's draws to those elements of a site that the fit has; draw the others."""

    def __init__(self, new: NewGroups, draws: dict[str, jax.Array]) -> None:
        super().__init__()
        self._new, self._draws = new, draws

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        name = msg.get("name")
        if msg["type"] == "sample" and name in self._draws and name in self._new.sites:
            where = self._new.where(name, msg["value"].shape)
            if where is not None:
                msg["value"] = msg["value"].at[where].set(self._draws[name])


def predictions(
    result: Any, asked: Asked, run: Run | None, num_samples: int, key: jax.Array
) -> dict[str, jax.Array]:
    """Run the model at draws of its latents; see :meth:`ngvi.inference.hooks.Hooks.predictions`.

    :raises ValueError: as :func:`~ngvi.inference.new_groups.new_groups`, and for a group beyond
        the last one, in whose place JAX takes the last one.
    """
    model, names, of_fit = result.model, latent_names(result), (result.args, result.kwargs)
    at = run or of_fit
    found = _sites(model, names, *at)
    new = new_groups(asked, _sites(model, names, *of_fit), found)
    if run is None:
        model = handlers.uncondition(model)
    else:
        _check_indices(model, found, of_fit, run)
    keys = jax.random.split(key)
    with note_foreign_arguments(*at, "jnp.asarray", of_fit=of_fit):
        if new is None and result._latents(num_samples, keys[0]) is None:
            return _replayed(result, model, num_samples, at, key)
        draws = result.sample(num_samples, rng_key=keys[0]).items()
        draws = {name: value for name, value in draws if name in names}
        new = new or NewGroups({}, {})
        return _predicted(result, model, new, draws, at, keys[1])


def _replayed(result: Any, model: Callable, num_samples: int, run: Run, key: jax.Array) -> Latents:
    """Run the model at draws of the guide, as one program."""

    def predictive(key: jax.Array, params: dict, arrays: list) -> dict[str, jax.Array]:
        args, kwargs = arguments.rebuilt(arrays)
        options = {"guide": result.guide, "params": params, "num_samples": num_samples}
        return Predictive(model, **options)(key, *args, **kwargs)

    arguments = Arguments(*run)
    return arguments.call(compiled(predictive), key, dict(result.params))


def _predicted(
    result: Any, model: Callable, new: NewGroups, draws: Latents, run: Run, key: jax.Array
) -> Latents:
    """Run the model once for each draw of the fit's latents, as one program."""
    arguments = Arguments(*run)
    keys = jax.random.split(key, len(next(iter(draws.values()))))
    given, own = new.split(draws)

    def of_all(draws: tuple, params: dict, arrays: list) -> dict[str, jax.Array]:
        args, kwargs = arguments.rebuilt(arrays)

        def of_one(draw: tuple) -> dict[str, jax.Array]:
            given, own, key = draw
            seeded = handlers.seed(handlers.substitute(model, data={**params, **given}), key)
            with handlers.block(), KnownElements(new, own):
                trace = handlers.trace(seeded).get_trace(*args, **kwargs)
            sites = {k: s for k, s in trace.items() if s["type"] in ("sample", "deterministic")}
            return {k: s["value"] for k, s in sites.items() if k not in given}

        return jax.lax.map(of_one, draws)

    program, params = compiled(of_all, runs_once=True), not_gaussian(result.params)
    return arguments.call(program, (given, own, keys), params)


def _sites(model: Callable, names: Collection[str], args: tuple, kwargs: dict) -> list[Site]:
    """Return the latents of these names, with their plates; none if the model does not run."""
    found: list[Site] = []

    def run() -> None:
        with handlers.block():
            trace = handlers.trace(handlers.seed(model, rng_seed=0)).get_trace(*args, **kwargs)
        found.extend(site for site in sites_of_run(trace) if site.name in names)

    try:
        jax.eval_shape(run)
    except Exception:  # noqa: BLE001  the prediction fails as well, and says why
        return []
    return found


def _check_indices(model: Callable, sites: list[Site], of_fit: Run, of_run: Run) -> None:
    if not any(site.plates for site in sites):
        return
    message = out_of_bounds(model, *of_run)
    what = beyond(message, sites) if message else None
    if what is not None and not out_of_bounds(model, *of_fit):  # or it may be meant
        raise ValueError(what)


def out_of_bounds(model: Callable, args: tuple, kwargs: dict) -> str:
    """Say which index of a run of the model is beyond the end of an array, if any."""
    arguments = Arguments(args, kwargs)

    def run(arrays: list) -> Any:
        args, kwargs = arguments.rebuilt(arrays)
        with handlers.block(), handlers.substitute(substitute_fn=_zeros_for_a_latent):
            handlers.seed(model, rng_seed=0)(*args, **kwargs)
        return 0

    def checked(arrays: list) -> Any:
        traced = jax.make_jaxpr(run)(arrays)

        def operations(held: list, arrays: list) -> Any:
            return jax.core.eval_jaxpr(traced.jaxpr, held, *arrays)

        check = checkify.checkify(operations, errors=checkify.index_checks)
        # Each trace of a check has numbers of its own, and is another program.
        does = what_it_does(traced.jaxpr)
        return compiled(check, runs_once=True, of=does)(list(traced.consts), arrays)

    try:
        error, _ = arguments.call(checked)
    except Exception:  # noqa: BLE001  a model may do with its arguments what cannot be traced
        return ""
    return re.sub(r"\s*\(`?check.*", "", (error.get() or "").partition("\n")[0]).strip(". ")


def _zeros_for_a_latent(site: dict[str, Any]) -> jax.Array | None:
    """Return zeros for a draw, which may index beyond an end and mean it, as LKJCholesky's."""
    if site["type"] != "sample" or site["is_observed"]:
        return None
    fn, shape = site["fn"], site["kwargs"].get("sample_shape", ())
    drawn = jax.eval_shape(lambda key: fn(rng_key=key, sample_shape=shape), jax.random.key(0))
    return jnp.zeros(drawn.shape, drawn.dtype)
