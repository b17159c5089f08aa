"""A guide under ``SVI`` warns of minibatches that its family, rule or plate is wrong for."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import ngvi
from tests.ppl import PPLS, load

X = np.random.default_rng(0).normal(size=(64, 3))


@pytest.fixture(params=PPLS)
def ppl(request):
    pytest.importorskip(request.param)
    return load(request.param)


def latent(ppl, name, *shape):
    zeros = ppl.array(np.zeros(shape))
    return ppl.sample(name, ppl.dist.Normal(zeros, 1.0).to_event(len(shape)))


def network(ppl, is_hidden, noise=1.0):
    def model(x, y):
        w, b = latent(ppl, "w", 3, 4), latent(ppl, "b", 4)
        out = (x @ w + b) ** 2 @ latent(ppl, "v", 4) if is_hidden else (x @ w + b)[:, 0]
        with ppl.plate("rows", 64, subsample_size=len(x)):
            ppl.sample("y", ppl.dist.Normal(out, noise), obs=y)

    return model


def regression(ppl):
    def model(x, y):
        w = latent(ppl, "w", 3)
        with ppl.plate("rows", len(x)):
            ppl.sample("y", ppl.dist.Normal(x @ w, 1.0), obs=y)

    return model


def plain(ppl, model, guide, optim=None):
    options = {}
    if ppl.is_numpyro:
        import jax

        options["rng_key"] = jax.random.key(0)
    ppl.forget()
    package = ppl.package
    return package.SVI(model, guide, optim or package.BLR(), package.NaturalELBO(), **options)


def said(ppl, model, sizes, *options):
    """What steps on minibatches of these sizes warn of."""
    svi = plain(ppl, model, ppl.package.NaturalGaussianGuide(model, *options))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in sizes:
            svi.step(ppl.array(X[:size]), ppl.array(X[:size, 0]))
    return [str(one.message) for one in caught if one.category is ngvi.UsageWarning]


@pytest.mark.fast_in_numpyro
def test_auto_is_named_for_minibatches_of_a_network_and_nothing_else(ppl):
    words = said(ppl, network(ppl, True), [16])
    assert len(words) == 1
    assert "Write NaturalGaussianGuide(model, 'diagonal', init_scale=0.05)" in words[0]
    assert not said(ppl, network(ppl, True), [64])
    assert not said(ppl, network(ppl, False), [16])
    assert not said(ppl, network(ppl, True), [16, 9], "diagonal")


@pytest.mark.fast_in_numpyro
def test_a_plate_without_its_size_is_named_once_when_its_rows_change(ppl):
    words = said(ppl, regression(ppl), [16, 16, 10, 16, 7])
    assert len(words) == 1
    assert "Plate 'rows' has 10 rows and had 16" in words[0]
    assert "subsample_size=len(x)" in words[0]
    assert not said(ppl, regression(ppl), [16, 16])


@pytest.mark.fast_in_numpyro
def test_a_loss_that_explodes_is_said_and_one_that_falls_is_not(ppl):
    model, rng = network(ppl, True, 0.02), np.random.default_rng(0)
    for step_size, is_said in ((0.5, True), (None, False)):
        optim = ppl.optimiser("BLR", step_size)
        svi = plain(ppl, model, ppl.package.NaturalGaussianGuide(model, "full"), optim)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(12):
                rows = rng.integers(0, 64, 16)
                loss = svi.step(ppl.array(X[rows]), ppl.array(X[rows, 0]))
                float(loss)
        words = [str(one.message) for one in caught if "explodes" in str(one.message)]
        assert len(words) == is_said
