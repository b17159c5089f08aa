"""Which advertising sells? Carry-over and saturation by channel, on simulated weeks."""

import matplotlib.pyplot as plt, numpy as np
import jax.numpy as jnp, numpyro, numpyro.distributions as dist
import pyro, pyro.distributions as pdist, torch
import numpyro_ngvi, pyro_ngvi

rng = np.random.default_rng(1)
channels, lags = ("television", "search", "posters"), np.arange(9)
truth = {"keep": np.array([0.7, 0.2, 0.5]), "gain": np.array([2.0, 1.5, 0.4])}
spend = rng.gamma(2.0, 0.5, (156, 3)) * (rng.random((156, 3)) < 0.6)
past = np.stack([np.pad(spend, ((lag, 0), (0, 0)))[:156] for lag in lags])  # lag, week, channel


def effect(xp, past, keep, gain):
    """What each channel sells in each week: geometric carry-over, then saturation."""
    shares = keep ** xp.asarray(lags)[:, None]
    stock = (past * (shares / shares.sum(0))[:, None]).sum(0)
    return gain * (1 - xp.exp(-stock))


sales = 5 + effect(np, past, **truth).sum(1) + rng.normal(0, 0.3, 156)


def model(past, sales=None):
    keep = numpyro.sample("keep", dist.Beta(2, 2).expand([3]).to_event(1))
    gain = numpyro.sample("gain", dist.HalfNormal(3).expand([3]).to_event(1))
    base = numpyro.sample("base", dist.Normal(5, 5))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    mean = base + effect(jnp, past, keep, gain).sum(1)
    with numpyro.plate("weeks", past.shape[1]):
        numpyro.sample("sales", dist.Normal(mean, noise), obs=sales)


def in_pyro(past, sales=None):
    one = past.new_ones
    keep = pyro.sample("keep", pdist.Beta(2 * one(3), 2.0).to_event(1))
    gain = pyro.sample("gain", pdist.HalfNormal(3 * one(3)).to_event(1))
    base = pyro.sample("base", pdist.Normal(5 * one(()), 5.0))
    noise = pyro.sample("noise", pdist.HalfNormal(one(())))
    mean = base + effect(torch, past, keep, gain).sum(1)
    with pyro.plate("weeks", past.shape[1]):
        pyro.sample("sales", pdist.Normal(mean, noise), obs=sales)


result = numpyro_ngvi.fit(model, past, sales)
again = pyro_ngvi.fit(in_pyro, *map(torch.tensor, (past, sales)))
print(result.verdict, "in NumPyro,", again.verdict, "in Pyro")
print(result.summary().round(2))

draws = {name: np.asarray(value) for name, value in result.sample(500).items()}
figure, panels = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True)
money = np.linspace(0, 3, 50)
for k, (panel, channel) in enumerate(zip(panels, channels, strict=True)):
    curves = draws["gain"][:, k, None] * (1 - np.exp(-money))
    panel.fill_between(money, *np.quantile(curves, [0.05, 0.95], 0), alpha=0.4)
    panel.plot(money, truth["gain"][k] * (1 - np.exp(-money)), "k--")
    panel.set(title=channel, xlabel="carried-over spending")
panels[0].set_ylabel("sales")
plt.show()
