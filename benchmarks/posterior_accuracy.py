"""What it costs until every mean is within 0.1 sd and every sd within 10 %.

By what: the Gaussian of ``fit``, ``result.sample()`` as it comes, corrected draws, NUTS on from the
fit (``result.nuts``), and stock NUTS, which begins as NumPyro begins it. Errors are those of 8,000
draws of the Gaussian, 4,000 others, and four chains of NUTS of 2,000 draws each. Of NUTS the table
has the gradients after which the errors stay within both limits, those of fit and warm-up among
them, and that part of the processor's seconds; three values of the log density count as a gradient.
The truth is exact where the model has it, and otherwise stock NUTS, four chains of 10,000 draws
with effects that are standardised and a target acceptance of 0.95.

    python -m benchmarks posterior_accuracy [--models funnel]

writes ``posterior_accuracy.csv`` and its picture: rows that are asked for, and
keeps the others.

Time: 15 minutes. Data: none.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam

from benchmarks import pages
from benchmarks.models.posteriors import ERRORS, SCHOOLS, SEEDS
from examples.machine import describe
from numpyro_ngvi import FitResult, fit

TABLE, PICTURE = "posterior_accuracy.csv", "posterior_accuracy.png"
Draws = dict[str, np.ndarray]
CHAINS, WARM_UP = 4, 1000
SHIFT, RATIO = 0.1, 0.1
NEVER = "never"  #: of a way that is not right at its end
GAUSSIAN, AS_IT_COMES, CORRECTED = "Gaussian", "sample()", "corrected"
FIT_AND_NUTS, STOCK = "fit and NUTS", "stock NUTS"
NUM_DRAWS = 2000  #: of a chain of NUTS
WAYS = GAUSSIAN, AS_IT_COMES, CORRECTED, FIT_AND_NUTS, STOCK


class Entry(NamedTuple):
    """A posterior."""

    model: Callable
    #: The numbers that are compared, by sites.
    names: tuple[str, ...]
    args: tuple = ()
    #: Their exact means and standard deviations, if they are known; shape ``(2, ...)`` by site.
    exact: Draws | None = None
    #: Locals that the chains of the reference standardise.
    local: tuple[str, ...] = ()

    def compared(self, draws: dict[str, Any]) -> Draws:
        """Draws of the numbers that are compared."""
        return {name: np.asarray(draws[name]) for name in self.names}


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
MODES = _moments(x=([-0.7, 0.0], [(1 + 0.96 * 12.25) ** 0.5, 1.0]))

SMALL: dict[str, Entry] = {
    "eight schools, centred": Entry(schools(True), ("mu", "log_tau", "theta"), local=("theta",)),
    "eight schools, standardised": Entry(schools(False), ("mu", "log_tau", "effect")),
    "seeds": Entry(seeds, ("alpha", "sigma"), local=("b",)),
    "funnel": Entry(funnel, ("v",), exact=_moments(v=(0.0, 3.0))),
    "banana": Entry(banana, ("x", "y"), exact=RIDGE),
    "two modes": Entry(modes, ("x",), exact=MODES),
}


def errors(draws: Draws, exact: Draws) -> tuple[float, float]:
    """The farthest mean in standard deviations, and standard deviation as a part."""
    shifts = [np.abs((v.mean(0) - exact[k][0]) / exact[k][1]).max() for k, v in draws.items()]
    ratios = [np.abs(v.std(0) / exact[k][1] - 1.0).max() for k, v in draws.items()]
    return max(shifts), max(ratios)


def sampled(
    kernel: Any, key: int, num_draws: int, num_warmup: int, args: tuple = ()
) -> tuple[dict[str, np.ndarray], np.ndarray, int]:
    """Draws ``(chains, draws, ...)``, gradients of each chain so far, and divergences."""
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(key), *args, extra_fields=("num_steps", "diverging"))
    found = mcmc.get_extra_fields(group_by_chain=True)
    draws = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
    return draws, np.asarray(found["num_steps"]).cumsum(1), int(found["diverging"].sum())


def _flat(draws: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """The first draws of each chain, together."""
    return {k: v[:, :count].reshape(-1, *v.shape[2:]) for k, v in draws.items()}


def reached(
    one: Entry, draws: dict[str, np.ndarray], steps: np.ndarray, exact: Draws
) -> tuple[int | None, float, float]:
    """Gradients after which errors stay within both limits, and the errors of all draws."""
    count, found = steps.shape[1], None
    for part in np.unique(np.geomspace(20, count, 60).astype(int))[::-1]:
        shift, ratio = errors(one.compared(_flat(draws, part)), exact)
        if part == count:
            last = shift, ratio
        if shift > SHIFT or ratio > RATIO:
            break
        found = int(steps[:, part - 1].sum())
    return found, *last


def worth(one: Entry, draws: dict[str, np.ndarray], gradients: float) -> float:
    """Effective draws of the slowest number for 1,000 gradients."""
    chains, count = next(iter(draws.values())).shape[:2]
    values = one.compared(_flat(draws, count)).values()
    flat = np.concatenate([v.reshape(chains, count, -1) for v in values], 2)
    import arviz

    least = min(float(arviz.ess(flat[..., i])) for i in range(flat.shape[-1]))
    return 1000.0 * least / gradients


def truth(one: Entry) -> Draws:
    """Means and standard deviations, shape ``(2, ...)`` by site."""
    if one.exact is not None:
        return one.exact
    standardised = handlers.reparam(one.model, config={s: LocScaleReparam(0.0) for s in one.local})
    draws, *_ = sampled(NUTS(standardised, target_accept_prob=0.95), 7, 10_000, WARM_UP)
    compared = one.compared(_flat(draws, 10_000))
    return {k: np.stack([v.mean(0), v.std(0)]) for k, v in compared.items()}


@contextlib.contextmanager
def counted() -> Iterator[list[Any]]:
    """The costs of all that results evaluate after their fits."""
    original, costs = FitResult._at_end, []

    @contextlib.contextmanager
    def at_end(self: FitResult) -> Iterator[Any]:
        with original(self) as (problem, state):
            yield problem, state
            costs.append(problem.objective.cost)

    FitResult._at_end = at_end
    try:
        yield costs
    finally:
        FitResult._at_end = original


class Rows:
    """The rows of one posterior.

    :ivar rows: so far.
    """

    def __init__(self, name: str) -> None:
        self.name, self.entry = name, SMALL[name]
        self.exact, self.rows = truth(self.entry), []

    def add(
        self,
        by: str,
        gradients: float | None,
        seconds: float,
        shift: float,
        ratio: float,
        remark: str,
        of_1000: float | None = None,
    ) -> None:
        """:param of_1000: effective draws for 1,000 gradients."""
        self.rows.append(
            {
                "set": "small",
                "posterior": self.name,
                "by": by,
                "gradients": NEVER if gradients is None else f"{gradients:,.0f}",
                "CPU s": "" if gradients is None else f"{seconds:.1f}",
                "farthest mean [sd]": f"{shift:.2f}",
                "farthest sd": f"{100 * ratio:.0f} %",
                "effective of 1,000 gradients": "" if of_1000 is None else f"{of_1000:.1f}",
                "remark": remark,
            }
        )

    def drawn(
        self, by: str, draws: dict[str, Any], total: float, seconds: float, remark: str
    ) -> None:
        """By independent draws, which are right or not."""
        shift, ratio = errors(self.entry.compared(draws), self.exact)
        is_right = shift <= SHIFT and ratio <= RATIO
        self.add(by, total if is_right else None, seconds, shift, ratio, remark)

    def of_fit(self, ways: Sequence[str]) -> None:
        """The Gaussian, its draws as they come and corrected, and NUTS on from it."""
        one, begin = self.entry, time.process_time()
        options: dict[str, Any] = {"progress_bar": False, "allow_prior": True}
        result = fit(one.model, *one.args, rng_key=jax.random.key(0), draws="gaussian", **options)
        of_fit, spent = time.process_time() - begin, result.cost.total
        if GAUSSIAN in ways:
            word, draws = result.diagnostics.accuracy.verdict, result.sample(8000)
            self.drawn(GAUSSIAN, draws, spent, of_fit, f"{result.verdict}; {word}")
        for by, who in ((AS_IT_COMES, "auto"), (CORRECTED, "corrected")):
            if by in ways:
                begin = time.process_time()
                with counted() as costs:
                    draws, said = _warned(lambda: result.with_draws(who).sample(4000))  # noqa: B023
                seconds = of_fit + time.process_time() - begin
                self.drawn(by, draws, spent + sum(c.total for c in costs), seconds, said)
        if FIT_AND_NUTS in ways:
            self._on_from(result, of_fit)

    def _on_from(self, result: FitResult, of_fit: float) -> None:
        one, begin = self.entry, time.process_time()
        with counted() as costs:
            found, _ = _warned(lambda: result.nuts(progress_bar=False))
        seconds = of_fit + time.process_time() - begin
        total = found.num_gradients + result.cost.total + sum(cost.total for cost in costs)
        draws, steps = found.draws, found.sample_stats["n_steps"].cumsum(1)
        gradients, *last = reached(one, draws, steps, self.exact)
        until = None if gradients is None else gradients + total - steps[:, -1].sum()
        share = 0.0 if until is None else until / total
        remark = f"{found.verdict}; {found.num_divergent} divergences"
        self.add(FIT_AND_NUTS, until, seconds * share, *last, remark, worth(one, draws, total))

    def of_stock(self) -> None:
        """NumPyro's NUTS as it begins by itself."""
        one, begin = self.entry, time.process_time()
        draws, steps, divergent = sampled(NUTS(one.model), 1, NUM_DRAWS, WARM_UP, one.args)
        seconds = time.process_time() - begin
        gradients, *last = reached(one, draws, steps, self.exact)
        total = steps[:, -1].sum()
        share = 0.0 if gradients is None else gradients / total
        remark = f"{divergent} divergences"
        self.add(STOCK, gradients, seconds * share, *last, remark, worth(one, draws, total))


def _warned(run: Callable) -> tuple[Any, str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run()
    return found, "warns" if any("nuts()" in str(w.message) for w in caught) else ""


def costs(part: str | None = None) -> dict[str, dict[str, float]]:
    """Gradients by way and posterior; infinite where it is never right.

    :param part: of the table; all of it by default.
    """
    found: dict[str, dict[str, float]] = {by: {} for by in WAYS}
    for row in pages.read(TABLE):
        if part in (None, row["set"]):
            text = row["gradients"].replace(",", "")
            found[row["by"]][row["posterior"]] = np.inf if text == NEVER else float(text)
    return found


def picture() -> None:
    """Which part of the posteriors is right after so many gradients, by way."""
    figure, axes = pages.figure(size=(6.4, 3.6))
    ax = axes[0, 0]
    for by, found in costs().items():
        values = np.array(list(found.values()))
        right = np.sort(values[np.isfinite(values)])
        heights = np.arange(1, len(right) + 1) / max(len(values), 1)
        ax.step(right, heights, where="post", label=f"{by} ({len(right)} of {len(values)})")
    ax.set_xscale("log")
    ax.set_ylim(0, 1.02)
    ax.set_xlabel("gradients until means are within 0.1 sd and sds within 10 %")
    ax.set_ylabel("part of the posteriors")
    ax.legend(frameon=False, loc="upper left", fontsize=7)
    pages.save(figure, PICTURE)


def summary(part: str) -> list[str]:
    """How many are right, how many wrong in silence, and the cost beside stock NUTS's."""
    rows, found = pages.read(TABLE), costs(part)
    lines = []
    for by in WAYS[:-1]:
        own = found[by]
        right = sum(np.isfinite(list(own.values())))
        silent = sum(
            row["by"] == by
            and row["set"] == part
            and row["gradients"] == NEVER
            and "warns" not in row["remark"]
            and "not trusted" not in row["remark"]
            for row in rows
        )
        # A chain that never gets there counts as infinite.
        both = [(own[k], v) for k, v in found[STOCK].items() if k in own]
        parts = [mine / v if np.isfinite(mine) else np.inf for mine, v in both]
        median = float(np.median(parts)) if parts else np.nan
        lines.append(
            f"{part}, {by}: {right} of {len(own)} right, {silent} wrong in silence, "
            f"{median:.3f} of stock NUTS's gradients in the median"
        )
    slowest: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["set"] == part and row["effective of 1,000 gradients"]:
            value = float(row["effective of 1,000 gradients"])
            slowest.setdefault(row["posterior"], {})[row["by"]] = value
    ratios = [v[FIT_AND_NUTS] / v[STOCK] for v in slowest.values() if len(v) == 2]
    if ratios:
        lines.append(
            f"{part}: effective draws per gradient, {FIT_AND_NUTS} by {STOCK}: median "
            f"{np.median(ratios):.1f}, least {min(ratios):.2f}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=SMALL, default=list(SMALL))
    parser.add_argument("--by", nargs="*", default=list(WAYS), choices=WAYS)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    command = "python -m benchmarks posterior_accuracy"
    about = f"`{command}`, seed 0, double precision, {describe()}"
    for name in options.models:
        of_one = Rows(name)
        if set(options.by) != {STOCK}:
            of_one.of_fit(options.by)
        if STOCK in options.by:
            of_one.of_stock()
        for row in of_one.rows:
            print(row, flush=True)
        pages.replace(TABLE, of_one.rows, about, ("posterior", "by"))
    picture()
    print("\n".join(summary("small")))


if __name__ == "__main__":
    main()
