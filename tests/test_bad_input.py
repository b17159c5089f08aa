"""Bad input: the error names the site or argument, and nothing good is lost."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

from tests import models
from tests.ppl import load


def _data(ppl, values=(1.0, 2.0, 3.0)):
    return ppl.array(values)


def _svi(ppl, model, guide, *args, optimiser="Snngm"):
    optimiser = ppl.optimiser(optimiser, step_size=0.01)
    return ppl.svi(model, guide, optimiser, ppl.elbo(), args)


# -- the model ------------------------------------------------------------------------


def test_a_discrete_latent_without_enumeration_is_named(ppl):
    def model():
        ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
        coin = ppl.sample("coin", ppl.dist.Bernoulli(ppl.array(0.5)))
        ppl.sample("y", ppl.dist.Normal(coin, 1.0), obs=ppl.array(0.3))

    with pytest.raises(ValueError, match=r"'coin'.*enumerate.*TraceEnum_ELBO"):
        ppl.call(ppl.guide(model))


def test_a_site_of_the_name_of_a_guides_site_is_refused(ppl):
    name = "auto_posterior" if ppl.is_numpyro else "_NaturalGaussianGuide_latent"

    def model():
        ppl.sample(name, ppl.dist.Normal(ppl.array(0.0), 1.0))

    with pytest.raises(ValueError, match=f"site '{name}' has the name of the guide's own: rename"):
        ppl.call(ppl.guide(model))


@pytest.mark.parametrize("kind", ["list", "Series"])
def test_arguments_that_are_no_arrays_are_noted_if_the_model_fails(ppl, kind):
    x = [1.0, 2.0] if kind == "list" else pytest.importorskip("pandas").Series([1.0, 2.0])

    def model(x, y):
        slope = ppl.sample("slope", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(slope * x, 1.0).to_event(1), obs=y)

    def given(x, y):
        ppl.sample("slope", ppl.dist.Normal(ppl.array(0.0), 1.0))

    y = _data(ppl, (1.0, 2.0))
    with pytest.raises((TypeError, ValueError)) as error:
        ppl.call(ppl.guide(model), x, y)
    assert f"argument 0 is of type {kind}" in error.value.__notes__[0]
    ppl.call(ppl.guide(given), x, y)  # what the model converts, or leaves alone, is no fault


@pytest.mark.parametrize("style", ["fit", "step"])
@pytest.mark.parametrize("kind", ["strings", "objects", "dates"])
def test_arguments_that_hold_no_numbers_are_named_with_what_to_pass(ppl, kind, style):
    values = {"strings": ["a", "b", "a"], "objects": [1.0, None, 2.0], "dates": ["2020-01-01"] * 3}
    dtype = {"strings": None, "objects": object, "dates": "datetime64[D]"}[kind]

    def model(x, y):
        slope = ppl.sample("slope", ppl.dist.Normal(ppl.array(0.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(slope * x, 1.0).to_event(1), obs=y)

    args = np.array(values[kind], dtype), _data(ppl)
    with pytest.raises((TypeError, ValueError)) as error:
        if style == "fit":
            ppl.fit(model, *args)
        else:
            ppl.call(ppl.guide(model), *args)
    notes = " ".join(error.value.__notes__)
    assert f"argument 0 holds {kind}" in notes and "return_inverse=True" in notes


def test_an_empty_model_says_that_there_are_no_latents(ppl):
    def model():
        ppl.sample("y", ppl.dist.Normal(ppl.array(0.0), 1.0), obs=ppl.array(1.0))

    with pytest.raises(RuntimeError, match="no latent variables"):
        ppl.call(ppl.guide(model))


def test_subsampled_latents_in_a_subsampled_plate_are_named(ppl):
    def model():
        with ppl.plate("data", 10, subsample_size=3):
            ppl.sample("local", ppl.dist.Normal(ppl.array(0.0), 1.0))

    with pytest.raises((ValueError, NotImplementedError), match="'local'") as error:
        ppl.call(ppl.guide(model))
    assert "'data'" in str(error.value)
    assert "create_plates" in str(error.value)


def test_a_failed_setup_leaves_the_guide_usable_with_good_arguments(ppl):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Exponential(ppl.np.exp(mu)), obs=y)

    guide = ppl.guide(model)
    with pytest.raises(ValueError, match="'y'"):
        ppl.call(guide, _data(ppl, (np.nan, 1.0, 2.0)))
    ppl.call(guide, _data(ppl))
    assert "d=1" in repr(guide)


def test_a_plate_without_elements_is_named(ppl):
    model = models.location(ppl)
    with pytest.raises(ValueError, match="Plate 'data' has no elements"):
        ppl.call(ppl.guide(model), ppl.array([]))


@pytest.mark.parametrize("optimiser", ["BLR", "Snngm"])
def test_an_empty_minibatch_is_refused_by_its_plate_and_nothing_is_lost(ppl, optimiser):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", 30, subsample_size=len(y)):
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y)

    y = _data(ppl)
    svi = _svi(ppl, model, ppl.guide(model), y, optimiser=optimiser)
    svi.step()
    before = svi.gaussian
    with pytest.raises(ValueError, match="Plate 'data' has no elements"):
        svi.step(ppl.array([]))
    for a, b in zip(svi.gaussian, before, strict=True):
        np.testing.assert_array_equal(a, b)
    svi.step(y)
    with pytest.raises(ValueError, match="Plate 'data' has no elements"):
        ppl.call(ppl.guide(model), ppl.array([]))


def test_the_state_of_another_model_is_refused_numpyro():
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")

    def model(size):
        def vector(y):
            w = ppl.sample("w", ppl.dist.Normal(ppl.np.zeros(size), 1.0).to_event(1))
            ppl.sample("y", ppl.dist.Normal(w.sum(), 1.0), obs=y)

        return vector

    def svi(size):
        guide, parts = ppl.guide(model(size)), (ppl.optimiser("BLR"), ppl.elbo("NaturalELBO"))
        return ppl.package.SVI(model(size), guide, *parts, rng_key=jax.random.key(0))

    with ppl.precision("float32"):
        y = ppl.array(1.0)
        first, begun, fresh, same = svi(2), svi(3), svi(3), svi(2)
        first.step(y)
        before = begun.step(y)
        for other in (begun, fresh, fresh):
            other.state = first.state
            with pytest.raises(ValueError, match=r"auto_posterior.*of shape \(2,\), and.* \(3,\)"):
                other.step(y)
        begun.state = None
        assert float(begun.step(y)) == float(before)
        same.state = first.state
        assert float(first.step(y)) == float(same.step(y))


def test_the_type_of_data_that_torch_does_not_take_is_told_pyro():
    ppl = load("pyro")

    def model(y):
        p = ppl.sample("p", ppl.dist.Beta(1.0, 1.0))
        ppl.sample("y", ppl.dist.Bernoulli(logits=p).expand([2]).to_event(1), obs=y)

    with pytest.raises(ValueError, match=r"'y'.*torch.bool"):
        ppl.call(ppl.guide(model), ppl.np.tensor([True, False]))


# -- arguments ------------------------------------------------------------------------


def test_more_latents_than_a_matrix_or_a_fit_takes_are_refused_at_once(ppl, monkeypatch):
    model = models.location(ppl)
    monkeypatch.setattr("ngvi.families.dense.DenseFamily.max_dim", 0)
    with pytest.raises(ValueError, match="family='precision' would hold matrices of 1 x 1.*'diag"):
        ppl.call(ppl.guide(model, "precision"), _data(ppl))
    monkeypatch.undo()
    monkeypatch.setattr("ngvi.inference.set_up.MANY", 0)
    with pytest.raises(ValueError, match=r"1 latents without locals.*NaturalELBO\(1, 'stein'\)"):
        ppl.fit(model, _data(ppl))


@pytest.mark.parametrize("init_scale", [0.0, -1.0, float("nan"), float("inf")])
def test_init_scale_must_be_positive_and_finite(ppl, init_scale):
    with pytest.raises(ValueError, match="init_scale"):
        ppl.guide(models.location(ppl), init_scale=init_scale)


def test_an_unknown_family_fails_at_once_and_lists_the_known_ones(ppl):
    with pytest.raises(ValueError, match="family='mean_field'.*'diagonal'"):
        ppl.guide(models.location(ppl), "mean_field")


def test_an_unknown_way_of_landing_is_refused(ppl):
    with pytest.raises(ValueError, match="sticking_the_landing"):
        ppl.guide(models.location(ppl), sticking_the_landing="sometimes")


# -- values ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_observation_is_named_before_the_first_step(ppl, bad):
    model = models.location(ppl)
    guide = ppl.guide(model)
    with pytest.raises(ValueError, match="'y'"):
        _svi(ppl, model, guide, _data(ppl, (1.0, bad, 2.0))).step()


def test_an_infinite_observation_is_named_also_where_a_discrete_latent_is_summed_out(ppl):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("data", len(y)):
            coin = ppl.dist.Bernoulli(ppl.array(0.5))
            side = ppl.sample("side", coin, infer={"enumerate": "parallel"})
            ppl.sample("y", ppl.dist.Normal(mu + side, 1.0), obs=y)

    with pytest.raises(ValueError, match="'y'"):
        ppl.call(ppl.guide(model), _data(ppl, (1.0, np.inf, 2.0)))


@pytest.mark.parametrize("fault", ["covariate", "scale", "plate", "complex"])
def test_a_site_without_a_distribution_or_a_density_is_named(ppl, fault):
    """Both libraries see parameters of a distribution before they know its site."""

    def model(x, scale, y):
        slope = ppl.sample("slope", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(slope * x, scale), obs=y)

    x, scale, y = np.ones(3), np.ones(3), np.array([1.0, 2.0, 3.0])
    if fault == "covariate":
        x[1] = np.nan
    elif fault == "scale":
        scale[1] = -1.0
    elif fault == "plate":
        x = scale = np.ones(2)
    args = [ppl.array(x), ppl.array(scale), ppl.array(y)]
    if fault == "complex":
        args[2] = args[2] + 0j
    with pytest.raises((ValueError, TypeError, RuntimeError), match="site '?y"):
        ppl.call(ppl.guide(model), *args)


def test_a_fit_starts_at_the_priors_where_zero_and_about_it_are_impossible(ppl):
    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(30.0), 1.0))
        ppl.sample("y", ppl.dist.Normal(ppl.np.log(x - 25.0), 0.2), obs=ppl.array(1.6))

    result = ppl.fit(model, family="diagonal", max_steps=20)
    assert result.converged
    assert 29.0 < float(result.posterior.mean[0]) < 31.0


def test_data_at_the_edge_of_a_support_are_named(ppl):
    """The support of a beta distribution has zero and one in both libraries, and no density is."""

    def model(y):
        a = ppl.sample("a", ppl.dist.HalfNormal(ppl.array(5.0)))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Beta(a, 2.0), obs=y)

    with pytest.warns(UserWarning, match=r"observed 'y' is not finite at 1 of 3 places.*\[1\]"):
        ppl.fit(model, ppl.array([0.3, 0.0, 0.6]))


def test_a_latent_without_a_density_is_named(ppl):
    def model():
        x = ppl.sample("x", ppl.dist.Delta(ppl.array(3.0)))
        ppl.sample("y", ppl.dist.Normal(x, 1.0))

    for use in (lambda: ppl.call(ppl.guide(model)), lambda: ppl.fit(model)):
        with pytest.raises(ValueError, match="'x' has a delta distribution.*deterministic"):
            use()


def test_data_outside_the_likelihoods_support_are_named(ppl):
    def model(y):
        scale = ppl.sample("scale", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Gamma(scale, scale), obs=y)

    with pytest.raises(ValueError, match="'y'"):
        ppl.call(ppl.guide(model), _data(ppl, (-1.0, 1.0, 2.0)))


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
@pytest.mark.filterwarnings("ignore:A step of")
def test_a_bad_minibatch_leaves_the_last_good_parameters(ppl, name):
    model, good = models.location(ppl), _data(ppl)
    guide = ppl.guide(model)
    svi = _svi(ppl, model, guide, good, optimiser=name)
    svi.step()
    before = svi.gaussian
    bad = _data(ppl, (1.0, np.nan, 3.0))
    with contextlib.nullcontext() if ppl.is_numpyro else ppl.lib.validation_enabled(False):
        svi.step(bad)
    for a, b in zip(svi.gaussian, before, strict=True):
        np.testing.assert_array_equal(a, b)
    svi.step()
    assert all(np.isfinite(x).all() for x in svi.gaussian)
    assert any((a != b).any() for a, b in zip(svi.gaussian, before, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BLR", "IVON", "Snngm"])
def test_bad_minibatches_inside_a_scan_in_float32_are_steps_not_taken_numpyro(name):
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.precision("float32"):
        model, y = models.location(ppl), _data(ppl)
        options = {"curvature": "stein"} if name == "IVON" else {}
        loss = ppl.elbo("Trace_ELBO" if name == "Snngm" else "NaturalELBO", **options)
        guide = ppl.guide(model, "diagonal")
        svi = ppl.package.SVI(model, guide, ppl.optimiser(name), loss)
        state = svi.init(jax.random.key(0), y)
        run = jax.jit(lambda state, batches: jax.lax.scan(svi.update, state, batches))
        good = ppl.np.tile(y, (6, 1))
        bad = good.at[2:4, 1].set(ppl.np.array([np.nan, np.inf]))
        for batches, skipped in ((good, 0), (bad, 2)):
            after, losses = run(state, batches)
            assert np.isfinite(losses).sum() == 6 - skipped
            counts = [s for s in _states(after) if hasattr(s, "num_skipped")]
            assert [int(s.num_skipped) for s in counts] == [skipped]
            leaves = jax.tree.leaves(svi.get_params(after))
            assert {str(leaf.dtype) for leaf in leaves} == {"float32"}
            assert all(np.isfinite(leaf).all() for leaf in leaves)


def _states(tree):
    """The named tuples of an optimiser's state."""
    if isinstance(tree, tuple):
        yield tree
        for part in tree:
            yield from _states(part)


def test_a_first_loss_that_is_not_finite_is_an_error_of_step_numpyro():
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.float64():

        def model(y):
            mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 1.0))
            # Finite at the start, and far too wide a guess around it.
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y)
            ppl.factor("wall", ppl.np.where(ppl.np.abs(mu) < 1e-3, 0.0, -np.inf))

        guide = ppl.guide(model, init_loc_fn=ppl.start_at(mu=0.0), init_scale=10.0)
        key = jax.random.key(0)
        svi = ppl.package.SVI(model, guide, ppl.optimiser(), ppl.elbo(), rng_key=key)
        with pytest.raises(ValueError, match="first loss.*init_scale"):
            svi.step(ppl.array(0.0))
        assert svi.state is None


def test_a_step_that_is_skipped_is_warned_of_once_numpyro():
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.float64():
        model, y = models.location(ppl), _data(ppl)
        guide, loss = ppl.guide(model), ppl.elbo("Trace_ELBO")
        svi = ppl.package.SVI(model, guide, ppl.optimiser("Snngm"), loss, rng_key=jax.random.key(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            svi.step(y)
            float(svi.step(y * np.nan))
        with pytest.warns(UserWarning, match="A step was skipped.*not finite"):
            svi.step(y)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            float(svi.step(y))
            svi.step(y)


def test_draws_that_a_step_leaves_out_are_warned_of_once_where_it_was_called_numpyro():
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.float64():

        def model():
            x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
            ppl.factor("edge", 2.0 * ppl.np.log(x + 1.0))  # which is nothing where x < -1

        guide, loss = ppl.guide(model, "diagonal", init_scale=1.0), ppl.elbo("NaturalELBO")
        svi = ppl.package.SVI(model, guide, ppl.optimiser(), loss, rng_key=jax.random.key(0))
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            float(svi.step())
            svi.step()
        assert [warning.filename for warning in found] == [__file__]
        assert "left out" in str(found[0].message)
        assert loss.num_dropped > 0 and svi.state.mutable_state is None


def test_step_without_a_key_says_so_numpyro():
    ppl = load("numpyro")
    with ppl.float64():
        model = models.location(ppl)
        guide = ppl.guide(model)
        svi = ppl.package.SVI(model, guide, ppl.optimiser(), ppl.elbo())
        with pytest.raises(ValueError, match="rng_key"):
            svi.step(_data(ppl))
        with pytest.raises(RuntimeError, match="first svi.step"):
            _ = svi.params


@pytest.mark.filterwarnings("ignore")
def test_a_fit_without_a_start_and_without_a_result_names_the_site_pyro():
    """Pyro cannot tell who depends on whom where nothing has a density."""
    ppl = load("pyro")

    def model(y):
        a = ppl.sample("a", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("rows", 3):
            b = ppl.sample("b", ppl.dist.Laplace(a, 1.0))
        c = ppl.sample("c", ppl.dist.Laplace(a, 1.0))
        with ppl.plate("data", 3):
            ppl.sample("y", ppl.dist.Normal(b + c, 1.0), obs=y)

    with pytest.raises(ValueError, match="Observed site 'y' holds what is not in its support"):
        ppl.fit(model, ppl.array([0.0, np.inf, 1.0]), family="sparse_precision")


# -- changes between calls ------------------------------------------------------------


def test_a_latent_whose_size_changes_is_named_and_nothing_is_lost(ppl):
    def model(y):
        with ppl.plate("data", len(y)):
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), 1.0))
            ppl.sample("y", ppl.dist.Normal(effect, 1.0), obs=y)

    guide = ppl.guide(model)
    svi = _svi(ppl, model, guide, _data(ppl))
    svi.step()
    before = svi.gaussian
    with pytest.raises(ValueError, match=r"'effect'.*\(4,\).*\(3,\)"):
        svi.step(_data(ppl, (1.0, 2.0, 3.0, 4.0)))
    for a, b in zip(svi.gaussian, before, strict=True):
        np.testing.assert_array_equal(a, b)
    svi.step()  # and the run goes on


def test_data_of_another_size_with_the_same_latents_are_welcome(ppl):
    model = models.location(ppl)
    svi = _svi(ppl, model, ppl.guide(model), _data(ppl))
    assert np.isfinite(svi.step())
    assert np.isfinite(svi.step(_data(ppl, (1.0, 2.0))))


# -- the optimiser --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Snngm", "Nagm"])
def test_an_optimiser_that_sees_no_natural_parameters_says_so(ppl, name):
    def plain_guide(y):
        loc = ppl.param("loc", ppl.array(0.0))
        ppl.sample("mu", ppl.dist.Normal(loc, 1.0))

    model = models.location(ppl)
    with pytest.raises(ValueError, match=f"{name} sees no natural parameters.*NaturalGaussian"):
        _svi(ppl, model, plain_guide, _data(ppl), optimiser=name).step()
