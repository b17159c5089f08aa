"""What a fit returns."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.infer import Predictive

from ngvi.checks import check_count
from ngvi.fit.diagnostics import NUM_DRAWS, Diagnostics
from ngvi.fit.result import Result
from ngvi.fit.threads import alone
from numpyro_ngvi.families import Family
from numpyro_ngvi.fit.importance import diagnose, gaussians
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.guide.checks import check_key
from numpyro_ngvi.tracing.arguments import as_jax

#: What a result draws from its key for.
_DIAGNOSTICS, _SAMPLE, _PREDICTIVE, _OBSERVED = range(4)


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FitResult(Result):
    """A fitted posterior, how the fit went, and whether to believe it.

    ``print(result)`` is a report. It takes thousands of evaluations of the log density for the
    diagnostics, once; ``repr(result)`` leaves them out until they have been asked for.
    """

    library: ClassVar[str] = "numpyro_ngvi"

    #: The JAX random key for diagnostics, and for draws without a key of their own.
    rng_key: jax.Array

    @property
    def posterior(self) -> dist.Distribution:
        """The Gaussian over the unconstrained latent vector, as a NumPyro distribution."""
        return self._gaussian().get_posterior(self.params)

    @alone
    def sample(  # type: ignore[override]
        self, num_samples: int = 1000, *, rng_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Draws of every latent site, constrained, and of the deterministic sites.

        :param num_samples: how many.
        :param rng_key: a JAX random key; by default one of the fit's, the same every time.
        :return: by site, an axis of draws followed by the site's shape.
        """
        num_samples = check_count(num_samples, "num_samples")
        key = self._key(_SAMPLE, rng_key)
        return self.guide.sample_posterior(
            key, self.params, *self.args, sample_shape=(num_samples,), **self.kwargs
        )

    @alone
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
        num_samples = check_count(num_samples, "num_samples")
        key = self._key(_PREDICTIVE, rng_key)
        model = self.model
        if not args and not kwargs:
            args, kwargs = self.args, self.kwargs
            model = handlers.uncondition(model)
        predictive = Predictive(
            model, guide=self.guide, params=self.params, num_samples=num_samples
        )
        args, kwargs = as_jax((args, kwargs))
        return predictive(key, *args, **kwargs)

    @alone
    def diagnose(
        self, num_draws: int = NUM_DRAWS, *, rng_key: jax.Array | None = None
    ) -> Diagnostics:
        """:attr:`diagnostics` from other draws, or more of them.

        :param num_draws: how many; each is an evaluation of the log density.
        :param rng_key: a JAX random key; by default one of the fit's, the same every time.
        :raises ValueError: if the guide has no ``NaturalGaussianGuide`` in it.
        :raises ModuleNotFoundError: without ArviZ.
        """
        num_draws = check_count(num_draws, "num_draws")
        key = self._key(_DIAGNOSTICS, rng_key)
        return diagnose(
            self.model, self.guide, self.params, self.args, self.kwargs, key, num_draws=num_draws
        )

    @alone
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

    def _gaussians(self) -> list[NaturalGaussianGuide]:
        return gaussians(self.guide)

    def _key(self, purpose: int, rng_key: jax.Array | None = None) -> jax.Array:
        return random.fold_in(self.rng_key, purpose) if rng_key is None else check_key(rng_key)
