"""A mistake gets a sentence that names the argument or the site, and the way out.

One table for both packages; ``tests/test_bad_input.py`` has what takes more than a line.
"""

from __future__ import annotations

import copy
import functools
import itertools
import threading
import warnings

import numpy as np
import pytest

from ngvi._door import ELSEWHERE, door
from ngvi.inference.options import MultiStartOptions
from tests import models
from tests.inference.results import shared_result
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


class Box:
    @door
    def open(self, step_size: float = 1.0, *, lid: bool = True) -> float:
        return step_size


def svi(ppl, optimiser, loss, family="diagonal"):
    model = models.location(ppl)
    stock = ppl.infer.SVI
    run = stock(model, ppl.guide(model, family), optimiser, loss)
    if ppl.is_numpyro:
        import jax

        return run.update(run.init(jax.random.key(0), ppl.array(Y)), ppl.array(Y))
    return run.step(ppl.array(Y))


def swapped(ppl):
    model = models.location(ppl)
    run = ppl.infer.SVI(ppl.guide(model), model, ppl.optimiser(), ppl.elbo())
    if ppl.is_numpyro:
        import jax

        return run.init(jax.random.key(0), ppl.array(Y))
    return run.step(ppl.array(Y))


def optimiser(ppl, name):
    """A stock one."""
    if ppl.is_numpyro:
        return getattr(ppl.lib.optim, name)(1e-2)
    return getattr(ppl.lib.optim, name)({"lr": 1e-2})


def options_in_words(ppl):
    options = ppl.package.FitOptions(multi_start=MultiStartOptions(num_starts="many"))
    return ppl.fit(models.location(ppl), ppl.array(Y), options=options)


#: A call, as it is written, and the words of its error.
MISTAKES = {
    "fit(ppl, guide=ppl.guide(model), family='diagonal')": (
        "family= is ignored beside guide=.*Give it to the guide"
    ),
    "fit(ppl, guide=ppl.guide(model), init_loc_fn=ppl.start_at())": (
        "init_loc_fn= is ignored beside guide="
    ),
    "fit(ppl, init=fitted(ppl.name), family='diagonal')": (
        "family='diagonal' is ignored beside init=.*'covariance_cholesky'.*Leave family= out"
    ),
    "fit(ppl, other_model(ppl), init=fitted(ppl.name))": (
        "init= is the result of another model.*'theta' is missing there"
    ),
    "fit(ppl, init=3)": "init must be the result.*init_loc_fn",
    "fit(ppl, guide=ppl.guide(other_model(ppl)))": (
        "latent site 'theta'.* missing|Latent site 'theta' is missing"
    ),
    "fit(ppl, guide='diagonal')": "guide must be.*family=",
    "fit(ppl, allow_prior='no')": "allow_prior must be True or False, got 'no'",
    "fit(ppl, tolerance=np.inf)": "tolerance must be .*finite",
    "fit(ppl, tolerance='0.1')": "tolerance must be",
    "fit(ppl, curvature='exact')": "curvature='exact'",
    "fit(ppl, family='round')": "Unknown family='round'",
    "fit(ppl, guide=ppl.autoguide.AutoDelta(model))": "NaturalGaussianGuide",
    "fit(ppl, reparametrize='always')": "reparametrize must be 'auto', True or False, got 'always'",
    "fit(ppl, reparametrize=True, family='diagonal')": "True is ignored beside family=",
    "fit(ppl, init_loc_fn=0.0)": "init_loc_fn must be .*init_to_value",
    "fit(ppl, create_plates=3)": r"create_plates= of the guide: write guide=",
    "traced(ppl)": "fit decides on numbers.*outside",
    "ppl.fit(None)": "model must be a function.*got None",
    "ppl.fit(ppl.dist.Normal(ppl.array(0.0), 1.0))": (
        "model must be a function with sample statements"
    ),
    "fit(ppl, generator(ppl))": "model model is a generator.*yield",
    "fit(ppl, generator)": "model generator ran|no latent variables.*without a sample statement",
    "fitted(ppl.name).diagnose(0)": "num_draws must be an integer of at least 1, got 0",
    "fitted(ppl.name).sample(-1)": "num_samples must be an integer of at least 1, got -1",
    "fitted(ppl.name).predictive(num_samples=2.5)": "num_samples must be",
    "fitted(ppl.name).to_arviz(0)": "num_samples must be",
    "quantiles(ppl, [0.5, 1.5])": r"quantiles.*\(0, 1\)",
    "before_the_first_call(ppl)": "before its first call.*step",
    "two_guides(ppl)": "Two guides in one run .*(prefix=|AutoGuideList)",
    "coming_and_going(ppl, (1, 2))": "'mu1' has unconstrained shape.*set up without it.*make a new",
    "coming_and_going(ppl, (2, 1))": "'mu1' is missing.*make a new",
    "ppl.svi(other_model(ppl), ppl.guide(model), args=(Y,)).step()": (
        "another model: its latents 'mu' are missing.*'theta'|'mu' is missing in a run"
    ),
    "fit(ppl, init_loc_fn=ppl.start_at(mu=np.nan))": "'mu' starts at .*nan.*init_loc_fn",
    "ppl.fit(observing(ppl, y, (5,)))": r"'y' has a value of shape \(3,\).*of shape \(5,\)",
    "nan_beside_a_bad_scale(ppl)": (
        r"(?s)cannot run: .*scale.*\(Its argument 0 holds NaN, which is the cause if"
    ),
    "rule(ppl, 'Snngm', step_size=np.inf)": "(step_size|lr) must be positive and finite",
    "options_of_the_other_package(ppl)": "keyword arguments here|takes its options in a dictionary",
    "rule(ppl, 'Nagm', momentum='much')": r"momentum must be in \[0, 1\)",
    "ppl.elbo('NaturalELBO', num_particles='ten')": (
        "num_particles must be an integer of at least 1, got 'ten'"
    ),
    "svi(ppl, ppl.optimiser(), package.NaturalELBO)": (
        r"NaturalELBO itself was given.*write NaturalELBO\(\)"
    ),
    "package.SVI(model, ppl.guide(model), package.BLR, ppl.elbo())": (
        r"BLR itself was given.*write BLR\(\)"
    ),
    "package.SVI(model, package.NaturalGaussianGuide, ppl.optimiser(), ppl.elbo())": (
        "NaturalGaussianGuide itself was given"
    ),
    "package.NaturalELBO(num_samples=3)": (
        r"NaturalELBO has no argument num_samples=. Is num_particles= meant\?"
    ),
    "package.NaturalGaussianGuide(model, init_strategy=3)": (
        r"NaturalGaussianGuide has no argument init_strategy=. Is init_loc_fn= meant\?"
    ),
    "package.NaturalGaussianGuide()": (
        r"NaturalGaussianGuide\(model, .* was called otherwise: missing a required argument: 'mod"
    ),
    "result.sample(n_samples=3)": r"sample has no argument n_samples=. Is num_samples= meant\?",
    "result.sample(3, 10)": r"sample\(num_samples=1000, \*.* was called otherwise: too many",
    "swapped(ppl)": r"The guide is in the place of the model: it is SVI\(model, guide",
    "ppl.call(ppl.guide(observing(ppl, [1.0, 2.0])))": (
        "Observed site 'y' has a list, and .*(Pyro|NumPyro) takes"
    ),
    "result.predictive(100)": r"for so many draws write predictive\(num_samples=100\)",
    "result.predictive(x=3)": (
        "predictive has no argument x=, and neither has the model.*Is X= meant"
    ),
    "result.posterior_of(0)": "optimum must be one of result.optima, got 0",
    "result.save(3)": "path must be the path of a file.*got 3",
    "result['weights']": r"write result.sample\(1000\)\['weights'\]",
    "package.SVI(len, print, ppl.optimiser(), 'elbo')": (
        r"loss must be an object such as NaturalELBO\(\), got 'elbo'"
    ),
    "package.SVI(len, None, ppl.optimiser(), ppl.elbo())": (
        r"guide must be a guide, NaturalGaussianGuide\(model\) say, got None"
    ),
    "result.summary(sites=['w'])": (
        r"FitResult.summary has no argument sites=. Is var_names= meant\?"
    ),
    "result.summary(hdi_prob=0.9)": (
        r"FitResult.summary has no argument hdi_prob=. Is prob= meant\?"
    ),
    "result.to_arviz(groups='posterior')": (
        "FitResult.to_arviz has no argument groups=. It has num_samples=, .*prior=, .*corrected="
    ),
    "result.to_arviz(draws=10)": (
        r"FitResult.to_arviz has no argument draws=. Is num_samples= meant\?"
    ),
    "result.loo(pointwise=True)": r"FitResult.loo has no argument pointwise=. It has plate=\.",
    "result.influence(['rows'])": r"plate must be the name of one plate, or None, got \['rows'\]",
    "result.without()": (
        r"FitResult.without\(rows, plate=None\) was called otherwise: missing .* 'rows'"
    ),
    "result.without(index=3)": r"FitResult.without has no argument index=. Is rows= meant\?",
    "result.nuts(chains=2)": r"FitResult.nuts has no argument chains=. Is num_chains= meant\?",
    "result.nuts(tune=2)": r"FitResult.nuts has no argument tune=. Is num_warmup= meant\?",
    "result.update(rows=3)": "update has no argument rows=, and neither has the model",
    "result.update(result.model, *result.args)": (
        "update has the model already, and argument 0 .* is the model itself: leave it out"
    ),
    "result.predictive(new_groups=3)": (
        "new_groups must be True, the name of a plate, .*got 3; the plates around latents are"
    ),
    "type(result)('fit.ngvi')": (
        r"FitResult is what fit\(model, ...\) returns.*FitResult.load\(path, model\)"
    ),
    "result.save('fit.ngvi', overwrite=True)": (
        r"FitResult.save has no argument overwrite=. It has path=, data=\."
    ),
    "result.to_arviz(coords=['a', 'b'])": r"coords must be a dictionary, coords=\{'axis'",
    "type(result).load('fit.ngvi', len, guide='diagonal')": (
        r"guide must be a guide, such as NaturalGaussianGuide\(model\), got 'diagonal'"
    ),
    "package.FitOptions(bananas=3)": "FitOptions has no argument bananas=. It has prior_start=",
    "ppl.fit(model, y, options=package.FitOptions(multi_start={'num_starts': 3}))": (
        r"options=FitOptions.multi_start must be of type MultiStartOptions\(...\), got \{'num"
    ),
    "options_in_words(ppl)": "FitOptions.multi_start.num_starts must be of type int, got 'many'",
    "result.diagnostics['pareto_k']": "Diagnostics has no items: it has .*pareto_k",
    "result.diagnose(random_seed=1)": (
        r"diagnose has no argument random_seed=. Is (seed|rng_key)= meant\?"
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.filterwarnings("ignore:Found")
def test_a_mistake_is_named_with_its_way_out(ppl, mistake):
    names = {"ppl": ppl, "result": shared_result(ppl), "package": ppl.package}
    names |= {"model": models.location(ppl), "y": ppl.array(Y)}
    with pytest.raises((ValueError, TypeError, RuntimeError), match=MISTAKES[mistake]):
        eval(mistake, {**globals(), **names})


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


# -- doors


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"lr": 1.0}, r"Box.open has no argument lr=. Is step_size= meant\?"),
        ((), {"lids": 1.0}, r"has no argument lids=. Is lid= meant\?"),
        ((), {"height": 1.0}, r"has no argument height=. It has step_size=, lid=\."),
        ((1, 2), {}, r"Box.open\(step_size=1.0, \*, lid=True\) was called otherwise: too many"),
    ],
)
def test_a_call_that_is_none_is_told_with_the_right_one(args, kwargs, words):
    with pytest.raises(TypeError, match=words):
        Box().open(*args, **kwargs)
    assert Box().open(2.0, lid=False) == 2.0


def test_values_at_the_doors_of_results_are_refused_by_name(ppl):
    fitted = shared_result(ppl)
    with pytest.raises(ValueError, match=r"rows must be numbers of rows from 0 .*flatnonzero\(mas"):
        fitted.without([1, [2, 3]])
    found = fitted.influence()
    assert found[-1]["row"] == list(found)[-1]["row"]
    for index in ("row", len(found), 0.5):
        with pytest.raises(IndexError, match="by their place in the order of influence"):
            found[index]
    with pytest.raises(ValueError, match="num must be an integer of at least 1, got 'all'"):
        found.plot("all")


def test_what_results_of_other_libraries_have_is_told(ppl):
    fitted = shared_result(ppl)
    for name, words in (("get_samples", r"sample\(1000\)"), ("elbo", "bound"), ("mean", "summary")):
        with pytest.raises(AttributeError, match=f"no attribute '{name}': write result.{words}"):
            getattr(fitted, name)
    with pytest.raises(AttributeError, match="has no attribute 'bananas'. It has .*bound.*loo"):
        fitted.bananas  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'boundd'. Is bound meant"):
        fitted.boundd  # noqa: B018
    with pytest.raises(AttributeError, match="Diagnostics has no .*'khat': write pareto_k"):
        fitted.diagnostics.khat  # noqa: B018
    with pytest.raises(AttributeError, match="Trace has no attribute 'loss'. Is losses meant"):
        fitted.trace.loss  # noqa: B018
    assert copy.copy(fitted).bound == fitted.bound


@pytest.mark.parametrize("name", ["Adam", "ClippedAdam"])
def test_an_optimiser_that_undoes_natural_gradients_is_warned_of(ppl, name):
    words = rf"(Adam|{name}) divides each coordinate.*BLR\(\) with NaturalELBO\(\), or Snngm\(\)"
    with pytest.warns(UserWarning, match=words) as told:
        svi(ppl, optimiser(ppl, name), ppl.elbo("Trace_ELBO"))
    found = [one for one in told if "divides" in str(one.message)]
    assert [one.filename for one in found] == [__file__]


def test_optimisers_of_ours_and_plain_gradients_are_not_warned_of(ppl):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*divides each coordinate")
        svi(ppl, ppl.optimiser("Snngm"), ppl.elbo("Trace_ELBO"))
        svi(ppl, optimiser(ppl, "SGD"), ppl.elbo("Trace_ELBO"))


def test_optax_is_looked_into_numpyro(numpyro_backend):
    optax = pytest.importorskip("optax")
    ppl = load("numpyro")
    with pytest.warns(UserWarning, match="The optimiser divides each coordinate"):
        svi(ppl, optax.adam(1e-2), ppl.elbo("Trace_ELBO"))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*divides each coordinate")
        svi(ppl, optax.chain(ppl.optimiser("Snngm"), optax.scale(1.0)), ppl.elbo("Trace_ELBO"))


def test_the_state_of_another_optimiser_is_refused_numpyro(numpyro_backend):
    import jax

    ppl = load("numpyro")
    model, y = models.location(ppl), ppl.array(Y)

    def run(name):
        parts = ppl.guide(model, "diagonal"), ppl.optimiser(name), ppl.elbo("NaturalELBO")
        return ppl.infer.SVI(model, *parts)

    first, second = run("BLR"), run("Snngm")
    state = first.init(jax.random.key(0), y)
    second.init(jax.random.key(0), y)
    with pytest.raises(ValueError, match="Snngm was given the state of another optimiser"):
        jax.jit(second.update)(state, y)


def test_the_state_of_another_optimiser_is_refused_pyro(pyro_backend):
    ppl = load("pyro")
    model, y = models.location(ppl), ppl.array(Y)

    def run(name):
        ppl.forget()
        made = ppl.optimiser(name)
        svi = ppl.infer.SVI(model, ppl.guide(model, "diagonal"), made, ppl.elbo("NaturalELBO"))
        return svi, made

    svi_first, first = run("BLR")
    svi_first.step(y)
    svi_second, second = run("Snngm")
    second.set_state(first.get_state())
    with pytest.raises(ValueError, match="state is of another optimiser"):
        svi_second.step(y)
    with pytest.raises(ValueError, match="Snngm was given the state of another optimiser"):
        second.set_state({"posterior.loc": {"exp_avg": 1.0}})


def test_the_table_of_other_libraries_words_is_short_and_no_name_of_ours_is_in_it():
    rows = [
        (call, here, words.split()) for call in ELSEWHERE for here, words in ELSEWHERE[call].items()
    ]
    assert len(rows) <= 60
    assert not [here for call, here, words in rows if here in words]
