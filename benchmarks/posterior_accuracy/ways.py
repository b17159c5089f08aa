"""The ways to draws of a posterior, and what each takes until moments are right."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpyro import handlers
from numpyro.infer import MCMC
from numpyro.infer.reparam import LocScaleReparam

from ngvi.inference.chains import effective_draws
from numpyro_ngvi import FitResult, fit
from numpyro_ngvi.inference.nuts import CountingNUTS

from .models import Draws, Entry, entry

CHAINS, WARM_UP = 4, 1000
SHIFT, RATIO = 0.1, 0.1
NEVER = "never"  #: of a way that is not right at its end
GAUSSIAN, AS_IT_COMES, CORRECTED = "Gaussian", "sample()", "corrected"
FIT_AND_NUTS, STOCK = "fit and NUTS", "stock NUTS"
WAYS = GAUSSIAN, AS_IT_COMES, CORRECTED, FIT_AND_NUTS, STOCK


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
    return draws, np.asarray(found["num_steps"]), int(found["diverging"].sum())


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
    count = next(iter(draws.values())).shape[1]
    values = one.compared(_flat(draws, count)).values()
    flat = np.concatenate([v.reshape(CHAINS, count, -1) for v in values], 2)
    return 1000.0 * float(effective_draws(flat).min()) / gradients


def truth(one: Entry) -> Draws:
    """Means and standard deviations, shape ``(2, ...)`` by site."""
    if one.exact is not None:
        return one.exact
    standardised = handlers.reparam(one.model, config={s: LocScaleReparam(0.0) for s in one.local})
    draws, *_ = sampled(CountingNUTS(standardised, target_accept_prob=0.95), 7, 10_000, WARM_UP)
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

    def __init__(self, name: str, folder: Path | None) -> None:
        self.name, self.entry = name, entry(name, folder)
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
                "set": self.entry.part,
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
        result = fit(one.model, *one.args, rng_key=jax.random.key(0), **options)
        of_fit, spent = time.process_time() - begin, result.cost.total
        if GAUSSIAN in ways:
            word = result.diagnostics.verdict.partition(":")[0]
            draws = result.sample(8000, corrected=False)
            self.drawn(GAUSSIAN, draws, spent, of_fit, f"{result.verdict}; {word}")
        for by, corrected in ((AS_IT_COMES, "auto"), (CORRECTED, True)):
            if by in ways:
                begin = time.process_time()
                with counted() as costs:
                    draws, said = _warned(lambda: result.sample(4000, corrected=corrected))  # noqa: B023
                seconds = of_fit + time.process_time() - begin
                self.drawn(by, draws, spent + sum(c.total for c in costs), seconds, said)
        if FIT_AND_NUTS in ways:
            self._on_from(result, of_fit)

    def _on_from(self, result: FitResult, of_fit: float) -> None:
        one, begin = self.entry, time.process_time()
        with counted() as costs:
            found, _ = _warned(
                lambda: result.nuts(one.num_draws, num_chains=CHAINS, progress_bar=False)
            )
        seconds = of_fit + time.process_time() - begin
        total = found.num_gradients + result.cost.total + sum(cost.total for cost in costs)
        draws = {k: np.asarray(v) for k, v in found.mcmc.get_samples(group_by_chain=True).items()}
        steps = np.asarray(found.mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
        gradients, *last = reached(one, draws, steps, self.exact)
        until = None if gradients is None else gradients + total - steps[:, -1].sum()
        share = 0.0 if until is None else until / total
        remark = f"{found.verdict}; {found.num_divergent} divergences"
        self.add(FIT_AND_NUTS, until, seconds * share, *last, remark, worth(one, draws, total))

    def of_stock(self) -> None:
        """NumPyro's NUTS as it begins by itself."""
        one, begin = self.entry, time.process_time()
        draws, steps, divergent = sampled(
            CountingNUTS(one.model), 1, one.num_draws, WARM_UP, one.args
        )
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
