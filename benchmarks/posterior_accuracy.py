"""What it costs until every mean is within 0.1 sd and every sd within 10 %.

By what: the Gaussian of ``fit``, its corrected draws, NUTS on from the fit (``result.nuts``), and
stock NUTS, which begins as NumPyro begins it. Of all numbers of the sites that are named, as the
model has them. Errors are those of 8,000 draws of the Gaussian, 4,000 corrected ones, and four
chains of 2,000 draws by NUTS. Of NUTS the table has the gradients after which the errors stay
within both limits, those of fit and warm-up among them, and that part of the processor's seconds;
three values of the log density count as a gradient. The truth is exact where the model has it, and
otherwise stock NUTS, four chains of 10,000 draws with effects that are standardised and a target
acceptance of 0.95.

    python -m benchmarks posterior_accuracy [--models funnel]

writes ``docs/benchmarks/posterior_accuracy.csv`` and its picture: rows that are asked for, and
keeps the others.

Time: 10 minutes. Data: none.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer import MCMC
from numpyro.infer.reparam import LocScaleReparam

from benchmarks import pages
from benchmarks.cold_start import ERRORS, SCHOOLS
from benchmarks.glmm.data import SEEDS
from examples.machine import describe
from ngvi.inference.problem import VALUES_OF_A_GRADIENT
from numpyro_ngvi import fit
from numpyro_ngvi.inference.nuts import CountingNUTS

TABLE, PICTURE = "posterior_accuracy.csv", "posterior_accuracy.png"
CHAINS, DRAWS, WARM_UP = 4, 2000, 1000
SHIFT, RATIO = 0.1, 0.1

Draws = dict[str, np.ndarray]


def schools(is_centred: bool) -> Callable:
    """Eight schools (Rubin, 1981)."""

    def model() -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        log_tau = numpyro.sample(
            "log_tau",
            dist.TransformedDistribution(dist.HalfCauchy(5.0), dist.transforms.ExpTransform().inv),
        )
        tau = jnp.exp(log_tau)
        with numpyro.plate("schools", 8):
            if is_centred:
                theta = numpyro.sample("theta", dist.Normal(mu, tau))
            else:
                theta = mu + tau * numpyro.sample("effect", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(theta, jnp.asarray(ERRORS)), obs=jnp.asarray(SCHOOLS))

    return model


def seeds() -> None:
    """Germination of seeds on 21 plates (Crowder, 1978), centred."""
    r, n, x1, x2 = jnp.asarray(SEEDS.T, float)
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0).expand([4]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("plates", len(r)):
        b = numpyro.sample("b", dist.Normal(0.0, sigma))
        eta = alpha[0] + alpha[1] * x1 + alpha[2] * x2 + alpha[3] * x1 * x2 + b
        numpyro.sample("r", dist.Binomial(n, logits=eta), obs=r)


def funnel() -> None:
    """Neal's, in ten dimensions."""
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    with numpyro.plate("xs", 9):
        numpyro.sample("x", dist.Normal(0.0, jnp.exp(0.5 * v)))


def banana() -> None:
    """A ridge along a parabola."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.5))
    numpyro.sample("y", dist.Normal(0.5 * x**2, 0.3))


def modes() -> None:
    """Two Gaussians, seven standard deviations apart, with weights 0.6 and 0.4."""
    x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    at = jnp.array([[-3.5, 0.0], [3.5, 0.0]])
    parts = dist.Normal(at, 1.0).log_prob(x).sum(-1) + jnp.log(jnp.array([0.6, 0.4]))
    numpyro.factor("density", jax.scipy.special.logsumexp(parts))


def _moments(**sites: tuple[Any, Any]) -> Draws:
    return {name: np.array(pair, float) for name, pair in sites.items()}


#: Half a square has the mean ``s^2 / 2`` and the variance ``s^4 / 2``.
RIDGE = _moments(x=(0.0, 1.5), y=(1.125, (1.5**4 / 2 + 0.09) ** 0.5))

#: By name: the model, locals that the reference standardises, the numbers that are compared, and
#: their exact means and standard deviations, if they are known.
MODELS: dict[str, tuple[Callable, tuple[str, ...], tuple[str, ...], Draws | None]] = {
    "eight schools, centred": (schools(True), ("theta",), ("mu", "log_tau", "theta"), None),
    "eight schools, standardised": (schools(False), (), ("mu", "log_tau", "effect"), None),
    "seeds": (seeds, ("b",), ("alpha", "sigma"), None),
    "funnel": (funnel, (), ("v",), _moments(v=(0.0, 3.0))),
    "banana": (
        banana,
        (),
        ("x", "y"),
        RIDGE,
    ),
    "two modes": (modes, (), ("x",), _moments(x=([-0.7, 0.0], [(1 + 0.96 * 12.25) ** 0.5, 1.0]))),
}


def errors(draws: Draws, exact: Draws) -> tuple[float, float]:
    """The farthest mean in standard deviations, and standard deviation as a part."""
    shifts = [np.abs((v.mean(0) - exact[k][0]) / exact[k][1]).max() for k, v in draws.items()]
    ratios = [np.abs(v.std(0) / exact[k][1] - 1.0).max() for k, v in draws.items()]
    return max(shifts), max(ratios)


def sampled(kernel: Any, key: int, num_draws: int, num_warmup: int) -> tuple[Draws, np.ndarray]:
    """Draws ``(chains, draws, ...)``, and gradients of each chain so far."""
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(key), extra_fields=("num_steps",))
    steps = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    return {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}, steps


def reached(draws: Draws, steps: np.ndarray, exact: Draws) -> tuple[int | None, float, float]:
    """Gradients after which errors stay within both limits, and the errors of all draws."""
    count, found = steps.shape[1], None
    for part in np.unique(np.geomspace(20, count, 60).astype(int))[::-1]:
        some = {k: v[:, :part].reshape(-1, *v.shape[2:]) for k, v in draws.items()}
        shift, ratio = errors(some, exact)
        if part == count:
            last = shift, ratio
        if shift > SHIFT or ratio > RATIO:
            break
        found = int(steps[:, part - 1].sum())
    return found, *last


def truth(name: str) -> Draws:
    """Means and standard deviations, shape ``(2, ...)`` by site."""
    model, local, names, exact = MODELS[name]
    if exact is not None:
        return exact
    standardised = handlers.reparam(model, config={s: LocScaleReparam(0.0) for s in local})
    draws, _ = sampled(CountingNUTS(standardised, target_accept_prob=0.95), 7, 10_000, WARM_UP)
    flat = {k: draws[k].reshape(-1, *draws[k].shape[2:]) for k in names}
    return {k: np.stack([v.mean(0), v.std(0)]) for k, v in flat.items()}


def rows_of(name: str) -> list[dict[str, Any]]:
    """Of one posterior, by all ways."""
    model, _, names, _ = MODELS[name]
    exact, rows = truth(name), []

    def add(
        by: str, gradients: float | None, seconds: float, shift: float, ratio: float, remark: str
    ) -> None:
        rows.append(
            {
                "posterior": name,
                "by": by,
                "gradients": "never" if gradients is None else f"{gradients:,.0f}",
                "CPU s": "" if gradients is None else f"{seconds:.1f}",
                "farthest mean [sd]": f"{shift:.2f}",
                "farthest sd": f"{100 * ratio:.0f} %",
                "remark": remark,
            }
        )

    def within(shift: float, ratio: float) -> bool:
        return shift <= SHIFT and ratio <= RATIO

    def warned(run: Callable) -> tuple[Any, str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = run()
        return found, "warns" if any("nuts()" in str(w.message) for w in caught) else ""

    begin = time.process_time()
    result = fit(model, progress_bar=False, rng_key=jax.random.key(0), allow_prior=True)
    of_fit, spent = time.process_time() - begin, result.cost.total
    draws = result.sample(8000, corrected=False)
    shift, ratio = errors({k: np.asarray(draws[k]) for k in names}, exact)
    word = result.diagnostics.verdict.partition(":")[0]
    ok = within(shift, ratio)
    add("Gaussian", spent if ok else None, of_fit, shift, ratio, f"{result.verdict}; {word}")
    begin = time.process_time()
    draws, said = warned(lambda: result.sample(4000, corrected=True))
    seconds = of_fit + time.process_time() - begin
    shift, ratio = errors({k: np.asarray(draws[k]) for k in names}, exact)
    more = spent + 20_000 / VALUES_OF_A_GRADIENT
    add("corrected", more if within(shift, ratio) else None, seconds, shift, ratio, said)
    begin = time.process_time()
    found, _ = warned(lambda: result.nuts(DRAWS, num_chains=CHAINS, progress_bar=False))
    seconds = of_fit + time.process_time() - begin
    steps = np.asarray(found.mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    own = found.num_gradients - steps[:, -1].sum()
    gradients, *last = reached({k: found.draws[k] for k in names}, steps, exact)
    total = None if gradients is None else gradients + own + spent
    share = 0.0 if total is None else total / (found.num_gradients + spent)
    add(
        "fit and NUTS",
        total,
        seconds * share,
        *last,
        f"{found.verdict}; {found.num_divergent} divergences",
    )
    begin = time.process_time()
    draws, steps = sampled(CountingNUTS(model), 1, DRAWS, WARM_UP)
    seconds = time.process_time() - begin
    gradients, *last = reached({k: draws[k] for k in names}, steps, exact)
    share = 0.0 if gradients is None else gradients / steps[:, -1].sum()
    add("stock NUTS", gradients, seconds * share, *last, "")
    return rows


def picture() -> None:
    """Gradients that each way takes, by posterior."""
    from matplotlib import pyplot

    rows = pages.read(TABLE)
    names = list(dict.fromkeys(row["posterior"] for row in rows))
    figure, ax = pyplot.subplots(figsize=(7.5, 0.55 * len(names) + 1.4), layout="constrained")
    marks = {"Gaussian": "o", "corrected": "s", "fit and NUTS": "D", "stock NUTS": "x"}
    for by, mark in marks.items():
        some = [row for row in rows if row["by"] == by and row["gradients"] != "never"]
        counts = [float(row["gradients"].replace(",", "")) for row in some]
        ax.plot(counts, [names.index(row["posterior"]) for row in some], mark, label=by)
    ax.set_xscale("log")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel("gradients until every mean is within 0.1 sd and every sd within 10 %")
    ax.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    figure.savefig(pages.FOLDER / PICTURE, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    about = f"`python -m benchmarks posterior_accuracy`, seed 0, double precision, {describe()}"
    for name in options.models:
        rows = rows_of(name)
        for row in rows:
            print(row, flush=True)
        pages.replace(TABLE, rows, about, ("posterior", "by"))
    picture()


if __name__ == "__main__":
    main()
