"""The script of Tan's Table 11, in miniature."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numpyro")
pytest.importorskip("matplotlib")

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.infer import Trace_ELBO

from benchmarks import pages, tan_table11
from benchmarks.glmm import data
from benchmarks.tan_table11 import Problem
from numpyro_ngvi.tracing.compilation import enable_x64


@pytest.fixture
def design(rng):
    """Counts of seven groups with two random effects."""
    group = np.repeat(np.arange(7), [2, 3, 4, 2, 5, 3, 4])
    X = np.column_stack([np.ones(len(group)), rng.normal(size=len(group))])
    y = rng.poisson(np.exp(0.5 * X[:, 1] + rng.normal(size=7)[group])).astype(float)
    return data.Design(y, X, X, group)


@pytest.fixture(params=tan_table11.ROWS)
def problem(request, design):
    with enable_x64(True):
        yield Problem("epilepsy2", request.param, design)


@pytest.mark.slow
def test_the_parts_of_the_groups_are_the_bound_of_a_draw(problem):
    latent = problem.start.loc + 0.1 * jnp.arange(problem.start.dim) / problem.start.dim
    given = handlers.substitute(problem.guide, data={"_auto_latent": latent})
    loss = Trace_ELBO().loss(
        jax.random.key(0), {"auto_posterior": problem.start}, problem.model, given, *problem.args
    )
    own = problem.start.log_prob(latent) - problem.of_groups(latent).sum()
    np.testing.assert_allclose(own, loss, rtol=1e-9)


@pytest.mark.slow
def test_the_squares_of_the_groups_are_those_of_the_whole_jacobian(problem):
    q, key = problem.start, jax.random.key(1)
    latent = q.sample(jax.random.normal(key, (q.dim,)))
    jacobian = jax.jacfwd(problem.of_groups)(latent)
    probes = jnp.eye(q.hessian_probes().max() + 1)[:, q.hessian_probes()]
    products = -(probes @ jacobian.T) @ jacobian
    expected = q.bonnet_price(jacobian.sum(0), q.assemble_hessian(products))
    found = problem.squares(q, key)[1]
    for one, other in zip(
        found.coordinates().values(), expected.coordinates().values(), strict=True
    ):
        np.testing.assert_allclose(one, -other, rtol=1e-8, atol=1e-10)


def test_fixed_effects_without_random_ones_are_the_maximum(design):
    beta = design.without_effects(is_count=True)
    slope = design.X.T @ (design.y - np.exp(design.X @ beta)) - 0.01 * beta
    np.testing.assert_allclose(slope, 0.0, atol=1e-8)


@pytest.mark.slow
def test_the_command_writes_a_row_for_each_method_and_keeps_the_others(
    tmp_path, monkeypatch, design
):
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    monkeypatch.setattr(pages, "pages", list)
    monkeypatch.setattr(data, "load", lambda *_: design)
    monkeypatch.setattr(tan_table11, "USUAL_DRAWS", 20)
    options = ["", "--data-dir", ".", "--models", "epilepsy2", "--iterations", "300"]
    with enable_x64(True):
        for method in ("Snngm", "PGA"):
            monkeypatch.setattr("sys.argv", [*options, "--rows", "GVA", "--methods", method])
            tan_table11.main()
    rows = pages.read("tan_table11.csv")
    assert [row["method"] for row in rows] == ["PGA", "Snngm"]  # in the table's order
    assert all(np.isfinite(float(row["bound"])) for row in rows)
    assert {"100", "200", "300"} <= pages.read("tan_figure10.csv")[0].keys()
    assert (tmp_path / "tan_table11.png").exists()
    assert (tmp_path / "tan_figure10.png").exists()
