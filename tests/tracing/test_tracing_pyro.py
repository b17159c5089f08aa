"""The log density is what Pyro's own ELBOs compute, whichever way draws share a run."""

from __future__ import annotations

import pytest

from tests import models
from tests.models import SUBSAMPLE
from tests.ppl import load

pytest.importorskip("pyro")

import pyro
import pyro.distributions as dist
import pyro.infer
import torch
from pyro import poutine
from pyro.infer.reparam import LocScaleReparam

from pyro_ngvi.tracing import (
    LogDensity,
    choose_particles,
    inspect,
)
from pyro_ngvi.tracing.minibatch import MinibatchMessenger

WAYS = ["loop", "vmap"]


@pytest.fixture(autouse=True)
def _float64(pyro_backend):
    return pyro_backend


def arguments():
    return tuple(map(torch.as_tensor, models.data()))


def set_up(model, args, kwargs, particles="loop", guide=None):
    from pyro_ngvi import NaturalGaussianGuide

    guide = NaturalGaussianGuide(model, init_scale=0.3) if guide is None else guide
    guide(*args, **kwargs)
    structure = inspect(model, guide, args, kwargs)
    structure.particles = particles
    return guide, LogDensity(model, guide, args, kwargs, structure)


def stock_term(elbo, model, guide, density, args, kwargs, seed):
    """The draw of a stock ELBO and its ``log p``, for a minibatch that ``density`` then has."""
    (site,) = density.posteriors
    pyro.set_rng_seed(seed)
    trace = poutine.trace(guide).get_trace(*args, **kwargs)
    draw = trace.nodes[site]["value"].detach()
    log_q = trace.nodes[site]["fn"].log_prob(draw).detach()
    pyro.set_rng_seed(seed)
    density.minibatch = MinibatchMessenger()
    with density.minibatch.recording():
        loss = elbo.loss(model, guide, *args, **kwargs)
    return draw, log_q - loss


@pytest.mark.parametrize("particles", WAYS)
@pytest.mark.parametrize("subsample_size", [None, SUBSAMPLE], ids=["full batch", "subsampled"])
@pytest.mark.parametrize("name", ["hierarchy", "mixture"])
def test_the_log_density_is_the_model_term_of_the_stock_elbo(name, subsample_size, particles):
    model, args = getattr(models, name)(load("pyro")), arguments()
    kwargs = {"subsample_size": subsample_size}
    elbo = pyro.infer.Trace_ELBO()
    if name == "mixture":
        elbo = pyro.infer.TraceEnum_ELBO(max_plate_nesting=1)
    guide, density = set_up(model, args, kwargs, particles)
    for seed in range(3):
        draw, expected = stock_term(elbo, model, guide, density, args, kwargs, seed)
        other = draw + 0.1
        (site,) = density.posteriors
        actual = density({site: torch.stack([other, draw])})
        assert float(actual[1]) == pytest.approx(float(expected), rel=1e-12, abs=1e-8)
        assert actual[0] != actual[1]


def fills_what_is_missing(x):
    data = torch.tensor([1.0, torch.nan, 0.5, torch.nan])
    filled = data.clone()
    filled[data.isnan()] = x
    return dist.Normal(filled.cumsum(0), 1.0).log_prob(torch.ones(4)).sum()


def writes_a_path(x):
    path = torch.zeros(3)
    for t in range(1, 3):
        path[t] = t + x[t - 1]
    return dist.Normal(path, 1.0).log_prob(torch.ones(3)).sum()


def has_ordered_cuts(x):
    cuts = torch.stack([x[0], x[0] + x[1].exp()])
    return dist.OrderedLogistic(torch.zeros(2), cuts).log_prob(torch.tensor([0, 2])).sum()


@pytest.mark.parametrize("likelihood", [fills_what_is_missing, writes_a_path, has_ordered_cuts])
def test_draws_share_a_run_that_writes_into_a_tensor_without_batches(likelihood):
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("likelihood", likelihood(x))

    _, density = set_up(model, (), {})
    (site,) = density.posteriors
    latents = {site: torch.randn(4, 2)}
    expected = density(latents)
    choose_particles(density, latents)
    assert density.facts.particles == "writing vmap"
    assert torch.allclose(density(latents), expected, rtol=1e-12)


def test_a_model_that_cannot_share_a_run_is_looped_over():
    def model():
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        scale = 1.0 + float(x[0].detach()) ** 2  # one number, for one draw
        pyro.sample("y", dist.Normal(x.sum(-1), scale), obs=torch.tensor(1.0))

    _, density = set_up(model, (), {})
    (site,) = density.posteriors
    choose_particles(density, {site: torch.randn(4, 2)})
    assert density.facts.particles == "loop"
    assert density({site: torch.randn(4, 2)}).shape == (4,)


def test_a_reparametrization_inside_of_a_plate_has_all_elements():
    """It asks for a start before the plate expands the site, of which stock guides take one."""

    def model():
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 3), poutine.reparam(config={"x": LocScaleReparam(0.0)}):
            x = pyro.sample("x", dist.Normal(mu, 2.0))
            pyro.sample("y", dist.Normal(x, 1.0), obs=torch.zeros(3))

    guide, density = set_up(model, (), {})
    assert {site.name: site.shape for site in guide.sites} == {"mu": (), "x_decentered": (3,)}
    (site,) = density.posteriors
    theta = torch.tensor([[0.4, -0.7, 0.1, 0.3]])
    expected = dist.Normal(0.0, 1.0).log_prob(theta).sum()
    expected += dist.Normal(0.4 + 2.0 * theta[0, 1:], 1.0).log_prob(torch.tensor(0.0)).sum()
    assert torch.allclose(density({site: theta}), expected)


def test_latents_may_stand_in_a_sequential_plate():
    """Which stock guides refuse, and NUTS takes."""

    def model():
        for i in pyro.plate("rows", 2):
            x = pyro.sample(f"x{i}", dist.Normal(0.0, 1.0))
            pyro.sample(f"y{i}", dist.Normal(x, 0.5), obs=torch.tensor(1.0))

    guide, density = set_up(model, (), {})
    assert [site.name for site in guide.sites] == ["x0", "x1"]
    (site,) = density.posteriors
    theta = torch.tensor([[0.4, -0.7]])
    of_data = dist.Normal(theta, 0.5).log_prob(torch.tensor(1.0)).sum()
    assert torch.allclose(
        density({site: theta}), of_data + dist.Normal(0.0, 1.0).log_prob(theta).sum()
    )


def test_all_evaluations_of_one_density_see_the_same_minibatch():
    seen = []

    def model(y):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y), subsample_size=3) as index:
            seen.append(index.tolist())
            pyro.sample("y", dist.Normal(x, 1.0), obs=y[index])

    args = (torch.arange(50.0),)
    guide, density = set_up(model, args, {}, "vmap")
    (site,) = density.posteriors
    del seen[:]
    draw = torch.zeros(2, 1)
    assert torch.equal(density({site: draw}), density({site: draw}))
    density.facts.particles = "loop"
    density({site: draw})
    assert len({tuple(index) for index in seen}) == 1
    assert not torch.equal(
        density({site: draw}), LogDensity(model, guide, args, {}, density.facts)({site: draw})
    )


@pytest.mark.parametrize("particles", WAYS)
def test_model_parameters_are_live(particles):
    def model(y):
        scale = pyro.param("scale", torch.tensor(2.0), dist.constraints.positive)
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(x, scale), obs=y)

    y = torch.tensor([1.0, 3.0])
    _, density = set_up(model, (y,), {}, particles)
    (site,) = density.posteriors
    draws = torch.tensor([[0.5], [-1.0]])
    density({site: draws}).sum().backward()
    leaf = pyro.param("scale").unconstrained()
    # d/d(log scale) of -log(scale) - r^2 / (2 scale^2), over both data and draws.
    expected = ((y - draws).square() / 4.0 - 1.0).sum()
    assert float(leaf.grad) == pytest.approx(float(expected))
