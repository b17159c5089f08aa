"""What a fit returns: draws, predictions, a report, pictures."""

from __future__ import annotations

import builtins
import dataclasses
import math
import pickle

import numpy as np
import pytest

from ngvi.inference.monitor import OTHERS, Monitor, StoppedByCallback
from ngvi.inference.report import final_bound
from ngvi.inference.tables import Table
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.outcome import FoundOptimum, Restart
from tests import models
from tests.inference.results import conjugate, conjugate_result, result, shared_result


def hierarchy(ppl):
    X, group, y = models.data()
    return models.hierarchy(ppl), (ppl.array(X), ppl.index(group), ppl.array(y))


# -- the bound ------------------------------------------------------------------------


def bound_of(losses, errors):
    return final_bound(Trace(losses, errors, distances=[0.0] * len(losses)))


def test_the_bound_is_the_mean_of_the_last_losses_weighted_by_their_errors():
    bound, error = bound_of([50.0] * 18 + [2.0, 5.0], [0.1] * 18 + [1.0, 2.0])
    assert bound == pytest.approx(-(2.0 * 1 + 5.0 / 4) / (1 + 1 / 4))
    assert error == pytest.approx(1 / math.sqrt(1 + 1 / 4))


# -- draws ----------------------------------------------------------------------------


def test_draws_are_constrained_and_those_of_the_posterior(ppl):
    at = (np.linspace(-0.5, 0.5, 8), 0.2 * np.eye(8))
    draws = result(ppl, *hierarchy(ppl), at=at).sample(2000)
    draws = {name: ppl.numpy(value) for name, value in draws.items()}
    shapes = {"sigma": (), "weights": (3,), "centre": (), "effect": (4,)}
    for name, shape in shapes.items():
        assert draws[name].shape == (2000, *shape)
    assert (draws["sigma"] > 0).all()
    np.testing.assert_allclose(draws["weights"].sum(-1), 1.0)
    np.testing.assert_allclose(draws["effect"].mean(0), at[0][4:], atol=0.03)
    np.testing.assert_allclose(draws["effect"].std(0), 0.2, rtol=0.1)
    # Pyro's guides know nothing of deterministic sites.
    assert set(draws) - set(shapes) == ({"largest"} if ppl.is_numpyro else set())


def test_predictions_for_the_fit_s_own_arguments_are_replications_of_its_data(ppl):
    fitted = shared_result(ppl)
    X, y = (ppl.numpy(value) for value in fitted.args)
    replicated = ppl.numpy(fitted.predictive(num_samples=300)["y"])
    assert replicated.shape == (300, len(y))
    assert replicated.std(0).min() > 0.3
    np.testing.assert_allclose(replicated.mean(0), X @ models.exact_posterior()[0], atol=0.25)


def test_a_factor_is_no_prediction(ppl):
    def model():
        x = ppl.sample("x", ppl.dist.Normal(0.0, 1.0))
        ppl.factor("penalty", -(x**2))
        ppl.sample("y", ppl.dist.Normal(x, 1.0), obs=ppl.array(0.5))

    predicted = ppl.fit(model).predictive(num_samples=3)
    assert "penalty" not in predicted and predicted["y"].shape == (3,)


def test_draws_of_numpyro_take_a_key(numpyro_backend):
    import jax

    fitted = shared_result(numpyro_backend)
    same = [fitted.sample(3)["weights"] for _ in range(2)]
    np.testing.assert_array_equal(*same)
    other = fitted.sample(3, rng_key=jax.random.key(9))["weights"]
    assert not np.allclose(same[0], other)


def test_a_later_result_leaves_an_earlier_one_alone(ppl):
    """Its posterior, draws, diagnostics, and predictions, here for other arguments."""
    first = conjugate_result(ppl, shift=0.3)
    second = conjugate_result(ppl, factor=1.2)
    mean, covariance, _ = models.exact_posterior()
    shifted = mean + 0.3 * np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(ppl.numpy(first.posterior.mean), shifted)
    drawn = ppl.numpy(first.sample(2000)["weights"])
    np.testing.assert_allclose(drawn.mean(0), shifted, atol=0.02)
    assert first.diagnostics.accuracy.errors[0].max() == pytest.approx(0.3, abs=0.1)
    assert second.diagnostics.accuracy.errors[0].max() < 0.1
    predicted = first.predictive(ppl.array([[100.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), num_samples=200)
    assert predicted["y"].shape == (200, 2)
    assert ppl.numpy(predicted["y"])[:, 0].mean() == pytest.approx(100 * shifted[0], abs=4.0)


# -- the report -----------------------------------------------------------------------


def test_the_report_says_what_one_wants_to_know(ppl):
    fitted = conjugate_result(ppl, shift=0.05)
    assert "not made yet" in repr(fitted)  # which computes nothing
    lines = str(fitted).splitlines()
    took = f"{fitted.seconds:.1f} s"  # with the draws
    assert lines[0] == f"FitResult: certified; draws accurate, after 20 steps, {took}"
    assert len(lines) < 16 and max(map(len, lines)) < 100
    text = "\n".join(lines)
    for words in (
        "covariance_cholesky, d = 3",
        "2,000 gradients, 600 Hessian-vector products, 7,000 values",
        "-30.000 ± 0.071 nats",
        "the Gaussian, judged by weights of 4,000 draws: means within 0.0",
        "worst: weights[",
        "within 0.02 nats",
    ):
        assert words in text, words
    assert repr(fitted) == text


def test_a_fit_that_has_not_converged_says_so_first(ppl):
    fitted = dataclasses.replace(
        shared_result(ppl), verdict="not converged", reason="too few: try more"
    )
    assert repr(fitted).startswith("FitResult: NOT converged")
    assert "try more" in repr(fitted)


# -- pictures -------------------------------------------------------------------------


def test_the_picture_has_bound_steps_weights_and_marginals(ppl, pyplot):
    figure = shared_result(ppl, shift=0.3).plot()
    figure.canvas.draw()
    titles = [ax.get_title() for ax in figure.axes]
    assert any("bound -30.0" in title for title in titles)
    assert any("k-hat 0." in title for title in titles)
    assert any("upper limits of errors" in title for title in titles)
    labels = {label.get_text() for ax in figure.axes for label in ax.get_yticklabels()}
    assert {"weights[0]", "weights[1]", "weights[2]"} <= labels


CELLS = {
    "import torch; torch.set_default_dtype(torch.float64)": 0,
    "from tests.ppl import load\nfrom tests.inference.results import shared_result": 0,
    "fitted = shared_result(load('pyro'), shift=0.3)": 0,
    "fitted.plot()": 1,
    "fitted.plot();": 1,
    "figure = fitted.plot()": 1,
    "from matplotlib import pyplot\nfigure = fitted.plot()\npyplot.show()": 1,
    "figure": 1,
    "pyplot.plot([1, 2]);": 1,
}


@pytest.mark.slow
def test_a_notebook_shows_a_picture_once():
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    found = [
        sum("image/png" in output.get("data", {}) for output in cell.outputs)
        for cell in notebook.cells
    ]
    assert dict(zip(CELLS, found, strict=True)) == CELLS


def test_what_a_result_holds_is_short_in_words():
    table = Table([Restart("the guide's", -31.5, 0.012, 12, 8, "kept")])
    assert repr(table).splitlines() == [
        "name         bound    bound_error  num_steps  num_starts  status",
        "the guide's  -31.500  0.012        12         8           kept",
    ]
    assert pickle.loads(pickle.dumps(table)) == table == tuple(table)
    assert ">the guide&#x27;s</th>" in table._repr_html_() and repr(Table()) == "()"
    optima = Table([FoundOptimum({}, -1.0, 0.1, 8, True, 1.0)])
    assert repr(optima).splitlines()[1].split() == ["-1.000", "0.100", "8", "True", "1.000"]
    steps = Trace([3.0, 1.0], [0.1] * 2, [1.0] * 2, [0.1] * 2, [5] * 2)
    assert repr(steps) == "Trace(2 steps, bound -3.000 at the first and -1.000 nats at the last)"
    assert repr(Trace()) == "Trace(no steps)"


@pytest.mark.parametrize("case", ["exact", "minibatch", "no trace", "bad"])
def test_there_is_a_picture_of_everything(pyro_backend, case, pyplot):
    """Of either package: the pictures know none."""
    ppl = pyro_backend
    if case == "minibatch":
        fitted = result(ppl, *conjugate(ppl), {"subsample_size": 5})
    elif case == "no trace":
        fitted = conjugate_result(ppl, trace=Trace())
    else:
        fitted = shared_result(ppl, factor=1.0 if case == "exact" else 0.2)
    fitted.plot().canvas.draw()


def test_without_matplotlib_the_error_says_how_to_get_it(ppl, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *args, **kwargs)

    fitted = shared_result(ppl)
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        fitted.plot()


# -- the progress bar -----------------------------------------------------------------


def test_the_bar_names_phases_shows_the_best_bound_and_ends_with_the_result(capsys, caplog):
    caplog.set_level("DEBUG", "ngvi")
    with Monitor(progress_bar=True) as bar:
        assert "fit: setting up" in capsys.readouterr().err  # before the first step
        for loss in (math.nan, 125.0, -1e5, 123.456):  # no bound, and one of an overfitted state
            bar.after_step(loss, gap=0.031)
        bar._bar.refresh()
        err = capsys.readouterr().err
        assert "fit: optimum, 4 steps" in err
        assert "bound -123.46 nats by few draws, about 0.031 to go" in err
        bar.best, bar.phase = -123.4, OTHERS
        bar.after_step(300.0, 3e25)
        assert "bound -123.40 nats" in bar._bar.postfix
        bar.finish("local", -123.41, 0.012)
    last = capsys.readouterr().err.rstrip().rpartition("\r")[2]
    assert "fit: local, 5 steps" in last and "bound -123.41 ± 0.012 nats" in last
    assert "to go" not in last
    said = [(one.levelname, one.getMessage().partition(",")[0]) for one in caplog.records]
    assert said[:2] == [("INFO", "setting up"), ("INFO", "optimum")]
    assert caplog.records[-1].getMessage().startswith("local after 5 steps")
    assert sum(one.levelname == "DEBUG" for one in caplog.records) == 5


@pytest.mark.parametrize("how", ["True", "StopIteration"])
def test_a_callback_may_end_the_fit(how):
    def callback(step, bound, distance):
        if how == "StopIteration":
            raise StopIteration
        return True

    with pytest.raises(StoppedByCallback):
        Monitor(callback=callback).after_step(1.0, 1.0)
    Monitor(callback=lambda *_: 1).after_step(1.0, 1.0)


# -- both packages --------------------------------------------------------------------


def test_both_packages_have_the_same_fields_and_methods():
    a = pytest.importorskip("numpyro_ngvi.inference").FitResult
    b = pytest.importorskip("pyro_ngvi.inference").FitResult
    names = [[field.name for field in dataclasses.fields(cls)] for cls in (a, b)]
    assert [name for name in names[0] if name != "_rng_key"] == names[1]
    public = [{n for n in dir(cls) if not n.startswith("_")} - {"rng_key"} for cls in (a, b)]
    assert public[0] == public[1]
