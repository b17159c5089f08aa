"""Minibatches of groups with latents of their own: ``BLR()`` and ``NaturalELBO()`` beside Snngm.

A logistic regression with an intercept for each of 2,000 groups of five rows, of which a step sees
100: ``a_i ~ N(mu, tau)``, two covariates, centred. The guide is a sparse precision. ``BLR()`` takes
natural gradients of second order from ``NaturalELBO()``, ``Snngm()`` those of first order from the
PPL's ``Trace_ELBO``; both with nothing set but where the guide starts: at a standard deviation of
0.1, the default, or of 1. ``fit`` has all groups at once. One function of numpy scores every
Gaussian, by the bound of all data without noise: all expectations but one are in closed form, and
that is a quadrature of one dimension.

    python -m benchmarks local_minibatches [--ppls NumPyro] [--dtypes float32]

writes ``local_minibatches.csv`` in ``docs/benchmarks``. Each run is a process of its own; seconds
are of the processor, of steps alone: neither compilation nor looking at a Gaussian is in them.

Time: 5 minutes. Data: none.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from examples.machine import describe

from . import pages

GROUPS, ROWS, BATCH = 2000, 5, 100
LOOKS = (2.0, 4.0, 8.0)  #: seconds of the processor
STARTS = (0.1, 1.0)
METHODS = ("BLR, NaturalELBO", "Snngm, Trace_ELBO")
NODES = 40


class Data:
    """Rows ``(GROUPS, ROWS)``."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(GROUPS, ROWS, 2))
        logits = -0.5 + self.x @ [1.0, -0.5] + rng.normal(0.0, 1.5, GROUPS)[:, None]
        self.y = (rng.uniform(size=(GROUPS, ROWS)) < 1 / (1 + np.exp(-logits))).astype(float)


def bound(data: Data, sites: Any, family: Any, numpy: Callable) -> float:
    """In nats, of a sparse precision of ``mu``, two ``beta``, ``log tau`` and ``a``."""
    start = {site.name: site.start for site in sites}
    loc = numpy(family.loc).astype(float)
    (own, below), (root,) = (
        [numpy(block).astype(float) for block in mine] for mine in family._factor().blocks
    )
    locals_, globals_ = family.structure.split_indices()
    order = {int(index): row for row, index in enumerate(globals_[:, 0])}
    mu, tau = order[start["mu"]], order[start["tau"]]
    beta = [order[start["beta"] + k] for k in range(2)]
    own, below, root = own[0, 0], below[:, 0], root[..., 0]
    inverse = np.linalg.inv(root)
    of_globals, mean = inverse.T @ inverse, loc[globals_[:, 0]]
    back = np.argsort(locals_[0])  # elements in the plate's order
    own, slopes, a = own[back], -(below / own)[:, back], loc[locals_[0]][back]
    with_globals = of_globals @ slopes  # (g, N), of a and the globals
    of_a = own**-2 + (slopes * with_globals).sum(0)
    # The logits.
    x = data.x
    m = a[:, None] + x @ mean[beta]
    v = of_a[:, None] + 2 * np.einsum("nrk,kn->nr", x, with_globals[beta])
    v += np.einsum("nrk,kl,nrl->nr", x, of_globals[np.ix_(beta, beta)], x)
    nodes, weights = np.polynomial.hermite.hermgauss(NODES)
    logits = m[..., None] + np.sqrt(2 * v)[..., None] * nodes
    likelihood = (data.y * m - np.logaddexp(0.0, logits) @ weights / math.sqrt(math.pi)).sum()
    # The intercepts, of which E[(a - mu)^2 exp(-2 s)] is a Gaussian's.
    var, s = np.diag(of_globals), mean[tau]
    of_u = of_a + var[mu] - 2 * with_globals[mu]
    with_s = with_globals[tau] - of_globals[mu, tau]
    squares = math.exp(-2 * s + 2 * var[tau]) * ((a - mean[mu] - 2 * with_s) ** 2 + of_u)
    half = 0.5 * math.log(2 * math.pi)
    intercepts = -(GROUPS * (half + s) + 0.5 * squares.sum())
    wide = [mu, *beta]  # N(0, 3^2)
    priors = -3 * (half + math.log(3.0)) - (mean[wide] ** 2 + var[wide]).sum() / 18
    priors += -half - 0.5 * (s**2 + var[tau])  # LogNormal(0, 1), on the scale of its logarithm
    dim = GROUPS + len(mean)
    entropy = dim * (0.5 + half) - np.log(np.abs(own)).sum() - np.log(np.abs(np.diag(root))).sum()
    return float(likelihood + intercepts + priors + entropy)


# -- runs: a step, and the family at which it is ----------------------------------------------

Run = tuple[Callable[[int], None], Callable[[], float]]


def numpyro_run(data: Data, method: str, scale: float) -> Run:
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO

    from numpyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide, Snngm, fit

    x, y = jnp.asarray(data.x), jnp.asarray(data.y)

    def plates(size: int) -> Any:
        return numpyro.plate("groups", GROUPS, subsample_size=size)

    def model(size: int) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        beta = numpyro.sample("beta", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
        with plates(size) as some:
            a = numpyro.sample("a", dist.Normal(mu, tau))
            likelihood = dist.Bernoulli(logits=a[:, None] + x[some] @ beta).to_event(1)
            numpyro.sample("y", likelihood, obs=y[some])

    if method == "fit":
        result = fit(
            model, GROUPS, family="sparse_precision", reparametrize=False, progress_bar=False
        )
        guide, family = result.guide, result.guide._family_of(result.params)
        return (lambda count: None), lambda: bound(data, guide.sites, family, np.asarray)
    guide = NaturalGaussianGuide(model, "sparse_precision", create_plates=plates, init_scale=scale)
    optimiser, loss = (BLR(), NaturalELBO()) if "BLR" in method else (Snngm(), Trace_ELBO())
    svi = SVI(model, guide, optimiser, loss)
    state = svi.init(jax.random.key(0), BATCH)

    @jax.jit
    def advance(state: Any, count: int) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, state: svi.update(state, BATCH)[0], state)

    def steps(count: int) -> None:
        nonlocal state
        state = jax.block_until_ready(advance(state, count))

    def look() -> float:
        family = svi.get_params(state)[guide._parameter_name]
        return bound(data, guide.sites, family, np.asarray)

    return steps, look


def pyro_run(data: Data, method: str, scale: float) -> Run:
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO

    from pyro_ngvi import BLR, NaturalELBO, NaturalGaussianGuide, Snngm, fit

    dtype = torch.get_default_dtype()
    x, y = (torch.as_tensor(part, dtype=dtype) for part in (data.x, data.y))

    def plates(size: int) -> Any:
        return pyro.plate("groups", GROUPS, subsample_size=size, dim=-1)

    def model(size: int) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
        beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 3.0).to_event(1))
        tau = pyro.sample("tau", dist.LogNormal(0.0, 1.0))
        with plates(size) as some:
            a = pyro.sample("a", dist.Normal(mu, tau))
            logits = a[..., None] + (x[some] * beta[..., None, None, :]).sum(-1)
            pyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y[some])

    pyro.set_rng_seed(0)

    def numpy(tensor: Any) -> np.ndarray:
        return tensor.numpy(force=True)

    if method == "fit":
        result = fit(
            model, GROUPS, family="sparse_precision", reparametrize=False, progress_bar=False
        )
        guide = result.guide
    else:
        guide = NaturalGaussianGuide(
            model, "sparse_precision", create_plates=plates, init_scale=scale
        )
        guide(BATCH)
        optimiser, loss = (BLR(), NaturalELBO()) if "BLR" in method else (Snngm(), Trace_ELBO())
        svi = SVI(model, guide, optimiser, loss)

    def steps(count: int) -> None:
        for _ in range(count if method != "fit" else 0):
            svi.step(BATCH)

    return steps, lambda: bound(data, guide.sites, guide._family(), numpy)


def run(ppl: str, dtype: str, method: str, scale: float) -> dict[str, Any]:
    """The row of one run."""
    if ppl == "NumPyro":
        import jax

        jax.config.update("jax_enable_x64", dtype == "float64")
    else:
        import torch

        torch.set_default_dtype(getattr(torch, dtype))
        torch.set_num_threads(1)
    begin = time.process_time()
    steps, look = {"NumPyro": numpyro_run, "Pyro": pyro_run}[ppl](Data(), method, scale)
    row = {"PPL": ppl, "dtype": dtype, "method": method, "start": f"{scale:g}"}
    if method == "fit":
        seconds = time.process_time() - begin
        return row | {"start": "", "bound": look(), "seconds": seconds}
    steps(1)  # which compiles
    at_once, count, seconds, found = 10 if ppl == "NumPyro" else 1, 1, 0.0, []
    for limit in LOOKS:
        while seconds < limit:
            begin = time.process_time()
            steps(at_once)
            seconds += time.process_time() - begin
            count += at_once
        found.append(look())
    return row | {"bounds": found, "steps": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ppls", nargs="*", default=["NumPyro", "Pyro"])
    parser.add_argument("--dtypes", nargs="*", default=["float64", "float32"])
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)  # a process of its own
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(*options.one[:3], float(options.one[3]))))
        return
    wanted = [("NumPyro", "float64", "fit", math.nan)]
    for ppl in options.ppls:
        for dtype in options.dtypes:
            wanted += [(ppl, dtype, method, scale) for scale in STARTS for method in METHODS]
    found = []
    for one in wanted:
        command = [sys.executable, "-m", __spec__.name, "--one", *map(str, one)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1], flush=True)
        publish(found)


def publish(found: list[dict[str, Any]]) -> None:
    """The table and the picture of these runs, of which the first is ``fit``'s."""
    best = found[0]["bound"]
    rows = [
        {
            "PPL": row["PPL"],
            "dtype": row["dtype"],
            "method": f"{row['method']}, all groups" if "bound" in row else row["method"],
            "sd at the start": row["start"],
            **{
                f"nats below after {seconds:g} s": f"{best - value:.2f}"
                for seconds, value in zip(LOOKS, row.get("bounds", ()), strict=False)
            },
            "steps": f"{row['steps']:,}" if "steps" in row else "",
            "nats below at the end": "0" if "bound" in row else "",
            "seconds at the end": f"{row['seconds']:.0f}" if "bound" in row else "",
        }
        for row in found
    ]
    columns = dict.fromkeys(column for row in reversed(rows) for column in row)
    rows = [{column: row.get(column, "") for column in columns} for row in rows]
    about = (
        f"`python -m benchmarks local_minibatches`, {GROUPS:,} groups of {ROWS} rows, "
        f"{BATCH} groups a step, data and runs of seed 0; nats below the bound of fit, "
        f"{best:,.2f}; seconds of the processor, of steps alone but for fit; {describe()}"
    )
    pages.write("local_minibatches.csv", rows, about)
    figure, ((*panels,),) = pages.figure(1, 2)
    colours = dict(zip(METHODS, ("C0", "C1"), strict=True))
    for panel, ppl in zip(panels, ("NumPyro", "Pyro"), strict=True):
        for row in found[1:]:
            if row["PPL"] != ppl:
                continue
            gaps = [max(best - value, 0.02) for value in row["bounds"]]
            style = "-" if row["dtype"] == "float64" else "--"
            marker = "o" if row["start"] == "1" else "v"
            label = f"{row['method']}, sd {row['start']}" if style == "-" else None
            panel.plot(LOOKS, gaps, style, marker=marker, color=colours[row["method"]], label=label)
        panel.set(title=ppl, yscale="log", xlabel="seconds of the processor", ylim=(0.015, 2e4))
        panel.set_xticks(LOOKS)
    panels[0].set_ylabel("nats below fit")
    panels[1].legend(fontsize=7, loc="lower left")
    pages.save(figure, "local_minibatches.png")


if __name__ == "__main__":
    main()
