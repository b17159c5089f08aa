"""The Euclidean counterparts of the guide: raw coordinates as parameters, stock distributions.

They draw with the same noise as the guide, so that their gradient is the Euclidean one of the very
same estimate.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def loss_and_gradient(
    ppl: Any,
    loss: Any,
    model: Any,
    family: tuple[str, np.ndarray, np.ndarray],
    detach: bool,
    args: tuple,
    kwargs: dict[str, Any],
    seed: int,
) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """The loss of a plain guide, and its gradient with respect to ``(loc, scale)``.

    :param family: the name of a family, ``loc`` and ``scale``.
    :param detach: whether ``log q`` does not see the parameters (sticking the landing).
    """
    run = _of_numpyro if ppl.is_numpyro else _of_pyro
    model_of_guide = ppl.handlers.block(model, hide=["component"])  # what is enumerated
    return run(ppl, loss, model, model_of_guide, family, detach, args, kwargs, seed)


def _distribution(ppl, name, loc, scale):
    if name == "diagonal":
        return ppl.dist.Normal(loc, scale).to_event(1)
    return ppl.dist.MultivariateNormal(loc, scale_tril=scale)


def _of_numpyro(ppl, loss, model, model_of_guide, family, detach, args, kwargs, seed):
    import jax
    from jax import lax

    name, *start = family
    dist, param = ppl.dist, ppl.param

    class Detached(dist.Distribution):
        """``N(loc, scale)``, whose ``log_prob`` does not see the parameters' derivative."""

        support = dist.constraints.real_vector
        has_rsample = True

        def __init__(self, loc, scale):
            self.base = _distribution(ppl, name, loc, scale)
            self.fixed = _distribution(ppl, name, *map(lax.stop_gradient, (loc, scale)))
            super().__init__(self.base.batch_shape, self.base.event_shape)

        def sample(self, key, sample_shape=()):
            return self.base.sample(key, sample_shape)

        def log_prob(self, value):
            return self.fixed.log_prob(value)

    class PlainGuide(ppl.autoguide.AutoContinuous):
        def _get_posterior(self):
            loc, scale = param("loc", start[0]), param("scale", start[1])
            return Detached(loc, scale) if detach else _distribution(ppl, name, loc, scale)

    guide = PlainGuide(model_of_guide)
    start = list(map(ppl.array, start))
    ppl.call(guide, *args)

    def of(params):
        return loss.loss(jax.random.key(seed), params, model, guide, *args, **kwargs)

    params = dict(zip(("loc", "scale"), start, strict=True))
    value, gradient = jax.jit(jax.value_and_grad(of))(params)
    return float(value), tuple(map(np.asarray, (gradient["loc"], gradient["scale"])))


def _of_pyro(ppl, loss, model, model_of_guide, family, detach, args, kwargs, seed):
    from pyro.nn import PyroParam

    name, *start = family
    dist = ppl.dist

    class Detached(dist.TorchDistribution):
        """``base``, whose ``log_prob`` does not see the parameters' derivative."""

        has_rsample = True
        arg_constraints = {}  # noqa: RUF012

        def __init__(self, base, fixed):
            self.base, self.fixed = base, fixed
            super().__init__(base.batch_shape, base.event_shape)

        @property
        def support(self):
            return self.base.support

        def expand(self, batch_shape, _instance=None):
            return Detached(self.base.expand(batch_shape), self.fixed.expand(batch_shape))

        def rsample(self, sample_shape=()):
            return self.base.rsample(sample_shape)

        def log_prob(self, value):
            return self.fixed.log_prob(value)

    class PlainGuide(ppl.autoguide.AutoContinuous):
        def __init__(self, model):
            super().__init__(model)
            self.loc, self.scale = (PyroParam(ppl.array(value)) for value in start)

        def get_posterior(self, *args, **kwargs):
            return _distribution(ppl, name, self.loc, self.scale)

        def sample_latent(self, *args, **kwargs):
            posterior = self.get_posterior()
            if detach:
                fixed = _distribution(ppl, name, self.loc.detach(), self.scale.detach())
                posterior = Detached(posterior, fixed)
            return ppl.sample("_plain_latent", posterior, infer={"is_auxiliary": True})

    guide = PlainGuide(model_of_guide)
    guide(*args)
    ppl.lib.set_rng_seed(seed)
    value = loss.loss_and_grads(model, guide, *args, **kwargs)
    return float(value), (guide.loc.grad.numpy(), guide.scale.grad.numpy())
