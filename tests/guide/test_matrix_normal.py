"""``NaturalGaussianGuide(model, "matrix_normal")``: a regression with several responses.

With standard normal weights ``W`` and noise of unit variance the posterior is matrix normal
exactly, with the covariance ``(X^T X + I)^-1 (x) I``.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.ppl import SLOW_IN_NUMPYRO
from tests.reference import relative_error

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3))
Y = X @ RNG.normal(size=(3, 2)) + RNG.normal(size=(20, 2))

ROWS = np.linalg.inv(X.T @ X + np.eye(3))
MEAN, SIGMA = (ROWS @ X.T @ Y).reshape(-1), np.kron(ROWS, np.eye(2))
EVIDENCE = stats.multivariate_normal(np.zeros(20), X @ X.T + np.eye(20)).logpdf(Y.T).sum()


def regression(ppl):
    def model(x, y):
        W = ppl.sample("W", ppl.dist.Normal(ppl.np.zeros((3, 2)), 1.0).to_event(2))
        with ppl.plate("data", 20):
            ppl.sample("y", ppl.dist.Normal(x @ W, 1.0).to_event(1), obs=y)

    return model


def run(ppl, optimiser, loss, **options):
    guide = ppl.guide(regression(ppl), "matrix_normal")
    return ppl.svi(guide.model, guide, optimiser, loss, args=(X, Y), **options)


@pytest.mark.fast_in_numpyro
def test_one_step_at_the_mean_is_the_posterior(ppl):
    svi = run(ppl, ppl.optimiser("BLR", 1.0), ppl.elbo("NaturalELBO", curvature="mean"))
    svi.step()
    mean, sigma = svi.gaussian
    assert relative_error(mean, MEAN) < 1e-8
    assert relative_error(sigma, SIGMA) < 1e-8
    expected = MEAN + stats.norm.ppf(0.9) * np.sqrt(np.diag(SIGMA))
    np.testing.assert_allclose(svi.quantiles([0.9])["W"].reshape(-1), expected, rtol=1e-6)


@SLOW_IN_NUMPYRO
def test_gradients_alone_lead_to_the_evidence(ppl):
    svi = run(
        ppl, ppl.optimiser("BLR"), ppl.elbo("NaturalELBO", num_particles=10, curvature="stein")
    )
    losses = svi.run(40)
    # Where q is exact the noise vanishes: one draw's bound is the evidence.
    np.testing.assert_allclose(losses[-1], -EVIDENCE, atol=1e-3)
    assert relative_error(svi.gaussian[1], SIGMA) < 1e-2


def test_a_model_without_a_matrix_is_refused_with_the_way_out(ppl):
    def model():
        ppl.sample("w", ppl.dist.Normal(ppl.np.zeros(3), 1.0).to_event(1))

    with pytest.raises(ValueError, match=r"needs a latent site .* 'w' \(3,\)\. Use family='auto'"):
        ppl.set_up(ppl.guide(model, "matrix_normal"))
