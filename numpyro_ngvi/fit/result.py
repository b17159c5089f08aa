"""What a fit returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.infer import Predictive

from ngvi.fit import arviz_bridge
from ngvi.fit.diagnostics import NUM_DRAWS, Diagnostics
from ngvi.fit.picture import plot_result
from ngvi.fit.report import final_bound, report
from ngvi.fit.trace import Trace
from numpyro_ngvi.families import Family
from numpyro_ngvi.fit.importance import diagnose, gaussians
from numpyro_ngvi.guide import NaturalGaussianGuide

#: What a result draws from its key for.
_DIAGNOSTICS, _SAMPLE, _PREDICTIVE, _OBSERVED = range(4)


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FitResult:
    """A fitted posterior, how the fit went, and whether to believe it.

    ``print(result)`` is a report. It takes thousands of evaluations of the log density for the
    diagnostics, once; ``repr(result)`` leaves them out until they have been asked for.
    """

    #: The model, and its arguments as given to ``fit``.
    model: Callable
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: The guide, which is set up.
    guide: Any
    #: All parameters of model and guide, as ``svi.get_params`` gives them.
    params: dict[str, Any]
    #: What each step looked like.
    trace: Trace
    #: Whether the bound is at its optimum, to the tolerance that was asked for.
    converged: bool
    #: Why the fit stopped and, if it has not converged, what to try.
    reason: str
    num_steps: int
    #: Gradients of the log density.
    num_gradients: int
    #: Hessian-vector products; a Hessian of ``d`` latents counts as ``d``.
    num_hessian_products: int
    #: Wall-clock time of the fit.
    seconds: float
    #: The JAX random key for diagnostics, and for draws without a key of their own.
    rng_key: jax.Array

    # -- how it went ------------------------------------------------------------------

    @property
    def num_evaluations(self) -> int:
        """Gradient equivalents: gradients and Hessian-vector products."""
        return self.num_gradients + self.num_hessian_products

    @property
    def losses(self) -> np.ndarray:
        """Minus the bound in nats, as estimated at each step; shape ``(num_steps,)``."""
        return np.asarray(self.trace.losses, float)

    @property
    def bound(self) -> float:
        """The bound on the log evidence in nats, averaged over the last tenth of the steps."""
        return final_bound(self.trace)[0]

    @property
    def bound_error(self) -> float:
        """The standard error of :attr:`bound`, in nats, if the steps' errors are independent."""
        return final_bound(self.trace)[1]

    # -- the posterior ----------------------------------------------------------------

    @property
    def posterior(self) -> dist.Distribution:
        """The Gaussian over the unconstrained latent vector, as a NumPyro distribution."""
        return self._gaussian().get_posterior(self.params)

    @property
    def family(self) -> Family:
        """The same Gaussian in its own coordinates."""
        gaussian = self._gaussian()
        return self.params[gaussian._parameter_name]

    @property
    def family_name(self) -> str:
        """The name of the family; of each, if the guide is a list with several Gaussians."""
        return " + ".join(part.family.name for part in gaussians(self.guide)) or "no Gaussian"

    @property
    def dim(self) -> int:
        """The number of unconstrained latents that are Gaussian."""
        return sum(part.latent_dim for part in gaussians(self.guide))

    def sample(
        self, num_samples: int = 1000, *, rng_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Draws of every latent site, constrained, and of the deterministic sites.

        :param num_samples: how many.
        :param rng_key: a JAX random key; by default one of the fit's, the same every time.
        :return: by site, an axis of draws followed by the site's shape.
        """
        key = self._key(_SAMPLE) if rng_key is None else rng_key
        return self.guide.sample_posterior(
            key, self.params, *self.args, sample_shape=(num_samples,), **self.kwargs
        )

    def predictive(
        self,
        *args: Any,
        num_samples: int = 1000,
        rng_key: jax.Array | None = None,
        **kwargs: Any,
    ) -> dict[str, jax.Array]:
        """Draws from the posterior predictive distribution, by NumPyro's ``Predictive``.

        :param args: arguments of the model. If there are none at all, they are those of the
            fit, and the observed sites are drawn as if they had not been observed.
        :param num_samples: how many draws.
        :param rng_key: a JAX random key; by default one of the fit's, the same every time.
        :param kwargs: keyword arguments of the model.
        :return: by site, an axis of draws followed by the site's shape.
        """
        key = self._key(_PREDICTIVE) if rng_key is None else rng_key
        model = self.model
        if not args and not kwargs:
            args, kwargs = self.args, self.kwargs
            model = handlers.uncondition(model)
        predictive = Predictive(
            model, guide=self.guide, params=self.params, num_samples=num_samples
        )
        return predictive(key, *args, **kwargs)

    # -- did it work ------------------------------------------------------------------

    @functools.cached_property
    def diagnostics(self) -> Diagnostics:
        """Pareto k-hat, importance-weighted bound and marginals, from 4000 draws."""
        return self.diagnose()

    def diagnose(
        self, num_draws: int = NUM_DRAWS, *, rng_key: jax.Array | None = None
    ) -> Diagnostics:
        """:attr:`diagnostics` from other draws, or more of them.

        :param num_draws: how many; each is an evaluation of the log density.
        :param rng_key: a JAX random key; by default one of the fit's, the same every time.
        :raises ValueError: if the guide has no ``NaturalGaussianGuide`` in it.
        :raises ModuleNotFoundError: without ArviZ.
        """
        key = self._key(_DIAGNOSTICS) if rng_key is None else rng_key
        return diagnose(
            self.model, self.guide, self.params, self.args, self.kwargs, key, num_draws=num_draws
        )

    def plot(self) -> Any:
        """Bound, step sizes, importance weights and worst marginals as a matplotlib figure.

        :raises ModuleNotFoundError: without matplotlib.
        """
        return plot_result(self)

    def to_arviz(self, num_samples: int = 1000, *, rng_key: jax.Array | None = None) -> Any:
        """Draws of :meth:`sample` and the observed data, for ArviZ.

        :param num_samples: how many draws; they are one chain.
        :param rng_key: a JAX random key; by default one of the fit's, the same every time.
        :return: an ``arviz.InferenceData``, or an ``xarray.DataTree`` from ArviZ 1 on.
        :raises ModuleNotFoundError: without ArviZ.
        """
        draws = self.sample(num_samples, rng_key=rng_key)
        posterior = {name: np.asarray(value) for name, value in draws.items()}
        first = {name: value[0] for name, value in draws.items()}
        sites = [site for part in gaussians(self.guide) for site in part.sites]
        return arviz_bridge.inference_data(
            posterior,
            self._observed(first),
            arviz_bridge.plate_dims(sites, posterior),
            {"inference_library": "numpyro_ngvi", "bound": self.bound, "reason": self.reason},
        )

    def _observed(self, latents: dict[str, jax.Array]) -> dict[str, np.ndarray]:
        ordinary = {k: v for k, v in self.params.items() if not isinstance(v, Family)}
        model = handlers.substitute(self.model, data={**ordinary, **latents})
        seeded = handlers.seed(model, self._key(_OBSERVED))
        with handlers.block():
            trace = handlers.trace(seeded).get_trace(*self.args, **self.kwargs)
        return {
            name: np.asarray(site["value"])
            for name, site in trace.items()
            if site["type"] == "sample" and site["is_observed"] and np.size(site["value"])
        }

    # -- words ------------------------------------------------------------------------

    def __str__(self) -> str:
        return report(self, complete=True)

    def __repr__(self) -> str:
        return report(self, complete="diagnostics" in vars(self))

    def _gaussian(self) -> NaturalGaussianGuide:
        parts = gaussians(self.guide)
        if len(parts) != 1:
            raise ValueError(
                f"The guide ({type(self.guide).__name__}) has {len(parts)} NaturalGaussianGuides "
                "in it, not one: ask its parts, with result.params."
            )
        return parts[0]

    def _key(self, purpose: int) -> jax.Array:
        return random.fold_in(self.rng_key, purpose)
