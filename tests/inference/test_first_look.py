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
    assert "argument 0 is of type dict" in (told := notes(ppl, {"x": y, "y": y}))
    assert "NaN" not in told + notes(ppl, None, y)
    other = pytest.importorskip("torch" if ppl.is_numpyro else "jax.numpy")
    assert "argument 0 is of type" in notes(ppl, other.ones(2), y)


def test_one_batch_in_the_place_of_many_is_told(ppl):
    x, y = ppl.array([[1.0], [2.0]]), ppl.array([1.0, 2.0])
    with pytest.raises(TypeError, match=r"got one batch, it seems: write \[\(X1, y1\), \(X2, y2"):
        ppl.fit(linear(ppl), batches=(x, y))


def look(ppl, model, *args):
    return ppl.module("inference.first_look").look(model, args, {})


@pytest.mark.parametrize("kind", ["data", "noise", "plate", "none"])
def test_a_model_that_is_another_one_at_each_call_is_refused(ppl, kind):
    rng, calls = np.random.default_rng(0), []

    def model(x, y):
        b = ppl.sample("b", ppl.dist.Normal(ppl.array(0.0), 1.0))
        calls.append(x)  # which is no fault
        noise = ppl.array(rng.normal(size=4)) if kind == "noise" else 0.0
        few = 2 if kind == "plate" else None  # drawn anew by each call, and known
        with ppl.plate("rows", 4, subsample_size=few) as index:
            rows = ppl.array(rng.integers(0, 4, 4), "int64") if kind == "data" else index
            ppl.sample("y", ppl.dist.Normal(b * x[rows], 1.0 + noise**2), obs=y[rows])

    data = ppl.array([1.0, 2.0, 3.0, 4.0]), ppl.array([1.0, 2.0, 3.0, 5.0])
    assert bool(look(ppl, model, *data).unrepeatable) == (kind in ("data", "noise"))
    if kind == "data":
        with pytest.raises(ValueError, match=r"another one at each call, as .*Draw data before"):
            ppl.fit(model, *data)


def test_a_latent_that_a_handler_hides_is_drawn_anew_and_found(ppl):
    x = ppl.array([1.0, 2.0])
    for hidden in ("b", "nothing"):
        given = ppl.handlers.block(linear(ppl), hide=[hidden])
        assert bool(look(ppl, given, x, x).unrepeatable) == (hidden == "b")


@pytest.mark.parametrize("kind", ["torch's noise", "counter", "parameter"])
def test_what_a_model_draws_beside_its_sites_is_found_pyro(kind):
    import pyro
    import torch

    ppl, calls = load("pyro"), []

    def model():
        b = ppl.sample("b", ppl.dist.Normal(0.0, 1.0))
        calls.append(b)
        more = {
            "torch's noise": lambda: torch.nn.functional.dropout(b * torch.ones(30)),
            "counter": lambda: 0.1 * len(calls),
            "parameter": lambda: ppl.param("start", lambda: torch.randn(30)),
        }[kind]()
        ppl.sample("y", ppl.dist.Normal(b + more, torch.ones(30)).to_event(1), obs=torch.ones(30))

    assert look(ppl, model).unrepeatable == ("" if kind == "parameter" else "as at site 'y'")
    assert "start" not in pyro.get_param_store()


def test_handlers_that_name_no_site_are_warned_of(ppl):
    x, y = ppl.array([1.0, 2.0]), ppl.array([1.0, 2.0])
    condition = ppl.handlers.condition
    given = condition(condition(linear(ppl), data={"y": y}), data={"B": ppl.array(0.0)})
    assert look(ppl, given, x).unknown == {"B": "Handler condition"}
    reparam = pytest.importorskip(f"{ppl.lib.__name__}.infer.reparam").LocScaleReparam(0.0)
    given = ppl.handlers.reparam(given, config={"Y": reparam})
    assert look(ppl, given, x).unknown == {"B": "Handler condition", "Y": "Handler reparam"}
    with pytest.raises(TypeError, match="Handler condition .*dict.*, got list"):
        look(ppl, condition(linear(ppl), data=[y]), x)
    with pytest.warns(UserWarning, match="Handler condition has a value for 'B', which is.*'b' me"):
        ppl.fit(given, x, max_steps=1, effort="quick")


def test_a_covariate_that_repeats_the_data_is_warned_of(ppl):
    """Of shape ``(n, 1)`` beside data of ``(n,)``."""

    def model(x, y):
        b = ppl.sample("b", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(b * x, 1.0), obs=y)

    with pytest.warns(UserWarning, match=r"\(2,\) and a .* \(2, 2\).*counts several times"):
        ppl.call(ppl.guide(model), ppl.array([[1.0], [2.0]]), ppl.array([1.0, 2.0]))


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


@pytest.mark.parametrize("kind", ["number", "class", "torch's"])
def test_a_sample_statement_without_a_distribution_is_named_pyro(pyro_backend, kind):
    import torch

    ppl = load("pyro")
    fn = {
        "number": 0.5,
        "class": ppl.dist.Normal,
        "torch's": torch.distributions.Normal(torch.zeros(()), 1.0),
    }[kind]
    with pytest.raises(TypeError, match="Sample site 'b' has .*a distribution of pyro.distributi"):
        ppl.call(ppl.guide(lambda: ppl.sample("b", fn)))


def test_a_plate_without_a_number_of_elements_is_named(ppl):
    def model(y):
        with ppl.plate("rows", y):
            ppl.sample("b", ppl.dist.Normal(ppl.array(0.0), 1.0))

    with pytest.raises(TypeError, match=r"Plate 'rows' must .* len\(y\), got an array of shape"):
        ppl.call(ppl.guide(model), ppl.array([1.0, 2.0]))


def test_a_latent_that_only_some_runs_have_is_refused_pyro(pyro_backend):
    ppl = load("pyro")

    def model():
        b = ppl.sample("b", ppl.dist.Normal(0.0, 1.0))
        c = ppl.sample("c", ppl.dist.Normal(0.0, 1.0)) if b > 0.0 else b
        ppl.sample("y", ppl.dist.Normal(b + c, 1.0), obs=ppl.array(1.0))

    with pytest.raises(ValueError, match="Latent site 'c' .*: choose between them"):
        ppl.fit(model)


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
