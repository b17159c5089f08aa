"""A family of ten methods, as the page on the papers prints it, goes everywhere.

What follows of a Gaussian is tested beside all others: ``test_every_family.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.families.dense import sphere

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
EXACT = X @ [1.0, 0.0, -1.0]
NOISY = EXACT + RNG.normal(size=40)


def regression(ppl, responses):
    def model(x, y):
        w = ppl.sample("w", ppl.dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with ppl.plate("rows", len(x)):
            ppl.sample("y", ppl.dist.Normal(x @ w, 1.0), obs=y)

    return model, (ppl.array(X), ppl.array(responses))


def best_bound(y):
    """The largest bound of a sphere: its mean is the posterior's, its precision the average."""
    precision = np.eye(3) + X.T @ X
    mean, variance = np.linalg.solve(precision, X.T @ y), 3 / np.trace(precision)
    squares = ((y - X @ mean) ** 2).sum() + (mean**2).sum() + variance * np.trace(precision)
    logs = 1.5 * np.log(2 * np.pi * np.e * variance) - 21.5 * np.log(2 * np.pi)
    return logs - 0.5 * squares


@pytest.mark.fast_in_numpyro("stein")
@pytest.mark.parametrize(
    "curvature",
    ["auto", "spherical", "hessian", "stein", "mean", "quadrature", "gauss_newton", None],
)
def test_every_curvature_moves_it_and_snngm_by_any_elbo(backend, curvature):
    model, args = regression(backend, NOISY)
    guide, rule = backend.guide(model, sphere(backend)), None
    if curvature is None:
        rule, loss = backend.package.Snngm(), backend.infer.Trace_ELBO()
    else:
        loss = backend.package.NaturalELBO(10, curvature)
    losses = backend.svi(model, guide, rule, loss, args).run(200 if rule else 20)
    assert np.mean(losses[-10:]) == pytest.approx(-best_bound(NOISY), abs=0.6)


@pytest.mark.parametrize("responses", [NOISY, EXACT], ids=["noisy", "exact"])
def test_fit_certifies_it(backend, responses):
    """Of exact responses the density is no jump, though one scale fits three latents badly."""
    model, args = regression(backend, responses)
    result = backend.fit(model, *args, family=sphere(backend))
    assert result.verdict == "certified"
    assert result.bound == pytest.approx(best_bound(responses), abs=0.1)
