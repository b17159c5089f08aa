"""Runs of ``SVI`` that are saved and go on, by each PPL's own means."""

from __future__ import annotations

import pickle

import numpy as np

#: Family and loss by optimiser; each has parameters of the model beside it.
RUNS = {
    "BLR": ("full", "NaturalELBO"),
    "BLR with momentum": ("full", "NaturalELBO"),
    "BLR of a mean field": ("diagonal", "NaturalELBO"),
    "BLR of a structure": ("sparse_precision", "NaturalELBO"),
    "VON": ("precision", "NaturalELBO"),
    "VOGN": ("diagonal", "NaturalELBO"),
    "IVON": ("diagonal", "NaturalELBO"),
    "Snngm": ("full", "Trace_ELBO"),
    "Nagm": ("precision_cholesky", "Trace_ELBO"),
}


def _model(ppl):
    positive = ppl.dist.constraints.positive

    def model(y):
        width = ppl.param("width", ppl.array(2.0), constraint=positive)
        slope = ppl.param("slope", ppl.array([0.5, 1.0]))
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), width))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(mu * slope[0] + slope[1], 1.0), obs=y)

    return model


def parts(ppl, name, other):
    family, loss = RUNS[name]
    curvature = {"IVON": "stein", "VOGN": "gauss_newton"}.get(name)
    options = {} if curvature is None else {"curvature": curvature}
    model = _model(ppl)
    of_rule = {"momentum": 0.9} if name.endswith("momentum") else {}
    adam = 0.01 if other == "Adam" else None
    optimiser = ppl.optimiser(name.split(" ")[0], adam=adam, **of_rule)
    return model, ppl.guide(model, family), optimiser, ppl.elbo(loss, **options)


class NumPyroRun:
    def __init__(self, ppl, *parts):
        import jax

        self._svi = ppl.package.SVI(*parts, rng_key=jax.random.key(3))

    def run(self, count, y):
        return [float(self._svi.step(y)) for _ in range(count)]

    def save(self, folder):
        (folder / "state").write_bytes(pickle.dumps(self._svi.state))

    def load(self, folder, y):
        self._svi.state = pickle.loads((folder / "state").read_bytes())

    def numbers(self):
        import jax

        return [np.asarray(leaf) for leaf in jax.tree.leaves(self._svi.params)]


class PyroRun:
    def __init__(self, ppl, *parts):
        ppl.forget()
        ppl.lib.set_rng_seed(3)
        self._ppl, self._svi = ppl, ppl.infer.SVI(*parts)

    def run(self, count, y):
        return [self._svi.step(y) for _ in range(count)]

    def save(self, folder):
        import torch

        self._ppl.lib.get_param_store().save(folder / "store")
        self._svi.optim.save(str(folder / "optimiser"))
        torch.save(torch.get_rng_state(), folder / "numbers")

    def load(self, folder, y):
        import torch

        self._ppl.lib.get_param_store().load(folder / "store")
        self._svi.optim.load(str(folder / "optimiser"))
        self._svi.guide(y)  # the prototype's own random numbers come first
        torch.set_rng_state(torch.load(folder / "numbers"))

    def numbers(self):
        store = self._ppl.lib.get_param_store()
        return [self._ppl.numpy(store[name]) for name in sorted(store.keys())]


def run_of(ppl, name, other):
    """A new run of an optimiser by name; ``other`` moves the parameters of the model."""
    return (NumPyroRun if ppl.is_numpyro else PyroRun)(ppl, *parts(ppl, name, other))
