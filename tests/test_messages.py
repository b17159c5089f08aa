"""A mistake gets a sentence that names the argument or the site, and the way out.

Each row of the two tables is a call and the words of its error or warning, in both packages.
"""

from __future__ import annotations

import itertools
import re
import types
import warnings
from pathlib import Path

import numpy as np
import pytest

import ngvi
from ngvi import UsageWarning
from ngvi._door import ELSEWHERE
from ngvi.inference.options import MultiStartOptions  # noqa: F401  (for a row)
from tests import models
from tests.inference.results import shared_result
from tests.ppl import load

Y = np.array([1.0, 2.0, 3.0])


# -- models and runs of the rows --------------------------------------------------------


def fit(ppl, model=None, *args, **options):
    return ppl.fit(model or models.location(ppl), *(args or (ppl.array(Y),)), **options)


def normal(ppl, name="mu", loc=0.0, scale=1.0):
    return ppl.sample(name, ppl.dist.Normal(ppl.array(loc), scale))


def of_other_package(ppl):
    """A guide whose class says that it is the other package's."""
    other = "pyro_ngvi" if ppl.is_numpyro else "numpyro_ngvi"
    return type("Guide", (), {"__module__": f"{other}.guide", "__call__": lambda self: None})()


def observing(ppl, data, shape=(3,), event_dim=0):
    """A model whose data have a distribution of this shape."""

    def model():
        loc = normal(ppl) * ppl.array(np.ones(shape))
        ppl.sample("y", ppl.dist.Normal(loc, 1.0).to_event(event_dim), obs=data)

    return model


def explained(ppl, kind, data):
    """A model whose data have a distribution of this kind, with a positive parameter."""
    data = ppl.array(data)

    def model():
        a = ppl.sample("a", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
        kinds = {"Gamma": lambda: ppl.dist.Gamma(a, 1.0), "Poisson": lambda: ppl.dist.Poisson(a)}
        kinds["Normal"] = lambda: ppl.dist.Normal(a, 1.0)
        with ppl.plate("rows", 3):
            ppl.sample("y", kinds[kind](), obs=data)

    return model


def linear(ppl, x, y, scale=1.0):
    """A regression through zero."""

    def model(x, y=None):
        slope = normal(ppl, "b")
        with ppl.plate("rows", 3):
            ppl.sample("y", ppl.dist.Normal(slope * x, scale), obs=y)

    return fit(ppl, model, x, y)


def of_scale(ppl, loc=0.0):
    """A model whose scale may be negative."""

    def model(y):
        s = ppl.sample("s", ppl.dist.Normal(ppl.array(loc), 1.0))
        with ppl.plate("rows", 3):
            ppl.sample("y", ppl.dist.Normal(0.0, s), obs=y)

    return model


class Rows:
    """A class in the place of a model."""

    def __call__(self, y=None):
        return y


def asking(ppl, ask):
    """A model that asks for the value of a latent."""

    def model(y):
        with ppl.plate("rows", 3):
            ppl.sample("y", ppl.dist.Normal(ask(normal(ppl)), 1.0), obs=y)

    return model


def of_other_ppl(ppl):
    """A model that imports the other PPL."""
    other = types.ModuleType("pyro" if ppl.is_numpyro else "numpyro")
    return lambda y: other.sample("mu")


def drawing_rows(ppl):
    """A model that has other data at each call."""
    rng = np.random.default_rng(1)

    def model(y):
        b = normal(ppl, "b")
        with ppl.plate("rows", 3):
            ppl.sample("y", ppl.dist.Normal(b, 1.0), obs=y[ppl.index(rng.integers(0, 3, 3))])

    return model


def other_model(ppl):
    return lambda y: normal(ppl, "theta")


def with_a_parameter(ppl):
    return lambda y: ppl.sample("x", ppl.dist.Normal(ppl.param("at", ppl.array(0.0)), 1.0))


def with_a_matrix(ppl):
    return lambda y: ppl.sample("w", ppl.dist.Normal(ppl.array(np.zeros((2, 3))), 1.0).to_event(2))


def named_as_an_option(ppl):
    return lambda y, tolerance=2.0: normal(ppl, scale=tolerance)


def conditioned(ppl):
    return ppl.handlers.condition(models.location(ppl), data={"Mu": ppl.array(0.0)})


def before_the_first_call(ppl):
    guide = ppl.guide(models.location(ppl))
    guide.median(shared_result(ppl).params)


def options_of_the_other_package(ppl):
    ppl.package.BLR({"lr": 1.0} if ppl.is_numpyro else 0.1)


def traced(ppl):
    if ppl.is_numpyro:
        import jax

        return jax.vmap(lambda y: fit(ppl, None, y).bound)(ppl.array([Y]))
    import torch

    return torch.vmap(lambda y: fit(ppl, None, y).bound)(ppl.array([Y]))


def quantiles(ppl, levels):
    result = shared_result(ppl)
    return result.guide.quantiles(*([result.params] if ppl.is_numpyro else []), levels)


def generator(ppl):
    def model(y):
        yield normal(ppl)

    return model


def coming_and_going(ppl, sites):
    """A step with as many data as there are latents, after one with another number of them."""

    def model(y):
        total = sum(normal(ppl, f"mu{i}") for i in range(len(y)))
        ppl.sample("y", ppl.dist.Normal(total, 1.0), obs=y[0])

    svi = ppl.svi(model, "diagonal", ppl.optimiser("Snngm"), ppl.elbo(), (Y[: sites[0]],))
    svi.step()
    svi.step(Y[: sites[1]])


def started(ppl, model, guide, optimiser=None, loss=None):
    """The first step of stock ``SVI``."""
    loss = ppl.elbo() if loss is None else loss
    run = ppl.infer.SVI(model, guide, optimiser or ppl.optimiser(), loss)
    if ppl.is_numpyro:
        import jax

        return run.update(run.init(jax.random.key(0), ppl.array(Y)), ppl.array(Y))
    return run.step(ppl.array(Y))


def svi(ppl, optimiser, loss):
    model = models.location(ppl)
    return started(ppl, model, ppl.guide(model, "diagonal"), optimiser, loss)


def stock(ppl, name):
    """An optimiser of the PPL."""
    return getattr(ppl.lib.optim, name)(1e-2 if ppl.is_numpyro else {"lr": 1e-2})


#: A call, as it is written, and the words of its error.
MISTAKES = {
    "fit(ppl, guide=ppl.guide(model), family='diagonal')": (
        "family= cannot be combined with guide=.*Give it to the guide"
    ),
    "fit(ppl, init=result, family='diagonal')": (
        "family='diagonal' cannot be combined with init=.*'covariance_cholesky'.*Leave family= out"
    ),
    "fit(ppl, other_model(ppl), init=result)": (
        "init= is the result of another model.*'theta' is missing there"
    ),
    "fit(ppl, init=3)": "init must be the result.*init_loc_fn",
    "fit(ppl, guide=ppl.guide(other_model(ppl)))": (
        "latents 'theta' are missing|Latent site 'theta' is missing"
    ),
    "fit(ppl, guide='diagonal')": "guide must be.*family=",
    "fit(ppl, allow_prior='no')": "allow_prior must be True or False, got 'no'",
    "fit(ppl, tolerance=np.inf)": "tolerance must be .*finite",
    "fit(ppl, curvature='exact')": "curvature='exact'",
    "fit(ppl, family='round')": "Unknown family='round'",
    "fit(ppl, guide=ppl.autoguide.AutoDelta(model))": "NaturalGaussianGuide",
    "fit(ppl, reparametrize='always')": "reparametrize must be 'auto', True or False, got 'always'",
    "fit(ppl, reparametrize=True, family='diagonal')": "True cannot be combined with family=",
    "fit(ppl, init_loc_fn=0.0)": "init_loc_fn must be .*init_to_value",
    "fit(ppl, create_plates=3)": r"There is guide=NaturalGaussianGuide",
    "traced(ppl)": "fit branches on numbers.*outside",
    "ppl.fit(None)": "model must be a function.*got None",
    "ppl.fit(ppl.dist.Normal(ppl.array(0.0), 1.0))": (
        "model must be a function with sample statements"
    ),
    "fit(ppl, generator(ppl))": "model model is a generator.*yield",
    "fit(ppl, lambda y: normal(ppl) + y @ ppl.array(np.ones((2, 2))))": (
        r"shapes that do not fit \(.*with those of the data, argument 0 of shape \(3,\)"
    ),
    "fit(ppl, of_other_ppl(ppl))": "is one of (pyro|numpyro), and this is .*import (num)?pyro_ngvi",
    "fit(ppl, generator)": "model generator ran|no latent variables.*without a sample statement",
    "ppl.guide(model).get_samples()": "write Predictive.*or fit",
    "package.fit_density(lambda a, b: -a * b, 2)": "log_density must take one vector, as lambda",
    "result.diagnose(0)": "FitResult has no attribute 'diagnose': write result.diagnostics",
    "result.with_draws('yes')": "draws must be one of 'auto', 'gaussian', 'corrected', 'nuts', got",
    "fit(ppl, draws=True)": "draws must be one of 'auto', .*, got True",
    "result.summary(num_draws=9)": "FitResult.summary has no argument num_draws=: write prob=",
    "float(result.log_evidence)": "is_reliable: write log_evidence.value",
    "result.log_evidence - result.log_evidence": "is_reliable: write log_evidence.value",
    "result.log_evidence.mean": "no attribute 'mean': write value",
    "result.summary(coords=['a'])": r"coords must be a dictionary .* got \['a'\]",
    "ppl.guide(model, init_scale=column)": r"init_scale must be positive .*shape \(3, 1\)",
    "result.sample(-1)": "num_samples must be an integer of at least 1, got -1",
    "quantiles(ppl, [0.5, 1.5])": r"quantiles.*\(0, 1\)",
    "before_the_first_call(ppl)": "before its first call.*step",
    "coming_and_going(ppl, (1, 2))": "'mu1' has unconstrained shape.*set up without it.*make a new",
    "coming_and_going(ppl, (2, 1))": "'mu1' is missing.*make a new",
    "ppl.svi(other_model(ppl), ppl.guide(model), args=(Y,)).step()": (
        "another model: its latents 'mu' are missing.*'theta'|'mu' is missing in a run"
    ),
    "fit(ppl, init_loc_fn=ppl.start_at(mu=np.nan))": "'mu' starts at .*nan.*init_loc_fn",
    "ppl.fit(observing(ppl, y, (5,)))": r"'y' has a value of shape \(3,\).*of shape \(5,\)",
    "ppl.optimiser('Snngm', step_size=np.inf)": "(step_size|lr) must be positive and finite",
    "[ppl.forget(), svi(ppl, ppl.optimiser(step_size=lambda count: '1'), ppl.elbo())]": (
        "schedule of a step size gives must be zero or positive, got .1"
    ),
    "options_of_the_other_package(ppl)": "got {'lr'|takes its options in a dictionary",
    "ppl.optimiser('Nagm', momentum='much')": r"momentum must be in \[0, 1\)",
    "ppl.elbo('NaturalELBO', num_particles='ten')": (
        "num_particles must be an integer of at least 1, got 'ten'"
    ),
    "svi(ppl, ppl.optimiser(), package.NaturalELBO)": (
        r"NaturalELBO is a class.*write NaturalELBO\(\)"
    ),
    "package.SVI(model, ppl.guide(model), package.BLR, ppl.elbo())": (
        r"BLR is a class.*write BLR\(\)"
    ),
    "package.NaturalELBO(num_samples=3)": (
        r"NaturalELBO has no argument num_samples=. Is num_particles= meant\?"
    ),
    "package.NaturalGaussianGuide(model, init_strategy=3)": (
        r"NaturalGaussianGuide has no argument init_strategy=. Is init_loc_fn= meant\?"
    ),
    "package.NaturalGaussianGuide()": (
        r"NaturalGaussianGuide\(model, .* with wrong arguments: missing a required argument: 'mod"
    ),
    "result.sample(n_samples=3)": r"sample has no argument n_samples=. Is num_samples= meant\?",
    "result.sample(3, 10)": r"sample\(num_samples=1000.* was called with wrong arguments: too many",
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
    "package.SVI(model, of_other_package(ppl), ppl.optimiser(), ppl.elbo())": (
        "must all be of .*_ngvi, and one is of the other"
    ),
    "package.SVI(len, print, ppl.optimiser(), 'elbo')": (
        r"loss must be an object such as NaturalELBO\(\), got 'elbo'"
    ),
    "result.summary(sites=['w'])": (
        r"FitResult.summary has no argument sites=. Is var_names= meant\?"
    ),
    "result.to_arviz(groups='posterior')": (
        "FitResult.to_arviz has no argument groups=. It has num_samples=, .*prior=, "
    ),
    "result.loo(pointwise=True)": (
        r"FitResult.loo has no argument pointwise=. It has plate=, time_limit=, progress_bar=\."
    ),
    "result.without()": (
        r"FitResult.without\(rows, plate=None\) was called with wrong arguments: missing .* 'rows'"
    ),
    "result.nuts(chains=2)": r"FitResult.nuts has no argument chains=. Is num_chains= meant\?",
    "result.update(result.model, *result.args)": (
        "update has the model already, and argument 0 .* is the model itself: leave it out"
    ),
    "result.predictive(new_groups=3)": (
        "new_groups must be the name of a plate, .*got 3; the plates around latents are"
    ),
    "type(result)('fit.ngvi')": (
        r"FitResult is what fit\(model, ...\) returns.*FitResult.load\(path, model\)"
    ),
    "result.save('fit.ngvi', overwrite=True)": (
        r"FitResult.save has no argument overwrite=. It has path=, data=\."
    ),
    "type(result).load('fit.ngvi', len, guide='diagonal')": (
        r"guide must be a guide, such as NaturalGaussianGuide\(model\), got 'diagonal'"
    ),
    "ppl.fit(model, y, options=package.FitOptions(multi_start=MultiStartOptions('many')))": (
        "FitOptions.multi_start.[a-z_]+ must be of type [a-z]+, got 'many'"
    ),
    "ppl.fit(model, y, options=package.FitOptions(multi_start={'num_starts': 3}))": (
        r"options=FitOptions.multi_start must be of type MultiStartOptions\(...\), got \{'num"
    ),
    "started(ppl, ppl.guide(model), model)": "The guide is in the place of the model: write SVI",
    # -- words of other libraries, and arguments that the model has not
    "fit(ppl, num_steps=3)": "fit has no argument num_steps=, and neither has the.*max_steps=",
    "fit(ppl, lr=0.1)": "There is no step size and no optimiser to give.*BLR",
    "fit(ppl, Tolerances=1)": "Is tolerance= meant",
    "fit(ppl, bananas=3)": "Options of fit are family=",
    "ppl.fit(model)": r"is missing a required argument: 'y': write fit\(model, y\)",
    "fit(ppl, None, y, 1, 2)": "takes 2 by place, not 3. Options are keywords",
    "fit(ppl, None, y, ppl.guide(model))": "argument 1 of them.* is a guide: write guide=",
    # -- values of options
    "fit(ppl, time_limit='1h')": "time_limit must be positive, in seconds, or None, got '1h'",
    "fit(ppl, checkpoint=True)": "checkpoint must be the path of a file, .* got True",
    "fit(ppl, callback=lambda step: None)": r"callback must be .*\(step\) does not take three",
    "fit(ppl, options={'local': 1})": r"options must be FitOptions\(...\)",
    "fit(ppl, progress_bar='no')": "progress_bar must be True or False",
    "fit(ppl, max_steps=1e3)": "max_steps must be an integer",
    "fit(ppl, effort='much')": "effort must be one of 'quick'.*'much'",
    "fit(ppl, num_components=2.5)": "num_components must be an integer of at least 1",
    "fit(ppl, num_components=17)": r"17 is more than the 16 components",
    "fit(ppl, num_components=2, guide=ppl.guide(model))": "=2 is for guides that fit makes.*guide=",
    "fit(ppl, num_components='auto', reparametrize=True)": "'auto' reparametrises no locals",
    "fit(ppl, with_a_parameter(ppl), num_components=2)": "model has parameters of its own",
    "fit(ppl, with_a_matrix(ppl), num_components=2, family='matrix_normal')": (
        "of a Mixture must be a family without coordinates"
    ),
    # -- batches
    "ppl.fit(model, batches='data.csv')": "batches must be an iterable of batches.*Got 'data.csv'",
    "ppl.fit(model, batches=np.zeros((3, 2)))": "batches must be an iterable.*not an array",
    "ppl.fit(model, batches=(ppl.array([[1.0]]), y))": r"or one batch: write a DataLoader or \[",
    "ppl.fit(model, batches=iter([(y,)]))": "only once.*function that makes it",
    "ppl.fit(model, batches=[])": "holds none",
    # -- data
    "ppl.fit(models.logistic(ppl), ppl.array(np.ones((3, 2))), allow_prior=False)": (
        r"\('weights', 'y'\) are latent.*Was y= .*forgotten.*prior"
    ),
    "fit(ppl, None, ppl.array([1.0, np.nan, 2.0]))": "'y'.*NaN at 1 of 3 places",
    "ppl.fit(explained(ppl, 'Normal', [1.0, np.inf, 2.0]))": (
        r"outside its support, Real.*, at 1 of 3 .* \[1\], inf.*where its density is zero"
    ),
    "ppl.fit(explained(ppl, 'Poisson', [1.0, 2.0, -2.0]))": (
        r"outside its support, Integer.*, at 1 of 3 .* \[2\], -2"
    ),
    "ppl.fit(explained(ppl, 'Gamma', [-1.0, -2.0, 3.0]))": (
        r"outside its support, .*, at 2 of 3 .* \[0\], -1"
    ),
    "linear(ppl, np.array(['a', 'b', 'a']), y)": "argument 0 holds strings",
    "linear(ppl, np.array([1.0, None, 2.0], object), y)": "argument 0 holds objects",
    "linear(ppl, np.array(['2020-01-01'] * 3, 'datetime64[D]'), y)": "argument 0 holds dates",
    "linear(ppl, ppl.array([1.0, np.inf, 2.0]), y)": (
        "argument 0 of the model holds NaN or infinite numbers at 1 of 3 places"
    ),
    "linear(ppl, (x for x in Y), y)": "argument 0 is of type generator",
    "linear(ppl, {'x': y, 'y': y}, y)": "argument 0 is of type dict",
    "ppl.call(ppl.guide(observing(ppl, column)))": (
        r"'y' has data of shape \(3, 1\).*to \(3, 3\).*such as y\[:, 0\]"
    ),
    "ppl.call(ppl.guide(observing(ppl, column, event_dim=1)))": (
        r"'y' has data of shape \(3, 1\).*to \(3, 3\)"
    ),
    "linear(ppl, column, y)": "counts several times",
    "linear(ppl, y, column)": r"'y' has data of shape \(3, 1\).*y\[:, 0\] for",
    "package.fit_density('x', 3)": "log_density must be a function such as .*got 'x'",
    "package.fit_density(len, 2.5)": "dim must be an integer",
    "package.fit_density(lambda theta: theta, 2)": r"must give a scalar .*\(2,\), such as a sum",
    "package.fit_density(lambda theta: None, 2)": "must give a scalar .*got None",
    # -- values in the place of numbers, and classes in that of models
    "fit(ppl, Rows)": r"model is the class Rows: make an object of it, Rows\(...\)",
    "ppl.guide(Rows)": "model is the class Rows",
    "ppl.guide(Rows.__call__)": r"Rows.__call__ is a method of no object: .* an object of its",
    "package.SVI(Rows, ppl.guide(model), ppl.optimiser(), ppl.elbo())": r"write Rows\(\)",
    "fit(ppl, asking(ppl, np.exp))": r"data, for a plain number \(.*py:\d+, .*where\(",
    # -- sites without a distribution or a density
    "linear(ppl, ppl.array([1.0, np.nan, 2.0]), y)": "'y' is NaN: argument 0 holds NaN at 1 of 3",
    "linear(ppl, y, y, ppl.array([1.0, -1.0, 1.0]))": "invalid .*scale|scale .*constraint",
    "linear(ppl, ppl.array([1.0, 2.0]), y)": "site '?y|shapes",
    "linear(ppl, y, y + 0j)": "site '?y",
    "fit(ppl, drawing_rows(ppl))": "changes from call to call, as .*Draw data before",
    "fit(ppl, ppl.handlers.condition(model, data=[y]))": "Handler condition .*dict.*, got list",
    # -- results
    "result.nuts(0)": "num_samples",
    "result.nuts(num_warmup=-1)": "num_warmup",
    "result.nuts(num_chains=0)": "num_chains",
    "result.nuts(target_accept_prob=1.5)": "target_accept_prob",
    "result.without([1, [2, 3]])": r"rows must be numbers of rows from 0 .*flatnonzero\(mas",
    "result.without(12)": "numbers of rows from 0 to 11",
    "result.influence('row')": "There is no plate 'row'.*the plates are 'data'",
    "result.get_samples": r"no attribute 'get_samples': write result.sample\(1000\)",
    "result.bananas": "no attribute 'bananas'",
    "result.diagnostics.khat": "Diagnostics has no .*'khat': write pareto_k",
    "result.summary('beta')": "var_names= has 'beta'; the latent sites are 'weights'",
    "result.summary(prob=95)": "prob must be between 0 and 1",
    "package.tempered(lambda: None, -1.0)": "temperature must be positive and finite",
    "package.tempered(lambda: None, 'cold')": "temperature must be positive and finite",
    "package.tempered(None, 1.0)": "model must be a function",
}


def names(ppl):
    """What the rows name."""
    one, y = models.location(ppl), ppl.array(Y)
    found = {"ppl": ppl, "result": shared_result(ppl), "package": ppl.package}
    return {**globals(), **found, "model": one, "y": y, "column": ppl.array(Y[:, None])}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.filterwarnings("ignore:Found")
def test_a_mistake_is_named_with_its_way_out(ppl, mistake):
    kinds = (ValueError, TypeError, RuntimeError, AttributeError, IndexError)
    with pytest.raises(kinds) as told:
        eval(mistake, names(ppl))
    said = " ".join([str(told.value), *getattr(told.value, "__notes__", ())])
    assert re.search(MISTAKES[mistake], said), said


#: A call, as it is written, and the words of its warning.
WARNINGS = {
    "fit(ppl, callback=lambda *_: True)": "not converged: callback=",
    "fit(ppl, named_as_an_option(ppl), tolerance=0.1)": (
        "tolerance= is taken as fit's own.*by its place"
    ),
    "fit(ppl, conditioned(ppl), max_steps=1, effort='quick')": (
        "Handler condition has a value for 'Mu', which is.*'mu' me"
    ),
    "fit(ppl, of_scale(ppl))": "At [0-9]+% .*scale= of site 'y' is negative.*HalfNormal",
    "svi(ppl, stock(ppl, 'Adam'), ppl.elbo())": "Adam divides each coordinate.*BLR.*Snngm",
    "svi(ppl, stock(ppl, 'ClippedAdam'), ppl.elbo())": "Adam divides each coordinate",
}


@pytest.mark.parametrize("call", WARNINGS)
@pytest.mark.filterwarnings("ignore")
def test_what_may_be_meant_is_warned_of(ppl, call):
    with pytest.warns(UsageWarning, match=WARNINGS[call]):
        eval(call, names(ppl))


def test_one_line_lets_all_of_our_warnings_pass_where_warnings_are_errors(ppl):
    root = Path(ngvi.__file__).parents[1]
    files = [
        path
        for name in ("ngvi", "pyro_ngvi", "numpyro_ngvi")
        for path in (root / name).rglob("*.py")
    ]
    assert [path.name for path in files if "warnings.warn(" in path.read_text()] == ["_warn.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("default", category=UsageWarning)
        svi(ppl, stock(ppl, "Adam"), ppl.elbo())


def test_a_latent_that_is_its_own_target_is_no_mistake_in_svi(ppl):
    """Such as the density that a flow learns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = lambda: ppl.sample("x", ppl.dist.Normal(ppl.array(1.0), 2.0))  # noqa: E731
        run = ppl.svi(target, "diagonal", ppl.optimiser("Snngm"), ppl.elbo())
        assert np.isfinite(run.run(2)).all()


@pytest.mark.fast_in_numpyro
def test_what_is_meant_is_not_warned_of(ppl):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ppl.call(ppl.guide(observing(ppl, ppl.array(Y), ())))  # a plate without its name
        ppl.call(ppl.guide(observing(ppl, ppl.array(1.0), event_dim=1)))
        fit(ppl, named_as_an_option(ppl), ppl.array(Y), 1.0, tolerance=0.1)
        fit(ppl, of_scale(ppl, 7.0))
        svi(ppl, ppl.optimiser("Snngm"), ppl.elbo())
        svi(ppl, stock(ppl, "SGD"), ppl.elbo())


@pytest.mark.parametrize("kind", ["filled in", "masked", "beyond a support that moves"])
def test_data_that_a_model_expects_are_no_fault(ppl, kind):
    x = ppl.array([1.0, -2.0, 2.0] if kind == "masked" else [1.0, np.nan, 50.0])

    def model(x):
        a = ppl.sample("a", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
        fn, data = ppl.dist.Poisson(a).mask(x >= 0), x
        if kind != "masked":
            fn = ppl.dist.Normal(a, 1.0) if kind == "filled in" else ppl.dist.Uniform(0.0 * a, a)
            data = ppl.np.where(ppl.np.isnan(x), ppl.array(0.5), x)
        with ppl.plate("rows", 3):
            ppl.sample("y", fn, obs=data)

    seen = ppl.module("inference.first_look").look(model, (x,), {})
    assert seen.latents == ["a"] and not seen.odd


def test_a_warning_points_to_the_line_that_called(ppl):
    with pytest.warns(UserWarning, match="not converged: callback=") as told:
        ppl.package.fit(
            models.location(ppl), ppl.array(Y), callback=lambda *_: True, progress_bar=False
        )
    assert {one.filename for one in told if "not converged" in str(one.message)} == {__file__}


def test_more_latents_than_a_matrix_or_a_fit_takes_are_refused_at_once(ppl, monkeypatch):
    model = models.location(ppl)
    monkeypatch.setattr("ngvi.families.dense.DenseFamily.max_dim", 0)
    with pytest.raises(ValueError, match="family='precision' would hold matrices of 1 x 1.*'diag"):
        ppl.call(ppl.guide(model, "precision"), ppl.array(Y))
    monkeypatch.undo()
    monkeypatch.setattr("ngvi.inference.set_up.MANY", 0)
    with pytest.raises(ValueError, match=r"1 latents without locals.*NaturalELBO\(1, 'stein'\)"):
        fit(ppl)


def test_the_state_of_another_optimiser_is_refused(ppl):
    model, y = models.location(ppl), ppl.array(Y)

    def run(name):
        ppl.forget()
        rule, guide = ppl.optimiser(name), ppl.guide(model, "diagonal")
        return rule, ppl.infer.SVI(model, guide, rule, ppl.elbo("NaturalELBO"))

    (rule, first), words = run("BLR"), "Snngm was given the state of another optimiser"
    if ppl.is_numpyro:
        import jax

        state, (_, second) = first.init(jax.random.key(0), y), run("Snngm")
        second.init(jax.random.key(0), y)
        with pytest.raises(ValueError, match=words):
            jax.jit(second.update)(state, y)
        return
    first.step(y)
    other, second = run("Snngm")
    other.set_state(rule.get_state())
    with pytest.raises(ValueError, match="state is of another optimiser"):
        second.step(y)
    with pytest.raises(ValueError, match=words):
        other.set_state({"posterior.loc": {"exp_avg": 1.0}})


def test_what_only_torch_can_do_wrong_pyro():
    ppl = load("pyro")
    torch = ppl.np

    def cut_off(y):
        ppl.sample("y", ppl.dist.Normal(normal(ppl).detach(), 1.0), obs=y)

    sizes = itertools.cycle((1, 2))

    def growing(y):
        prior = ppl.dist.Normal(torch.zeros(next(sizes)), 1.0).to_event(1)
        ppl.sample("y", ppl.dist.Normal(ppl.sample("mu", prior).sum(), 1.0), obs=y[0])

    def fickle(y):
        if normal(ppl) > 0.5:
            normal(ppl, "late")

    def of_torch(y):
        mu = ppl.sample("mu", torch.distributions.Normal(torch.tensor(0.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y[0])

    def dropping(y):
        noisy = torch.nn.functional.dropout(normal(ppl) * torch.ones(30))
        ppl.sample("y", ppl.dist.Normal(noisy, 1.0).to_event(1), obs=torch.ones(30))

    with ppl.float64():
        y = ppl.array(Y)
        for model, data, words in (
            (fickle, y, "'late' was missing.*torch.where"),
            (growing, y, r"'mu' has events of shape \((1|2),\)"),
            (of_torch, y, r"'mu' has a Normal of torch.*pyro\.distributions\.Normal"),
            (dropping, y, "changes from call to call, as at site 'y'"),
            (models.location(ppl), Y, "'y' has a ndarray.*torch.as_tensor"),
        ):
            with pytest.raises((ValueError, TypeError), match=words):
                ppl.fit(model, data)
        fitted = ppl.fit(models.logistic(ppl), ppl.array(np.ones((3, 2))), ppl.array([1.0, 0, 1]))
        with pytest.raises(RuntimeError) as told:
            fitted.predictive(torch.ones((3, 2), dtype=torch.float32))
        assert "argument 0 is torch.float32" in " ".join(told.value.__notes__)
        with pytest.raises(TypeError, match="'mu' has a Normal of torch"):
            ppl.guide(of_torch)(y)
        with pytest.warns(UserWarning, match=r"fit cannot see how .*'y'.*detach"):
            result = ppl.fit(cut_off, y)
        # It stays at the prior, as far as gradients see, and says so.
        assert not result.converged and "the log density jumps" in result.reason
        scheduled = ppl.lib.optim.ExponentialLR(
            {"optimizer": ppl.package.BLR, "optim_args": {"lr": 0.1}, "gamma": 0.9}
        )
        loss = ppl.elbo("NaturalELBO")
        svi = ppl.infer.SVI(models.location(ppl), ppl.guide(models.location(ppl)), scheduled, loss)
        with pytest.raises(TypeError, match="takes a schedule as lr.*ExponentialLR.*lambda count"):
            svi.step(y)
        with pytest.raises(TypeError, match=r"a dictionary, BLR\({'lr': 0.1}\)"):
            ppl.package.BLR(lr=0.1)
        for call, words in (
            (lambda: ppl.package.BLR({}, {"max_norm": 1.0}), "may have clip_norm and clip_value"),
            (lambda: ppl.package.BLR().set_state(None), r"its own get_state\(\)"),
            (lambda: ppl.package.SVI(fickle, len, svi.optim, loss, seed=1), "pyro.set_rng_seed"),
        ):
            with pytest.raises((TypeError, ValueError), match=words):
                call()
        with torch.inference_mode():
            for needs_gradients in (
                lambda: fit(ppl, None, y),
                lambda: ppl.call(ppl.guide(models.location(ppl)), y),
                lambda: svi.step(y),
            ):
                with pytest.raises(RuntimeError, match="outside torch.inference_mode"):
                    needs_gradients()


def test_what_only_jax_can_do_wrong_numpyro(numpyro_backend):
    import jax
    import optax

    ppl = numpyro_backend

    def by_group(group, y):
        factor = ppl.sample("factor", ppl.dist.LKJCholesky(2, 1.0))  # which indexes beyond an end
        u = ppl.sample("u", ppl.dist.Normal(ppl.np.zeros(3), 1.0).to_event(1))
        ppl.sample("y", ppl.dist.Normal(u[group] + factor[0, 0], 1.0).to_event(1), obs=y)

    def in_plate(group, y):
        with ppl.plate("groups", ppl.np.max(group) + 1):
            u = ppl.sample("u", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(u[group], 1.0).to_event(1), obs=y)

    def told(call):
        with pytest.raises((TypeError, ValueError)) as error:
            call()
        return " ".join(error.value.__notes__)

    look, y = ppl.module("inference.first_look").look, np.zeros(4)
    words = told(lambda: ppl.fit(in_plate, np.array([0, 1, 1, 0]), y))
    assert re.search(r"py:\d+, .*at plate 'groups'.*int\(numpy.max", words), words
    choosing = asking(ppl, lambda mu: mu if mu.sum() > 0 else -mu)
    words = told(lambda: ppl.fit(choosing, ppl.array(Y)))
    assert re.search(r"plain number \(.*py:\d+, .*mu.sum.*jnp.where", words), words
    batched = jax.custom_batching.custom_vmap(lambda mu: mu + 0.0)
    batched.def_vmap(lambda size, are_batched, mu: (mu + 0.0, True))
    words = told(lambda: ppl.fit(asking(ppl, batched), ppl.array(Y)))
    assert re.search(r"no derivative of.*custom_vmap.*py:\d+, .*jax.custom_vjp", words), words
    assert look(by_group, (np.array([0, 1, 2, 0]), y), {}).beyond == ""
    with pytest.warns(UserWarning, match="beyond the end of an array .*index 3 .*from one?"):
        ppl.fit(by_group, np.array([0, 1, 2, 3]), y, max_steps=1, effort="quick")
    run = ppl.package.SVI(models.location(ppl), len, ppl.optimiser(), ppl.elbo())
    for call in (run.update, run.evaluate):
        with pytest.raises(TypeError, match=r"is the state.*got an array of shape \(4,\)"):
            call(y)
    with pytest.warns(UserWarning, match="The optimiser divides each coordinate"):
        svi(ppl, optax.adam(1e-2), ppl.elbo())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*divides each coordinate")
        svi(ppl, optax.chain(ppl.optimiser("Snngm"), optax.scale(1.0)), ppl.elbo())
    traced_step_size = optax.inject_hyperparams(ppl.package.Snngm)(step_size=0.01)
    run = ppl.svi(models.location(ppl), "diagonal", traced_step_size, ppl.elbo(), (Y,))
    assert np.isfinite(run.run(2)).all()


def test_the_table_of_other_libraries_words_is_short():
    assert sum(map(len, ELSEWHERE.values())) <= 60
