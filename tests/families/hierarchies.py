"""Hierarchical models of every shape, written once for both PPLs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


def models(backend) -> SimpleNamespace:
    """Models without arguments; their data is fixed."""
    sample, plate, dist, rng = backend.sample, backend.plate, backend.dist, np.random.default_rng(1)

    def array(value):
        value = np.asarray(value)
        return backend.array(value, "int64" if value.dtype.kind == "i" else "float64")

    group, count = array(np.repeat(np.arange(6), 3)), array(rng.poisson(2.0, 18).astype(float))
    column = array(np.tile(np.arange(3), 6))
    one = array(1.0)

    def intercepts():
        mean = sample("mean", dist.Normal(0 * one, 1))
        scale = sample("scale", dist.LogNormal(0 * one, 0.5))
        with plate("groups", 6):
            effect = sample("effect", dist.Normal(mean, scale))
        with plate("data", 18):
            sample("y", dist.Poisson(np.e ** effect[group]), obs=count)

    def slopes():
        mean = sample("mean", dist.Normal(array(np.zeros(2)), 1).to_event(1))
        with plate("groups", 6):
            effect = sample("effect", dist.Normal(mean, 1).to_event(1))
            shift = sample("shift", dist.Normal(0 * one, 1))
        with plate("data", 18):
            sample("y", dist.Normal(effect[group].sum(-1) + shift[group] ** 3, 1), obs=count)

    def nested():
        mean = sample("mean", dist.Normal(0 * one, 1))
        with plate("outer", 3, dim=-2):
            outer = sample("outer_effect", dist.Normal(mean, 1))
            with plate("inner", 4, dim=-1):
                inner = sample("inner_effect", dist.Normal(outer, 1))
                sample("y", dist.Normal(inner**3, 1), obs=array(np.ones((3, 4))))

    def crossed():
        scale = sample("scale", dist.LogNormal(0 * one, 0.5))
        with plate("rows", 6):
            row = sample("row", dist.Normal(0 * one, scale))
        with plate("columns", 3):
            col = sample("column", dist.Normal(0 * one, scale))
        with plate("data", 18):
            sample("y", dist.Normal(row[group] * col[column], 1), obs=count)

    def chain():
        scale = sample("scale", dist.LogNormal(0 * one, 0.5))
        with plate("times", 6):
            level = sample("level", dist.Normal(0 * one, 1))
        with plate("steps", 5):
            sample("y", dist.Normal(level[1:] - level[:-1], scale), obs=array(np.ones(5)))

    def total():
        with plate("groups", 6):
            effect = sample("effect", dist.Normal(0 * one, 1))
        sample("y", dist.Normal(effect.sum(), 1), obs=one)

    def two_plates():
        scale = sample("scale", dist.LogNormal(0 * one, 0.5))
        with plate("first", 6):
            a = sample("a", dist.Normal(0 * one, scale))
            sample("ya", dist.Normal(a**3, 1), obs=array(np.ones(6)))
        with plate("second", 4):
            b = sample("b", dist.Normal(0 * one, scale))
            sample("yb", dist.Normal(b**3, 1), obs=array(np.ones(4)))

    def locals_only():
        with plate("groups", 6):
            effect = sample("effect", dist.Normal(0 * one, 1))
            sample("y", dist.Normal(effect**3, 1), obs=array(np.ones(6)))

    def globals_only():
        weights = sample("weights", dist.Normal(array(np.zeros(4)), 1).to_event(1))
        sample("y", dist.Normal((weights**3).sum(), 1), obs=one)

    def mixture():
        """A switch that all elements share, summed out, couples them."""
        switch = sample("switch", dist.Bernoulli(0.3 * one), infer={"enumerate": "parallel"})
        with plate("groups", 6):
            effect = sample("effect", dist.Normal(switch * one, 1))
            sample("y", dist.Normal(effect, 1), obs=array(np.ones(6)))

    def large(num=20_000):
        scale = sample("scale", dist.LogNormal(0 * one, 0.5))
        with plate("groups", num):
            effect = sample("effect", dist.Normal(0 * one, scale))
            sample("y", dist.Normal(effect, 1), obs=array(np.ones(num)))

    def many_globals():
        sample("weights", dist.Normal(array(np.zeros(3000)), 1).to_event(1))

    return SimpleNamespace(**{k: v for k, v in locals().items() if callable(v)})
