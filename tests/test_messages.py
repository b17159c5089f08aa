"""A mistake gets a sentence that names the argument or the site, and the way out.

One table for both packages; ``tests/test_bad_input.py`` has what takes more than a line.
"""

from __future__ import annotations

import functools
import itertools
import threading
import warnings

import numpy as np
import pytest

from tests import models
from tests.ppl import load

Y = np.array([1.0, 2.0, 3.0])


@functools.cache
def fitted(name):
    """A result that the claims share."""
    ppl = load(name)
    return ppl.fit(models.location(ppl), ppl.array(Y))


def fit(ppl, model=None, *args, **options):
    return ppl.fit(model or models.location(ppl), *(args or (ppl.array(Y),)), **options)


def normal(ppl, name="mu", loc=0.0, scale=1.0):
    return ppl.sample(name, ppl.dist.Normal(ppl.array(loc), scale))


def observing(ppl, data, shape=(3,), event_dim=0):
    """A model whose data have a distribution of this shape."""

    def model():
        loc = normal(ppl) * ppl.array(np.ones(shape))
        ppl.sample("y", ppl.dist.Normal(loc, 1.0).to_event(event_dim), obs=data)

    return model


def other_model(ppl):
    return lambda y: normal(ppl, "theta")


def two_guides(ppl):
    first, second = (
        ppl.guide(ppl.handlers.block(two_latents(ppl), hide=[name])) for name in ("a", "b")
    )
    ppl.call(ppl.handlers.trace(lambda: (first(), second())))


def two_latents(ppl):
    return lambda: (normal(ppl, "a"), normal(ppl, "b"))


def before_the_first_call(ppl):
    guide = ppl.guide(models.location(ppl))
    guide.median(fitted(ppl.name).params)


def rule(ppl, name, **options):
    return ppl.optimiser(name, **options)


def options_of_the_other_package(ppl):
    ppl.package.BLR({"lr": 1.0} if ppl.is_numpyro else 0.1)


def traced(ppl):
    if ppl.is_numpyro:
        import jax

        return jax.vmap(lambda y: fit(ppl, None, y).bound)(ppl.array([Y]))
    import torch

    return torch.vmap(lambda y: fit(ppl, None, y).bound)(ppl.array([Y]))


def quantiles(ppl, levels):
    guide = fitted(ppl.name).guide
    return (
        guide.quantiles(fitted(ppl.name).params, levels)
        if ppl.is_numpyro
        else guide.quantiles(levels)
    )


def generator(ppl):
    def model(y):
        yield normal(ppl)

    return model


def coming_and_going(ppl, sites):
    """A step with as many data as there are latents, after one with a single datum."""

    def model(y):
        total = sum(normal(ppl, f"mu{i}") for i in range(len(y)))
        ppl.sample("y", ppl.dist.Normal(total, 1.0), obs=y[0])

    svi = ppl.svi(model, "diagonal", ppl.optimiser("Snngm"), ppl.elbo(), (Y[: sites[0]],))
    svi.step()
    svi.step(Y[: sites[1]])


def nan_beside_a_bad_scale(ppl):
    def model(x):
        ppl.sample("y", ppl.dist.Normal(normal(ppl), ppl.array(-1.0)), obs=ppl.array(0.0))

    fit(ppl, model, ppl.array([np.nan]))


MISTAKES = {
    # -- arguments of fit
    "family beside guide": (
        lambda ppl: fit(ppl, guide=ppl.guide(models.location(ppl)), family="diagonal"),
        "family= is ignored beside guide=.*Give it to the guide",
    ),
    "init_loc_fn beside guide": (
        lambda ppl: fit(ppl, guide=ppl.guide(models.location(ppl)), init_loc_fn=ppl.start_at()),
        "init_loc_fn= is ignored beside guide=",
    ),
    "family beside init": (
        lambda ppl: fit(ppl, init=fitted(ppl.name), family="diagonal"),
        "family='diagonal' is ignored beside init=.*'covariance_cholesky'.*Leave family= out",
    ),
    "init of another model": (
        lambda ppl: fit(ppl, other_model(ppl), init=fitted(ppl.name)),
        "init= is the result of another model.*'theta' is missing there",
    ),
    "init that is no result": (
        lambda ppl: fit(ppl, init=3),
        "init must be the result.*init_loc_fn",
    ),
    "a guide of another model": (
        lambda ppl: fit(ppl, guide=ppl.guide(other_model(ppl))),
        "latent site 'theta'.* missing|Latent site 'theta' is missing",
    ),
    "a guide that is a name": (lambda ppl: fit(ppl, guide="diagonal"), "guide must be.*family="),
    "a flag that is a word": (
        lambda ppl: fit(ppl, allow_prior="no"),
        "allow_prior must be True or False, got 'no'",
    ),
    "an infinite tolerance": (lambda ppl: fit(ppl, tolerance=np.inf), "tolerance must be .*finite"),
    "a tolerance that is a word": (lambda ppl: fit(ppl, tolerance="0.1"), "tolerance must be"),
    "an unknown curvature": (lambda ppl: fit(ppl, curvature="exact"), "curvature='exact'"),
    "an unknown family": (lambda ppl: fit(ppl, family="round"), "Unknown family='round'"),
    "a guide without a Gaussian of ours": (
        lambda ppl: fit(ppl, guide=ppl.autoguide.AutoDelta(models.location(ppl))),
        "NaturalGaussianGuide",
    ),
    "locals by modes in a word": (
        lambda ppl: fit(ppl, reparametrize="always"),
        "reparametrize must be 'auto', True or False, got 'always'",
    ),
    "locals by modes beside family": (
        lambda ppl: fit(ppl, reparametrize=True, family="diagonal"),
        "True is ignored beside family=",
    ),
    "no start": (lambda ppl: fit(ppl, init_loc_fn=0.0), "init_loc_fn must be .*init_to_value"),
    "no plates": (
        lambda ppl: fit(ppl, create_plates=3),
        r"create_plates= of the guide: write guide=",
    ),
    "a traced fit": (traced, "fit decides on numbers.*outside"),
    # -- what is no model
    "no model": (lambda ppl: ppl.fit(None), "model must be a function.*got None"),
    "a distribution": (
        lambda ppl: ppl.fit(ppl.dist.Normal(ppl.array(0.0), 1.0)),
        "model must be a function with sample statements",
    ),
    "a generator": (lambda ppl: fit(ppl, generator(ppl)), "model model is a generator.*yield"),
    "a function that makes the model": (
        lambda ppl: fit(ppl, generator),
        "model generator ran|no latent variables.*without a sample statement",
    ),
    # -- results
    "no draws to diagnose": (
        lambda ppl: fitted(ppl.name).diagnose(0),
        "num_draws must be an integer of at least 1, got 0",
    ),
    "fewer than no draws": (
        lambda ppl: fitted(ppl.name).sample(-1),
        "num_samples must be an integer of at least 1, got -1",
    ),
    "half a draw": (
        lambda ppl: fitted(ppl.name).predictive(num_samples=2.5),
        "num_samples must be",
    ),
    "no draws for ArviZ": (lambda ppl: fitted(ppl.name).to_arviz(0), "num_samples must be"),
    # -- guides
    "quantiles outside (0, 1)": (lambda ppl: quantiles(ppl, [0.5, 1.5]), r"quantiles.*\(0, 1\)"),
    "a median before the first call": (before_the_first_call, "before its first call.*step"),
    "two guides of one name": (two_guides, "Two guides in one run .*(prefix=|AutoGuideList)"),
    "a latent that comes": (
        lambda ppl: coming_and_going(ppl, (1, 2)),
        "'mu1' has unconstrained shape.*set up without it.*make a new",
    ),
    "a latent that goes": (
        lambda ppl: coming_and_going(ppl, (2, 1)),
        "'mu1' is missing.*make a new",
    ),
    "NaturalELBO with the guide of another model": (
        lambda ppl: ppl.svi(other_model(ppl), ppl.guide(models.location(ppl)), args=(Y,)).step(),
        "another model: its latents 'mu' are missing.*'theta'|'mu' is missing in a run",
    ),
    # -- starts and data
    "a start outside of the support": (
        lambda ppl: fit(ppl, init_loc_fn=ppl.start_at(mu=np.nan)),
        "'mu' starts at .*nan.*init_loc_fn",
    ),
    "data of another size": (
        lambda ppl: ppl.fit(observing(ppl, ppl.array(Y), (5,))),
        r"'y' has a value of shape \(3,\).*of shape \(5,\)",
    ),
    "NaN in the data that is not the cause": (
        nan_beside_a_bad_scale,
        r"(?s)cannot run: .*scale.*\(Its argument 0 holds NaN, which is the cause if",
    ),
    # -- rules
    "an infinite step size": (
        lambda ppl: rule(ppl, "Snngm", step_size=np.inf),
        "(step_size|lr) must be positive and finite",
    ),
    "options of the other package": (
        options_of_the_other_package,
        "keyword arguments here|takes its options in a dictionary",
    ),
    "a word for a number": (
        lambda ppl: rule(ppl, "Nagm", momentum="much"),
        r"momentum must be in \[0, 1\)",
    ),
    "particles in words": (
        lambda ppl: ppl.elbo("NaturalELBO", num_particles="ten"),
        "num_particles must be an integer of at least 1, got 'ten'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.filterwarnings("ignore:Found")
def test_a_mistake_is_named_with_its_way_out(ppl, mistake):
    action, words = MISTAKES[mistake]
    with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
        action(ppl)


def test_integers_of_numpy_are_integers(ppl):
    result = fitted(ppl.name)
    assert ppl.numpy(result.sample(np.int64(7))["mu"]).shape[0] == 7
    assert result.diagnose(np.int32(50)).num_draws == 50
    assert fit(ppl, max_steps=np.int64(50)).converged
    ppl.elbo("NaturalELBO", num_particles=np.int32(4), num_gradients=np.int64(8))


def test_two_threads_fit_one_after_the_other(ppl):
    means = {}

    def work(shift):
        with ppl.float64():
            result = ppl.fit(models.location(ppl), ppl.array(Y + shift))
            means[shift] = float(ppl.numpy(result.family.mean)[0])

    threads = [threading.Thread(target=work, args=(shift,)) for shift in (0.0, 1.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert means[1.0] - means[0.0] == pytest.approx(1.0, abs=0.1)


def test_data_that_are_broadcast_against_their_distribution_are_warned_of(ppl):
    column = ppl.array(Y[:, None])
    for model in (observing(ppl, column), observing(ppl, column, event_dim=1)):
        with pytest.warns(UserWarning, match=r"'y' has data of shape \(3, 1\).*to \(3, 3\)"):
            ppl.call(ppl.guide(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ppl.call(ppl.guide(observing(ppl, ppl.array(Y), ())))  # a plate without its name
        ppl.call(ppl.guide(observing(ppl, ppl.array(1.0), event_dim=1)))


def test_an_option_with_the_name_of_an_argument_of_the_model_is_warned_of(ppl):
    def model(y, tolerance=2.0):
        normal(ppl, scale=tolerance)

    with pytest.warns(UserWarning, match="tolerance= is taken as fit's own.*by its place"):
        fit(ppl, model, tolerance=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(ppl, model, ppl.array(Y), 1.0, tolerance=0.1)


def test_a_warning_of_a_fit_points_to_the_line_that_called_it(ppl):
    from ngvi._warn import warn

    with pytest.warns(UserWarning, match="not converged: callback=") as told:
        ppl.package.fit(
            models.location(ppl), ppl.array(Y), callback=lambda *_: True, progress_bar=False
        )
    assert {one.filename for one in told if "not converged" in str(one.message)} == {__file__}
    column = ppl.array(Y[:, None])
    with pytest.warns(UserWarning, match="'y' has data of shape") as told:
        ppl.call(ppl.guide(observing(ppl, column)))
    assert told[0].filename.endswith(("test_messages.py", "ppl.py"))  # of the model, or its call
    with pytest.warns(UserWarning, match="of a thread") as told:
        warn("of a thread")
    assert told[0].filename == __file__


def test_traced_step_sizes_pass_numpyro():
    optax = pytest.importorskip("optax")
    ppl = load("numpyro")
    with ppl.float64():
        optimiser = optax.inject_hyperparams(ppl.package.Snngm)(step_size=0.01)
        svi = ppl.svi(models.location(ppl), "diagonal", optimiser, ppl.elbo(), (Y,))
        assert np.isfinite(svi.run(2)).all()


def test_a_key_that_is_none_is_named_numpyro():
    ppl = load("numpyro")
    with ppl.float64(), pytest.raises(TypeError, match=r"rng_key must be .*jax.random.key\(0\)"):
        fit(ppl, rng_key=3)


def test_what_only_torch_can_do_wrong_pyro():
    ppl = load("pyro")
    torch = ppl.np

    def cut_off(y):
        ppl.sample("y", ppl.dist.Normal(normal(ppl).detach(), 1.0), obs=y)

    def half(y):
        ppl.sample("mu", ppl.dist.Normal(torch.zeros((), dtype=torch.bfloat16), 1.0))

    sizes = itertools.cycle((1, 2))

    def growing(y):
        prior = ppl.dist.Normal(torch.zeros(next(sizes)), 1.0).to_event(1)
        ppl.sample("y", ppl.dist.Normal(ppl.sample("mu", prior).sum(), 1.0), obs=y[0])

    def fickle(y):
        if normal(ppl) > 0.5:
            normal(ppl, "late")

    with ppl.float64():
        y = ppl.array(Y)
        for model, data, words in (
            (half, y, "'mu' is torch.bfloat16.*float32"),
            (fickle, y, "'late' was missing.*torch.where"),
            (growing, y, r"'mu' has events of shape \((1|2),\)"),
            (models.location(ppl), Y, "'y' has a ndarray.*torch.as_tensor"),
        ):
            with pytest.raises((ValueError, TypeError), match=words):
                ppl.fit(model, data)
        with pytest.warns(UserWarning, match=r"fit cannot see how .*'y'.*detach"):
            result = ppl.fit(cut_off, y)
        # It stays at the prior, as far as gradients see, and says so.
        assert not result.converged and "the log density jumps" in result.reason
        scheduled = ppl.lib.optim.ExponentialLR(
            {"optimizer": ppl.package.BLR, "optim_args": {"lr": 0.1}, "gamma": 0.9}
        )
        loss = ppl.elbo("NaturalELBO")
        svi = ppl.infer.SVI(models.location(ppl), ppl.guide(models.location(ppl)), scheduled, loss)
        with pytest.raises(TypeError, match="ExponentialLR.*scheduler=partial"):
            svi.step(y)
        with pytest.raises(TypeError, match=r"a dictionary, BLR\({'lr': 0.1}\)"):
            ppl.package.BLR(lr=0.1)
        with torch.inference_mode():
            for needs_gradients in (
                lambda: fit(ppl, None, y),
                lambda: ppl.call(ppl.guide(models.location(ppl)), y),
                lambda: svi.step(y),
            ):
                with pytest.raises(RuntimeError, match="outside torch.inference_mode"):
                    needs_gradients()


def test_another_guides_parameters_in_the_store_are_refused_pyro():
    ppl = load("pyro")
    ppl.forget()
    with ppl.float64():
        ppl.call(ppl.guide(models.location(ppl)), ppl.array(Y))
        with pytest.raises(ValueError, match="another guide.*clear_param_store"):
            ppl.call(ppl.guide(two_latents(ppl)))
