"""The doors beside ``fit``: guides, losses, optimisers and results say how they are called."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import partial

import numpy as np
import pytest

from ngvi._door import CALLED, door
from ngvi.inference.options import MultiStartOptions
from tests import models
from tests.inference.results import shared_result
from tests.ppl import load

Y = np.array([1.0, 2.0, 3.0])


class Box:
    @door
    def open(self, step_size: float = 1.0, *, lid: bool = True) -> float:
        return step_size


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


def test_no_argument_has_its_own_name_elsewhere():
    assert not [name for name, others in CALLED.items() if name in others.split()]


# -- both packages -------------------------------------------------------------------------


def svi(ppl, optimiser, loss, family="diagonal"):
    model = models.location(ppl)
    stock = ppl.infer.SVI
    run = stock(model, ppl.guide(model, family), optimiser, loss)
    if ppl.is_numpyro:
        import jax

        return run.update(run.init(jax.random.key(0), ppl.array(Y)), ppl.array(Y))
    return run.step(ppl.array(Y))


def observing(ppl, data):
    def model():
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(mu * ppl.array([1.0, 1.0]), 1.0).to_event(1), obs=data)

    return model


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


MISTAKES = {
    "a loss without brackets": (
        lambda ppl: svi(ppl, ppl.optimiser(), ppl.package.NaturalELBO),
        r"NaturalELBO itself was given.*write NaturalELBO\(\)",
    ),
    "an optimiser without brackets": (
        lambda ppl: ppl.package.SVI(
            models.location(ppl), ppl.guide(models.location(ppl)), ppl.package.BLR, ppl.elbo()
        ),
        r"BLR itself was given.*write BLR\(\)",
    ),
    "a guide without its model": (
        lambda ppl: ppl.package.SVI(
            models.location(ppl), ppl.package.NaturalGaussianGuide, ppl.optimiser(), ppl.elbo()
        ),
        r"NaturalGaussianGuide itself was given",
    ),
    "a keyword of another loss": (
        lambda ppl: ppl.package.NaturalELBO(num_samples=3),
        r"NaturalELBO has no argument num_samples=. Is num_particles= meant\?",
    ),
    "a keyword of another guide": (
        lambda ppl: ppl.package.NaturalGaussianGuide(models.location(ppl), init_strategy=3),
        r"NaturalGaussianGuide has no argument init_strategy=. Is init_loc_fn= meant\?",
    ),
    "a guide of nothing": (
        lambda ppl: ppl.package.NaturalGaussianGuide(),
        r"NaturalGaussianGuide\(model, .* was called otherwise: missing a required argument: 'mod",
    ),
    "draws by another name": (
        lambda ppl: shared_result(ppl).sample(n_samples=3),
        r"sample has no argument n_samples=. Is num_samples= meant\?",
    ),
    "a key in the first place": (
        lambda ppl: shared_result(ppl).sample(3, 10),
        r"sample\(num_samples=1000, \*.* was called otherwise: too many",
    ),
    "a guide in the place of its model": (
        lambda ppl: swapped(ppl),
        r"The guide is in the place of the model: it is SVI\(model, guide",
    ),
    "a list of data": (
        lambda ppl: ppl.call(ppl.guide(observing(ppl, [1.0, 2.0]))),
        r"Observed site 'y' has a list, and .*(Pyro|NumPyro) takes",
    ),
    "draws in the place of arguments": (
        lambda ppl: shared_result(ppl).predictive(100),
        r"for so many draws write predictive\(num_samples=100\)",
    ),
    "an argument of another model": (
        lambda ppl: shared_result(ppl).predictive(x=3),
        r"predictive has no argument x=, and neither has the model.*Is X= meant",
    ),
    "an optimum by its number": (
        lambda ppl: shared_result(ppl).posterior_of(0),
        "optimum must be one of result.optima, got 0",
    ),
    "a path that is none": (
        lambda ppl: shared_result(ppl).save(3),
        "path must be the path of a file.*got 3",
    ),
    "a site in brackets": (
        lambda ppl: shared_result(ppl)["weights"],
        r"write result.sample\(1000\)\['weights'\]",
    ),
    "a loss in words": (
        lambda ppl: ppl.package.SVI(len, print, ppl.optimiser(), "elbo"),
        r"loss must be an object such as NaturalELBO\(\), got 'elbo'",
    ),
    "no guide": (
        lambda ppl: ppl.package.SVI(len, None, ppl.optimiser(), ppl.elbo()),
        r"guide must be a guide, NaturalGaussianGuide\(model\) say, got None",
    ),
    "a summary of names by another name": (
        lambda ppl: shared_result(ppl).summary(sites=["w"]),
        r"FitResult.summary has no argument sites=. Is var_names= meant\?",
    ),
    "an interval by another name": (
        lambda ppl: shared_result(ppl).summary(hdi_prob=0.9),
        r"FitResult.summary has no argument hdi_prob=. Is prob= meant\?",
    ),
    "groups for ArviZ by another name": (
        lambda ppl: shared_result(ppl).to_arviz(groups="posterior"),
        r"FitResult.to_arviz has no argument groups=. It has num_samples=, .*prior=, .*corrected=",
    ),
    "draws for ArviZ by another name": (
        lambda ppl: shared_result(ppl).to_arviz(draws=10),
        r"FitResult.to_arviz has no argument draws=. Is num_samples= meant\?",
    ),
    "leave-one-out of another library": (
        lambda ppl: shared_result(ppl).loo(pointwise=True),
        r"FitResult.loo has no argument pointwise=. It has plate=\.",
    ),
    "a list of plates": (
        lambda ppl: shared_result(ppl).influence(["rows"]),
        r"plate must be the name of one plate, or None, got \['rows'\]",
    ),
    "without what": (
        lambda ppl: shared_result(ppl).without(),
        r"FitResult.without\(rows, plate=None\) was called otherwise: missing .* 'rows'",
    ),
    "rows by another name": (
        lambda ppl: shared_result(ppl).without(index=3),
        r"FitResult.without has no argument index=. Is rows= meant\?",
    ),
    "chains of another library": (
        lambda ppl: shared_result(ppl).nuts(chains=2),
        r"FitResult.nuts has no argument chains=. Is num_chains= meant\?",
    ),
    "a warm-up of another library": (
        lambda ppl: shared_result(ppl).nuts(tune=2),
        r"FitResult.nuts has no argument tune=. Is num_warmup= meant\?",
    ),
    "an update that is no call of the model": (
        lambda ppl: shared_result(ppl).update(rows=3),
        "update has no argument rows=, and neither has the model",
    ),
    "the model among its arguments": (
        lambda ppl: shared_result(ppl).update(shared_result(ppl).model, *shared_result(ppl).args),
        "update has the model already, and argument 0 .* is the model itself: leave it out",
    ),
    "a number of new groups": (
        lambda ppl: shared_result(ppl).predictive(new_groups=3),
        "new_groups must be True, the name of a plate, .*got 3; the plates around latents are",
    ),
    "a file in the place of a fit": (
        lambda ppl: type(shared_result(ppl))("fit.ngvi"),
        r"FitResult is what fit\(model, ...\) returns.*FitResult.load\(path, model\)",
    ),
    "an argument that files do not have": (
        lambda ppl: shared_result(ppl).save("fit.ngvi", overwrite=True),
        r"FitResult.save has no argument overwrite=. It has path=, data=\.",
    ),
    "labels without their axis": (
        lambda ppl: shared_result(ppl).to_arviz(coords=["a", "b"]),
        r"coords must be a dictionary, coords=\{'axis'",
    ),
    "a guide in words": (
        lambda ppl: type(shared_result(ppl)).load("fit.ngvi", len, guide="diagonal"),
        r"guide must be a guide, such as NaturalGaussianGuide\(model\), got 'diagonal'",
    ),
    "an option that fit has": (
        lambda ppl: ppl.package.FitOptions(bananas=3),
        r"FitOptions has no argument bananas=. It has prior_start=",
    ),
    "options of an option in a dictionary": (
        lambda ppl: ppl.fit(
            models.location(ppl),
            ppl.array(Y),
            options=ppl.package.FitOptions(multi_start={"num_starts": 3}),
        ),
        r"options=FitOptions.multi_start must be of type MultiStartOptions\(...\), got \{'num",
    ),
    "a number of an option in words": (
        lambda ppl: ppl.fit(
            models.location(ppl),
            ppl.array(Y),
            options=ppl.package.FitOptions(multi_start=MultiStartOptions(num_starts="many")),
        ),
        r"FitOptions.multi_start.num_starts must be of type int, got 'many'",
    ),
    "an item of the diagnostics": (
        lambda ppl: shared_result(ppl).diagnostics["pareto_k"],
        "Diagnostics has no items: it has .*pareto_k",
    ),
    "a seed by another name": (
        lambda ppl: shared_result(ppl).diagnose(random_seed=1),
        r"diagnose has no argument random_seed=. Is (seed|rng_key)= meant\?",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_at_a_door_is_told(ppl, mistake):
    action, words = MISTAKES[mistake]
    with pytest.raises(TypeError, match=words):
        action(ppl)


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


def test_parameters_are_told_from_draws(ppl):
    fitted = shared_result(ppl)
    with pytest.raises(KeyError, match=r"no parameter 'weights'.*result.sample\(1000\)\['name of"):
        fitted.params["weights"]
    assert fitted.params.get("weights") is None and "weights" not in fitted.params
    again = pickle.loads(pickle.dumps(fitted.params))
    assert list(again) == list(fitted.params) and type(again) is type(fitted.params)


def test_parameters_are_a_pytree_and_draws_need_a_key_numpyro(numpyro_backend):
    import jax

    fitted = shared_result(numpyro_backend)
    params, plain = fitted.params, dict(fitted.params)
    flat, other = (jax.tree_util.tree_leaves_with_path(one) for one in (params, plain))
    assert [path for path, _ in flat] == [path for path, _ in other]
    assert type(jax.tree.map(lambda x: x, params)) is type(params)
    for family in ("full", "diagonal", "sparse_precision"):
        guide = numpyro_backend.guide(fitted.model, family)
        posterior = guide.get_posterior(numpyro_backend.set_up(guide, *fitted.args))
        for draw in (posterior, partial(posterior.sample, 1000)):
            with pytest.raises(TypeError, match=r"write posterior.sample\(jax.random.key\(0\), "):
                draw()
        draws = posterior.sample(jax.random.key(0), (5,))
        assert draws.shape == (5, 3)
        np.testing.assert_array_equal(
            draws, posterior(rng_key=jax.random.key(0), sample_shape=(5,))
        )


def test_data_in_the_place_of_the_number_of_steps_are_told_numpyro(numpyro_backend):
    import jax

    ppl = numpyro_backend
    model = models.location(ppl)
    run = ppl.package.SVI(model, ppl.guide(model, "diagonal"), ppl.optimiser(), ppl.elbo())
    for steps, words in ((ppl.array(Y), r"an array of shape \(3,\)"), (0.5, "0.5")):
        with pytest.raises(
            ValueError, match=rf"num_steps must be .*got {words}.*run\(rng_key, num"
        ):
            run.run(jax.random.key(0), steps, ppl.array(Y))
    with pytest.raises(TypeError, match="rng_key must be one JAX random key"):
        run.run(0, 10, ppl.array(Y))
    with pytest.raises(TypeError, match="rng_key must be one JAX .*got an array of shape"):
        run.init(ppl.array(Y))
    with pytest.raises(TypeError, match=r"that of svi.init\(rng_key, ...\).*got None"):
        run.update(None, ppl.array(Y))
    assert run.run(jax.random.key(0), 2, ppl.array(Y), progress_bar=False).losses.shape == (2,)


def test_a_run_of_no_steps_is_told_pyro(pyro_backend):
    ppl = pyro_backend
    model = models.location(ppl)
    run = ppl.package.SVI(model, ppl.guide(model, "diagonal"), ppl.optimiser(), ppl.elbo())
    with pytest.raises(RuntimeError, match=r"Write a loop of svi.step\(\.\.\.\)"):
        run.run(ppl.array(Y))


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


def test_a_rate_of_adams_for_a_newton_like_rule_is_warned_of(ppl):
    with pytest.warns(
        UserWarning, match=r"(step_size|lr)=0.001 of BLR is no learning rate.*BLR\(\)"
    ):
        ppl.optimiser("BLR", 1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ppl.optimiser("BLR", 0.1)


def test_one_level_has_no_dimension_of_its_own(ppl):
    guide, params = shared_result(ppl).guide, shared_result(ppl).params
    of = (params,) if ppl.is_numpyro else ()
    one, two = guide.quantiles(*of, 0.5), guide.quantiles(*of, [0.5, 0.9])
    for name, value in one.items():
        np.testing.assert_allclose(ppl.numpy(value), ppl.numpy(two[name])[0])


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
