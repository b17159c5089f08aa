"""Crossed and nested effects of real data, as people write them."""

import numpy as np

from .entries import everyday, floats, levels, table


def _pixel() -> tuple:
    d = table("nlme", "Pixel")
    return levels(d.Dog), levels(d.Dog.astype(str) + d.Side), floats(d.day), floats(d.pixel)


@everyday(_pixel)
def pixel(ppl, dog, side, day, y):
    """Pixel intensities of dogs' lymph nodes, sides within dogs, a slope by dog."""
    mu, b1 = ppl.draws(mu=ppl.Normal(1000.0, 500.0), b1=ppl.Normal(0.0, 50.0))
    b2, s_dog = ppl.draws(b2=ppl.Normal(0.0, 10.0), s_dog=ppl.HalfNormal(50.0))
    s_slope, s_side = ppl.draws(s_slope=ppl.HalfNormal(10.0), s_side=ppl.HalfNormal(50.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(50.0))
    with ppl.plate("dogs", 10):
        a, s = ppl.draws(a=ppl.Normal(mu, s_dog), s=ppl.Normal(b1, s_slope))
    with ppl.plate("sides", 20):
        e = ppl.sample("e", ppl.Normal(0.0, s_side))
    ppl.rows(ppl.Normal(a[dog] + e[side] + s[dog] * day + b2 * day**2, sigma), y)


def _oxide() -> tuple:
    d = table("nlme", "Oxide")
    w = d.Lot.astype(str) + "/" + d.Wafer.astype(str)
    lot_of = levels(d.assign(w=w).groupby("w", sort=False).Lot.first())
    return levels(w), lot_of, floats(d.Thickness)


@everyday(_oxide)
def oxide(ppl, wafer, lot_of, y):
    """Thickness of oxide layers, wafers within lots."""
    mu, s_lot = ppl.draws(mu=ppl.Normal(2000.0, 500.0), s_lot=ppl.HalfNormal(50.0))
    s_w, sigma = ppl.draws(s_w=ppl.HalfNormal(50.0), sigma=ppl.HalfNormal(50.0))
    with ppl.plate("lots", 8):
        a = ppl.sample("a", ppl.Normal(mu, s_lot))
    with ppl.plate("wafers", 24):
        b = ppl.sample("b", ppl.Normal(a[lot_of], s_w))
    ppl.rows(ppl.Normal(b[wafer], sigma), y)


def _machines() -> tuple:
    d = table("nlme", "Machines")
    w, m = levels(d.Worker), levels(d.Machine)
    return w, m, 3 * w + m, floats(d.score)


@everyday(_machines)
def machines(ppl, w, m, wm, y):
    """Productivity of workers on machines, crossed."""
    with ppl.plate("machines", 3):
        mu = ppl.sample("mu", ppl.Normal(50.0, 50.0))
    sw, si = ppl.draws(sw=ppl.HalfCauchy(10.0), si=ppl.HalfCauchy(10.0))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(5.0))
    with ppl.plate("workers", 6):
        a = ppl.sample("a", ppl.Normal(0.0, sw))
    with ppl.plate("cells", 18):
        c = ppl.sample("c", ppl.Normal(0.0, si))
    ppl.rows(ppl.Normal(mu[m] + a[w] + c[wm], sigma), y)


def _ships() -> tuple:
    d = table("MASS", "ships")
    d = d[d.service > 0]
    return (
        levels(d.type),
        levels(d.year),
        floats(d.period == 75),
        np.log(floats(d.service)),
        floats(d.incidents),
    )


@everyday(_ships)
def ships(ppl, t, yr, per, off, y):
    """Damage to ships, crossed effects, overdispersed."""
    a0, st, sy = ppl.draws(a0=ppl.Normal(-5.0, 5.0), st=ppl.HalfNormal(1.0), sy=ppl.HalfNormal(1.0))
    b, c = ppl.draws(b=ppl.Normal(0.0, 1.0), c=ppl.Exponential(0.1))
    with ppl.plate("types", 5):
        u = ppl.sample("u", ppl.Normal(0.0, st))
    with ppl.plate("years", 4):
        v = ppl.sample("v", ppl.Normal(0.0, sy))
    mean = ppl.exp(a0 + u[t] + v[yr] + b * per + off)
    ppl.rows(ppl.GammaPoisson(c, c / mean), y)


def _snails() -> tuple:
    d = table("MASS", "snails")
    return (
        levels(d.Species.astype(str) + d.Exposure.astype(str)),
        floats(d["Rel.Hum"]),
        floats(d.Temp),
        floats(d.N),
        floats(d.Deaths),
    )


@everyday(_snails)
def snails(ppl, cell, hum, temp, n, y):
    """Deaths of snails, by species and exposure, overdispersed."""
    a0, s, bh = ppl.draws(a0=ppl.Normal(0.0, 10.0), s=ppl.HalfNormal(5.0), bh=ppl.Normal(0.0, 1.0))
    bt, so = ppl.draws(bt=ppl.Normal(0.0, 1.0), so=ppl.HalfNormal(1.0))
    with ppl.plate("cells", 8):
        a = ppl.sample("a", ppl.Normal(a0, s))
    with ppl.plate("rows", len(y)):
        e = ppl.sample("e", ppl.Normal(0.0, so))
        ppl.sample("y", ppl.Binomial(n, logits=a[cell] + bh * hum + bt * temp + e), obs=y)


def _rabbit() -> tuple:
    d = table("MASS", "Rabbit")
    return (
        levels(d.Animal),
        floats(d.Treatment == "MDL"),
        np.log(floats(d.Dose)),
        floats(d.BPchange),
    )


@everyday(_rabbit)
def rabbit(ppl, g, t, x, y):
    """Dose response of rabbits."""
    top, ed = ppl.draws(top=ppl.HalfNormal(40.0), ed=ppl.Normal(3.5, 2.0))
    sh, sl = ppl.draws(sh=ppl.Normal(0.0, 2.0), sl=ppl.LogNormal(0.0, 1.0))
    s, sigma = ppl.draws(s=ppl.HalfNormal(10.0), sigma=ppl.HalfNormal(10.0))
    with ppl.plate("animals", 5):
        a = ppl.sample("a", ppl.Normal(0.0, s))
    ppl.rows(ppl.Normal(top / (1 + ppl.exp(-sl * (x - ed - sh * t))) + a[g], sigma), y)
