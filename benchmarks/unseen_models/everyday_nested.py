"""Crossed and nested effects of real data, as people write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .everyday import codes, everyday, floats
from .registry import table


def _pixel() -> tuple:
    d = table("nlme", "Pixel")
    return codes(d.Dog), codes(d.Dog.astype(str) + d.Side), floats(d.day), floats(d.pixel)


@everyday(_pixel)
def pixel(ppl: Any, dog, side, day, y):
    """Pixel intensities of dogs' lymph nodes, sides within dogs, a slope by dog."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(1000.0, 500.0))
    b1 = ppl.sample("b1", dist.Normal(0.0, 50.0))
    b2 = ppl.sample("b2", dist.Normal(0.0, 10.0))
    s_dog = ppl.sample("s_dog", dist.HalfNormal(50.0))
    s_slope = ppl.sample("s_slope", dist.HalfNormal(10.0))
    s_side = ppl.sample("s_side", dist.HalfNormal(50.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(50.0))
    with ppl.plate("dogs", 10):
        a = ppl.sample("a", dist.Normal(mu, s_dog))
        s = ppl.sample("s", dist.Normal(b1, s_slope))
    with ppl.plate("sides", 20):
        e = ppl.sample("e", dist.Normal(0.0, s_side))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(a[dog] + e[side] + s[dog] * day + b2 * day**2, sigma), obs=y)


def _oxide() -> tuple:
    d = table("nlme", "Oxide")
    w = d.Lot.astype(str) + "/" + d.Wafer.astype(str)
    lot_of = codes(d.assign(w=w).groupby("w", sort=False).Lot.first())
    return codes(w), lot_of, floats(d.Thickness)


@everyday(_oxide)
def oxide(ppl: Any, wafer, lot_of, y):
    """Thickness of oxide layers, wafers within lots."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(2000.0, 500.0))
    s_lot = ppl.sample("s_lot", dist.HalfNormal(50.0))
    s_w = ppl.sample("s_w", dist.HalfNormal(50.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(50.0))
    with ppl.plate("lots", 8):
        a = ppl.sample("a", dist.Normal(mu, s_lot))
    with ppl.plate("wafers", 24):
        b = ppl.sample("b", dist.Normal(a[lot_of], s_w))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(b[wafer], sigma), obs=y)


def _machines() -> tuple:
    d = table("nlme", "Machines")
    w, m = codes(d.Worker), codes(d.Machine)
    return w, m, 3 * w + m, floats(d.score)


@everyday(_machines)
def machines(ppl: Any, w, m, wm, y):
    """Productivity of workers on machines, crossed."""
    dist = ppl.dist
    with ppl.plate("machines", 3):
        mu = ppl.sample("mu", dist.Normal(50.0, 50.0))
    sw = ppl.sample("sw", dist.HalfCauchy(10.0))
    si = ppl.sample("si", dist.HalfCauchy(10.0))
    sigma = ppl.sample("sigma", dist.HalfCauchy(5.0))
    with ppl.plate("workers", 6):
        a = ppl.sample("a", dist.Normal(0.0, sw))
    with ppl.plate("cells", 18):
        c = ppl.sample("c", dist.Normal(0.0, si))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(mu[m] + a[w] + c[wm], sigma), obs=y)


def _ships() -> tuple:
    d = table("MASS", "ships")
    d = d[d.service > 0]
    return (
        codes(d.type),
        codes(d.year),
        floats(d.period == 75),
        np.log(floats(d.service)),
        floats(d.incidents),
    )


@everyday(_ships)
def ships(ppl: Any, t, yr, per, off, y):
    """Damage to ships, crossed effects, overdispersed."""
    dist = ppl.dist
    a0 = ppl.sample("a0", dist.Normal(-5.0, 5.0))
    st = ppl.sample("st", dist.HalfNormal(1.0))
    sy = ppl.sample("sy", dist.HalfNormal(1.0))
    b = ppl.sample("b", dist.Normal(0.0, 1.0))
    c = ppl.sample("c", dist.Exponential(0.1))
    with ppl.plate("types", 5):
        u = ppl.sample("u", dist.Normal(0.0, st))
    with ppl.plate("years", 4):
        v = ppl.sample("v", dist.Normal(0.0, sy))
    with ppl.plate("rows", len(y)):
        mean = ppl.np.exp(a0 + u[t] + v[yr] + b * per + off)
        ppl.sample("y", dist.GammaPoisson(c, c / mean), obs=y)


def _snails() -> tuple:
    d = table("MASS", "snails")
    return (
        codes(d.Species.astype(str) + d.Exposure.astype(str)),
        floats(d["Rel.Hum"]),
        floats(d.Temp),
        floats(d.N),
        floats(d.Deaths),
    )


@everyday(_snails)
def snails(ppl: Any, cell, hum, temp, n, y):
    """Deaths of snails, by species and exposure, overdispersed."""
    dist = ppl.dist
    a0 = ppl.sample("a0", dist.Normal(0.0, 10.0))
    s = ppl.sample("s", dist.HalfNormal(5.0))
    bh = ppl.sample("bh", dist.Normal(0.0, 1.0))
    bt = ppl.sample("bt", dist.Normal(0.0, 1.0))
    so = ppl.sample("so", dist.HalfNormal(1.0))
    with ppl.plate("cells", 8):
        a = ppl.sample("a", dist.Normal(a0, s))
    with ppl.plate("rows", len(y)):
        e = ppl.sample("e", dist.Normal(0.0, so))
        ppl.sample("y", dist.Binomial(n, logits=a[cell] + bh * hum + bt * temp + e), obs=y)


def _rabbit() -> tuple:
    d = table("MASS", "Rabbit")
    return codes(d.Animal), floats(d.Treatment == "MDL"), np.log(floats(d.Dose)), floats(d.BPchange)


@everyday(_rabbit)
def rabbit(ppl: Any, g, t, x, y):
    """Dose response of rabbits."""
    dist = ppl.dist
    top = ppl.sample("top", dist.HalfNormal(40.0))
    ed = ppl.sample("ed", dist.Normal(3.5, 2.0))
    sh = ppl.sample("sh", dist.Normal(0.0, 2.0))
    sl = ppl.sample("sl", dist.LogNormal(0.0, 1.0))
    s = ppl.sample("s", dist.HalfNormal(10.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(10.0))
    with ppl.plate("animals", 5):
        a = ppl.sample("a", dist.Normal(0.0, s))
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y", dist.Normal(top / (1 + ppl.np.exp(-sl * (x - ed - sh * t))) + a[g], sigma), obs=y
        )
