"""What steps and fits take where the arrays are: on a GPU if there is one, else on the CPU.

Steps of ``SVI`` are of a network of 784-1000-1000-10 units with batches of 512, and of ``BLR()`` on
a logistic regression with d = 500; those of a loop of torch are of the same network, and of GPTs of
``examples/language_model.py``. Blocks of steps are taken in turn, and wait for the device at their
end: medians over rounds, also of the ratio to the first method. Fits are a first and a second one
until their verdict, and one with its draws. Seconds are the wall's. A case is a process of its own.

``python -m benchmarks --publish devices`` writes ``devices.csv``.

Time: 10 minutes on a GPU. Data: none.
"""

import argparse
import functools
import importlib
import itertools
import multiprocessing
import statistics
import time
from collections import Counter

import jax
import numpy as np
import pyro
import torch
from numpyro import handlers
from numpyro.infer.util import log_density
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from examples.language_model import GPT
from examples.machine import describe

from . import pages
from .ivon import IVON, LABELS, torch_step
from .models import Ppl
from .scaling import logistic

SIZES, NUM_DATA, BATCH, ROUNDS, BLOCK = [784, 1000, 1000, 10], 10_000, 512, 7, 10
GRADIENT, ADAM = "the gradient alone", "AutoNormal with Adam"
#: Family, rule and curvature of what is ours.
OURS = {
    "IVON()": ("diagonal", "IVON", (1, "stein")),
    "IVON(), low_rank": ("low_rank", "IVON", (1, "stein")),
    "IVON(), matrix_normal": ("matrix_normal", "IVON", (1, "stein")),
    "VOGN()": ("diagonal", "VOGN", (1, "gauss_newton")),
    "VOGN(), low_rank": ("low_rank", "VOGN", (1, "gauss_newton")),
    "BLR()": ("covariance_cholesky", "BLR", ()),
}
LOOP, FITS = ("AdamW", "AdamW, fused", "ngvi.torch.IVON"), ("first", "second", "with draws")
#: Batch, context, width, layers, heads.
GPTS = {"small GPT": (8, 64, 208, 2, 4), "larger GPT": (16, 512, 768, 12, 12)}
CASES = {
    "network": (ADAM, GRADIENT, *list(OURS)[:4]),
    "operations": (ADAM, *list(OURS)[:5]),
    "plain loop": LOOP,
    **dict.fromkeys(GPTS, LOOP),
    "regression": ("BLR()",),
    "10^6 rows": FITS,
    "5,000 groups": FITS,
}


def network(ppl, x, y):
    for index, (rows, columns) in enumerate(itertools.pairwise(SIZES)):
        prior = ppl.Normal(ppl.zeros((rows, columns)), rows**-0.5)
        weights = ppl.sample(f"W{index}", prior.to_event(2))
        bias = ppl.sample(f"b{index}", ppl.Normal(ppl.zeros(columns), 1.0).to_event(1))
        x = (x.clip(0.0) if index else x) @ weights + bias[..., None, :]
    with ppl.plate("data", NUM_DATA, subsample_size=len(y)):
        ppl.sample("label", ppl.Categorical(logits=x), obs=y)


def counts(ppl, x, group, y):
    zero = ppl.array(0.0)
    priors = {"mean": ppl.Normal(zero, 1.0), "slope": ppl.Normal(zero, 1.0)}
    mean, slope, scale = ppl.draws(**priors, scale=ppl.HalfNormal(1 + zero))
    with ppl.plate("groups", len(y) // 10):
        effect = ppl.sample("effect", ppl.Normal(zero, scale))
    ppl.rows(ppl.Poisson(ppl.exp(mean + slope * x + effect[..., group])), y)


def data(what, small=1, seed=0):
    """The arguments of a case's model."""
    rng = np.random.default_rng(seed)
    if what == "5,000 groups":
        group = np.arange(50_000 // small) // 10
        x, effect = rng.normal(size=len(group)), 0.6 * rng.normal(size=group[-1] + 1)[group]
        return x, group, rng.poisson(np.exp(0.5 + 0.3 * x + effect)).astype(float)
    sizes = {"10^6 rows": (10**6 // small, 50), "regression": (1000, 500)}
    X = rng.standard_normal(sizes.get(what, (BATCH, SIZES[0])), np.float32)
    if what not in sizes:
        return X, (X @ rng.normal(size=(SIZES[0], SIZES[-1]))).argmax(1)
    logits = 2 * X @ rng.normal(size=X.shape[1]) / X.shape[1] ** 0.5
    return X, (rng.logistic(size=len(X)) < logits).astype(np.float32)


def gradient(ppl, model, args):
    """A function that takes the gradient of a batch's log density, at draws of the prior."""
    if ppl.is_numpyro:
        seeded = handlers.seed(model, jax.random.key(0))
        nodes = handlers.trace(seeded).get_trace(*args)
        weights = {name: node["value"] for name, node in nodes.items() if name[0] in "Wb"}
        found = jax.jit(jax.grad(lambda w, *args: log_density(seeded, args, {}, w)[0]))
        return lambda: found(weights, *args)
    nodes = pyro.poutine.trace(model).get_trace(*args).nodes
    weights = {name: nodes[name]["value"].requires_grad_() for name in nodes if name[0] in "Wb"}
    trace, at = pyro.poutine.trace(pyro.condition(model, weights)), list(weights.values())
    return lambda: torch.autograd.grad(trace.get_trace(*args).log_prob_sum(), at)


def of_ppl(ppl, what, method, args):
    """A function that takes a step."""
    model = functools.partial(logistic if what == "regression" else network, ppl)
    if method == GRADIENT:
        return gradient(ppl, model, args)
    ours, key = ppl.ours, {"rng_key": jax.random.key(0)} if ppl.is_numpyro else {}
    if method == ADAM:
        module = lambda name: importlib.import_module(f"{ppl.name}.{name}")  # noqa: E731
        guide, loss = module("infer.autoguide").AutoNormal(model), module("infer").Trace_ELBO()
        rule = module("optim").Adam(1e-3 if key else {"lr": 1e-3})
    else:
        family, name, curvature = OURS[method]
        guide = ours.NaturalGaussianGuide(model, family, init_scale=0.01)
        rule, loss = getattr(ours.optim, name)(), ours.NaturalELBO(*curvature)
    svi = ours.SVI(model, guide, rule, loss, **key)
    return lambda: svi.step(*args)


def of_torch(_, what, method, args):
    """A function that takes a step of a plain loop."""
    torch.manual_seed(0)
    if what in GPTS:
        batch, context, *sizes = GPTS[what]
        text = torch.randint(100, (batch, context + 1))
        args = text[:, :-1], text[:, 1:].flatten()
        module = nn.Sequential(GPT(100, context, *sizes), nn.Flatten(0, 1))
    else:
        layers = [(nn.Linear(*pair), nn.ReLU()) for pair in itertools.pairwise(SIZES)]
        module = nn.Sequential(*itertools.chain(*layers))[:-1]
    if method == LOOP[-1]:
        return torch_step(module, IVON(module.parameters(), ess=NUM_DATA), *args)
    fused = "fused" in method or None
    return torch_step(module, torch.optim.AdamW(module.parameters(), fused=fused), *args)


def steps(what, library, ready, options):
    """Cells of each method, or why there are none."""
    times, ppl = {}, Ppl("pyro" if library == "torch" else library)
    args = tuple(map(ppl.array, data(what)))
    make = of_torch if library == "torch" else of_ppl
    for method in CASES[what]:
        try:
            step = make(ppl, what, method, args)
            ready([step() for _ in range(4)])
        except Exception as error:  # noqa: BLE001  the others go on
            yield method, {"ms": f"{type(error).__name__}: {error}"[:80]}
        else:
            times[method] = step, []
    for _ in range(ROUNDS):
        for step, mine in times.values():
            begin = time.perf_counter()
            ready([step() for _ in range(BLOCK)])
            mine.append(1e3 * (time.perf_counter() - begin) / BLOCK)
    for method, (_, mine) in times.items():
        ratio = statistics.median(np.divide(mine, next(iter(times.values()))[1]))
        yield method, {"ms": f"{statistics.median(mine):.2f}", "to the first": f"{ratio:.2f}"}


def operations(what, library, ready, options):
    """What a step asks torch's dispatcher for, without views; a batch is differentiated at once."""
    reads = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2")
    SIZES[1:3] = 200, 200

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counts["operations"] += not func.is_view
            counts["reads"] += func.name().removeprefix("aten::").partition(".")[0] in reads
            return func(*args, **(kwargs or {}))

    ppl = Ppl(library)
    args = [ppl.array(each[:16]) for each in data(what)]
    for method in CASES[what]:
        step, counts = of_ppl(ppl, what, method, args), Counter()
        ready([step() for _ in range(3)])
        with Counted():
            step()
        yield method, counts


def fits(what, library, ready, options):
    """Cells of each fit."""
    ppl = Ppl(library)
    model = functools.partial(counts if "groups" in what else logistic, ppl)
    for seed, name in enumerate(FITS):
        args = tuple(map(ppl.array, data(what, options.small, seed)))
        begin, draws = time.perf_counter(), "auto" if name == FITS[-1] else "gaussian"
        result = ppl.ours.fit(model, *args, draws=draws, progress_bar=False)
        yield name, {"s": f"{time.perf_counter() - begin:.1f}", "verdict": str(result.verdict)}


def measure(what, library, options):
    """Put the figures of a case into the CSV as they come, in a process of its own."""
    pages.OUT, SIZES[1:3] = options.out, [1000 // options.small] * 2
    pyro.settings.set(module_local_params=True)  # several guides, stepped in turn
    device, ready = "cpu", lambda _: None
    if library == "numpyro":
        device, ready = jax.devices()[0].device_kind, jax.block_until_ready
    elif torch.cuda.is_available():
        torch.set_default_device("cuda")
        device, ready = torch.cuda.get_device_name(), lambda _: torch.cuda.synchronize()
    of = {"operations": operations, "10^6 rows": fits, "5,000 groups": fits}.get(what, steps)
    for row in of(what, library, ready, options):
        put(what, library, [row], device)


def put(what, library, rows, device=""):
    """Methods and their cells into the CSV."""
    table = {LOOP: "loop", FITS: "fits"}.get(CASES[what], what)
    head = {"table": table, "device": device, "case": what, "library": LABELS[library]}
    rows = [head | {"method": method} | cells for method, cells in rows]
    print(*rows, sep="\n", flush=True)
    about = f"`python -m benchmarks devices`, float32; {describe()}"
    pages.replace("devices.csv", rows, about, ("case", "library", "method"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--small", type=int, default=1, help="so many times fewer units and rows")
    parser.add_argument("--seconds", type=float, default=100, help="the most for a case")
    options = parser.parse_args()
    options.out, spawn = pages.OUT, multiprocessing.get_context("spawn")
    for what in options.case:
        missing = {"s" if CASES[what] is FITS else "ms": f"not within {options.seconds:g} s"}
        own = {"operations": "pyro", **dict.fromkeys(("plain loop", *GPTS), "torch")}
        for library in own.get(what, "numpyro pyro").split():
            put(what, library, [(method, missing) for method in CASES[what]])
            process = spawn.Process(target=measure, args=(what, library, options))
            process.start()
            process.join(options.seconds)
            process.kill()


if __name__ == "__main__":
    main()
