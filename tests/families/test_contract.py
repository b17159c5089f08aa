"""What a new family must write, and what follows from it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.optim.runs import kl_divergence

PAGE = Path(__file__).parents[2] / "docs" / "changing_the_code.md"


def sphere(backend):
    """``N(mu, exp(2 a) I)``, by exactly what the page on changing the code prints."""
    text = PAGE.read_text(encoding="utf-8").partition("**A family.**")[2]
    recipe, registered, *_ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    if backend.name == "pyro":
        recipe, registered = recipe.replace("jax.numpy", "torch").replace("numpyro", "pyro"), ""
    names: dict = {"__name__": __name__}
    exec(compile(recipe + registered, str(PAGE), "exec", dont_inherit=True), names)  # noqa: S102
    return names["Sphere"]


@pytest.fixture
def family(backend, rng):
    return sphere(backend)(backend.array(rng.normal(size=3)), backend.array(-0.4))


def test_moments_and_divergences_follow(backend, family, rng):
    sigma = np.exp(-0.8) * np.eye(3)
    np.testing.assert_allclose(backend.numpy(family.covariance_matrix), sigma, rtol=1e-14)
    np.testing.assert_allclose(
        backend.numpy(family.precision_matrix), np.linalg.inv(sigma), rtol=1e-14
    )
    other = type(family)(backend.array(rng.normal(size=3)), backend.array(0.3))
    means = backend.numpy(family.mean), backend.numpy(other.mean)
    expected = kl_divergence((means[0], sigma), (means[1], np.exp(0.6) * np.eye(3)))
    assert float(family.kl_divergence(other)) == pytest.approx(expected)


def test_the_derivatives_of_a_draw_follow(backend, family, rng):
    """Along ``F^-1 change`` a draw ``mu + exp(a) z`` moves by ``dmu + exp(a) z da``."""
    change = type(family)(backend.array(rng.normal(size=3)), backend.array(rng.normal()))
    noise = rng.normal(size=(2, 3))
    natural = family.natural_gradient(change)
    amount = float(natural.log_scale)
    expected = backend.numpy(natural.loc) * np.exp(0.4) + amount * noise
    moved = family.draw_jvp(change, backend.array(noise))
    np.testing.assert_allclose(backend.numpy(moved), expected, rtol=1e-13)
    assert float(family.log_det_jvp(change)) == pytest.approx(3 * amount)
    gradient = backend.grad(lambda q: q.draw(backend.array(noise)).sum(), family)
    np.testing.assert_allclose(backend.numpy(gradient.loc), 2 * np.exp(-0.8), rtol=1e-13)


def test_steps_and_curvature_follow(backend, family, rng):
    assert list(family.hessian_probes()) == [0, 1, 2]
    hessian = family.assemble_hessian(backend.array(-2.0 * np.eye(3)))
    direction = family.bonnet_price(backend.array(-2.0 * backend.numpy(family.mean)), hessian)
    path = family.along(direction)
    attempt = path.at(1.0)
    assert float(path.kl(attempt)) == pytest.approx(float(path.end(attempt).kl_divergence(family)))
    end = path.end(attempt)  # the posterior of a conjugate model
    np.testing.assert_allclose(backend.numpy(end.mean), 0.0, atol=1e-15)
    np.testing.assert_allclose(backend.numpy(end.stddev), np.sqrt(0.5), rtol=1e-14)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X @ [1.0, 0.0, -1.0]


def regression(ppl):
    def model(x, y):
        w = ppl.sample("w", ppl.dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with ppl.plate("rows", len(x)):
            ppl.sample("y", ppl.dist.Normal(x @ w, 1.0), obs=y)

    return model, (ppl.array(X), ppl.array(Y))


def best_bound():
    """The largest bound of a sphere: its mean is the posterior's, its precision the average."""
    precision = np.eye(3) + X.T @ X
    mean, variance = np.linalg.solve(precision, X.T @ Y), 3 / np.trace(precision)
    squares = ((Y - X @ mean) ** 2).sum() + (mean**2).sum() + variance * np.trace(precision)
    logs = 1.5 * np.log(2 * np.pi * np.e * variance) - 21.5 * np.log(2 * np.pi)
    return logs - 0.5 * squares


@pytest.mark.parametrize(
    "curvature",
    ["auto", "spherical", "hessian", "stein", "mean", "quadrature", "gauss_newton", None],
)
def test_every_curvature_moves_it_and_snngm_by_any_elbo(backend, curvature):
    model, args = regression(backend)
    guide, rule = backend.guide(model, sphere(backend)), None
    if curvature is None:
        rule, loss = backend.package.Snngm(), backend.infer.Trace_ELBO()
    else:
        loss = backend.package.NaturalELBO(10, curvature)
    losses = backend.svi(model, guide, rule, loss, args).run(200 if rule else 20)
    assert np.mean(losses[-10:]) == pytest.approx(-best_bound(), abs=0.6)


def test_fit_certifies_it(backend):
    model, args = regression(backend)
    result = backend.fit(model, *args, family=sphere(backend))
    assert result.verdict == "certified"
    assert result.bound == pytest.approx(best_bound(), abs=0.05)
