"""What is refused or told of before anything is compiled: data that no parameters explain."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests import models
from tests.ppl import load


def observing(ppl, data, covers=False):
    """A function of the name of a distribution: data of it, and a latent."""
    data = ppl.array(data)

    def of(name):
        def model(x=None):
            a = ppl.sample("a", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
            made = {
                "Normal": lambda: ppl.dist.Normal(a, 1.0),
                "Poisson": lambda: ppl.dist.Poisson(a),
                "Gamma": lambda: ppl.dist.Gamma(a, 1.0),
                "Categorical": lambda: ppl.dist.Categorical(a * ppl.np.ones(3)),
                "Uniform": lambda: ppl.dist.Uniform(ppl.array(0.0), a),
            }[name]()
            if covers:
                made = made.mask(ppl.np.isfinite(data) & (data >= 0))
            with ppl.plate("rows", 3):
                ppl.sample("y", made, obs=data)

        return model

    return of


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("Normal", [1.0, np.inf, 2.0], r"not in its support, Real.*, at 1 of 3 .* \[1\], inf"),
        ("Poisson", [1.0, 2.0, -2.0], r"not in its support, Integer.*, at 1 of 3 .* \[2\], -2"),
        ("Gamma", [-1.0, -2.0, 3.0], r"not in its support, .*, at 2 of 3 .* \[0\], -1"),
        ("Categorical", [0, 1, 3], r"not in its support, IntegerInterval.*, at 1 of 3 .* \[2\], 3"),
    ],
)
def test_data_that_no_parameters_explain_are_refused_at_once(ppl, name, data, words):
    with pytest.raises(ValueError, match=f"Observed site .*{words}.*where its density is zero"):
        ppl.fit(observing(ppl, data)(name))


@pytest.mark.parametrize(("name", "covers"), [("Uniform", False), ("Poisson", True)])
def test_data_that_others_or_a_mask_explain_are_let_through(ppl, name, covers):
    package = __import__(f"{ppl.package.__name__}.inference.first_look", fromlist=["look"])
    data = [1.0, 50.0, 2.0] if name == "Uniform" else [1.0, -2.0, 2.0]
    assert package.look(observing(ppl, data, covers)(name), (), {}).odd == {}


def linear(ppl):
    def model(x, y=None):
        b = ppl.sample("b", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(b * x, 1.0).to_event(1), obs=y)

    return model


def notes(ppl, *args):
    with pytest.raises((TypeError, ValueError, RuntimeError)) as told:
        ppl.fit(linear(ppl), *args)
    return " ".join(getattr(told.value, "__notes__", ())) + str(told.value)


def test_arguments_that_are_to_blame_are_noted(ppl):
    y = ppl.array([1.0, 2.0])
    assert "argument 0 of the model holds NaN or infinite numbers at 1 of 2 places" in notes(
        ppl, ppl.array([1.0, np.inf]), y
    )
    assert "argument 0 is of type generator" in notes(ppl, (x for x in [1.0, 2.0]), y)
    other = pytest.importorskip("torch" if ppl.is_numpyro else "jax.numpy")
    assert "argument 0 is of type" in notes(ppl, other.ones(2), y)


def test_one_batch_in_the_place_of_many_is_told(ppl):
    x, y = ppl.array([[1.0], [2.0]]), ppl.array([1.0, 2.0])
    with pytest.raises(TypeError, match=r"got one batch, it seems: write \[\(X1, y1\), \(X2, y2"):
        ppl.fit(linear(ppl), batches=(x, y))


def step(ppl, model, *args):
    ppl.forget()
    run = ppl.infer.SVI(model, ppl.guide(model), ppl.optimiser(), ppl.elbo())
    if ppl.is_numpyro:
        import jax

        return run.init(jax.random.key(0), *args)
    return run.step(*args)


def test_a_loop_that_learns_the_prior_is_warned_of(ppl):
    def model(x, y=None):
        ppl.lib.deterministic("twice", 2.0 * x)  # which is no data
        linear(ppl)(x, y)

    words = r"sites \('b', 'y'\) are latent, so that this SVI learns the prior. Was the response"
    with pytest.warns(UserWarning, match=words):
        step(ppl, model, ppl.array([1.0]))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*learns the prior")
        step(ppl, models.location(ppl), ppl.array([1.0, 2.0]))


# -- NumPyro alone ---------------------------------------------------------------------


def by_group(ppl):
    def model(group, y):
        u = ppl.sample("u", ppl.dist.Normal(ppl.np.zeros(3), 1.0).to_event(1))
        ppl.sample("y", ppl.dist.Normal(u[group], 1.0).to_event(1), obs=y)

    return model


def test_an_index_beyond_the_end_of_an_array_is_told_numpyro(numpyro_backend):
    from numpyro_ngvi.inference.first_look import look

    ppl = load("numpyro")
    y = np.zeros(4)
    assert look(by_group(ppl), (np.array([0, 1, 2, 0]), y), {}).beyond == ""
    found = look(by_group(ppl), (np.array([0, 1, 2, 3]), y), {}).beyond
    assert "index 3 is out of bounds for axis 0 with size 3" in found
    with pytest.warns(UserWarning, match="beyond the end of an array .*index 3 .*from one?"):
        ppl.fit(by_group(ppl), np.array([0, 1, 2, 3]), y, max_steps=1, effort="quick")


def test_how_a_distribution_draws_is_no_index_of_the_models_numpyro(numpyro_backend):
    """That of Cholesky factors of correlations indexes beyond an array's end, and means it."""
    from numpyro_ngvi.inference.first_look import look

    ppl = load("numpyro")

    def model(group, y):
        factor = ppl.sample("factor", ppl.dist.LKJCholesky(2, 1.0))
        with ppl.plate("groups", 3):
            u = ppl.sample("u", ppl.dist.MultivariateNormal(ppl.np.zeros(2), scale_tril=factor))
        ppl.sample("y", ppl.dist.Normal(u[group, 0], 1.0).to_event(1), obs=y)

    assert look(model, (np.array([0, 1, 2, 0]), np.zeros(4)), {}).beyond == ""
    assert "index 3" in look(model, (np.array([0, 1, 2, 3]), np.zeros(4)), {}).beyond


def test_a_fit_inside_jit_is_refused_where_the_data_are_around_it_numpyro(numpyro_backend):
    import jax

    ppl = load("numpyro")
    with pytest.raises(TypeError, match="fit decides on numbers as it goes, and jax.jit"):
        jax.jit(lambda z: ppl.fit(models.location(ppl), ppl.array([1.0])).bound + z)(1.0)


def test_arguments_of_another_precision_are_noted_pyro(pyro_backend):
    import torch

    ppl = load("pyro")
    with ppl.precision("float32"):

        def model(x, y):
            b = ppl.sample("b", ppl.dist.Normal(torch.zeros(1), 1.0).to_event(1))
            ppl.sample("y", ppl.dist.Normal(x @ b, 1.0).to_event(1), obs=y)

        with pytest.raises(RuntimeError) as told:
            ppl.fit(model, torch.ones(2, 1).double(), torch.ones(2).double())
    assert "argument 0 is torch.float64, argument 1 is torch.float64" in told.value.__notes__[0]
