"""CPU seconds of ``fit``, and of a step of ``SVI``, as latents and rows grow.

A dense Gaussian and a mean field of the coefficients of a logistic regression, and a sparse
precision of counts with an intercept for each group of five rows. *Cold* is a fit with compilation;
*warm* the next one, of other data of the same shapes; both with ``draws="gaussian"``, so that no
sampler is timed. A step is one of ``BLR()`` with ``NaturalELBO()``, the mean of twenty.

    python -m benchmarks scaling

Time: 10 minutes. Data: none.
"""

import time
import warnings
from functools import partial

import jax
import numpy as np
import torch

from benchmarks import pages
from benchmarks.models import Ppl
from examples.machine import describe

#: Latents and rows.
SIZES = {
    "dense": ((10, 1000), (50, 1000), (200, 1000), (50, 10_000)),
    "sparse": ((102, 500), (502, 2500)),
    "diagonal": ((50, 1000), (200, 1000), (1000, 1000)),
}
FAMILIES = {"dense": "covariance_cholesky", "sparse": "sparse_precision", "diagonal": "diagonal"}
STEPS, TIMED = 20, ("cold", "warm", "step [ms]")
LABELS = {"numpyro": "NumPyro", "pyro": "Pyro"}


def logistic(ppl, X, y):
    ppl.rows(ppl.Bernoulli(logits=X @ ppl.normals("w", X.shape[1])), y)


def counts(ppl, group, y):
    zero = ppl.array(0.0)
    mean, spread = ppl.draws(mean=ppl.Normal(zero, 1.0), spread=ppl.HalfNormal(1 + zero))
    with ppl.plate("groups", len(y) // 5):
        effect = ppl.sample("effect", ppl.Normal(mean, spread))
    ppl.rows(ppl.Poisson(ppl.exp(effect[..., group])), y)


def data(family, latents, rows, seed):
    rng, group = np.random.default_rng(seed), np.arange(rows) // 5
    if family == "sparse":
        rates = np.exp(0.5 + 0.5 * rng.normal(size=latents - 2))
        return group, rng.poisson(rates[group]).astype(float)
    X = rng.normal(size=(rows, latents)) / latents**0.5
    return X, (rng.logistic(size=rows) < 2 * X @ rng.normal(size=latents)).astype(float)


def seconds(ppl, family, *sizes):
    """Of a cold and a warm fit, and thousands of a step."""
    model, ours = partial(counts if family == "sparse" else logistic, ppl), ppl.ours
    sets = [tuple(map(ppl.array, data(family, *sizes, seed))) for seed in (0, 1)]
    clock = [time.process_time()]
    for args in sets:
        options = {"family": FAMILIES[family], "draws": "gaussian", "progress_bar": False}
        ours.fit(model, *args, **options)
        clock.append(time.process_time())
    guide = ours.NaturalGaussianGuide(model, FAMILIES[family])
    extra = {"rng_key": jax.random.key(0)} if ppl.is_numpyro else {}
    svi = ours.SVI(model, guide, ours.BLR(), ours.NaturalELBO(), **extra)
    for step in range(STEPS + 3):
        if step == 3:
            begin = time.process_time()
        float(svi.step(*sets[0]))
    return (*np.diff(clock), 1e3 * (time.process_time() - begin) / STEPS)


def main():
    jax.config.update("jax_enable_x64", True)
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    about = f"`python -m benchmarks scaling`, float64, seeds 0 and 1; {describe()}"
    for family, sizes in SIZES.items():
        for latents, rows in sizes:
            row = {"family": family, "latents": f"{latents:,}", "rows": f"{rows:,}"}
            for name, label in LABELS.items():
                spent = seconds(Ppl(name), family, latents, rows)
                row |= {f"{label}, {w}": f"{s:.3g}" for w, s in zip(TIMED, spent, strict=True)}
            print(row, flush=True)
            pages.replace("scaling.csv", [row], about, ("family", "latents", "rows"))
    draw()


def draw():
    """Seconds of a warm fit and of a step, by latents times rows."""
    figure, (axes,) = pages.figure(1, 2, (3.6, 3.0))
    for axis, what in zip(axes, TIMED[1:], strict=True):
        for family, colour in zip(SIZES, ("#0072b2", "#d55e00", "#009e73"), strict=True):
            some = [row for row in pages.read("scaling.csv") if row["family"] == family]
            sizes = [[row[key].replace(",", "") for key in ("latents", "rows")] for row in some]
            work = [float(latents) * float(rows) for latents, rows in sizes]
            for ppl, style in (("NumPyro", "o-"), ("Pyro", "s--")):
                times = [float(row[f"{ppl}, {what}"]) for row in some]
                axis.loglog(work, times, style, color=colour, label=f"{family}, {ppl}")
        axis.set(xlabel="latents x rows", ylabel={"warm": "warm fit [s]"}.get(what, what))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3)
    figure.tight_layout(rect=(0, 0.15, 1, 1))
    pages.save(figure, "scaling.png")


if __name__ == "__main__":
    main()
