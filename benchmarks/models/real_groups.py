"""Hierarchies, survival and matches with real data."""

import numpy as np

from .entries import codes, new, numbers, real, special, table, with_ones


def _oats() -> tuple:
    t = table("nlme", "Oats")
    block, variety = codes(t["Block"]), codes(t["Variety"])
    return numbers(t, "yield")[:, 0], numbers(t, "nitro")[:, 0], block, variety


@real(_oats, "groups")
def split_plots(ppl, y, nitro, block, variety):
    """Oats: blocks, whole plots and varieties, crossed and centred, with a slope for nitrogen."""
    mean = ppl.normals("mean", 3, 50.0, loc=100.0)
    slope = ppl.sample("slope", ppl.Normal(0.0, 100.0))
    tau = ppl.sample("tau", ppl.HalfNormal(30.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(30.0))
    with ppl.plate("blocks", 6):
        of_block = ppl.sample("of_block", ppl.Normal(0.0, tau[0]))
    with ppl.plate("plots", 18):
        of_plot = ppl.sample("of_plot", ppl.Normal(0.0, tau[1]))
    level = mean[variety] + of_block[block] + of_plot[3 * block + variety]
    ppl.rows(ppl.Normal(level + slope * nitro, sigma), y)


def _dyes() -> tuple:
    t = table("lme4", "Dyestuff2")
    return numbers(t, "Yield")[:, 0], codes(t["Batch"])


@real(_dyes, "groups")
def no_difference(ppl, y, batch):
    """Box and Tiao's batches, between which there is no variance to be seen; centred."""
    mu, tau = ppl.draws(mu=ppl.Normal(0.0, 20.0), tau=ppl.HalfCauchy(5.0))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(5.0))
    with ppl.plate("batches", 6):
        own = ppl.sample("own", ppl.Normal(mu, tau))
    ppl.rows(ppl.Normal(own[batch], sigma), y)


def _claims() -> tuple:
    t = table("MASS", "Insurance")
    kinds = codes(t["District"]), codes(t["Group"]), codes(t["Age"])
    return (*kinds, numbers(t, "Holders")[:, 0], numbers(t, "Claims")[:, 0])


@new(_claims, "groups")
def car_claims(ppl, district, group, age, holders, y):
    """Claims of policy holders, three crossed factors of four levels each."""
    base = ppl.sample("base", ppl.Normal(-2.0, 2.0))
    tau = ppl.sample("tau", ppl.HalfNormal(1.0).expand([3]).to_event(1))
    with ppl.plate("levels", 4):
        own = ppl.sample("own", ppl.Normal(0.0, tau).to_event(1))
    eta = base + own[district, 0] + own[group, 1] + own[age, 2]
    ppl.rows(ppl.Poisson(holders * ppl.exp(eta)), y)


def _pups() -> tuple:
    t = table("aod", "rats")
    return codes(t["group"]), numbers(t, "n")[:, 0], numbers(t, "y")[:, 0]


@new(_pups)
def rat_litters(ppl, group, n, y):
    """Pups that live: beta-binomial with a mean and a spread for each of two groups."""
    mean = ppl.sample("mean", ppl.Beta(1.0, 1.0).expand([2]).to_event(1))
    size = ppl.sample("size", ppl.LogNormal(2.0, 1.5).expand([2]).to_event(1))
    a, b = (mean * size)[group], ((1 - mean) * size)[group]
    ratio = special(ppl).gammaln
    terms = ratio(a + y) + ratio(b + n - y) - ratio(a + b + n) - ratio(a) - ratio(b) + ratio(a + b)
    ppl.factor("rows", terms.sum())


def _vaccine() -> tuple:
    t = table("HSAUR", "BCG")
    counts = numbers(t, "BCGTB", "BCGVacc", "NoVaccTB", "NoVacc")
    return (*counts.T, numbers(t, "Latitude")[:, 0] - 33)


@real(_vaccine, "groups")
def vaccine_trials(ppl, y1, n1, y0, n0, latitude):
    """Thirteen trials against tuberculosis, binomials up to 88,000 people; effects by latitude."""
    effect, slope = ppl.draws(effect=ppl.Normal(0.0, 2.0), slope=ppl.Normal(0.0, 0.1))
    tau = ppl.sample("tau", ppl.HalfNormal(1.0))
    with ppl.plate("trials", 13):
        base, z = ppl.draws(base=ppl.Normal(-4.0, 3.0), z=ppl.Normal(0.0, 1.0))
        ppl.sample("y0", ppl.Binomial(total_count=n0, logits=base), obs=y0)
        treated = base + effect + slope * latitude + tau * z
        ppl.sample("y1", ppl.Binomial(total_count=n1, logits=treated), obs=y1)


def _jaws() -> tuple:
    t = table("nlme", "Orthodont")
    boy = (t["Sex"] == "Male").to_numpy(int)
    age, y = numbers(t, "age", "distance").T
    return y, (age - 11) / 2, codes(t["Subject"]), boy


@real(_jaws, "groups")
def growing_jaws(ppl, y, age, child, boy):
    """Lines of 27 children in millimetres, starts and slopes correlated, not centred."""
    start, slope = ppl.normals("start", 2, 10.0, loc=23.0), ppl.normals("slope", 2, 2.0)
    tau = ppl.sample("tau", ppl.HalfNormal(3.0).expand([2]).to_event(1))
    root, sigma = ppl.draws(root=ppl.LKJCholesky(2, 2.0), sigma=ppl.HalfNormal(3.0))
    with ppl.plate("children", 27):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0).expand([2]).to_event(1))
    own = (z @ root.T) * tau
    mean = start[boy] + own[child, 0] + (slope[boy] + own[child, 1]) * age
    ppl.rows(ppl.Normal(mean, sigma), y)


def _catheters() -> tuple:
    t = table("survival", "kidney")
    X = np.column_stack([numbers(t, "age")[:, 0], t["sex"] == 2]).astype(float)
    return with_ones(X), codes(t["id"]), numbers(t, "time")[:, 0], numbers(t, "status")[:, 0]


@real(_catheters, "groups")
def kidney_frailty(ppl, X, patient, t, seen):
    """Days until infection, two a patient, censored: Weibull with a frailty of 38 patients."""
    beta = ppl.normals("beta", 3, 5.0)
    shape, tau = ppl.draws(shape=ppl.LogNormal(0.0, 0.5), tau=ppl.HalfNormal(1.0))
    with ppl.plate("patients", 38):
        own = ppl.sample("own", ppl.Normal(0.0, tau))
    log_hazard = X @ beta + own[patient]
    terms = seen * (ppl.log(shape) + (shape - 1) * ppl.log(t) + log_hazard)
    ppl.factor("rows", (terms - ppl.exp(shape * ppl.log(t) + log_hazard)).sum())


def _larynx() -> tuple:
    t = table("KMsurv", "larynx")
    time, died = numbers(t, "time", "delta").T
    ends = np.array([0.0, 1.0, 2.0, 3.5, 5.0, 7.0, 11.0])
    exposed = np.clip(time[:, None] - ends[:-1], 0, np.diff(ends))
    where = np.clip(np.searchsorted(ends, time) - 1, 0, 5)
    events = np.eye(6)[where] * died[:, None]
    return exposed, events, codes(t["stage"]), (numbers(t, "age")[:, 0] - 65) / 10


@real(_larynx)
def larynx_pieces(ppl, exposed, events, stage, age):
    """A hazard that is constant in six pieces of time and walks between them; four stages."""
    first, tau = ppl.draws(first=ppl.Normal(-2.0, 2.0), tau=ppl.HalfNormal(0.5))
    steps = ppl.normals("steps", 5)
    of_stage = ppl.normals("of_stage", 3, 2.0)
    slope = ppl.sample("slope", ppl.Normal(0.0, 1.0))
    base = first + tau * ppl.cumsum(ppl.concatenate([0 * steps[:1], steps]), 0)
    risk = ppl.concatenate([0 * of_stage[:1], of_stage])[stage] + slope * age
    log_hazard = base + risk[:, None]
    ppl.factor("rows", (events * log_hazard - exposed * ppl.exp(log_hazard)).sum())


def _clinic() -> tuple:
    t = table("MASS", "bacteria")
    drug, plus = (t["trt"] == "drug").to_numpy(float), (t["trt"] == "drug+").to_numpy(float)
    X = with_ones(np.column_stack([drug, plus, t["week"]]))
    return X, codes(t["ID"]), (t["y"] == "y").to_numpy(float)


@real(_clinic, "groups")
def bacteria(ppl, X, child, y):
    """Whether bacteria are still there, fifty children with a level each."""
    beta = ppl.normals("beta", 4, 3.0)
    tau = ppl.sample("tau", ppl.HalfCauchy(2.0))
    with ppl.plate("children", 50):
        own = ppl.sample("own", ppl.Normal(0.0, 1.0))
    ppl.rows(ppl.Bernoulli(logits=X @ beta + tau * own[child]), y)


def _matches() -> tuple:
    t = table("vcd", "Bundesliga")
    t = t[(t["Year"] == 2008) & (t["HomeGoals"] != t["AwayGoals"])]
    teams = codes(np.concatenate([t["HomeTeam"], t["AwayTeam"]]))
    won = (t["HomeGoals"] > t["AwayGoals"]).to_numpy(float)
    return teams[: len(t)], teams[len(t) :], won


@real(_matches, "groups")
def football(ppl, home, away, won):
    """Bradley and Terry's model of eighteen teams, with an advantage at home."""
    advantage, tau = ppl.draws(advantage=ppl.Normal(0.0, 1.0), tau=ppl.HalfNormal(1.0))
    with ppl.plate("teams", 18):
        strength = ppl.sample("strength", ppl.Normal(0.0, tau))
    with ppl.plate("matches", len(won)):
        logits = advantage + strength[home] - strength[away]
        ppl.sample("won", ppl.Bernoulli(logits=logits), obs=won)
