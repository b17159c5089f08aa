"""What a step waits for on its device: nothing in NumPyro, in Pyro mostly for what Pyro reads."""

from __future__ import annotations

import dataclasses

import pytest

from tests import models
from tests.models import Y
from tests.ppl import load, slow_but


@dataclasses.dataclass
class Run:
    """A run of ``SVI``, and how often a step of it may wait."""

    optimiser: str
    loss: str = "NaturalELBO"
    family: str = "full"
    loss_options: dict = dataclasses.field(default_factory=dict)
    has_parameter: bool = False  #: whether the model has a parameter of its own
    has_conjugate_site: bool = False  #: whether a site is declared conjugate
    of_ours: int = 0  #: waits of a step in Pyro besides :data:`OF_PYRO`


#: What every step reads in Pyro: of ``SVI`` and its ELBO two sums of log densities, twice each, and
#: of ours the loss, which ``SVI`` returns; and whether the step is taken.
OF_PYRO = {"Trace_ELBO": 5, "NaturalELBO": 2}

#: The curvature that each of them is for.
OF_VOGN = {"family": "diagonal", "loss_options": {"curvature": "gauss_newton"}}
OF_IVON = {"family": "diagonal", "loss_options": {"curvature": "stein"}}

RUNS = {
    # The slopes at the end of the last step decide how long the next one may be, and its length is
    # measured, once for each attempt.
    "BLR": Run("BLR", of_ours=2),
    # Whether all draws count is read with the loss.
    "BLR with Hessians": Run("BLR", loss_options={"curvature": "hessian"}, of_ours=2),
    # And whether the nodes miss a part of any term.
    "BLR by quadrature": Run("BLR", loss_options={"curvature": "quadrature"}, of_ours=3),
    # And the groups' spread, once it is known of which draws the parameter's gradient is.
    "BLR beside Adam": Run("BLR", has_parameter=True, of_ours=3),
    # And whether the sum of two matrices is definite, once the length of the step is known.
    "BLR of a precision": Run("BLR", family="precision", of_ours=3),
    # And the slopes of conjugate sites, which have a rule of their own; more attempts at a length.
    "BLR beside a conjugate site": Run("BLR", has_conjugate_site=True, of_ours=4),
    # Whether a precision is positive definite.
    "VON": Run("VON", of_ours=1),
    # The slope at the end of the last step, and how long the next one is.
    "VOGN": Run("VOGN", **OF_VOGN, of_ours=1),
    "IVON": Run("IVON", **OF_IVON, of_ours=1),
    # And whether all draws count, before the parameter's gradient is known.
    "IVON beside Adam": Run("IVON", **OF_IVON, has_parameter=True, of_ours=2),
    # The products of the fresh gradient, the momentum and the last step.
    "Snngm": Run("Snngm", "Trace_ELBO", of_ours=1),
    "Nagm": Run("Nagm", "Trace_ELBO"),
}


def _model(ppl, run):
    if not (run.has_parameter or run.has_conjugate_site):
        return models.location(ppl)

    def model(y):
        width = ppl.param("width", ppl.array(10.0)) if run.has_parameter else 10.0
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), width))
        precision = 1.0
        if run.has_conjugate_site:
            precision = ppl.sample("precision", ppl.dist.Gamma(ppl.array(2.0), 2.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(mu, precision**-0.5), obs=y)

    return model


def _made(ppl, run):
    """Model, guide, optimiser and loss."""
    model = _model(ppl, run)
    optimiser = ppl.optimiser(run.optimiser)
    loss = ppl.elbo(run.loss, **run.loss_options)
    guide = ppl.guide(model, run.family)
    if run.has_conjugate_site:
        guide = ppl.module("conjugate").ConjugateGuide(model, {"precision": "gamma"})
    return model, guide, optimiser, loss


# -- NumPyro --------------------------------------------------------------------------


def _callbacks(jaxpr):
    for equation in jaxpr.eqns:
        if any(word in equation.primitive.name for word in ("callback", "infeed")):
            yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _callbacks(inner)


@pytest.mark.parametrize("name", slow_but("BLR beside Adam", RUNS))
def test_a_step_calls_the_host_only_to_report_dropped_draws_numpyro(name):
    """... and ``svi.step``, which returns their number, never."""
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.float64():
        y = ppl.array(Y)
        model, guide, optimiser, loss = _made(ppl, RUNS[name])
        svi = ppl.package.SVI(model, guide, optimiser, loss)
        state = svi.init(jax.random.key(0), y)
        program = jax.make_jaxpr(svi.update)(state, y)  # fails where a number is read
        is_ours = RUNS[name].loss == "NaturalELBO"
        assert set(_callbacks(program.jaxpr)) == ({"debug_callback"} if is_ours else set())
        if is_ours:
            state = state._replace(mutable_state={loss.COUNT: jax.numpy.zeros((), int)})
            program = jax.make_jaxpr(svi.update)(state, y)
    assert not set(_callbacks(program.jaxpr))
    assert not program.effects  # for which Python, and not C++, would dispatch every step


# -- Pyro -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_step_waits_as_seldom_as_it_says_pyro(name):
    pytest.importorskip("pyro")
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    #: What waits for the device: a number that Python reads, and shapes that follow from values.
    reads = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2")

    class Waits(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            by_mask = func.name() == "aten::index.Tensor" and any(
                index is not None and index.dtype == torch.bool for index in args[1]
            )
            self.count += by_mask or func.name().removeprefix("aten::") in reads
            return func(*args, **(kwargs or {}))

    ppl = load("pyro")
    ppl.forget()
    run, steps = RUNS[name], 10
    with ppl.float64(), ppl.lib.validation_enabled(False):
        y = ppl.array(Y)
        svi = ppl.infer.SVI(*_made(ppl, run))
        for _ in range(3):
            svi.step(y)
        with Waits() as found, pytest.MonkeyPatch.context() as patch:
            tolist = torch.Tensor.tolist

            def counted(tensor):
                found.count += 1
                return tolist(tensor)

            patch.setattr(torch.Tensor, "tolist", counted)
            for _ in range(steps):
                svi.step(y)
    ppl.forget()
    of_pyro = OF_PYRO[run.loss]
    assert of_pyro <= found.count / steps <= of_pyro + run.of_ours, found.count / steps
