"""Discrete latents that are marked for enumeration."""

from typing import Any

import numpy as np

from .entries import columns, entry, standard

GROUP = "enumerated"


def _parallel() -> dict[str, str]:
    """New each time: NumPyro writes into it, and a dictionary that sites share breaks ``scan``."""
    return {"enumerate": "parallel"}


def _blobs() -> tuple:
    rng = np.random.default_rng(111)
    return (np.concatenate([rng.normal(-1.5, 0.6, 40), rng.normal(2, 0.9, 40)]),)


@entry(GROUP, _blobs, enumerated=True)
def gaussian_mixture(ppl, y):
    """The tutorials': components in a plate, an assignment a row."""
    weights = ppl.sample("weights", ppl.Dirichlet(ppl.array(2 * np.ones(2))))
    scale = ppl.sample("scale", ppl.LogNormal(0.0, 1.0))
    with ppl.plate("components", 2):
        loc = ppl.sample("loc", ppl.Normal(0.0, 5.0))
    with ppl.plate("data", len(y)):
        which = ppl.sample("which", ppl.Categorical(weights), infer=_parallel())
        ppl.sample("y", ppl.Normal(loc[which], scale), obs=y)


def _chain() -> tuple:
    rng = np.random.default_rng(112)
    state, states = 0, []
    for _ in range(30):
        state = state if rng.uniform() < 0.85 else 1 - state
        states.append(state)
    return (np.where(states, 2.0, -1.0) + 0.8 * rng.normal(size=30),)


@entry(GROUP, _chain, enumerated=True)
def hidden_markov(ppl, y):
    """A hidden chain that starts in state 0: ``markov`` in Pyro, ``scan`` in NumPyro."""
    stack = ppl.stack
    stay = ppl.sample("stay", ppl.Beta(4.0, 2.0).expand([2]).to_event(1))
    loc = ppl.normals("loc", 2, 2.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    rows = stack([stack([stay[0], 1 - stay[0]]), stack([1 - stay[1], stay[1]])])

    def step(state: Any, response: Any, suffix: str = "") -> Any:
        weights = ppl.Categorical(rows[state])
        state = ppl.sample(f"state{suffix}", weights, infer=_parallel())
        ppl.sample(f"y{suffix}", ppl.Normal(loc[state], sigma), obs=response)
        return state

    if ppl.is_numpyro:
        from numpyro.contrib.control_flow import scan

        scan(lambda state, response: (step(state, response), None), 0, y)
        return
    state = 0
    for t in ppl.markov(range(len(y))):
        state = step(state, y[t], f"_{t}")


def _zeros() -> tuple:
    rng = np.random.default_rng(113)
    x = rng.normal(size=80)
    return x, np.where(rng.uniform(size=80) < 0.35, 0, rng.poisson(np.exp(0.8 + 0.6 * x))).astype(
        float
    )


@entry(GROUP, _zeros, enumerated=True)
def zero_inflated(ppl, x, y):
    share = ppl.sample("share", ppl.Beta(1.0, 1.0))
    beta = ppl.normals("beta", 2, 2.0)
    with ppl.plate("data", len(y)):
        off = ppl.sample("off", ppl.Bernoulli(share), infer=_parallel())
        rate = ppl.exp(beta[0] + beta[1] * x)
        ppl.sample("y", ppl.Poisson(ppl.where(off == 1, 1e-6 + 0 * rate, rate)), obs=y)


def _ratings() -> tuple:
    rng = np.random.default_rng(114)
    truth = rng.uniform(size=40) < 0.4
    skill = np.array([0.9, 0.8, 0.7, 0.6])
    right = rng.uniform(size=(40, 4)) < skill
    return (np.where(right, truth[:, None], ~truth[:, None]).astype(float),)


@entry(GROUP, _ratings, enumerated=True)
def annotators(ppl, y):
    """Dawid and Skene's: what is true, and who knows it."""
    share = ppl.sample("share", ppl.Beta(2.0, 2.0))
    skill = ppl.normals("skill", 4, 1.0, 1.0)
    with ppl.plate("items", y.shape[0]):
        truth = ppl.sample("truth", ppl.Bernoulli(share), infer=_parallel())
        sign = (2 * truth - 1)[..., None]
        ppl.sample("y", ppl.Bernoulli(logits=sign * skill).to_event(1), obs=y)


def _lines() -> tuple:
    rng = np.random.default_rng(115)
    x = rng.uniform(-1, 1, 60)
    which = np.arange(60) % 2
    return x, np.where(which, 2 + x, -1 - x) + 0.4 * rng.normal(size=60)


@entry(GROUP, _lines, enumerated=True)
def regressions(ppl, x, y):
    share = ppl.sample("share", ppl.Beta(2.0, 2.0))
    with ppl.plate("lines", 2):
        intercept, slope = ppl.draws(intercept=ppl.Normal(0.0, 2.0), slope=ppl.Normal(0.0, 2.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    with ppl.plate("data", len(y)):
        probs = ppl.stack([share, 1 - share])
        which = ppl.sample("which", ppl.Categorical(probs), infer=_parallel())
        ppl.sample("y", ppl.Normal(intercept[which] + slope[which] * x, sigma), obs=y)


def _eruptions() -> tuple:
    table = np.column_stack(columns("datasets", "faithful", "eruptions", "waiting"))
    return (standard(table)[:120],)


@entry(GROUP, _eruptions, enumerated=True)
def clouds(ppl, y):
    """Three clouds in the plane, with centres in a plate."""
    weights = ppl.sample("weights", ppl.Dirichlet(ppl.array(np.ones(3))))
    scale = ppl.sample("scale", ppl.HalfNormal(1.0))
    with ppl.plate("components", 3):
        loc = ppl.sample("loc", ppl.Normal(0.0, 2.0).expand([2]).to_event(1))
    with ppl.plate("data", y.shape[0]):
        which = ppl.sample("which", ppl.Categorical(weights), infer=_parallel())
        ppl.sample("y", ppl.Normal(loc[which], scale).to_event(1), obs=y)
