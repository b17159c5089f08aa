"""``result.loo()`` beside exact leave-one-out, by a run of NUTS without each row.

Three models of R's data: a linear one of a plant's losses, where few rows have much leverage;
breaks in looms, counts that vary more than a Poisson's; six batches of dyestuff, centred. *Exact*
is the mean density of a row over 10,000 draws of NumPyro's NUTS for all other rows, *PSIS* is
``arviz.loo`` on as many draws for all rows.

    python -m benchmarks loo

Time: 5 minutes. Data: none.
"""

import time
from functools import partial

import arviz
import jax
import numpy as np
import torch
from numpyro.infer import MCMC, NUTS, log_likelihood
from scipy.special import logsumexp

from benchmarks import pages
from benchmarks.models import Ppl
from benchmarks.models.entries import columns, standard, with_ones
from examples.machine import describe


def losses(ppl, X, y):
    scale = ppl.sample("scale", ppl.HalfNormal(ppl.array(5.0)))
    ppl.rows(ppl.Normal(X @ ppl.normals("w", X.shape[1], 20.0), scale), y)


def breaks(ppl, X, y):
    ppl.rows(ppl.Poisson(ppl.exp(X @ ppl.normals("w", X.shape[1], 5.0))), y)


def batches(ppl, batch, y):
    mean, one = ppl.sample("mean", ppl.Normal(ppl.array(1500.0), 200.0)), ppl.array(100.0)
    spread, scale = ppl.draws(spread=ppl.HalfNormal(one), scale=ppl.HalfNormal(one))
    with ppl.plate("batches", 6):
        effect = ppl.sample("effect", ppl.Normal(mean, spread))
    ppl.rows(ppl.Normal(effect[..., batch], scale), y)


#: A model; of R: package, item, columns and response.
MODELS = {
    "stack loss": (losses, "datasets", "stackloss", "Air.Flow", "Water.Temp", "stack.loss"),
    "looms": (breaks, "datasets", "warpbreaks", "wool", "tension", "breaks"),
    "dyestuff": (batches, "lme4", "Dyestuff", "Batch", "Yield"),
}
DRAWS = 10_000
MARKS = {"PSIS, NUTS": "x", "`loo()`, NumPyro": "o", "`loo()`, Pyro": "+"}


def measured(model, X, y):
    """Log predictive densities of rows, and CPU seconds of fit and ``loo()``, by method."""
    of_numpyro, exact = partial(model, Ppl("numpyro")), np.zeros(len(y))
    kernel = NUTS(of_numpyro, target_accept_prob=0.9)
    sampler = MCMC(kernel, num_warmup=1000, num_samples=DRAWS, progress_bar=False)
    sampler.run(jax.random.key(0), X, y)

    @jax.jit
    def without(X, y):
        def one(state, _):
            return (state := kernel.sample(state, (X, y), {}), state.z)

        draws = jax.lax.scan(one, sampler.last_state, length=DRAWS)[1]
        return jax.vmap(kernel.postprocess_fn((X, y), {}))(draws)

    for row in range(len(y)):
        rest = np.arange(len(y)) != row
        left = log_likelihood(of_numpyro, without(X[rest], y[rest]), X[[row]], y[[row]])["y"]
        exact[row] = logsumexp(left) - np.log(DRAWS)
    psis = arviz.loo(arviz.from_numpyro(sampler), pointwise=True)
    found = {"exact": (exact, None), "PSIS, NUTS": (psis.loo_i.values, psis.pareto_k)}
    for label, name in (("`loo()`, NumPyro", "numpyro"), ("`loo()`, Pyro", "pyro")):
        ppl, clock = Ppl(name), [time.process_time()]
        args = ppl.array(X), ppl.array(y)
        result = ppl.ours.fit(partial(model, ppl), *args, progress_bar=False)
        clock.append(time.process_time())
        left = result.loo(progress_bar=False)
        clock.append(time.process_time())
        seconds = (f"{seconds:.1f}" for seconds in np.diff(clock))
        found[label] = (left.loo_i.values, left.pareto_k, *seconds)
    return found


def main():
    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)
    rows, (figure, (axes,)) = [], pages.figure(1, len(MODELS), (3.0, 2.8))
    for axis, (name, (model, *names)) in zip(axes, MODELS.items(), strict=True):
        *X, y = columns(*names)
        X = X[0] if model is batches else with_ones(standard(np.column_stack(X)))
        found = measured(model, X, y.astype(float))
        for by, (values, k, *seconds) in found.items():
            exact, gaps = found["exact"][0], values - found["exact"][0]
            row = {"model": name, "rows": len(y), "by": by, "elpd": f"{values.sum():.2f}"}
            row |= {"off by": f"{gaps.sum():+.2f}", "farthest row": f"{abs(gaps).max():.2f}"}
            row["k > 0.7"] = "" if k is None else f"{int((k > 0.7).sum())}"
            row |= dict(zip(("CPU s, fit", "CPU s, loo"), seconds or ("", ""), strict=True))
            rows.append(row)
            if by in MARKS:
                axis.plot(exact, gaps, MARKS[by], fillstyle="none", label=by.replace("`", ""))
        axis.set(title=name, xlabel="exact, by row [nats]")
    axes[0].set_ylabel("off by [nats]")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    pages.write("loo.csv", rows, f"`python -m benchmarks loo`, seed 0, float64; {describe()}")
    pages.save(figure, "loo.png")


if __name__ == "__main__":
    main()
