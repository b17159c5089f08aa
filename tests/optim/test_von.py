"""VON, VOGN and IVON are the papers' updates, given the same gradients and curvatures."""

from __future__ import annotations

import numpy as np
import pytest

from tests import models
from tests.optim.runs import Loop
from tests.reference import relative_error

DIM, NUM_STEPS = 4, 15
DELTA, N = 0.5, 20.0  # precision of the prior, number of examples
LARGER = np.geomspace(0.3, 300.0, NUM_STEPS)


def start(rng):
    root = rng.normal(size=(DIM, DIM))
    return rng.normal(size=DIM), np.linalg.inv(root @ root.T + np.eye(DIM))


def examples(rng):
    """Gradients ``g_i`` of single examples' negative log likelihoods, one set for each step."""
    return rng.normal(size=(NUM_STEPS, int(N), DIM))


def run(backend, optimiser, moments, family, mu, sigma):
    """The path, given what a draw yields at each step: ``(gradient, curvature)``."""
    data = iter(moments)

    def of_the_joint(mu, sigma):
        gradient, curvature = next(data)
        return gradient - DELTA * mu, -(curvature + DELTA * np.eye(DIM))

    return Loop(backend, optimiser, of_the_joint, family, mu, sigma).path(NUM_STEPS)


def check(path, expected):
    for (mu, sigma), (same_mu, precision) in zip(path, expected, strict=True):
        assert relative_error(mu, same_mu) < 1e-10
        assert relative_error(np.linalg.inv(sigma), precision) < 1e-10


@pytest.mark.parametrize("family", ["covariance_cholesky", "diagonal"])
@pytest.mark.parametrize("beta", [0.1, 0.6])
def test_von_is_swaroops(backend, family, beta, rng):
    part = np.diag if family == "diagonal" else lambda matrix: matrix
    mu, sigma = start(rng)
    sigma = np.diag(np.diag(sigma)) if family == "diagonal" else sigma
    g = rng.normal(size=(NUM_STEPS, DIM))
    H = [r @ r.T for r in rng.normal(size=(NUM_STEPS, DIM, DIM))]
    moments = [(-N * g_t, N * H_t) for g_t, H_t in zip(g, H, strict=True)]
    path = run(backend, backend.optimiser("VON", step_size=beta), moments, family, mu, sigma)
    precision, expected = np.linalg.inv(sigma), []
    for g_t, H_t in zip(g, H, strict=True):
        precision = (1 - beta) * precision + beta * (N * H_t + DELTA * np.eye(DIM))
        precision = np.diag(part(precision)) if family == "diagonal" else precision
        mu = mu - beta * np.linalg.solve(precision, N * g_t + DELTA * mu)
        expected.append((mu, precision))
    check(path, expected)


def test_vogn_is_swaroops_mean_field(backend, rng):
    alpha, beta = 0.3, 0.2
    mu, sigma = start(rng)
    g, sigma = examples(rng), np.diag(np.diag(sigma))
    moments = [(-g_t.sum(0), g_t.T @ g_t) for g_t in g]
    optimiser = backend.optimiser("VOGN", step_size=alpha, beta1=0.0, beta2=1 - beta)
    path = run(backend, optimiser, moments, "diagonal", mu, sigma)
    s, delta = (1 / np.diag(sigma) - DELTA) / N, DELTA / N
    expected = []
    for g_t in g:
        s = (1 - beta) * s + beta * (g_t**2).mean(0)
        mu = mu - alpha * (g_t.mean(0) + delta * mu) / (s + delta)
        expected.append((mu, np.diag(N * (s + delta))))
    check(path, expected)


@pytest.mark.parametrize(
    ("family", "beta2"), [("covariance_cholesky", 0.95), ("precision_cholesky", "auto")]
)
def test_vogn_with_momentum_is_tans(backend, family, beta2, rng):
    """Supplement S5.1, with its bias correction; or with an average over all steps."""
    alpha, beta1 = 0.1, 0.9
    mu, sigma = start(rng)
    g = examples(rng)
    moments = [(-g_t.sum(0), g_t.T @ g_t) for g_t in g]
    optimiser = backend.optimiser("VOGN", step_size=alpha, beta1=beta1, beta2=beta2)
    path = run(backend, optimiser, moments, family, mu, sigma)
    S, m, expected = np.linalg.inv(sigma), 0.0, []
    for t, g_t in enumerate(g, start=1):
        m = beta1 * m + (1 - beta1) * (-g_t.sum(0) - DELTA * mu)
        m_hat = m / (1 - beta1**t)
        keep = 1 - 2 / (t + 49) if beta2 == "auto" else beta2
        S = keep * S + (1 - keep) * (g_t.T @ g_t + DELTA * np.eye(DIM))
        mu = mu + alpha * np.linalg.solve(S, m_hat)
        expected.append((mu, S))
    check(path, expected)


@pytest.mark.parametrize(("name", "sign"), [("VOGN", 1.0), ("IVON", -1.0)])
def test_a_gradient_far_from_the_optimum_narrows_a_mean_field_no_further_than_a_quarter(
    backend, name, sign
):
    """... and nothing moves it by more than it is wide; a given ``beta2`` is as published."""
    unit, gradient = np.eye(DIM), -1e3 * np.ones(DIM)
    moments = [(gradient, 1e6 * sign**step * unit) for step in range(NUM_STEPS)]

    def ends(beta2):
        optimiser = backend.optimiser(name, step_size="auto", beta1=0.9, beta2=beta2)
        return run(backend, optimiser, moments, "diagonal", np.zeros(DIM), unit)

    last, before = 1.0, 0.0
    for mu, sigma in ends("auto"):
        precision = 1 / sigma[0, 0]
        assert 0.7 * last < precision < 1.3 * last  # 1 + t + t^2 / 2 of IVON
        assert np.abs(mu - before).max() <= sigma[0, 0] ** 0.5 * (1 + 1e-12)
        last, before = precision, mu
    assert 1 / ends(0.9)[0][1][0, 0] > 1e4


@pytest.mark.parametrize("beta1", [0.9, 0.0])
@pytest.mark.parametrize("family", ["covariance_cholesky", "diagonal"])
def test_auto_slows_by_turns_of_late_and_the_mean_is_mostly_an_average(backend, family, beta1, rng):
    """Of a fast point ``z`` and its average ``x``; no latent of a mean field leaps."""
    mu, sigma = start(rng)
    sigma = np.diag(np.diag(sigma)) if family == "diagonal" else sigma
    part = np.diag if family == "diagonal" else lambda matrix: matrix
    # From too far to go in one step to noise, a change of sign a step.
    g = rng.normal(size=(NUM_STEPS, DIM)) + 5.0 * (-1.0) ** np.arange(NUM_STEPS)[:, None]
    g[0] *= [1.0, 1.0, 1.0, 1000.0]
    moments = [(-g_t, np.eye(DIM)) for g_t in g]
    optimiser = backend.optimiser("VOGN", step_size="auto", beta1=beta1, beta2=0.9)
    path = run(backend, optimiser, moments, family, mu, sigma)
    S, z, x, last, often, n, expected = np.linalg.inv(sigma), mu, mu, 0.0, 0.0, 0.0, []
    rates, steps = [], []
    for t, g_t in enumerate(g):
        gradient = -g_t - DELTA * mu
        often += 4 / (t + 50) * ((np.sum(gradient * last) < 0) - often)
        n = max(n + (1 if often > 0.52 else -1), 0.0)
        length = np.sqrt(gradient @ np.linalg.solve(S, gradient) / DIM)
        rates.append(min(0.1 / np.sqrt(1 + n / 60), 1 / length))
        S = 0.9 * S + 0.1 * part(part((1 + DELTA) * np.eye(DIM)))
        step = rates[-1] * np.linalg.solve(S, gradient)
        steps.append(np.abs(step * np.sqrt(np.diag(S))).max())
        if family == "diagonal":
            step = np.clip(step, -1 / np.sqrt(np.diag(S)), 1 / np.sqrt(np.diag(S)))
        z = z + step
        c = 3 / (t + 11)
        x = (1 - c) * x + c * z
        last = (1 - beta1) * z + beta1 * x - mu
        mu = mu + last
        expected.append((mu, S))
    check(path, expected)
    assert rates[0] < 0.09 and steps[0] > 1.5  # no step is too long, and no latent's
    assert n > 0  # and some have turned


@pytest.mark.parametrize("at", [0, 40])
def test_auto_is_not_thrown_off_by_one_gradient_of_one_latent(backend, at):
    """Which a given step size follows: it is the published rule."""
    dim, ends = 20, {}
    for step_size in ("auto", 0.1):
        rng = np.random.default_rng(1)
        gradients = rng.normal(size=(60, dim))
        gradients[at, 3] = 1e5
        data = iter(gradients)

        def moments(mu, sigma, data=data):
            return next(data) - mu, -np.eye(dim)

        optimiser = backend.optimiser("IVON", step_size=step_size)
        loop = Loop(backend, optimiser, moments, "diagonal", np.zeros(dim), np.eye(dim))
        ends[step_size] = max(np.abs(mu).max() for mu, _ in loop.path(60))
    assert ends["auto"] < 3.0 and ends[0.1] > 1000.0


def test_ivon_stays_positive_through_negative_curvature(backend, rng):
    alpha, beta1, beta2 = 0.1, 0.9, 0.9
    mu, sigma = start(rng)
    sigma = np.diag(np.diag(sigma))
    g = rng.normal(size=(NUM_STEPS, DIM))
    h = rng.normal(size=(NUM_STEPS, DIM)) * 5.0
    h[3] = -1000.0  # far below anything that nine tenths of the precision could bear
    moments = [(-g_t, np.diag(h_t)) for g_t, h_t in zip(g, h, strict=True)]
    optimiser = backend.optimiser("IVON", step_size=alpha, beta1=beta1, beta2=beta2)
    path = run(backend, optimiser, moments, "diagonal", mu, sigma)
    S, m, expected = 1 / np.diag(sigma), 0.0, []
    for t, (g_t, h_t) in enumerate(zip(g, h, strict=True), start=1):
        m = beta1 * m + (1 - beta1) * (-g_t - DELTA * mu)
        change = (1 - beta2) * (h_t + DELTA - S) / S
        S = S * (1 + change + change**2 / 2)
        mu = mu + alpha * m / (1 - beta1**t) / S
        expected.append((mu, np.diag(S)))
    check(path, expected)
    assert all((np.diag(sigma) > 0).all() for _, sigma in path)


@pytest.mark.parametrize("family", ["covariance_cholesky", "precision_cholesky", "precision"])
def test_a_noisy_curvature_of_a_dense_family_is_damped(backend, family, rng):
    """Eigenvalues beyond one are made smaller together, and ``1 + t + t^2 / 2`` is positive."""
    alpha, beta1, beta2 = 0.1, 0.9, 0.9
    mu, sigma = start(rng)
    g = rng.normal(size=(NUM_STEPS, DIM))
    h = [
        (r + r.T) * size
        for r, size in zip(rng.normal(size=(NUM_STEPS, DIM, DIM)), LARGER, strict=True)
    ]
    moments = [(-g_t, h_t) for g_t, h_t in zip(g, h, strict=True)]
    optimiser = backend.optimiser("IVON", step_size=alpha, beta1=beta1, beta2=beta2)
    path = run(backend, optimiser, moments, family, mu, sigma)
    S, m, expected, sizes = np.linalg.inv(sigma), 0.0, [], []
    for t, (g_t, h_t) in enumerate(zip(g, h, strict=True), start=1):
        m = beta1 * m + (1 - beta1) * (-g_t - DELTA * mu)
        L = np.linalg.cholesky(S)
        inverse = np.linalg.inv(L)
        change = (1 - beta2) * (inverse @ (h_t + DELTA * np.eye(DIM)) @ inverse.T - np.eye(DIM))
        sizes.append((np.linalg.eigvalsh(change) ** 4).sum() ** 0.25)
        change = change / max(sizes[-1], 1.0)
        S = L @ (np.eye(DIM) + change + change @ change / 2) @ L.T
        mu = mu + alpha * np.linalg.solve(S, m / (1 - beta1**t))
        expected.append((mu, S))
    check(path, expected)
    assert min(sizes) < 0.5 and max(sizes) > 20.0


@pytest.mark.parametrize(("name", "needed"), [("VOGN", "gauss_newton"), ("IVON", "stein")])
@pytest.mark.parametrize("curvature", ["auto", "hessian", "stein", "gauss_newton"])
def test_the_curvature_of_another_rule_is_refused_and_what_to_write_is_said(
    backend, name, needed, curvature
):
    package = backend.package
    guide = package.NaturalGaussianGuide(models.location(backend))

    def svi(optimiser, loss):
        return package.SVI(guide.model, guide, backend.optimiser(optimiser), loss)

    elbo = package.NaturalELBO(1, curvature)
    svi("BLR", elbo)  # takes any
    if curvature == needed:
        svi(name, elbo)
        return
    words = rf"{name} is the rule of.*has curvature='{curvature}'.*NaturalELBO\(1, '{needed}'\)"
    with pytest.raises(ValueError, match=words):
        svi(name, elbo)
