"""A limited memory supplies the curvature that a mean field leaves out."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ngvi.optim.quasi_newton import Correction, QuasiNewton
from tests.optim.runs import Loop


@pytest.fixture
def memory(backend):
    """The functions of the memory, with what the package computes with."""
    on = backend.module("optim.algebra").algebra

    def family(loc):
        return backend.family("diagonal", np.zeros(len(loc)), np.ones(len(loc)))

    def empty(loc, **numbers):
        return QuasiNewton(**numbers).empty(on, [family(loc)], loc)

    def remember(pairs, step, gradient, sign_changes=0, **numbers):
        rule = QuasiNewton(**numbers)
        variances = backend.array(np.ones(len(step)), str(step.dtype).split(".")[-1])
        families = [family(step)]
        pair = rule.look(on, pairs, step, gradient, variances)
        return rule.remember(on, pairs, pair, families, sign_changes)

    def corrected(pairs, gradient, metric):
        correction = Correction(on, pairs, gradient)
        return correction.step(metric(correction.rest))

    return SimpleNamespace(empty=empty, remember=remember, corrected=corrected)


def filled(backend, memory, steps, ys, **numbers):
    """The memory after these steps, and by what ``g`` fell along them."""
    # Not zero, which would be a coordinate of another minibatch.
    gradient = backend.array(np.ones(steps.shape[1]))
    pairs = memory.empty(gradient, **numbers)._replace(gradient=gradient)
    for step, y in zip(steps, ys, strict=True):
        gradient = gradient - backend.array(y)
        pairs = memory.remember(pairs, backend.array(step), gradient, **numbers)
    return pairs


def dense(steps, ys, metric):
    """The inverse Hessian of BFGS (Nocedal and Wright, eq. 6.17), from ``metric``."""
    for s, y in zip(steps, ys, strict=True):
        rho = 1 / (y @ s)
        part = np.eye(len(s)) - rho * np.outer(s, y)
        metric = part @ metric @ part.T + rho * np.outer(s, s)
    return metric


def on_a_quadratic(rng, num, dim):
    root = rng.normal(size=(dim, dim))
    curvature = root @ root.T + np.eye(dim)
    steps = rng.normal(size=(num, dim))
    return curvature, steps, steps @ curvature


def test_the_two_loops_are_the_dense_recursion(backend, memory, rng):
    _, steps, ys = on_a_quadratic(rng, 4, 6)
    scale, gradient = rng.uniform(0.5, 2.0, size=6), rng.normal(size=6)
    pairs = filled(backend, memory, steps, ys)
    of_scale = backend.array(scale)
    actual = memory.corrected(pairs, backend.array(gradient), lambda g: of_scale * g)
    expected = dense(steps, ys, np.diag(scale)) @ gradient
    np.testing.assert_allclose(backend.numpy(actual), expected, rtol=1e-11)


@pytest.mark.parametrize("curvature", [-1.0, 0.0, np.nan])
def test_a_pair_without_positive_curvature_is_left_out(backend, memory, curvature, rng):
    _, steps, ys = on_a_quadratic(rng, 3, 4)
    pairs = filled(backend, memory, steps, ys)
    step = backend.array(np.ones(4))
    more = memory.remember(pairs, step, pairs.gradient - curvature * step)
    for name in ("steps", "ys"):
        np.testing.assert_array_equal(*(backend.numpy(getattr(m, name)) for m in (more, pairs)))
    # Where it ended is remembered all the same.
    np.testing.assert_array_equal(
        backend.numpy(more.gradient), backend.numpy(pairs.gradient) - curvature
    )


def after_noise(backend, memory, sign_changes):
    """Two pairs of a long way, and then ten of noise, to sign changes of the mean."""
    rng = np.random.default_rng(5)
    curvature, steps, ys = on_a_quadratic(rng, 2, 6)
    pairs = filled(backend, memory, 100 * steps, 100 * ys)
    pairs = pairs._replace(gradient=backend.array(rng.normal(size=6)))
    for changes in np.linspace(0, sign_changes, 11):
        noise = backend.array(rng.normal(size=6))
        step = backend.array(1e-2 * (backend.numpy(pairs.gradient) - backend.numpy(noise)))
        pairs = memory.remember(pairs, step, noise, sign_changes=float(changes))
    return pairs, (100 * steps, 100 * ys)


def test_gradients_that_change_sign_without_getting_smaller_are_noise(backend, memory):
    """Of the pairs, only those of the way count: the metric is that of their recursion."""
    gradient = backend.array(np.ones(6))
    actual = {}
    for sign_changes in (0, 10):
        pairs, (steps, ys) = after_noise(backend, memory, sign_changes)
        actual[sign_changes] = backend.numpy(memory.corrected(pairs, gradient, lambda g: g))
    expected = dense(steps, ys, np.eye(6)) @ np.ones(6)
    np.testing.assert_allclose(actual[10], expected, rtol=1e-10)
    assert np.linalg.norm(actual[0] - expected) > 0.5 * np.linalg.norm(expected)


# -- in the Bayesian learning rule --------------------------------------------------------

DIM = 8


def correlated():
    """A Gaussian whose latents are all but the same, and the best mean field of it."""
    sigma = 0.98 * np.ones((DIM, DIM)) + 0.02 * np.eye(DIM)
    precision = np.linalg.inv(
        np.linspace(0.1, 10, DIM)[:, None] * sigma * np.linspace(0.1, 10, DIM)
    )
    target = np.arange(1.0, DIM + 1)
    moments = lambda mu, sigma: (precision @ (target - mu), -precision)  # noqa: E731

    def gap(mu, sigma):
        ratio = np.diag(precision) * np.diag(sigma)
        return (
            0.5 * (mu - target) @ precision @ (mu - target)
            + 0.5 * (ratio - 1 - np.log(ratio)).sum()
        )

    return moments, gap


def run(backend, moments, family="diagonal", **options):
    return Loop(
        backend, backend.optimiser("BLR", **options), moments, family, np.zeros(DIM), np.eye(DIM)
    )


def test_a_mean_field_finds_the_mean_of_correlated_latents_soon(backend):
    moments, gap = correlated()
    assert gap(*run(backend, moments).path(40)[-1]) < 1e-6


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_noise_of_minibatches_averages_out_where_latents_are_correlated(pyro_backend, noise, rng):
    """With the noise of gradients that ``1 / noise^2`` of all rows have."""
    moments, gap = correlated()
    precision = -moments(np.zeros(DIM), None)[1]
    root = noise * np.linalg.cholesky(precision)

    def noisy(mu, sigma):
        gradient, hessian = moments(mu, sigma)
        return gradient + root @ rng.normal(size=DIM), hessian

    gaps = [gap(*gaussian) for gaussian in run(pyro_backend, noisy).path(400)]
    # A whole step has so many nats of noise; an average of all steps would have a 400th of them.
    of_a_step = 0.5 * noise**2 * DIM
    assert np.median(gaps[-50:]) <= 0.02 * of_a_step + 1e-6
