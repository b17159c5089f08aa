"""Results at posteriors of the tests' choice, in both packages, without a fit."""

from __future__ import annotations

import importlib

import numpy as np

from ngvi.fit import trace as ngvi_trace

NOISE_SCALE, PRIOR_SCALE, NUM_DATA = 0.5, 2.0, 12


class Ppl:
    """The few calls in which the two PPLs differ."""

    def __init__(self, backend):
        self.backend, self.package = backend, backend.package
        self.ppl = importlib.import_module(backend.name)
        self.dist = self.ppl.distributions
        self.fit = backend.module("fit")
        self.is_numpyro = backend.name == "numpyro"
        self.dtype = "float64"

    def array(self, value):
        return self.backend.array(value, self.dtype)

    def init_to_value(self, **values):
        initialization = (
            "infer.initialization" if self.is_numpyro else ("infer.autoguide.initialization")
        )
        module = importlib.import_module(f"{self.backend.name}.{initialization}")
        return module.init_to_value(values={k: self.array(v) for k, v in values.items()})

    def conjugate(self):
        """Linear regression with known noise, and its arguments."""

        def model(X, y=None, subsample_size=None):
            prior = self.dist.Normal(self.array(np.zeros(3)), PRIOR_SCALE).to_event(1)
            weights = self.ppl.sample("weights", prior)
            with self.ppl.plate("data", len(X), subsample_size=subsample_size) as index:
                obs = None if y is None else y[index]
                self.ppl.sample("y", self.dist.Normal(X[index] @ weights, NOISE_SCALE), obs=obs)

        X, y = data()
        return model, (self.array(X), self.array(y))

    def set_up(self, guide, args=(), kwargs=None):
        """All parameters of a guide, after its first call."""
        kwargs = kwargs or {}
        if self.is_numpyro:
            seeded = self.ppl.handlers.seed(guide, 0)
            trace = self.ppl.handlers.trace(seeded).get_trace(*args, **kwargs)
            return {name: s["value"] for name, s in trace.items() if s["type"] == "param"}
        guide(*args, **kwargs)
        return {name: v.detach().clone() for name, v in self.ppl.get_param_store().items()}

    def result(self, model, args=(), kwargs=None, *, guide=None, gaussian=None, at=None, **options):
        """A result whose guide is where it starts, or at the coordinates ``at``.

        :param gaussian: which part of the guide that is.
        """
        guide = self.package.NaturalGaussianGuide(model, "full") if guide is None else guide
        params = self.set_up(guide, args, kwargs)
        if at is not None:
            params |= self._moved(gaussian or guide, at)
        if self.is_numpyro:
            import jax

            options.setdefault("rng_key", jax.random.key(3))
        defaults = {
            "trace": trace(self),
            "converged": True,
            "reason": "the bound is within 0.02 nats of its optimum",
            "num_steps": 20,
            "num_gradients": 2000,
            "num_hessian_products": 600,
            "seconds": 1.25,
        }
        return self.fit.FitResult(
            model=model,
            guide=guide,
            args=args,
            kwargs=kwargs or {},
            params=params,
            **{**defaults, **options},
        )

    def _moved(self, guide, at):
        """New parameters of a ``NaturalGaussianGuide`` with a dense covariance."""
        loc, tril = (self.array(value) for value in at)
        if self.is_numpyro:
            family = self.package.families.CovarianceCholesky(loc, tril)
            return {guide._parameter_name: family}
        guide.posterior.loc, guide.posterior.scale_tril = loc, tril
        return {
            f"{guide.posterior._pyro_name}.{name}": value
            for name, value in (("loc", loc), ("scale_tril", tril))
        }

    def conjugate_result(self, shift=0.0, factor=1.0, **options):
        """At the exact posterior, or away from it in units of its standard deviations."""
        model, args = self.conjugate()
        mean, covariance = exact_posterior()
        tril = np.linalg.cholesky(covariance)
        at = (mean + shift * np.sqrt(np.diag(covariance)), factor * tril)
        return self.result(model, args, at=at, **options)


def trace(ppl):
    steps = np.arange(20)
    return ngvi_trace.Trace(
        losses=list(30.0 + 50.0 * 0.5**steps),
        loss_errors=[0.1] * 20,
        step_sizes=list(1.0 / (1 + steps)),
        distances=list(50.0 * 0.5**steps),
        num_draws=[10] * 20,
    )


def data():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(NUM_DATA, 3))
    return X, X.sum(1) + 0.4 * rng.normal(size=NUM_DATA)


def exact_posterior():
    X, y = data()
    precision = X.T @ X / NOISE_SCALE**2 + np.eye(3) / PRIOR_SCALE**2
    return np.linalg.solve(precision, X.T @ y) / NOISE_SCALE**2, np.linalg.inv(precision)


def log_evidence():
    from scipy import stats

    X, y = data()
    covariance = PRIOR_SCALE**2 * X @ X.T + NOISE_SCALE**2 * np.eye(len(y))
    return float(stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y))
