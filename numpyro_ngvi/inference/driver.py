"""``fit``: from a model to its Gaussian posterior, without a number from the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi._foreign import in_arguments
from ngvi._lock import serialised
from ngvi.errors import check_key
from ngvi.estimators.choice import CurvatureOfFit
from ngvi.inference import fit_doc
from ngvi.inference.call import FitCall
from ngvi.inference.density import DensityModel
from ngvi.inference.options import Effort, FitOptions
from ngvi.inference.request import FitArguments
from ngvi.inference.set_up import Given, Ready
from ngvi.latents.choice import FamilyName
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.gaussians import Mixture
from numpyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from numpyro_ngvi.inference.result import FitResult
from numpyro_ngvi.inference.set_up import STARTS, set_up
from numpyro_ngvi.tracing.arguments import is_traced, typed_key
from numpyro_ngvi.tracing.compilation import PROGRAMS, compiled, full_products
from numpyro_ngvi.tracing.programs import without_collections


@serialised
@shared_doc(fit_doc)
def fit(
    model: Callable,
    *args: Any,
    family: Family | type[Family] | FamilyName = "auto",
    num_components: int | Literal["auto"] = 1,
    guide: Any = None,
    init: FitResult | None = None,
    init_loc_fn: Callable | None = None,
    reparametrize: bool | Literal["auto"] = "auto",
    curvature: CurvatureOfFit = "auto",
    tolerance: float = 0.05,
    max_steps: int = 1000,
    effort: Effort = "standard",
    time_limit: float | None = None,
    callback: Callable | None = None,
    checkpoint: str | PathLike | None = None,
    progress_bar: bool = True,
    batches: Any = None,
    allow_prior: bool = False,
    draws: str = "auto",
    options: FitOptions | None = None,
    rng_key: jax.Array | None = None,
    **kwargs: Any,
) -> FitResult:
    """Other examples continue from this one, whose posterior is ``N(1.99, 0.58^2)``.

    >>> import jax, jax.numpy as jnp, numpyro.distributions as dist
    >>> from numpyro import plate, sample
    >>> y = jnp.array([1.0, 2.0, 3.0])
    >>> def model(y):
    ...     mean = sample("mean", dist.Normal(0.0, 10.0))
    ...     with plate("rows", len(y)):
    ...         sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> result = fit(model, y, progress_bar=False)
    >>> q = result.posterior
    >>> result.converged, f"{q.mean[0]:.2f} ± {q.variance[0]**0.5:.2f}"
    (True, '1.99 ± 0.58')
    >>> result.sample(500)["mean"].shape
    (500,)

    :param rng_key: a JAX random key; by default ``jax.random.key(0)``.
    :raises TypeError: inside ``jax.jit``, ``jax.vmap`` and ``jax.grad``.
    """
    given = FitArguments.of(locals())
    with FitResult._ppl.around.given_to(model, guide) as model:
        call = _FitCall(fit, model, args, kwargs, given)
        with call.monitor, full_products():
            return call.result(call.ready())


class _FitCall(FitCall):
    """A call in NumPyro."""

    result_type, guide_type = FitResult, NaturalGaussianGuide
    mode_centred_guide, starts, mixture = ReparametrizedGaussianGuide, STARTS, Mixture
    seed_in_words = "rng_key=jax.random.key(1)"
    first_phase = "compiling"

    def __init__(self, *call: Any) -> None:
        super().__init__(*call)
        given = self.given
        self._programs = PROGRAMS.counts  # before the fit
        self._found: dict = {}  # of the model, for all its guides
        _check_numbers(self.args, {"rng_key": given.rng_key, **self.kwargs})
        given_key = given.rng_key
        key = np.uint32(0) if given_key is None else typed_key(check_key(given_key))
        self._init_key, seeds, self._result_key = _keys(key)
        self.rng = np.random.default_rng(np.asarray(seeds))

    @staticmethod
    def to_own(batch: Any) -> Any:
        """Take numpy's arrays in place of torch's, for instance."""

        def converted(leaf: Any) -> Any:
            is_foreign = hasattr(leaf, "__array__") and not isinstance(leaf, jax.Array)
            return np.asarray(leaf) if is_foreign else leaf

        return jax.tree.map(converted, batch)

    def set_up(self, given: Given, curvature: str = "auto") -> Ready:
        def make(*at: Any) -> Any:
            new = given.make_guide(*at)
            new._of_fit = self._found
            return new

        own = given._replace(make_guide=make)
        with without_collections():
            return set_up(own, self.starts, self._init_key, curvature)

    def result(self, ready: Ready) -> FitResult:
        result = super().result(ready)
        if self.given.guide is None:
            result.guide._of_fit = None
        new = (PROGRAMS.counts - self._programs)._asdict()
        result.cost = dataclasses.replace(result.cost, **new)
        return result

    def own_fields(self) -> dict[str, Any]:
        return {"_rng_key": self._result_key}


def _check_numbers(args: tuple, kwargs: dict[str, Any]) -> None:
    """Refuse arguments that JAX traces, or that other processes have a part of.

    :raises TypeError: naming them.
    :raises ValueError: naming them.
    """
    traced = ", ".join(in_arguments(is_traced, args, kwargs))
    traced = traced or ("numbers" if is_traced(jax.device_put(0.0)) else "")
    if traced:
        raise TypeError(
            f"fit branches on numbers, and jax.jit, jax.vmap or jax.grad traces its {traced}. "
            "Call it outside, once for each element; fit compiles its own steps."
        )
    if elsewhere := ", ".join(in_arguments(_is_elsewhere, args, kwargs)):
        raise ValueError(
            f"fit takes arrays of one process, and {elsewhere} is on several: use SVI to share "
            "rows among processes."
        )


def _is_elsewhere(tree: Any) -> bool:
    leaves = jax.tree.leaves(tree)
    return not all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)


@partial(compiled, runs_once=True)
def _keys(rng_key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Split a key for the guide, for numpy's draws, and for the result."""
    is_seed = rng_key.dtype == np.uint32
    init_key, draw_key, result_key = random.split(random.key(rng_key) if is_seed else rng_key, 3)
    return init_key, random.bits(draw_key, (4,), jnp.uint32), result_key


@door
@shared_doc(DensityModel)
def fit_density(log_density: Callable, dim: int, **options: Any) -> FitResult:
    """Fit a Gaussian density, for instance.

    >>> precision = jnp.array([[2.0, 0.9], [0.9, 1.0]])
    >>> result = fit_density(lambda theta: -0.5 * theta @ precision @ theta, 2, progress_bar=False)
    >>> result.verdict, f"{result.posterior.variance[0]:.3f}"
    ('certified', '0.840')

    :param options: options of ``fit``.
    :return: the result, which ``FitResult.load(path, result.model)`` reads from a file.
    """
    return fit(DensityModel(log_density, dim, "numpyro"), **options)
