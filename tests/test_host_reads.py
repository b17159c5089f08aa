"""What a step reads from its device: nothing in NumPyro, a bounded number of numbers in Pyro."""

from __future__ import annotations

import pytest

from tests import models
from tests.models import Y
from tests.ppl import load

#: Optimiser, loss, and the most numbers that a step reads in Pyro: of the last, Trace_ELBO itself
#: reads four, and the loss is a number for SVI everywhere.
RUNS = {
    "BLR": ("BLR", "NaturalELBO", 17.0),
    "IVON": ("IVON", "NaturalELBO", 10.0),
    "first order": ("Snngm", "Trace_ELBO", 8.0),
}


def _callbacks(jaxpr):
    for equation in jaxpr.eqns:
        if any(word in equation.primitive.name for word in ("callback", "infeed", "tell_host")):
            yield equation.primitive.name
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _callbacks(inner)


@pytest.mark.parametrize("name", RUNS)
def test_a_step_calls_the_host_only_to_tell_of_dropped_draws_numpyro(name):
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    optimiser, loss, _ = RUNS[name]
    with ppl.float64():
        model, y = models.location(ppl), ppl.array(Y)
        guide = ppl.guide(model, "diagonal" if name == "IVON" else "full")
        svi = ppl.package.SVI(model, guide, ppl.optimiser(optimiser), ppl.elbo(loss))
        state = svi.init(jax.random.key(0), y)
        program = jax.make_jaxpr(svi.update)(state, y)  # fails where a number is read
    assert set(_callbacks(program.jaxpr)) == ({"tell_host"} if loss == "NaturalELBO" else set())
    assert not program.effects  # for which Python, and not C++, would dispatch every step


@pytest.mark.parametrize("name", RUNS)
def test_a_step_reads_a_bounded_number_of_numbers_pyro(name):
    pytest.importorskip("pyro")
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    #: What waits for the device: a number that Python reads, and shapes that follow from values.
    reads = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2")

    class Reads(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            by_mask = func.name() == "aten::index.Tensor" and any(
                index is not None and index.dtype == torch.bool for index in args[1]
            )
            self.count += by_mask or func.name().removeprefix("aten::") in reads
            return func(*args, **(kwargs or {}))

    ppl = load("pyro")
    ppl.forget()
    optimiser, loss, most = RUNS[name]
    with ppl.float64(), ppl.lib.validation_enabled(False):
        model, y = models.location(ppl), ppl.array(Y)
        guide = ppl.guide(model, "diagonal" if name == "IVON" else "full")
        svi = ppl.infer.SVI(model, guide, ppl.optimiser(optimiser), ppl.elbo(loss))
        for _ in range(3):
            svi.step(y)
        with Reads() as found, pytest.MonkeyPatch.context() as patch:
            tolist = torch.Tensor.tolist

            def counted(tensor):
                found.count += 1
                return tolist(tensor)

            patch.setattr(torch.Tensor, "tolist", counted)
            for _ in range(10):
                svi.step(y)
    ppl.forget()
    assert 1 <= found.count / 10 <= most, found.count / 10
