"""The door of ``fit``: what is wrong with its arguments is said before anything runs."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

from ngvi.inference.arguments import ModelCall, checked
from ngvi.inference.first_look import (
    Seen,
    check_seen,
    nan_in,
    nan_in_arguments,
)

Y = np.array([1.0, 2.0, 3.0])


def fit(model, *args, tolerance=0.05, max_steps=1000, progress_bar=True, family="auto", **kwargs):
    """With some of the options of the real one."""


def model(X, y=None, *, scale=1.0):
    """Never called."""


def call(*args, of=model, **kwargs):
    return ModelCall(fit, of, args, kwargs, "rng_key=jax.random.key(1)")


# -- keywords and places -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keyword", "words"),
    [
        ("num_steps", "There is max_steps=, the most steps"),
        ("lr", "There is no step size and no optimiser to give.*BLR"),
        ("seed", r"There is rng_key=jax.random.key\(1\)\."),
        ("verbose", "There is progress_bar="),
        ("num_samples", r"There is no number of draws.*result.sample\(1000\)"),
        ("num_chains", "There is no Markov chain"),
        ("Tolerances", "Is tolerance= meant"),
        ("max_step", "Is max_steps= meant"),
        ("scales", "Is scale= meant"),
        ("Y", "Is y= meant"),
        ("bananas", "Options of fit are tolerance=, max_steps=, progress_bar=, family="),
    ],
)
def test_a_keyword_that_nobody_has_is_compared_with_those_there_are(keyword, words):
    names = rf"fit has no argument {keyword}=, and neither has the model, model\(X, y=None, \*, "
    with pytest.raises(TypeError, match=names + ".*" + words):
        call(1, 2, **{keyword: 3}).check()


class AutoGuide:
    """As the PPLs' base is called."""


class Mine(AutoGuide):
    pass


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), r"is missing a required argument: 'X': write fit\(model, X\)"),
        ((1, 2, 3), "takes 2 by place, not 3. Options are keywords"),
        ((1, 2, "diagonal"), "keywords, such as family='diagonal'"),
        ((Mine(), 1), "argument 0 of them, counted from zero, is a guide: write guide="),
        ((1, Mine), "argument 1 of them, counted from zero, is a guide: write guide="),
    ],
)
def test_arguments_that_the_model_cannot_take_are_told_with_its_call(args, words):
    with pytest.raises(TypeError, match=words):
        call(*args).check()


def test_what_the_model_takes_is_let_through():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(1).check()
        call(1, y=2, scale=3).check()
        call(1, 2, of=functools.partial(model, scale=2.0)).check()
        call(1, 2, num_steps=3, of=lambda *args, **kwargs: None).check()
        call(1, 2, of=print).check()
    with pytest.warns(UserWarning, match="tolerances= goes to the model.*it is tolerance="):
        call(1, tolerances=0.1, of=lambda X, **kwargs: None).check()


def test_behind_a_handler_the_call_is_explained_once_it_has_failed():
    @functools.wraps(model)
    def wrapped(*args, **kwargs):
        return model(*args, **kwargs)

    one = call(1, 2, lr=0.1, of=wrapped)
    one.check()
    with pytest.raises(TypeError, match="fit has no argument lr="):
        one.explain(TypeError("model() got an unexpected keyword argument 'lr'"))
    one.explain(ValueError("something else"))
    call(1, of=wrapped).explain(TypeError("of the model's own"))


# -- options -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("time_limit", "1h", "time_limit must be positive, in seconds, or None, got '1h'"),
        ("time_limit", -1, "time_limit must be positive"),
        ("checkpoint", True, "checkpoint must be the path of a file, .* got True"),
        ("checkpoint", 3, "checkpoint must be the path of a file, .* got 3"),
        ("checkpoint", "", "checkpoint must be the path of a file, .* got ''"),
        ("callback", lambda step: None, r"callback must be .*lambda>\(step\) does not take three"),
        ("callback", 3, "callback must be a function of the number of steps.*got 3"),
        ("curvature", "exact", "curvature='exact'. Choose one of .*'spherical'"),
        ("batches", np.zeros((3, 2)), "batches must be an iterable.*row by row"),
        ("batches", "data.csv", "batches must be an iterable of batches, got 'data.csv'"),
        ("options", {"local": 1}, r"options must be FitOptions\(...\)"),
        ("init_loc_fn", {"mu": 1.0}, r"init_loc_fn must be a function such as init_to_value"),
        ("allow_prior", "yes", "allow_prior must be True or False"),
        ("progress_bar", "no", "progress_bar must be True or False"),
        ("max_steps", 1e3, "max_steps must be an integer"),
        ("max_steps", 0, "max_steps"),
        ("tolerance", 0.0, "tolerance must be positive"),
        ("tolerance", np.nan, "tolerance"),
        ("time_limit", 0.0, "time_limit must be positive, in seconds"),
    ],
)
def test_an_option_is_refused_by_its_name(option, value, words):
    with pytest.raises((ValueError, TypeError), match=words):
        checked({option: value})


# -- what a first run shows ----------------------------------------------------------------


def test_a_model_that_observes_nothing_is_an_error_that_names_what_was_forgotten():
    seen = Seen(["weights", "y"])
    with pytest.raises(ValueError, match=r"\('weights', 'y'\) are latent.*Was y= forgotten.*prior"):
        check_seen(seen, model, (1,), {}, allow_prior=False)
    with pytest.raises(ValueError, match=r"observes nothing.*allow_prior=True"):
        check_seen(seen, print, (1,), {}, allow_prior=False)
    check_seen(seen, model, (1,), {}, allow_prior=True)
    check_seen(Seen(["weights"], data={"y": None}), model, (1,), {}, allow_prior=False)


def test_nan_is_told_with_its_place():
    y = Y.copy()
    y[1] = np.nan
    with pytest.raises(ValueError, match=r"'y' holds NaN at 1 of 3 places, the first .* is \[1\]"):
        check_seen(Seen(["w"], data={"y": y}), model, (1,), {}, False)
    seen = Seen(["w"], [], {"y": Y}, ["y"], nan_in_arguments((y,), {"scale": 1.0}))
    with pytest.raises(ValueError, match=r"observed 'y' is NaN: argument 0 holds NaN at 1 of 3"):
        check_seen(seen, model, (y,), {"scale": 1.0}, False)
    assert nan_in({"a": [np.ones((2, 2)), np.nan]}) == "as its only number"
    assert nan_in(np.array([[0.0, 1.0], [np.nan, np.nan]])).endswith(
        "2 of 4 places, the first of which is [1, 0]"
    )
    assert not nan_in((Y, 1, "text", np.arange(3), None))


def regression(ppl, observe=lambda ppl, loc, y: ppl.sample("y", ppl.dist.Normal(loc, 1.0), obs=y)):
    def model(x, y=None):
        slope = ppl.sample("slope", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("rows", len(x)):
            observe(ppl, slope * x, y)

    return model


def test_nan_that_the_model_expects_is_no_fault(ppl):
    x = Y.copy()
    x[2] = np.nan

    def filled(ppl, loc, y):
        loc = ppl.np.where(ppl.np.isnan(loc), ppl.array(0.0), loc)
        ppl.sample("y", ppl.dist.Normal(loc, 1.0), obs=y)

    look = ppl.module("inference.first_look").look
    seen = look(regression(ppl, filled), (ppl.array(x), ppl.array(Y)), {})
    assert seen.latents == ["slope"] and not seen.without_density

    def masked(ppl, loc, y):
        with ppl.handlers.mask(mask=~ppl.np.isnan(y)):
            ppl.sample("y", ppl.dist.Normal(loc, 1.0), obs=y)

    seen = look(regression(ppl, masked), (ppl.array(Y), ppl.array(x)), {})
    assert seen.data == {"y": None}


def test_a_first_look_leaves_nothing_behind_pyro(pyro_backend):
    import pyro
    import torch

    from pyro_ngvi.inference.first_look import look

    def model(y):
        rate = pyro.param("rate", lambda: torch.rand(()))
        pyro.sample("y", pyro.distributions.Exponential(rate), obs=y)

    before = torch.random.get_rng_state()
    assert list(look(model, (torch.tensor(1.0),), {}).data) == ["y"]
    assert not list(pyro.get_param_store().keys())
    assert torch.equal(before, torch.random.get_rng_state())
