"""Tan's Table 11: generalised linear mixed models, by every method and three Gaussians.

GVA is a Gaussian over all latents whose precision has the zeros of the Hessian, RVB1 and RVB2 a
block-diagonal one over the globals and locals that are standardised given them. First-order
gradient estimates of one draw (``Trace_ELBO``, the landing stuck to), from ``mu = 0`` and a scale
of ``1 / sqrt(n)`` with ``n`` groups, that of standardised locals 1; float64; all methods of a model
and a Gaussian take the same number of iterations. RVB1 takes its Newton step from modes given the
globals of its start, and so begins at the fixed effects of the model without random ones. VOGN has
the squares of the groups' gradients (S5.1). The paper prints neither its rates nor its number of
iterations: each of ours has the best of the rates tried, by the last average of the bound.
``BLR()`` with ``NaturalELBO()`` and ``fit`` have no rates, and ``fit`` chooses its start.

    python -m benchmarks tan_table11 --data-dir DIR [--models hers] [--methods VOGN]

writes ``tan_table11.csv`` and ``tan_table11.png`` in ``docs/benchmarks``: rows that are asked for,
one by one, and keeps the others; and of the same runs Figure 10, the average bound by iterations
and the time of one, ``tan_figure10.csv`` and ``tan_figure10.png``. ``DIR`` holds
``glmm/designs/*.npz`` and ``logistic/diabetes130.csv.gz``. Bounds are those of the last Gaussian,
by fresh draws, the same number for all methods, and leave out what the paper's do. The processor's
seconds are those of one thread (``OMP_NUM_THREADS=1`` and
``XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"``).

Time: hours. Data: glmm/designs/*.npz, logistic/diabetes130.csv.gz.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from numpyro.infer.initialization import init_to_value

from benchmarks import pages
from benchmarks.glmm import data, models
from benchmarks.results import num_gradients
from benchmarks.tan_methods import COLOURS, RATES, best_rate, marks_until, replace_curve
from examples.machine import describe
from numpyro_ngvi import (
    BLR,
    SVI,
    NaturalELBO,
    NaturalGaussianGuide,
    ReparametrizedGaussianGuide,
    fit,
)
from numpyro_ngvi.families import BlockDiagonal, SparsePrecision

#: Iterations of the methods of one draw, with GVA and with RVB.
ITERATIONS = {
    "epilepsy2": (50_000, 50_000),
    "toenail": (60_000, 20_000),
    "hers": (20_000, 10_000),
    "polypharmacy": (30_000, 10_000),
    "diabetes": (20_000, 5_000),
}
#: Draws of a bound.
NUM_DRAWS = {"diabetes": 200}
USUAL_DRAWS = 2_000
#: Of ``BLR()``.
NEWTON_STEPS = 200
ROWS = ("GVA", "RVB1", "RVB2")
#: The paper's first.
METHODS = ("Adam", "PGA", "NAdam", "Snngm", "VOGN", "`BLR()`", "`fit`")
#: Where the average of the bound begins to be shown.
FIRST_MARK = 100
PAPER = {
    ("epilepsy2", "GVA"): (3134.3, 3133.2, 3135.5, 3138.7, 3137.0),
    ("epilepsy2", "RVB1"): (3139.6, None, 3139.6, 3139.6, 3139.0),
    ("epilepsy2", "RVB2"): (3139.7, None, 3139.7, 3139.7, 3139.2),
    ("toenail", "GVA"): (-645.2, -644.8, -644.8, -644.8, -647.3),
    ("toenail", "RVB1"): (-645.5, -836.0, -645.4, -645.3, -647.2),
    ("toenail", "RVB2"): (-644.3, -9822.5, -644.3, -644.3, -646.4),
    ("hers", "GVA"): (-5771.3, -5044.6, -5771.3, -5042.7, -5615.1),
    ("hers", "RVB1"): (-5040.5, -6959.1, -5040.6, -5040.7, -5042.9),
    ("hers", "RVB2"): (-5040.1, -34313.1, -5040.2, -5040.4, -5068.1),
    ("diabetes", "GVA"): (-22835, -22691, -22835, -22712, -22706),
    ("diabetes", "RVB1"): (-29204, -42008, -39959, -22599, -22603),
    ("diabetes", "RVB2"): (-25431, None, None, -22599, -22603),
}
DIVERGED = "diverge"

#: ``estimate(q, key)``: the negative bound, and its natural gradient.
Estimator = Callable[[Any, jax.Array], tuple[jax.Array, Any]]


class Problem:
    """A model and its data with one of the three Gaussians.

    :param name: of the design.
    :param row: ``"GVA"``, ``"RVB1"`` or ``"RVB2"``.
    """

    def __init__(self, name: str, row: str, design: data.Design) -> None:
        likelihood = models.LIKELIHOODS[name]
        self.design, self.row = design, row
        self.constant = design.papers_constant(likelihood is models.poisson)
        self.model = partial(models.glmm, likelihood=likelihood)
        self.num_draws = NUM_DRAWS.get(name, USUAL_DRAWS)
        self.start_of_beta = np.zeros(design.X.shape[1])
        if row == "RVB1":
            self.start_of_beta = design.without_effects(likelihood is models.poisson)
        # The groups stay numpy's: their number is the shape of the locals.
        self.args = (*map(jnp.asarray, design[:3]), design.group)
        self.guide = self.new_guide()
        with handlers.seed(rng_seed=0):
            (self.start,) = self.guide.set_up(*self.args).values()

    def new_guide(self, starts_as_all: bool = True, given: Any = None) -> Any:
        """A guide that is not set up.

        :param starts_as_all: methods start, or where the guide does by itself.
        :param given: means of globals that it starts from instead.
        """
        n, r = self.design.num_groups, self.design.Z.shape[1]
        options: dict[str, Any] = {}
        if starts_as_all or given:
            zero = {"omega": np.zeros(r * (r + 1) // 2), "theta": np.zeros((n, r))}
            means = zero | {"beta": self.start_of_beta} | (given or {})
            values = {site: jnp.asarray(mean) for site, mean in means.items()}
            options = {"init_loc_fn": init_to_value(values=values), "init_scale": n**-0.5}
        if self.row == "GVA":
            return NaturalGaussianGuide(self.model, SparsePrecision(), **options)
        blocks = BlockDiagonal(blocks=(("beta", "omega"), ("theta",)))
        return ReparametrizedGaussianGuide(self.model, blocks, order=int(self.row[-1]), **options)

    def loss(self, guide: Any, q: Any, key: jax.Array) -> jax.Array:
        """The negative bound by one draw, whose gradient is the natural one."""
        return Trace_ELBO().loss(key, {"auto_posterior": q}, self.model, guide, *self.args)

    def bound(self, q: Any, guide: Any = None, seed: int = 1) -> tuple[float, float]:
        """By fresh draws in the paper's convention, and its standard error."""
        guide = guide or self.guide
        if not hasattr(guide, "bounds_of_draws"):
            loss = partial(self.loss, guide)
            each = lambda q, keys: jax.lax.map(lambda key: -loss(q, key), keys)  # noqa: E731
            guide.bounds_of_draws = jax.jit(each)
        keys = jax.random.split(jax.random.key(seed), self.num_draws)
        values = self.constant + np.asarray(guide.bounds_of_draws(q, keys))
        return float(values.mean()), float(values.std() / math.sqrt(len(values)))

    # -- gradient estimates -----------------------------------------------------------

    def first_order(self, q: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """``grad h`` at one draw."""
        return jax.value_and_grad(partial(self.loss, self.guide))(q, key)

    def squares(self, q: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """The same draw's gradient, and ``J^T J`` in place of minus the Hessian (S5.1).

        A row of ``J`` is the gradient of one group's part ``f_i`` of the log density, which is not
        zero in its own locals and the globals only: a product with each of the probes that tell
        these apart has all of them.
        """
        structure, probes = q.structure, q.hessian_probes()
        (locals_,) = (piece for piece in structure.split_indices() if piece.shape[1] > 1)
        (globals_,) = (piece[:, 0] for piece in structure.split_indices() if piece.shape[1] == 1)
        z = jax.random.normal(key, (q.dim,))
        latent = q.sample(z)
        parts, product = jax.linearize(self.of_groups, latent)
        pushed = jax.vmap(product)(jnp.eye(probes.max() + 1)[:, probes])  # (probes, groups)
        own, shared = pushed[probes[locals_[:, 0]]], pushed[probes[globals_]]
        gradient = jnp.zeros(q.dim).at[locals_].set(own).at[globals_].set(shared.sum(1))
        products = jnp.zeros((len(pushed), q.dim))
        products = products.at[:, locals_].set(pushed[:, None] * own)
        products = products.at[:, globals_].set(pushed @ shared.T)
        direction = q.bonnet_price(gradient, q.assemble_hessian(-products))
        return q.log_prob(latent) - parts.sum(), direction.map(jnp.negative)

    def of_groups(self, latent: jax.Array) -> jax.Array:
        """``f_i`` of all groups at a vector that the Gaussian is over, shape ``(n,)``."""
        values, log_det = self.mapped(latent), 0.0
        if self.row != "GVA":
            # The map is affine in a group's own locals: its columns are derivatives along them.
            sites = {site.name: site for site in self.guide.sites}
            at = sites["theta"].indices(()).reshape(values["theta"].shape)
            along = [jnp.zeros(latent.shape).at[at[:, i]].set(1.0) for i in range(at.shape[1])]
            of_theta = lambda latent: self.mapped(latent)["theta"]  # noqa: E731
            columns = [jax.jvp(of_theta, (latent,), (tangent,))[1] for tangent in along]
            log_det = jnp.linalg.slogdet(jnp.stack(columns, -1))[1]
        with handlers.block():
            seeded = handlers.substitute(handlers.seed(self.model, rng_seed=0), data=values)
            sites = handlers.trace(seeded).get_trace(*self.args)
        terms = {n: s["fn"].log_prob(s["value"]) for n, s in sites.items() if s["type"] == "sample"}
        num = self.design.num_groups
        of_rows = jax.ops.segment_sum(terms["y"], jnp.asarray(self.design.group), num)
        return of_rows + terms["prior"] + log_det + (terms["beta"] + terms["omega"]) / num

    def mapped(self, latent: jax.Array) -> dict[str, jax.Array]:
        """The model's latents at such a vector."""
        given = {"auto_posterior": self.start, "_auto_latent": latent}
        with handlers.block():
            seeded = handlers.substitute(handlers.seed(self.guide, rng_seed=0), data=given)
            sites = handlers.trace(seeded).get_trace(*self.args)
        return {name: sites[name]["value"] for name in ("beta", "omega", "theta")}


class Path(NamedTuple):
    """What a method has made."""

    q: Any  #: the last Gaussian
    marks: Sequence[int]
    bounds: list[float]  #: averages over the iterations since the mark before, in nats
    seconds: float  #: of the processor, an iteration, without compilation


def ascend(
    optimiser: optax.GradientTransformation,
    estimate: Estimator,
    q: Any,
    marks: Sequence[int],
    seed: int,
) -> Path:
    """The iterations of one method, compiled.

    :param q: where it starts.
    :param marks: numbers of iterations, increasing.
    """
    key = jax.random.key(seed)

    @jax.jit
    def advance(carry: Any, begin: int, end: int) -> Any:
        def step(i: jax.Array, carry: Any) -> Any:
            q, state, total = carry
            loss, gradient = estimate(q, jax.random.fold_in(key, i))
            updates, state = optimiser.update(gradient, state, q)
            return optax.apply_updates(q, updates), state, total + loss

        return jax.lax.fori_loop(begin, end, step, carry)

    zero = jnp.zeros(())
    carry = q, optimiser.init(q), zero
    jax.block_until_ready(advance(carry, 0, 0))
    bounds, begin = [], time.process_time()
    for last, mark in zip((0, *marks), marks, strict=False):
        carry = jax.block_until_ready(advance((*carry[:2], zero), last, mark))
        bounds.append(-float(carry[2]) / (mark - last))
    return Path(carry[0], marks, bounds, (time.process_time() - begin) / marks[-1])


def newton(problem: Problem, num_steps: int, seed: int) -> Path:
    """``BLR()`` with ``NaturalELBO()``, from the same start."""
    key, args = jax.random.key(seed), problem.args
    svi = SVI(problem.model, problem.new_guide(), BLR(), NaturalELBO(), rng_key=key)
    losses = [float(svi.step(*args))]
    begin = time.process_time()
    losses += [float(svi.step(*args)) for _ in range(num_steps - 1)]
    seconds = (time.process_time() - begin) / (num_steps - 1)
    marks = marks_until(num_steps)
    pairs = zip((0, *marks), marks, strict=False)
    bounds = [-float(np.mean(losses[last:mark])) for last, mark in pairs]
    return Path(svi.params["auto_posterior"], marks, bounds, seconds)


def fitted(problem: Problem, seed: int) -> tuple[Any, Any, str]:
    """``fit``, which starts where it likes: the guide, the Gaussian, and what it took.

    RVB1 is fitted twice, the second time with its fixed point where the globals of the first are.
    """
    given, count = None, 0
    for _ in range(1 + (problem.row == "RVB1")):
        guide = problem.new_guide(False, given)
        options = {"rng_key": jax.random.key(seed), "progress_bar": False}
        result = fit(problem.model, *problem.args, guide=guide, **options)
        q, count = result.params["auto_posterior"], count + num_gradients(result)
        means = {site.name: q.mean[site.start : site.start + site.size] for site in guide.sites}
        given = {site: np.asarray(means[site]) for site in ("beta", "omega")}
    about = f"{count:,} gradients"
    return guide, q, about if result.converged else f"{about}, not converged"


def rows(
    name: str,
    problem: Problem,
    methods: Sequence[str],
    iterations: int,
    seed: int,
    rates: Sequence[float] | None = None,
) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """The table's rows of one model and Gaussian, and those of the figure.

    :param rates: to try in place of the methods' own.
    """
    papers = PAPER.get((name, problem.row), ())
    for method in methods:
        begin, rate, guide, about = time.process_time(), "", problem.guide, ""
        if method == "`fit`":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                guide, q, about = fitted(problem, seed)
            found = Path(q, [], [], 0.0)
        elif method == "`BLR()`":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = newton(problem, NEWTON_STEPS, seed)
            about = f"{NEWTON_STEPS}"
        else:
            estimate = problem.squares if method == "VOGN" else problem.first_order
            marks = marks_until(iterations, FIRST_MARK)
            rate, found, seconds = best_rate(
                method,
                lambda o, e=estimate, m=marks: ascend(o, e, problem.start, m, seed),
                lambda path: path.bounds[-1],
                {method: tuple(rates)} if rates else RATES,
            )
            begin, about = time.process_time() - seconds, f"{iterations:,}"
        seconds = time.process_time() - begin
        bound, error = problem.bound(found.q, guide)
        cells = {"model": name, "Gaussian": problem.row, "method": method}
        curve = cells | {"ms": f"{1e3 * found.seconds:.3f}"}
        averages = zip(found.marks, found.bounds, strict=True)
        curve |= {str(m): words(problem.constant + b) for m, b in averages if words(b) != DIVERGED}
        cells |= {"rate": f"{rate}", "iterations": about, "bound": words(bound)}
        cells |= {"error": f"{error:.2f}" if words(bound) != DIVERGED else ""}
        cells |= {"paper": of_paper(papers, method), "CPU s": f"{seconds:.1f}"}
        yield cells, curve if found.marks else {}


def in_order(csv: str, about: str) -> None:
    """Write its rows by model, Gaussian and method, whatever was run first."""
    order = [list(ITERATIONS), list(ROWS), list(METHODS)]

    def place(row: dict[str, str]) -> list[int]:
        names = row["model"], row["Gaussian"], row["method"]
        return [known.index(name) for known, name in zip(order, names, strict=True)]

    pages.write(csv, sorted(pages.read(csv), key=place), about)


def words(bound: float) -> str:
    """A bound as it is written."""
    return f"{bound:.1f}" if abs(bound) < 1e7 else DIVERGED


def of_paper(papers: Sequence[float | None], method: str) -> str:
    """The paper's bound, empty where it has none."""
    found = dict(zip(METHODS, papers, strict=False))
    if method not in found:
        return ""
    return DIVERGED if found[method] is None else f"{found[method]:.1f}"


# -- pictures -------------------------------------------------------------------------


FLOOR = 0.03  #: in nats


def _best(csv: str) -> dict[str, float]:
    """The best bound of each model, here or in the paper."""
    found: dict[str, float] = {}
    for row in pages.read(csv):
        values = [row["bound"], row["paper"]]
        numbers = [float(value) for value in values if value not in ("", DIVERGED)]
        found[row["model"]] = max([found.get(row["model"], -math.inf), *numbers])
    return found


def draw_gaps(csv: str, picture: str) -> None:
    """How far below the model's best bound each method ends, and the paper's."""
    table, best = pages.read(csv), _best(csv)
    figure, axes = pages.figure(len(best), len(ROWS), (3.2, 2.3))
    for line, name in enumerate(best):
        for axis, row in zip(axes[line], ROWS, strict=True):
            own = {r["method"]: r for r in table if (r["model"], r["Gaussian"]) == (name, row)}
            order = [method for method in METHODS if method in own][::-1]
            styles = ("paper", "o", "#d55e00", "the paper's"), ("bound", "D", "#0072b2", "here")
            for column, style, colour, label in styles:
                found = [
                    (best[name] - float(own[method][column]), at)
                    for at, method in enumerate(order)
                    if own[method][column] not in ("", DIVERGED)
                ]
                if found:
                    gaps, at = np.array(found).T
                    gaps = np.maximum(gaps, FLOOR)
                    axis.plot(gaps, at, style, color=colour, ms=4.5, label=label)
            axis.set(xscale="log", yticks=np.arange(len(order)), title=f"{name}, {row}")
            axis.set_yticklabels([method.replace("`", "") for method in order])
            axis.set_xlim(FLOOR / 1.5, 1e5)
            axis.set_visible(bool(own))
    for axis in axes[-1]:
        axis.set_xlabel("nats below the best bound")
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    pages.save(figure, picture)


def draw_curves(csv: str, table: str, picture: str) -> None:
    """The average bound below the best one against the processor's time."""
    curves, best = pages.read(csv), _best(table)
    names = list(dict.fromkeys(row["model"] for row in curves))
    figure, axes = pages.figure(len(names), len(ROWS), (3.2, 2.4))
    shown: dict[str, Any] = {}
    for line, name in enumerate(names):
        for axis, gaussian in zip(axes[line], ROWS, strict=True):
            own = [row for row in curves if (row["model"], row["Gaussian"]) == (name, gaussian)]
            axis.set_visible(bool(own))
            for row in own:
                pairs = sorted((int(k), float(v)) for k, v in row.items() if k.isdigit() and v)
                if not pairs:
                    continue
                at, bounds = np.array(pairs).T
                times, gaps = at * float(row["ms"]) / 1e3, np.maximum(best[name] - bounds, FLOOR)
                label, colour = row["method"], COLOURS[METHODS.index(row["method"])]
                (shown[label],) = axis.plot(times, gaps, color=colour, lw=1.3, marker=".", ms=4)
            axis.set(xscale="log", yscale="log", title=f"{name}, {gaussian}")
            axis.xaxis.set_minor_formatter("")  # within a decade labels would meet
        axes[line, 0].set_ylabel("nats below the best bound")
    for axis in axes[-1]:
        axis.set_xlabel("CPU s, without compilation")
    labels = [label.replace("`", "") for label in shown]
    options = {"fontsize": 7, "loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    axes[0, -1].legend(shown.values(), labels, **options)
    figure.tight_layout()
    pages.save(figure, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=pathlib.Path, required=True)
    parser.add_argument("--models", nargs="+", choices=ITERATIONS, default=list(ITERATIONS))
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--iterations", type=int, help="in place of the model's own")
    parser.add_argument("--rates", nargs="+", type=float, help="in place of the methods' own")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    about = f"`python -m benchmarks tan_table11`, seed {options.seed}, float64, a thread"
    about = f"{about}; CPU s of the rate shown, with compilation; {describe()}"
    of_figure = f"Average bound since the column before; ms an iteration, of CPU; {about}"
    keys = ("model", "Gaussian", "method")
    for name in options.models:
        design = data.load(name, options.data_dir)
        for row in options.rows:
            problem = Problem(name, row, design)
            steps = options.iterations or ITERATIONS[name][row != "GVA"]
            run = rows(name, problem, options.methods, steps, options.seed, options.rates)
            for cells, curve in run:
                print(cells, flush=True)
                pages.replace("tan_table11.csv", [cells], about, keys)
                in_order("tan_table11.csv", about)
                if curve:
                    replace_curve("tan_figure10.csv", curve, of_figure, keys)
                    in_order("tan_figure10.csv", of_figure)
    draw_gaps("tan_table11.csv", "tan_table11.png")
    draw_curves("tan_figure10.csv", "tan_table11.csv", "tan_figure10.png")


if __name__ == "__main__":
    main()
