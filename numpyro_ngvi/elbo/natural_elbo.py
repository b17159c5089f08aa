"""The variational bound, with natural gradients by Bonnet and Price."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random
from numpyro.infer.elbo import ELBO

from numpyro_ngvi.curvature import (
    gauss_newton_moments,
    hessian_moments,
    num_products,
    standard_normal,
    stein_direction,
)
from numpyro_ngvi.curvature.draws import default_num_gradients
from numpyro_ngvi.curvature.moments import Density, finite_draws, first_draws, masked_mean
from numpyro_ngvi.families.base import Family, standard_normal_log_prob
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.tracing import (
    LogDensity,
    examples,
    posteriors_in,
    sites_without_hessian,
    why_no_hessian,
)

CURVATURES = ("auto", "hessian", "gauss_newton", "stein", "mean")

#: ``curvature="auto"`` takes exact Hessians up to this many Hessian-vector products a draw.
MAX_PRODUCTS = 2000


class NaturalELBO(ELBO):
    """The bound on the log evidence, with second-order natural gradients.

    A loss for stock ``SVI`` with a ``NaturalGaussianGuide``. The value is the bound's; the
    gradient with respect to the guide's posterior is the natural gradient that Bonnet's and
    Price's theorems give from the model's own gradients and Hessians,

        dL/dmu = E[grad log p],        dL/dSigma = (E[hess log p] + Sigma^-1) / 2,

    averaged over draws. Any other parameter, of the model or of the partners in an
    ``AutoGuideList``, gets its ordinary gradient. All draws of a step share its minibatch.
    Use it with ``BLR`` (or with ``Snngm``, as Tan's second-order variant)::

        svi = SVI(model, NaturalGaussianGuide(model), BLR(), NaturalELBO())

    :param num_particles: ``K``, how many draws a step averages over; each takes a gradient and
        a Hessian.
    :param num_gradients: how many draws the gradient is averaged over, the ``K`` among them.
        Nearly all of a step's noise is the gradient's, and a gradient costs no more than one of
        the Hessian's products. By default ``10 K``, or fewer, so that they add at most a
        quarter to the cost of the Hessians; ``K`` for ``"stein"``.
    :param curvature: where ``E[hess log p]`` comes from. ``"hessian"``: automatic
        differentiation, exactly and only as much as the family needs. ``"gauss_newton"``:
        squared gradients of single examples, which needs the observations in a plate (Tan,
        S5.1). ``"stein"``: gradients alone (Lin, Khan and Schmidt, 2019). ``"mean"``: gradient and
        Hessian at the mean (delta method). ``"auto"``: ``"hessian"`` up to 2000
        Hessian-vector products if the model can be differentiated twice, else ``"stein"``.
    :param antithetic: whether draws come in pairs ``z, -z``.
    :param quasi_random: whether draws come from a scrambled Sobol sequence.
    :param vectorize_particles: as in NumPyro's ELBOs, for the value of the bound.
    :raises ValueError: for an unknown curvature or a ``num_particles`` below 1; on the first call,
        if the guide holds no ``NaturalGaussianGuide``, if the model has no Hessian and
        ``curvature="hessian"`` asks for it, or no examples for ``"gauss_newton"``.
    """

    can_infer_discrete = True

    def __init__(
        self,
        num_particles: int = 10,
        curvature: str = "auto",
        *,
        num_gradients: int | None = None,
        antithetic: bool = True,
        quasi_random: bool = False,
        vectorize_particles: bool = True,
    ) -> None:
        if curvature not in CURVATURES:
            known = ", ".join(repr(name) for name in CURVATURES)
            raise ValueError(f"Unknown curvature={curvature!r}. Choose one of {known}.")
        if not isinstance(num_particles, int) or num_particles < 1:
            raise ValueError(
                f"num_particles must be an integer, at least 1, got {num_particles!r}."
            )
        if num_gradients is not None and num_gradients < num_particles:
            raise ValueError(
                f"num_gradients must be at least num_particles={num_particles}, got "
                f"{num_gradients}."
            )
        super().__init__(num_particles=num_particles, vectorize_particles=vectorize_particles)
        self.curvature, self.num_gradients = curvature, num_gradients
        self.antithetic, self.quasi_random = antithetic, quasi_random
        self._num_dropped = 0

    @property
    def num_dropped(self) -> int:
        """Draws left out so far because their value, gradient or Hessian was not finite."""
        jax.effects_barrier()
        return self._num_dropped

    def loss_with_mutable_state(
        self,
        rng_key: jax.Array,
        param_map: dict[str, Any],
        model: Callable,
        guide: Callable,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The loss in nats, whose gradient is the natural gradient, and the mutable state."""
        model_key, guide_key, draw_key = random.split(rng_key, 3)
        density = LogDensity(model, guide, args, kwargs, model_key)
        posteriors = posteriors_in(param_map)
        here = jax.lax.stop_gradient(posteriors)
        num_draws = self._num_draws(here)
        noise = self._noise(draw_key, here, num_draws)
        if isinstance(guide, NaturalGaussianGuide):  # no other draws than those given to it
            guide_keys = jnp.broadcast_to(guide_key, (num_draws,))
        else:
            guide_keys = random.split(guide_key, num_draws)
        frozen = jax.lax.stop_gradient(param_map)
        directions, kept, values = {}, True, None
        for site in here:
            directions[site], kept_by, values = self._direction(
                density, site, here, noise, guide_keys, frozen
            )
            kept = kept & kept_by
        noise = {site: value[: self.num_particles] for site, value in noise.items()}
        if values is None or len(posteriors) < len(param_map):
            values, noise, mutable_state = self._differentiable_values(
                density, here, noise, guide_keys, param_map, kept
            )
        else:
            mutable_state = None
        loss = _mean_loss(values, here, noise, kept)
        for site, family in posteriors.items():
            loss = loss - _as_gradient(directions[site], family)
        return {"loss": loss, "mutable_state": mutable_state}

    # -- the direction ----------------------------------------------------------------

    def _direction(
        self,
        density: LogDensity,
        site: str,
        here: dict[str, Family],
        noise: dict[str, jax.Array],
        guide_keys: jax.Array,
        params: dict[str, Any],
    ) -> tuple[Family, jax.Array, jax.Array | None]:
        """The natural gradient for one guide, given the draws of the others.

        :return: the direction, which of the first draws count, and the log density at them.
        """
        family = here[site]
        draws = {name: q.sample(noise[name]) for name, q in here.items()}
        others = {name: value for name, value in draws.items() if name != site}
        context = (others, guide_keys)

        def of_latents(function: Callable) -> Callable:
            def at(theta: jax.Array, context: Any) -> Any:
                others, key = context
                return function({**others, site: theta}, params, key)

            return at

        log_density = of_latents(density)
        kind = self._kind(density, log_density, family, draws, params, guide_keys)
        if kind == "stein":
            at_first = first_draws(self.num_particles, noise[site], context)
            direction, kept, values = stein_direction(log_density, *at_first, family)
        else:
            points = draws[site]
            if kind == "mean":
                points, context = _at_the_means(site, here, guide_keys, density.guide)
            if kind == "gauss_newton":
                split = of_latents(lambda *at: tuple(examples(density, *at)))
                moments = gauss_newton_moments(split, points, context, family, self.num_particles)
            else:
                moments = hessian_moments(
                    log_density, points, context, family, min(self.num_particles, len(points))
                )
            kept, values = moments.kept, None if kind == "mean" else moments.values
            direction = family.bonnet_price(moments.gradient, moments.hessian)
        self._report(jnp.sum(~kept))
        kept = jnp.broadcast_to(kept, max(kept.shape, (self.num_particles,)))
        return jax.lax.stop_gradient(direction), kept[: self.num_particles], values

    def _kind(
        self,
        density: LogDensity,
        log_density: Density,
        family: Family,
        draws: dict[str, jax.Array],
        params: dict[str, Any],
        guide_keys: jax.Array,
    ) -> str:
        """``curvature``, with ``"auto"`` resolved and the Hessian known to exist."""
        kind = self.curvature
        if kind == "auto":
            kind = "hessian" if num_products(family) <= MAX_PRODUCTS else "stein"
        if kind not in ("hessian", "mean"):
            return kind
        first = {name: value[0] for name, value in draws.items()}
        error = why_no_hessian(lambda v: density(v, params, guide_keys[0]), first)
        if error is not None:
            sites = sites_without_hessian(density, first, params, guide_keys[0])
            if not sites:
                raise error
            names = ", ".join(repr(name) for name in sites)
            reason = f"The log density of {names} cannot be differentiated twice ({error})"
            if self.curvature != "auto":
                raise ValueError(
                    f"{reason}. Use curvature='stein', which needs gradients only."
                ) from error
            warnings.warn(f"{reason}: curvature='stein' is used instead.", stacklevel=2)
            return "stein"
        return kind

    # -- the value --------------------------------------------------------------------

    def _differentiable_values(
        self,
        density: LogDensity,
        here: dict[str, Family],
        noise: dict[str, jax.Array],
        guide_keys: jax.Array,
        params: dict[str, Any],
        kept: jax.Array,
    ) -> tuple[jax.Array, dict[str, jax.Array], Any]:
        """The log density as a function of the ordinary parameters.

        :return: values at the draws, the noise of the draws that they belong to, and the
            model's mutable state.
        """
        # The gradient of a dropped draw would be NaN times zero: a good draw stands in.
        guide_keys = guide_keys[: self.num_particles]
        stand_in = jnp.where(kept, jnp.arange(self.num_particles), jnp.argmax(kept))
        noise = {site: value[stand_in] for site, value in noise.items()}
        draws = {site: family.sample(noise[site]) for site, family in here.items()}
        params = {
            name: jax.lax.stop_gradient(value) if isinstance(value, Family) else value
            for name, value in params.items()
        }

        def particle(argument: Any) -> tuple[jax.Array, Any]:
            latents, key = argument
            return density.with_mutable_state(latents, params, key)

        arguments = (draws, guide_keys[stand_in])
        if self.num_particles == 1:
            value, mutable_state = particle(jax.tree.map(lambda leaf: leaf[0], arguments))
            return value[None], noise, mutable_state
        values, mutable_state = self.vectorize_particles_fn(particle, arguments)
        if mutable_state is not None:
            warnings.warn(
                "mutable state is currently ignored when num_particles > 1.", stacklevel=2
            )
        return values, noise, None

    # -- draws ------------------------------------------------------------------------

    def _num_draws(self, here: dict[str, Family]) -> int:
        if self.num_gradients is not None:
            return self.num_gradients
        if self.curvature in ("stein", "mean"):
            return self.num_particles
        return default_num_gradients(
            self.num_particles, min(num_products(family) for family in here.values())
        )

    def _noise(
        self, key: jax.Array, here: dict[str, Family], num_draws: int
    ) -> dict[str, jax.Array]:
        keys = random.split(key, len(here)) if len(here) > 1 else key[None]
        return {
            site: standard_normal(
                key,
                (self.num_particles, num_draws - self.num_particles),
                family.dim,
                family.loc.dtype,
                antithetic=self.antithetic,
                quasi_random=self.quasi_random,
            )
            for key, (site, family) in zip(keys, here.items(), strict=True)
        }

    def _report(self, num_dropped: jax.Array) -> None:
        def report() -> None:
            jax.debug.callback(self._count, num_dropped)

        jax.lax.cond(num_dropped > 0, report, lambda: None)

    def _count(self, num_dropped: Any) -> None:
        if not self._num_dropped and num_dropped:
            warnings.warn(
                f"NaturalELBO left out {int(num_dropped)} draws of a step whose "
                "value, gradient or Hessian is not finite. It counts them in num_dropped.",
                stacklevel=2,
            )
        self._num_dropped += int(num_dropped)


def _mean_loss(
    values: jax.Array, here: dict[str, Family], noise: dict[str, jax.Array], kept: jax.Array
) -> jax.Array:
    """Minus the bound, over the draws that are kept."""
    log_q = sum(
        standard_normal_log_prob(noise[site]) - family.log_det_scale()
        for site, family in here.items()
    )
    return -masked_mean(values - log_q, kept & finite_draws(values))


def _at_the_means(
    site: str, here: dict[str, Family], guide_keys: jax.Array, guide: Callable
) -> tuple[jax.Array, Any]:
    """The means in place of draws of all guides' latent vectors, and the context."""
    if isinstance(guide, NaturalGaussianGuide):
        guide_keys = guide_keys[:1]  # partners draw their own values, and here are none
    means = {
        name: jnp.broadcast_to(family.mean, (len(guide_keys), family.dim))
        for name, family in here.items()
    }
    return means.pop(site), (means, guide_keys)


def _as_gradient(direction: Family, family: Family) -> jax.Array:
    """Zero, with ``direction`` as its gradient."""
    products = jax.tree.map(lambda d, p: jnp.sum(d * p), direction, family)
    total = sum(jax.tree.leaves(products))
    return total - jax.lax.stop_gradient(total)
