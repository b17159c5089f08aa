"""Tan's Table 2 and Figure 2: how many steps natural gradients take, by parametrisation.

Poisson regression of the satellites of the horseshoe crabs, theta ~ N(0, 100 I). The bound of
q = N(mu, Sigma) is known exactly (supplement S2). Every step takes the largest step size of 1,
0.1, 0.01, ... for which q stays a Gaussian and the bound increases. The paper does not print
when a run has converged; here it has when the bound's relative increase is below 1e-7, which gives
Table 2's counts. (The Euclidean run from (0.5, 0.02) zigzags so that its count depends on the
rounding of the sums: 107 in the paper, and with scalars in Python, but 137 here.)

Table 2, an intercept only: Euclidean gradients of (mu, Sigma), and natural gradients in the
coordinates kappa = (mu, Sigma), xi = (mu, Sigma^-1) and lambda, the natural parameters, where
the updated Sigma moves the mean. They are the families Covariance, Precision with the mean
moved by the old Sigma, and Precision.

Figure 2, Sa ~ Width and Sa ~ Color + Width: natural gradients in (mu, T), Sigma^-1 = T T^T, by
Theorem 1 and by Corollary 1, where the updated T moves the mean; the latter is the family
PrecisionCholesky. The paper does not print its starting point; here mu = 0 and Sigma = s^2 I
for several s^2, with a standardised width.

Beside them, with the exact derivatives as well, ``BLR()``, whose step sizes are its own, and
``fit``, which has gradients at draws only.

    python -m benchmarks tan_table2

writes ``tan_table2.csv``, ``tan_figure2.csv`` and ``tan_table2.png`` in ``docs/benchmarks``.

Time: a minute. Data: none.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from examples.machine import describe

from . import pages
from .families import named
from .horseshoe_crabs import crabs, design
from .results import cost

STARTS = [(0.0, 0.1), (0.5, 0.02), (2.0, 0.01)]
PAPER = {
    "euclidean kappa": ("141 (1e-05)", "107 (1e-06)", "115 (1e-06)"),
    "natural kappa": ("15 (0.01)", "12 (0.1)", "9 (0.01)"),
    "natural xi": ("11 (0.01)", "8 (0.1)", "8 (0.1)"),
    "natural lambda": ("6 (1)", "5 (1)", "5 (1)"),
}
VARIANCES = [1e-4, 1e-2, 1e-1, 1.0]
PRIOR_VARIANCE = 100.0
TOLERANCE = 1e-7
SMALLEST_STEP = 1e-12
MAX_STEPS = 500


@dataclasses.dataclass
class Poisson:
    """The bound of a Poisson regression and its derivatives, in closed form."""

    X: np.ndarray
    y: np.ndarray

    def rates(self, mu: np.ndarray, sigma: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # of a step that is too long, and not taken
            return np.exp(self.X @ mu + 0.5 * np.sum(self.X @ sigma * self.X, 1))

    def bound(self, mu: np.ndarray, sigma: np.ndarray) -> float:
        likelihood = self.y @ self.X @ mu - self.rates(mu, sigma).sum()
        likelihood -= sum(math.lgamma(count + 1) for count in self.y)
        prior = -0.5 * (mu @ mu + np.trace(sigma)) / PRIOR_VARIANCE
        entropy = 0.5 * np.linalg.slogdet(sigma)[1]
        return likelihood + prior + entropy + 0.5 * len(mu) * (1 - math.log(PRIOR_VARIANCE))

    def derivatives(self, mu: np.ndarray, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``E[grad l]`` and ``E[hess l]``."""
        rates = self.rates(mu, sigma)
        precision = np.eye(len(mu)) / PRIOR_VARIANCE
        gradient = self.X.T @ (self.y - rates) - precision @ mu
        return gradient, -(self.X.T * rates) @ self.X - precision


class Run(NamedTuple):
    """What an ascent was."""

    states: list  #: after each step
    smallest: float | None  #: step size; None where the optimiser chooses it
    bound: float

    @property
    def cell(self) -> str:
        """As the paper prints it: steps, and the smallest step size."""
        size = "" if self.smallest is None else f" ({self.smallest:.2g})"
        return f"{len(self.states) - 1}{size}"


def ascend(
    bound: Callable[[Any], float], propose: Callable[[Any], Callable[[float], Any]], state: Any
) -> Run:
    """Steps of the largest size that increases the bound, until it has converged.

    :param bound: the bound at a state, NaN where there is no Gaussian.
    :param propose: from a state to the state after a step of a given size.
    """
    value, smallest, states = bound(state), 1.0, [state]
    while len(states) <= MAX_STEPS:
        move, step_size = propose(state), 1.0
        while not bound(move(step_size)) > value:
            step_size /= 10
            if step_size < SMALLEST_STEP:
                return Run([*states, state], step_size, value)
        state = move(step_size)
        states.append(state)
        before, value = value, bound(state)
        smallest = min(smallest, step_size)
        if value - before < TOLERANCE * abs(value):
            break
    return Run(states, smallest, value)


def euclidean_kappa(model: Poisson, mu: np.ndarray, variance: float) -> Run:
    """Gradient ascent in the mean and the covariance."""

    def bound(state: tuple) -> float:
        definite = np.linalg.eigvalsh(state[1])[0] > 0
        return model.bound(*state) if definite else math.nan

    def propose(state: tuple) -> Callable[[float], tuple]:
        gradient, hessian = model.derivatives(*state)
        slope = 0.5 * (hessian + np.linalg.inv(state[1]))
        return lambda rho: (state[0] + rho * gradient, state[1] + rho * slope)

    return ascend(bound, propose, (mu, variance * np.eye(len(mu))))


class Package:
    """Natural-gradient steps with the families of one of the two packages, in float64."""

    def __init__(self, name: str) -> None:
        if name == "numpyro":
            import jax
            import jax.numpy as jnp

            jax.config.update("jax_enable_x64", True)
            self.array, self.numpy = jnp.asarray, np.asarray
        else:
            import torch

            self.array, self.numpy = torch.as_tensor, np.asarray
        self.name = name

    def natural(
        self, family: str, model: Poisson, mu: np.ndarray, variance: float, old_mean: bool = False
    ) -> Run:
        """Natural-gradient ascent.

        :param family: the class that gives the coordinates.
        :param old_mean: whether the mean moves by the old ``Sigma``: xi and Theorem 1.
        """
        start = named(self.name, family)().initial(self.array(mu), math.sqrt(variance))

        def moments(q: Any) -> tuple[np.ndarray, np.ndarray]:
            return self.numpy(q.mean), self.numpy(q.covariance_matrix)

        def propose(q: Any) -> Callable[[float], Any]:
            gradient, hessian = map(self.array, model.derivatives(*moments(q)))
            direction = q.bonnet_price(gradient, hessian)
            scale_name = list(q.coordinates())[1]

            def move(rho: float) -> Any:
                step = type(q)(*(rho * value for value in direction.coordinates().values()))
                moved = q.retract(step)
                added = getattr(q, scale_name) + getattr(step, scale_name)
                # The paper's rule rejects what retract would correct.
                if not np.allclose(getattr(moved, scale_name), added, rtol=1e-9, atol=0):
                    return None
                return dataclasses.replace(moved, loc=q.loc + step.loc) if old_mean else moved

            return move

        def bound(q: Any) -> float:
            return math.nan if q is None else model.bound(*moments(q))

        return ascend(bound, propose, start)


def blr(model: Poisson, mu: np.ndarray, variance: float) -> Run:
    """``BLR()`` of NumPyro's package with the exact derivatives, to the same end."""
    import jax

    from numpyro_ngvi import BLR

    start = named("numpyro", "Precision")()
    optimiser, q = BLR(), start.initial(jax.numpy.asarray(mu), math.sqrt(variance))
    state, states = optimiser.init(q), [q]
    value = model.bound(np.asarray(q.mean), np.asarray(q.covariance_matrix))
    while len(states) <= MAX_STEPS:
        moments = np.asarray(q.mean), np.asarray(q.covariance_matrix)
        direction = q.bonnet_price(*map(jax.numpy.asarray, model.derivatives(*moments)))
        loss_gradient = jax.tree.map(lambda leaf: -leaf, direction)
        updates, state = optimiser.update(loss_gradient, state, q)
        q = jax.tree.map(lambda leaf, update: leaf + update, q, updates)
        states.append(q)
        before, value = value, model.bound(np.asarray(q.mean), np.asarray(q.covariance_matrix))
        if abs(value - before) < TOLERANCE * abs(value):
            break
    return Run(states, None, value)


def fit_from(model: Poisson, mu: float, variance: float) -> tuple[str, float]:
    """``fit`` of the PPL's model from the same start: its steps and gradients, and its bound."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import init_to_value

    from numpyro_ngvi import NaturalGaussianGuide, fit

    def loglinear(y: Any) -> None:
        theta = numpyro.sample("theta", dist.Normal(0.0, math.sqrt(PRIOR_VARIANCE)))
        with numpyro.plate("crabs", len(y)):
            numpyro.sample("y", dist.Poisson(jax.numpy.exp(theta)), obs=y)

    start = init_to_value(values={"theta": mu})
    guide = NaturalGaussianGuide(loglinear, init_loc_fn=start, init_scale=math.sqrt(variance))
    result = fit(loglinear, model.y, guide=guide, progress_bar=False)
    q = result.posterior
    bound = model.bound(np.atleast_1d(q.mean), np.asarray(q.covariance_matrix))
    return f"{len(result.trace)} ({cost(result).gradients} gradients)", bound


def picture(
    model: Poisson, runs: dict[str, list[Run]], name: str, num_marks: int | None = None
) -> None:
    """Figure 1: the ascents in the plane of the mean and the variance.

    :param name: of the file.
    :param num_marks: how many steps of an ascent are marked at most; all of them by default.
    """
    figure, axes = pages.figure(1, len(runs), (2.7, 3.2))
    means, variances = np.linspace(-0.1, 2.1, 80), np.geomspace(1e-4, 2, 80)
    surface = [[model.bound(np.array([m]), np.array([[v]])) for m in means] for v in variances]
    gap = 1e-3 + np.max(surface) - np.array(surface)
    for axis, (method, ascents) in zip(axes[0], runs.items(), strict=True):
        axis.contour(means, variances, np.log10(gap), 12, colors="#bbbbbb", linewidths=0.6)
        for run, colour in zip(ascents, ("#0072b2", "#d55e00", "#009e73"), strict=True):
            path = np.array([_moments(state) for state in run.states])
            every = 1 if num_marks is None else max(1, len(path) // num_marks)
            label = f"{len(path) - 1} steps"
            axis.plot(*path.T, ".-", color=colour, lw=1, ms=4, label=label, markevery=every)
            axis.plot(*path[0], "s", color=colour, ms=5)
        axis.set(title=method, yscale="log", ylim=(1e-4, 2), xlim=(-0.1, 2.1), xlabel="mean")
        axis.grid(visible=False)
        axis.legend(fontsize=8, loc="upper right")
        if axis is not axes[0, 0]:
            axis.set_yticklabels([])
    axes[0, 0].set_ylabel("variance")
    figure.tight_layout()
    pages.save(figure, name)


def _moments(state: Any) -> tuple[float, float]:
    mean, covariance = state if isinstance(state, tuple) else (state.mean, state.covariance_matrix)
    return float(mean[0]), float(covariance[0, 0])


def table_2(packages: dict[str, Package]) -> None:
    """The CSV and the picture."""
    intercept = Poisson(design("1"), crabs()[2])
    methods: list[tuple[str, str, Callable]] = [
        ("euclidean kappa", "numpy", lambda mu, v: euclidean_kappa(intercept, mu, v))
    ]
    for row, family, old_mean in (
        ("natural kappa", "Covariance", False),
        ("natural xi", "Precision", True),
        ("natural lambda", "Precision", False),
    ):
        for name, package in packages.items():

            def natural(mu: np.ndarray, variance: float, p=package, f=family, o=old_mean) -> Run:
                return p.natural(f, intercept, mu, variance, o)

            methods.append((row, name, natural))
    methods.append(("`BLR()`", "numpyro", lambda mu, v: blr(intercept, mu, v)))
    rows, runs = [], {}
    for method, package, ascent in methods:
        row = {"gradients": method, "package": package}
        if package != "pyro":
            runs[method.strip("`")] = []
        for index, (mu, variance) in enumerate(STARTS):
            run = ascent(np.array([mu]), variance)
            row |= _cells(index, run.cell, PAPER.get(method, ("",) * 3)[index])
            if package != "pyro":
                runs[method.strip("`")].append(run)
        row["lowest bound"] = f"{min(r.bound for r in runs[method.strip('`')]):.4f}"
        rows.append(row)
    ends, row = [], {"gradients": "`fit`", "package": "numpyro"}
    for index, start in enumerate(STARTS):
        cell, bound = fit_from(intercept, *start)
        row |= _cells(index, cell, "")
        ends.append(bound)
    rows.append(row | {"lowest bound": f"{min(ends):.4f}"})
    about = "`python -m benchmarks tan_table2`, float64, no randomness but `fit`'s (seed 0)"
    pages.write("tan_table2.csv", rows, f"{about}; {describe()}")
    picture(intercept, runs, "tan_table2.png")


def _cells(index: int, ours: str, paper: str) -> dict[str, str]:
    mu, variance = STARTS[index]
    start = f"({mu:g}; {variance:g})"
    return {f"from {start}": ours, f"paper {start}": paper}


def figure_2(packages: dict[str, Package]) -> None:
    """Steps of Theorem 1 and of Corollary 1."""
    rows = []
    for formula in ("Width", "Color + Width"):
        model = Poisson(design(formula), crabs()[2])
        for variance in VARIANCES:
            mu = np.zeros(model.X.shape[1])
            for name, package in packages.items():
                theorem = package.natural("PrecisionCholesky", model, mu, variance, True)
                corollary = package.natural("PrecisionCholesky", model, mu, variance)
                row = {"model": f"Sa ~ {formula}", "s²": f"{variance:g}", "package": name}
                row |= {"Theorem 1": theorem.cell, "Corollary 1": corollary.cell}
                row |= {"bound, Theorem 1": f"{theorem.bound:.4f}"}
                rows.append(row | {"bound, Corollary 1": f"{corollary.bound:.4f}"})
    about = "`python -m benchmarks tan_table2`, float64, no randomness"
    pages.write("tan_figure2.csv", rows, f"{about}; {describe()}")


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0]).parse_args()
    packages = {name: Package(name) for name in ("numpyro", "pyro")}
    table_2(packages)
    figure_2(packages)


if __name__ == "__main__":
    main()
