"""What users' code takes for granted: whatever stock guides and NUTS run, ``fit`` runs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import special

from tests.ppl import SLOW_IN_NUMPYRO


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "as NUTS takes it"])
def test_fit_sums_out_discrete_latents_beside_latents_in_a_plate(ppl, marked):
    y = np.array([-3.5, -2.0, 3.0, 2.5, 4.0])

    def mixture(y):
        centre = ppl.array([-3.0, 3.0])
        with ppl.plate("components", 2):
            loc = ppl.sample("loc", ppl.dist.Normal(centre, 1.0))
        with ppl.plate("data", len(y)):
            infer = {"enumerate": "parallel"} if marked else {}
            which = ppl.sample("which", ppl.dist.Bernoulli(ppl.array(0.5)), infer=infer)
            mean = ppl.np.where(which == 1, loc[..., 1], loc[..., 0])
            ppl.sample("y", ppl.dist.Normal(mean, 1.0), obs=y)

    grid = np.linspace(-8, 8, 321)
    normal = lambda x, mean: np.exp(-0.5 * (x - mean) ** 2) / np.sqrt(2 * np.pi)  # noqa: E731
    of_loc = normal(y[:, None], grid)
    of_pairs = 0.5 * (of_loc[:, :, None] + of_loc[:, None, :])
    joint = of_pairs.prod(0) * normal(grid, -3.0)[:, None] * normal(grid, 3.0)
    evidence = np.log(joint.sum() * (grid[1] - grid[0]) ** 2)
    result = ppl.fit(mixture, ppl.array(y), effort="quick")
    assert result.converged
    assert -0.05 < result.bound - evidence < 0.02
    assert result.sample(3)["loc"].shape == (3, 2)


@dataclass
class Waits:
    """A model that is a method of an object."""

    ppl: Any

    def model(self, y):
        ppl = self.ppl
        start = ppl.sample("start", ppl.dist.Uniform(ppl.array(0.0), float(y.min())))
        ppl.deterministic("end", start + float(y.max()))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(start, 2.0), obs=y)


def test_a_model_may_be_a_method_that_takes_plain_numbers_of_its_data(ppl):
    y = np.array([3.0, 4.0, 5.5, 6.0, 3.5])
    # NumPyro runs such a model on numpy's data.
    given = y if ppl.is_numpyro else ppl.array(y)
    fitted = ppl.fit(Waits(ppl).model, given, effort="quick")
    assert fitted.converged and 0.0 < fitted.summary().loc["start", "mean"] < 3.0
    assert fitted.predictive(num_samples=3)["end"].shape == (3,)
    assert fitted.predictive(num_samples=5)["y"].shape == (5, 5)
    assert np.isfinite(fitted.to_arviz().log_likelihood["y"].values).all()


@SLOW_IN_NUMPYRO
def test_a_model_without_continuous_latents_is_fitted_by_maximum_likelihood(ppl):
    y = np.array([-5.5, -4.5, 5.0, 5.5, 6.0])

    def mixture(y):
        centres = ppl.param("centres", ppl.array([-1.0, 1.0]))
        with ppl.plate("data", len(y)):
            which = ppl.sample("which", ppl.dist.Bernoulli(ppl.array(0.5)))
            at = centres[which if ppl.is_numpyro else which.long()]
            ppl.sample("y", ppl.dist.Normal(at, 1.0), obs=y)

    result = ppl.fit(mixture, ppl.array(y), effort="quick")
    centres = ppl.numpy(result.params["centres"])
    np.testing.assert_allclose(centres, [-5.0, 5.5], atol=0.2)
    density = np.exp(-0.5 * (y - centres[:, None]) ** 2) / np.sqrt(2 * np.pi)
    assert result.converged
    assert abs(result.bound - np.log(density.mean(0)).sum()) < 1e-3
    assert result.diagnostics.pareto_k <= 0.7
    with pytest.raises(RuntimeError, match="no latent variables"):  # and nothing to learn
        ppl.fit(
            lambda y: ppl.sample("y", ppl.dist.Normal(ppl.array(0.0), 1.0), obs=y), ppl.array(0.0)
        )


@SLOW_IN_NUMPYRO
def test_minibatches_visit_local_latents(ppl):
    """With ``create_plates``, as stock guides take it; three of four rows fill no second batch."""
    y = np.array([1.0, 3.0, -1.0, 2.0])
    plates = lambda y: ppl.plate("data", len(y), subsample_size=3)  # noqa: E731

    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 2.0))
        with plates(y) as index:
            x = ppl.sample("x", ppl.dist.Normal(mu, 1.0))
            ppl.sample("y", ppl.dist.Normal(x, 0.5), obs=y[index])

    guide = ppl.guide(model, create_plates=plates)
    result = ppl.fit(model, ppl.array(y), guide=guide, effort="quick")
    assert result.converged
    prior = np.diag([4.0, 1.0, 1.0, 1.0, 1.0])  # of mu and of x - mu
    design = np.eye(5)
    design[1:, 0] = 1.0
    covariance = design @ prior @ design.T
    covariance = np.linalg.inv(np.linalg.inv(covariance) + np.diag([0.0, 4.0, 4.0, 4.0, 4.0]))
    mean = covariance @ (4.0 * np.append(0.0, y))
    ratio = np.linalg.solve(covariance, ppl.numpy(result.family.covariance_matrix))
    shift = ppl.numpy(result.family.mean) - mean
    gap = np.trace(ratio) - 5 - np.linalg.slogdet(ratio)[1]
    assert 0.5 * (gap + shift @ np.linalg.solve(covariance, shift)) < 0.05


@SLOW_IN_NUMPYRO
def test_improper_priors_have_a_structure_and_a_predictive_distribution(ppl):
    """And what is computed in a plate has the plate's shape."""
    constraints = ppl.dist.constraints

    def model(y):
        mu = ppl.sample("mu", ppl.dist.ImproperUniform(constraints.real, (), ()))
        with ppl.plate("data", len(y)):
            x = ppl.sample("x", ppl.dist.Normal(mu, 1.0))
            ppl.deterministic("twice", 2.0 * x)
            ppl.sample("y", ppl.dist.Normal(x, 0.5), obs=y)

    y = np.array([1.0, 3.0, -1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ppl.fit(model, ppl.array(y), family="sparse_precision", effort="quick")
    assert result.converged
    mean = ppl.numpy(result.family.mean)
    np.testing.assert_allclose(mean[0], y.mean(), atol=1e-4)
    draws = result.predictive(num_samples=4)
    assert draws["y"].shape == draws["twice"].shape == (4, 3)


def test_supports_that_depend_on_other_latents_are_those_of_the_draw(ppl):
    """``b ~ Uniform(0, 1 - a)``: the bound, the draws and the quantiles."""

    def model(k):
        a = ppl.sample("a", ppl.dist.Uniform(ppl.array(0.0), 1.0))
        b = ppl.sample("b", ppl.dist.Uniform(ppl.array(0.0), 1.0 - a))
        log_probs = ppl.np.log(ppl.np.stack([a, b, 1.0 - a - b]))
        ppl.factor("likelihood", ppl.np.sum(k * log_probs))

    # p(a) = 1, p(b | a) = 1 / (1 - a): the integral of a^70 b^20 (1 - a - b)^10 / (1 - a).
    evidence = special.betaln(71, 31) + special.betaln(21, 11)
    result = ppl.fit(model, ppl.array([70.0, 20.0, 10.0]), effort="quick")
    assert result.converged
    assert -0.05 < result.bound - evidence < 0.02
    draws = {site: ppl.numpy(value) for site, value in result.sample(500).items()}
    assert (draws["a"] + draws["b"]).max() < 1.0
    assert draws["b"].mean() == pytest.approx(0.2, abs=0.01)
    of_params = (result.params,) if ppl.is_numpyro else ()
    median = {site: float(value) for site, value in result.guide.median(*of_params).items()}
    assert median["b"] / (1.0 - median["a"]) == pytest.approx(2 / 3, abs=0.02)


@pytest.mark.fast_in_numpyro
def test_a_start_where_parameters_of_a_distribution_are_nan_is_one_start_fewer(ppl):
    """Both PPLs refuse them, at zero; a model that they refuse anywhere raises as it does alone."""

    def model(scale):
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(x * x / x, scale), obs=ppl.array(2.0))

    result = ppl.fit(model, 1.0, effort="quick")
    assert result.converged
    assert float(result.family.mean[0]) == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(ValueError, match="scale"):
        ppl.fit(model, -1.0)


def test_numpy_data_may_be_indexed_by_a_plate_in_whatever_the_result_does(numpyro_backend):
    import numpyro
    import numpyro.distributions as dist

    from numpyro_ngvi import fit

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        numpyro.deterministic("twice", 2.0 * mu)
        with numpyro.plate("data", 6, subsample_size=3) as index:
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[index])

    result = fit(model, np.arange(6.0), progress_bar=False, effort="quick")
    assert result.sample(2)["twice"].shape == (2,)
    assert result.predictive(num_samples=2)["y"].shape == (2, 3)


def test_data_may_be_impossible_for_the_discrete_latents_that_a_set_up_draws(ppl):
    """Such as labels of annotators who either know or guess."""
    labels = np.arange(40) % 2

    def model():
        ppl.sample("knows", ppl.dist.Beta(ppl.array(2.0), ppl.array(2.0)))
        with ppl.plate("items", 40):
            infer = {"enumerate": "parallel"}
            truth = ppl.sample("truth", ppl.dist.Bernoulli(ppl.array(0.5)), infer=infer)
            ppl.sample("label", ppl.dist.Bernoulli(truth * ppl.array(1.0)), obs=ppl.array(labels))

    ppl.set_up(ppl.guide(model))


def test_a_result_is_that_of_the_weights_that_its_fit_has_found(pyro_backend, recwarn):
    import pyro
    import pyro.distributions as dist
    import torch

    class Line(pyro.nn.PyroModule):
        def __init__(self):
            super().__init__()
            self.log_noise = torch.nn.Parameter(torch.tensor(0.0))

        def forward(self, x, y=None):
            slope = pyro.sample("slope", dist.Normal(0.0, 5.0))
            with pyro.plate("rows", len(x)):
                return pyro.sample("y", dist.Normal(slope * x, self.log_noise.exp()), obs=y)

    x = torch.linspace(-1.0, 1.0, 20)
    line = Line()
    fitted = pyro_backend.fit(line, x, 2 * x + 0.3 * torch.sin(9 * x), effort="quick")
    with torch.no_grad():
        line.log_noise.fill_(3.0)
    assert fitted.diagnostics.pareto_k < 0.3
    assert fitted.predictive(x)["y"].std(0).max() < 2
    assert float(line.log_noise) == 3.0
    assert not [w for w in recwarn if "require gradients" in str(w.message)]


def test_a_log_density_stands_in_the_place_of_a_model(ppl, tmp_path):
    precision = np.array([[2.0, 0.9], [0.9, 1.0]])

    def log_density(theta):
        return -0.5 * ppl.np.sum(theta * (ppl.array(precision) @ theta))

    result = ppl.package.fit_density(log_density, 2, progress_bar=False)
    assert result.verdict == "certified"
    covariance = ppl.numpy(result.family.covariance_matrix)
    np.testing.assert_allclose(covariance, np.linalg.inv(precision), rtol=1e-6)
    assert result.sample(7)["theta"].shape == (7, 2)
    assert list(result.summary().index) == ["theta[0]", "theta[1]"]
    result.save(tmp_path / "density.ngvi")
    again = type(result).load(tmp_path / "density.ngvi", result.model)
    assert again.bound == result.bound
    evidence = np.log(2 * np.pi) - 0.5 * np.log(np.linalg.det(precision))
    assert result.log_evidence.value == pytest.approx(evidence, abs=1e-3)
    assert result.log_evidence.is_reliable and "nats, reliable" in repr(result.log_evidence)
    with pytest.raises(ValueError, match="no rows: its likelihood is in the factor"):
        result.loo()


@pytest.mark.filterwarnings("ignore:fit has not converged")
def test_no_draws_of_a_posterior_without_an_end_are_accurate(ppl):
    result = ppl.package.fit_density(lambda theta: theta @ theta, 2, progress_bar=False)
    assert not result.converged and result.diagnostics.verdict == "doubtful"
    assert "draws doubtful" in repr(result) and "runs away without limit" in repr(result)
    with pytest.raises(ValueError, match="here the posterior runs away"):
        result.nuts()


@pytest.mark.fast_in_numpyro
def test_chains_of_a_fit_go_to_arviz_and_to_a_file_and_what_went_of_sample_warns(ppl, tmp_path):
    def model(y):
        mean = ppl.sample("mean", ppl.dist.Normal(0.0, 100.0))
        ppl.sample("y", ppl.dist.Normal(mean, 1.0).expand([3]).to_event(1), obs=y)

    result = ppl.fit(model, ppl.array([1.0, 2.0, 3.0]), draws="nuts")
    assert result.diagnostics.verdict == "accurate"
    data = result.diagnostics.chains.to_arviz(prior=False)
    assert data.posterior["mean"].std() == pytest.approx(3**-0.5, rel=0.15)
    result.save(tmp_path / "file")
    again, chains = type(result).load(tmp_path / "file", model), result.diagnostics.chains
    kept = again.diagnostics.chains
    assert repr(kept) == repr(chains) and kept.r_hat == chains.r_hat
    np.testing.assert_array_equal(kept.draws["mean"], chains.draws["mean"])
    np.testing.assert_array_equal(again.diagnostics.latents, result.diagnostics.latents)
    for name, values in chains.sample_stats.items():
        np.testing.assert_array_equal(kept.sample_stats[name], values)
    with pytest.warns(UserWarning, match="with_draws\\('gaussian'\\)"):
        assert len(result.sample(7, corrected=False)["mean"]) == 7
