"""The examples and tutorials of Pyro and NumPyro through ``fit``, with stock guides beside.

Each script and notebook of a checkout is run until it first calls ``MCMC.run``, ``SVI.step`` or
the like, whose model and arguments are what is fitted; then other models of the same file that
take arguments of the same names. A notebook runs on after each statement, whatever happens. Data
that would have to be downloaded are random numbers of the same shapes, so bounds compare the
columns of a row and say nothing of the data.

    python -m benchmarks ppl_examples CHECKOUT [--only hmm] [--full] [--csv rows.csv]
    python -m benchmarks ppl_examples --csv rows.csv --page > docs/ppl_examples.md

``CHECKOUT`` is a clone of ``pyro-ppl/pyro`` or ``pyro-ppl/numpyro``. Steps are few without
``--full``, so that only exceptions matter. With it ``fit`` may take ``--seconds`` of CPU time from
its first step on (in Pyro from its call), and each stock guide takes steps of Adam at three rates
in as long together, at least 4 s; the best counts. What NumPyro compiles before the first step is
nobody's time. All bounds are means of the PPL's own ELBO over up to 1000 fresh draws, and the last
column but one is by how much ``fit`` is above the better stock guide. An exception of ``fit``
counts where a stock guide or NUTS gets through, and a bound that is not finite is one; where it
asks for ``create_plates=`` (local latents in a plate that is
subsampled), it is given them, as AutoNormal is.

Time: an hour, hours with --full. Data: a clone of Pyro or NumPyro.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import inspect
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from .ppl_examples_data import without_downloads
from .ppl_examples_page import append, is_bound, lead, page
from .results import cost

FOLDERS = {
    "pyro": ("examples", "tutorial/source"),
    "numpyro": ("examples", "notebooks/source"),
}

#: Command lines besides the bare one: models that only an option reaches, and sizes for a test.
OPTIONS = {
    "numpyro/annotation": [f"--model {name}" for name in ("mn", "ds", "mace", "hds", "id", "lre")],
    "numpyro/ar2": ["", "--unroll-loop"],
    "numpyro/gaussian_shells": ["", "--enum"],
    "numpyro/hmcecs": ["--dataset mock --num_datapoints 2000"],
    "numpyro/hmm": ["", "--unroll-loop --num-unsupervised 20 --num-supervised 10"],
    "numpyro/hmm_enum": ["--num-sequences 4 -d 3 -t 8"],
    "pyro/hmm": ["-n 1 -b 3 -d 3 -t 8"],
    "pyro/contrib/funsor/hmm": ["-n 1 -b 3 -d 3 -t 8"],
    "pyro/capture_recapture/cjs": ["-m 4"],
    "pyro/lda": ["-d 20 -w 30 -wd 8 -b 10"],
    "pyro/mixed_hmm/experiment": [
        f"-g {g} -i {i}" for g in ("none", "continuous") for i in ("none", "continuous")
    ],
    "pyro/sparse_regression": ["--num-data 40 --num-dimensions 12"],
    "pyro/sir_hmc": ["-p 100 -d 8", "-p 100 -d 8 --enum", "-p 100 -d 8 --sequential"],
    "pyro/contrib/epidemiology/sir": ["-p 1000 -d 20 -R0 3", "-p 1000 -d 20 -R0 3 --svi"],
    "pyro/scanvi/scanvi": ["--dataset mock"],
    "pyro/svi_horovod": ["--no-horovod --size 200"],
    "pyro/svi_torch": ["--size 200"],
    "pyro/contrib/mue/FactorMuE": ["--test --small"],
    "pyro/contrib/mue/ProfileHMM": ["--test --small"],
    "pyro/contrib/epidemiology/regional": ["-p 1000 -d 10 -r 3", "-p 1000 -d 10 -r 3 --svi"],
}

#: What the examples import, and what takes long to.
PRELOADED = {
    "pyro": ("pyro.contrib.funsor", "pandas"),
    "numpyro": ("numpyro.contrib.funsor", "numpyro.examples.datasets", "pandas"),
}

#: Files with nothing to fit, and why.
LEFT_OUT = {
    "no inference": (
        *(
            "einsum",
            "datasets",
            "conf",
            "cleannb",
            "model_rendering",
            "__init__",
            "eight_schools/data",
        ),
        *("tensor_shapes", "air/modules", "air/viz", "air/air", "cvae/baseline", "cvae/mnist"),
        *("cvae/cvae", "cvae/util", "mixed_hmm/model", "mixed_hmm/seal_data", "vae/utils"),
        *("gp_bayes_opt", "cvae-flax/data", "cvae-flax/models", "cvae-flax/train"),
        *("tutorial/source/prior_predictive", "tutorial/source/effect_handlers"),
        *("intro_part_i$", "tutorial/source/enumeration", "elections", "svi_part_ii$"),
        *("svi_part_iv", "tutorial/source/(cvae|ss-vae|scanvi)", "source/index"),
    ),
    "loops of its own, without Pyro's inference": (
        *("contrib_funsor_intro", "custom_objectives", "normalizing_flows_intro"),
        "contrib/timeseries/gp_models",
    ),
    "discrete latents only": ("RSA-", "rsa/", "search_inference"),
    "discrete latents decide which others there are, and are not enumerated": ("air",),
    "a PPL of its own": ("minipyro",),
    "SMC": ("smcfilter",),
    "several machines or another trainer": ("svi_lightning",),
    "a GPU": ("vae_flow_prior",),
    "a package that is not installed": ("gpjax", "cvae/main"),
}


class Captured(BaseException):
    """Stops a script where it begins its inference."""


class Capture:
    """Model and arguments of the first call of an inference in a script."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable, tuple, dict, int | None]] = []

    def take(self, model: Callable, args: tuple, kwargs: dict, nesting: Any = None) -> None:
        finite = nesting if isinstance(nesting, int) else None
        self.calls.append((model, args, kwargs, finite))
        raise Captured

    def everywhere(self, ppl: str) -> None:
        """Replace what begins an inference."""
        take = self.take
        if ppl == "numpyro":
            from numpyro.infer import MCMC, SVI

            def run(
                mcmc: Any,
                rng_key: Any,
                *args: Any,
                extra_fields: Any = (),
                collect_warmup: bool = False,
                init_params: Any = None,
                **kwargs: Any,
            ) -> None:
                kernel = mcmc.sampler
                inner = getattr(kernel, "inner_kernel", kernel)
                model = next((k.model for k in (inner, kernel) if k.model is not None), None)
                if model is not None:
                    take(model, args, kwargs)

            def initialize(rng_key: Any, model: Callable, **options: Any) -> None:
                take(model, options.get("model_args", ()), options.get("model_kwargs") or {})

            def svi_run(
                svi: Any,
                rng_key: Any,
                num_steps: int,
                *args: Any,
                progress_bar: bool = True,
                stable_update: bool = False,
                init_state: Any = None,
                init_params: Any = None,
                forward_mode_differentiation: bool = False,
                **kwargs: Any,
            ) -> None:
                take(svi.model, args, {**svi.static_kwargs, **kwargs})

            def svi_init(
                svi: Any, rng_key: Any, *args: Any, init_params: Any = None, **kwargs: Any
            ) -> None:
                take(svi.model, args, {**svi.static_kwargs, **kwargs})

            import numpyro.infer.util as util

            MCMC.run = MCMC.warmup = run
            util.initialize_model = initialize
            SVI.run, SVI.init = svi_run, svi_init
            with contextlib.suppress(ImportError):
                from numpyro.contrib.nested_sampling import NestedSampler

                def nested(sampler: Any, rng_key: Any, *args: Any, **kwargs: Any) -> None:
                    take(sampler.model, args, kwargs)

                NestedSampler.run = nested
            with contextlib.suppress(ImportError):
                from numpyro.contrib.einstein import SteinVI

                SteinVI.run, SteinVI.init = svi_run_of_stein(take), svi_init
        else:
            from pyro.infer import MCMC, SVI, Importance

            def step(svi: Any, *args: Any, **kwargs: Any) -> None:
                if isinstance(svi.loss, types.FunctionType):  # which takes arguments of its own
                    known = inspect.signature(svi.model).parameters
                    kwargs = {key: value for key, value in kwargs.items() if key in known}
                nesting = getattr(getattr(svi.loss, "__self__", None), "max_plate_nesting", None)
                take(svi.model, args, kwargs, nesting)

            def mcmc_run(mcmc: Any, *args: Any, **kwargs: Any) -> None:
                if mcmc.kernel.model is not None:
                    take(mcmc.kernel.model, args, kwargs, mcmc.kernel._max_plate_nesting)

            def loss(elbo: Any, model: Callable, guide: Any, *args: Any, **kwargs: Any) -> None:
                take(model, args, kwargs, elbo.max_plate_nesting)

            def importance(posterior: Any, *args: Any, **kwargs: Any) -> None:
                take(posterior.model, args, kwargs)

            def initialize(
                model: Callable, model_args: tuple = (), model_kwargs: Any = None, **options: Any
            ) -> None:
                take(model, model_args, model_kwargs or {}, options.get("max_plate_nesting"))

            SVI.step = SVI.run = step
            import pyro.infer.mcmc.util as util

            util.initialize_model = initialize
            Importance.run = importance
            MCMC.run = mcmc_run
            from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO

            for elbo in (Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO):
                elbo.differentiable_loss = elbo.loss_and_grads = loss


def svi_run_of_stein(take: Callable) -> Callable:
    def run(svi: Any, rng_key: Any, num_steps: int, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("progress_bar", None)
        take(svi.model, args, kwargs)

    return run


def source_of(path: Path) -> list[str]:
    """A script as one piece of code, a notebook as its cells, without versions and magics."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = [
            cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"
        ]
        pieces = ["".join(cell) if isinstance(cell, list) else cell for cell in cells]
        pieces = [re.sub(r"^(\s*)[%!].*$", r"\1pass", piece, flags=re.M) for piece in pieces]
        pieces = [statement for piece in pieces for statement in statements(piece)]
    else:
        pieces = [text]
    return [re.sub(r"^(\s*)assert .*__version__.*$", r"\1pass", p, flags=re.M) for p in pieces]


def statements(piece: str) -> list[str]:
    """The statements of a cell, each of which may fail for itself."""
    try:
        return [ast.unparse(statement) for statement in ast.parse(piece).body]
    except SyntaxError:
        return []


def models_of(
    path: Path, ppl: str, options: str
) -> Iterator[tuple[str, Callable, tuple, dict, int | None]]:
    """Name, model, arguments and plates of what a file infers."""
    capture = Capture()
    without_downloads(ppl)
    capture.everywhere(ppl)
    sys.argv = [str(path), *options.split()]
    sys.path[:0] = [str(path.parent), *(str(p) for p in path.parents if (p / "examples").is_dir())][
        :2
    ]
    os.chdir(path.parent)
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    error: BaseException | None = None
    known: set[str] = set()
    for piece in source_of(path):
        seen = len(capture.calls)
        try:
            exec(compile(piece, str(path), "exec"), module.__dict__)  # noqa: S102
        except Captured:
            pass
        except BaseException as e:  # noqa: BLE001  a cell may exit, and the next goes on
            error = error or e
            if "TRACEBACK" in os.environ:
                traceback.print_exc()
        for call in capture.calls[seen:]:
            if (signature := signature_of(*call[:3])) not in known:
                known.add(signature)
                yield name_of(call[0]), *call
                capture.everywhere(ppl)  # whose library has been given back meanwhile
    if not capture.calls:
        raise RuntimeError(f"nothing captured; {type(error).__name__}: {error}")
    if path.suffix == ".ipynb":
        return
    model, args, kwargs, nesting = capture.calls[0]
    for other in alike(module, model):
        yield name_of(other), other, args, kwargs, nesting


def signature_of(model: Any, args: tuple, kwargs: dict) -> str:
    """What two calls of a notebook have in common that are the same fit."""
    if isinstance(model, functools.partial):
        return signature_of(model.func, (*model.args, *args), {**model.keywords, **kwargs})
    code = getattr(inspect.unwrap(model), "__code__", None)
    code = None if code is None else (code.co_code, code.co_consts, code.co_names)

    def described(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: described(value) for key, value in tree.items()}
        if isinstance(tree, (list, tuple)):
            return [described(value) for value in tree]
        shape = getattr(tree, "shape", None)
        return tree if shape is None else tuple(shape)

    return repr((name_of(model), code, described(args), described(kwargs)))


def alike(module: Any, model: Callable) -> list[Callable]:
    """Other functions of a module that are models with the parameters of this one."""

    def parameters(function: Callable) -> list[str]:
        return list(inspect.signature(function).parameters)

    found = [
        f
        for name, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__ and f is not model
        if "model" in name or "pooled" in name
    ]
    if not inspect.isfunction(model):
        return []
    return [f for f in found if parameters(f) == parameters(model)]


def name_of(model: Any) -> str:
    while not hasattr(model, "__name__") and (hasattr(model, "fn") or hasattr(model, "func")):
        model = getattr(model, "fn", None) or model.func
    return getattr(model, "__name__", type(model).__name__)


def message(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


STOCK_GUIDES = ("AutoNormal", "AutoMultivariateNormal")

#: Of Adam with them.
RATES = (1e-3, 1e-2, 1e-1)

#: The most steps of it.
MAX_STEPS = 20_000

#: The least seconds for all rates of a stock guide.
LEAST_SECONDS = 4.0

#: Steps in one compiled program.
CHUNK = 25

#: The most latents for a stock guide with a full covariance.
MAX_DENSE = 2000

#: Draws of a bound, and how many of them at once.
DRAWS, AT_ONCE = 1000, 20


class Runs:
    """What is done to a model; each returns figures, or raises."""

    def __init__(self, ppl: str, full: bool, seconds: float) -> None:
        self.ppl, self.full, self.seconds = ppl, full, seconds
        self.num_steps, self.stock_seconds = 3, LEAST_SECONDS
        self.num_latents = 0
        self.create_plates: Callable | None = None
        self.give_back: Callable[[], None] = lambda: None

    def remember(self, model: Callable, args: tuple, kwargs: dict) -> None:
        """What parameters the model's torch modules have, for all who begin with them."""
        self.give_back = lambda: None
        if self.ppl == "pyro":
            self.give_back = weights_of(model, args, kwargs)

    def fit(self, model: Callable, args: tuple, kwargs: dict, nesting: Any) -> dict[str, Any]:
        package = __import__(f"{self.ppl}_ngvi")
        is_compiled = self.ppl == "numpyro"  # before its first step
        began = [] if is_compiled else [time.process_time()]

        def watch(*_: Any) -> None:
            began.append(time.process_time())
            if began[-1] - began[0] > self.seconds:
                raise KeyboardInterrupt  # as by a user: fit returns what it has

        options = {"progress_bar": False, "callback": watch} | kwargs
        options |= {} if self.full else {"max_steps": 3}
        self.create_plates = None
        try:
            result = package.fit(model, *args, **options)
        except ValueError as error:
            if "Pass create_plates=" not in str(error):
                raise
            self.create_plates = options["create_plates"] = plates_of(self.ppl, model, args, kwargs)
            result = package.fit(model, *args, family="diagonal", **options)
        self.num_latents = result.dim
        if self.full:
            since = began[0] if began else time.process_time()
            self.num_steps = MAX_STEPS
            self.stock_seconds = max(LEAST_SECONDS, time.process_time() - since)
        measured = self._numpyro_bound if is_compiled else self._pyro_bound
        draws = []
        if self.full and np.isfinite(result.bound):
            with contextlib.suppress(Exception):  # an ELBO that cannot run this model
                draws = measured(result.model, result.guide, result.params, args, kwargs, nesting)
        return {
            **(figures([draws]) if draws else {"bound_error": float(result.bound_error)}),
            **({} if draws else {"bound": float(result.bound)}),
            "claimed": float(result.bound),
            "converged": bool(result.converged),
            "reason": str(result.reason),
            "steps": int(result.num_steps),
            "gradients": int(cost(result).gradients),
            "latents": int(result.dim),
        }

    def stock(self, name: str) -> Callable:
        def run(model: Callable, args: tuple, kwargs: dict, nesting: Any) -> dict[str, Any]:
            if name == "AutoMultivariateNormal" and self.num_latents > MAX_DENSE:
                return {"error": f"left out: more than {MAX_DENSE} latents"}
            adam = self._numpyro if self.ppl == "numpyro" else self._pyro
            draws, steps = adam(name, model, args, kwargs, nesting)
            return {**figures(draws), "steps": steps}

        return run

    def _numpyro(
        self, name: str, model: Callable, args: tuple, kwargs: dict, nesting: Any
    ) -> tuple[list[list[float]], int]:
        import jax
        from numpyro import handlers, infer, optim

        latents = self._numpyro_sites(model, args, kwargs)[0]
        elbo: Any = infer.TraceEnum_ELBO() if latents else infer.Trace_ELBO()
        model = enumerated(model) if latents else model
        seen = handlers.block(handlers.seed(model, 0), hide=latents) if latents else model
        guide = self._guide(infer, name, seen)
        svi = infer.SVI(model, guide, optim.Adam(1.0), elbo)
        state = svi.init(jax.random.key(0), *args, **kwargs)

        @jax.jit
        @jax.vmap
        def updated(rate: Any, state: Any) -> Any:
            svi.optim = optim.Adam(rate)
            steps = jax.lax.scan(
                lambda state, _: svi.stable_update(state, *args, **kwargs), state, None, CHUNK
            )
            return steps[0]

        rates = jax.numpy.asarray(RATES)
        states = jax.vmap(lambda rate: state)(rates)
        states, steps, began = updated(rates, states), CHUNK, time.process_time()
        while steps < self.num_steps and not self._is_over(began):
            states, steps = jax.block_until_ready(updated(rates, states)), steps + CHUNK
        params = [svi.get_params(jax.tree.map(lambda leaf, i=i: leaf[i], states)) for i in range(3)]
        return self._numpyro_bounds(model, guide, params, args, kwargs), steps

    def _numpyro_sites(self, model: Callable, args: tuple, kwargs: dict) -> tuple[list[str], int]:
        """Discrete latents, and how many plates there are around a site at most."""
        from numpyro import handlers

        trace = handlers.trace(handlers.seed(model, 0)).get_trace(*args, **kwargs)
        latents = [s for s in trace.values() if s["type"] == "sample" and not s["is_observed"]]
        dims = [f.dim for s in trace.values() for f in s.get("cond_indep_stack", ())]
        return [s["name"] for s in latents if s["fn"].support.is_discrete], -min(dims, default=0)

    def _numpyro_bound(
        self, model: Callable, guide: Any, params: dict, args: tuple, kwargs: dict, _: Any
    ) -> list[float]:
        return self._numpyro_bounds(model, guide, [params], args, kwargs)[0]

    def _numpyro_bounds(
        self, model: Callable, guide: Any, params: list[dict], args: tuple, kwargs: dict
    ) -> list[list[float]]:
        """Means over fresh draws, some at once, for each of several parameters."""
        import jax
        from numpyro import handlers, infer
        from numpyro.contrib.funsor import enum, log_density
        from numpyro.infer.util import compute_log_probs

        discrete, nesting = self._numpyro_sites(model, args, kwargs)
        many = infer.Trace_ELBO(num_particles=AT_ONCE)

        @jax.jit
        def bound(params: Any, key: Any) -> Any:
            if not discrete:
                return -many.loss(key, params, model, guide, *args, **kwargs)
            draw = jax.vmap(lambda key: summed_out(key, params))
            return jax.numpy.mean(draw(jax.random.split(key, AT_ONCE)))

        def summed_out(key: Any, params: dict[str, Any]) -> Any:
            # TraceEnum_ELBO of an HMM in scan, with plates, is off by more than a constant; this
            # is the density that NUTS has.
            log_q, sites = compute_log_probs(handlers.seed(guide, key), args, kwargs, params)
            values = params | {n: s["value"] for n, s in sites.items() if s["type"] == "sample"}
            given = handlers.substitute(handlers.seed(model, 0), data=values)
            summed = enum(given, -1 - nesting)
            return log_density(summed, args, kwargs, {})[0] - sum(log_q.values())

        bounds: list[list[float]] = [[] for _ in params]
        began = time.process_time()
        for seed in range(DRAWS // AT_ONCE):
            for own, at in zip(bounds, params, strict=True):
                own.append(float(bound(at, jax.random.key(seed))))
            if seed == 0:
                began = time.process_time()  # without compilation
            elif seed > 3 and self._is_over(began, 0.5):
                break
        return bounds

    def _guide(self, infer: Any, name: str, model: Callable) -> Callable:
        options = {"create_plates": self.create_plates} if name == "AutoNormal" else {}
        return getattr(infer.autoguide, name)(model, **options)

    def _is_over(self, began: float, part: float = 1.0) -> bool:
        return time.process_time() - began > part * self.stock_seconds

    def _pyro(
        self, name: str, model: Callable, args: tuple, kwargs: dict, nesting: Any
    ) -> tuple[list[list[float]], int]:
        import pyro
        from pyro import infer, optim, poutine
        from pyro.infer import config_enumerate

        discrete, loss_of = self._pyro_loss(model, args, kwargs, nesting)
        model = config_enumerate(model) if discrete else model
        bounds, fewest = [], self.num_steps
        for rate in RATES:
            pyro.clear_param_store()
            self.give_back()
            guide = self._guide(infer, name, poutine.block(model, hide_fn=is_discrete))
            guide(*args, **kwargs)
            adam, steps, began = optim.Adam({"lr": rate}), 0, time.process_time()
            while steps < self.num_steps and not self._is_over(began, 1 / len(RATES)):
                with poutine.trace(param_only=True) as capture:
                    STOCK[type(loss_of)](loss_of, model, guide, *args, **kwargs)
                values = [site["value"] for site in capture.trace.nodes.values()]
                params = {getattr(v, "unconstrained", lambda v=v: v)() for v in values}
                adam(params)
                pyro.infer.util.zero_grads(params)
                steps += 1
            bounds.append(self._pyro_bound(model, guide, {}, args, kwargs, nesting))
            fewest = min(fewest, steps)
        return bounds, fewest

    def _pyro_loss(
        self, model: Callable, args: tuple, kwargs: dict, nesting: Any
    ) -> tuple[list[str], Any]:
        """Discrete latents, and the ELBO."""
        from pyro import infer, poutine
        from pyro.poutine.util import site_is_subsample

        with poutine.block():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        latents = [
            n
            for n, s in trace.nodes.items()
            if s["type"] == "sample" and not s["is_observed"] and not site_is_subsample(s)
        ]
        discrete = [n for n in latents if trace.nodes[n]["fn"].has_enumerate_support]
        frames = [
            f.dim
            for s in trace.nodes.values()
            if s["type"] == "sample"
            for f in s["cond_indep_stack"]
            if f.vectorized
        ]
        if not discrete:
            return discrete, infer.Trace_ELBO()
        nesting = -min(frames, default=0) if nesting is None else nesting
        return discrete, infer.TraceEnum_ELBO(max_plate_nesting=nesting)

    def _pyro_bound(
        self, model: Callable, guide: Any, _: dict, args: tuple, kwargs: dict, nesting: Any
    ) -> list[float]:
        """At fresh draws, with the parameters that are in the store."""
        import torch
        from pyro.infer import config_enumerate

        discrete, loss_of = self._pyro_loss(model, args, kwargs, nesting)
        model = config_enumerate(model) if discrete else model
        began, bounds = time.process_time(), []
        with torch.no_grad():
            while len(bounds) < DRAWS and (
                len(bounds) < 5 or not self._is_over(began, 0.5 / len(RATES))
            ):
                bounds.append(-float(loss_of.loss(model, guide, *args, **kwargs)))
        return bounds

    def nuts(self, model: Callable, args: tuple, kwargs: dict, nesting: Any) -> dict[str, Any]:
        """Three transitions."""
        if self.ppl == "numpyro":
            import jax
            from numpyro import infer

            sampler = infer.MCMC(
                infer.NUTS(model, max_tree_depth=3), num_warmup=2, num_samples=1, progress_bar=False
            )
            STOCK["run"](sampler, jax.random.key(0), *args, **kwargs)
        else:
            from pyro import infer

            kernel = infer.NUTS(model, max_tree_depth=3, max_plate_nesting=nesting)
            STOCK["run"](
                infer.MCMC(kernel, num_samples=1, warmup_steps=2, disable_progbar=True),
                *args,
                **kwargs,
            )
        return {}


def weights_of(model: Callable, args: tuple, kwargs: dict) -> Callable[[], None]:
    """What gives modules their parameters back: the model's own, and those it registers."""
    import pyro
    import torch
    from pyro import poutine

    module = getattr(model, "__self__", model)
    own = deepcopy(module.state_dict()) if isinstance(module, torch.nn.Module) else None
    values: dict[str, Any] = {}
    with contextlib.suppress(Exception), poutine.block(), torch.no_grad():
        pyro.set_rng_seed(0)
        nodes = poutine.trace(model).get_trace(*args, **kwargs).nodes
        values = {n: s["value"] for n, s in nodes.items() if s["type"] == "param"}
    leaves = {n: v for n, v in values.items() if isinstance(v, torch.nn.Parameter)}
    kept = [(leaf, leaf.detach().clone()) for leaf in leaves.values()]

    def give_back() -> None:
        with torch.no_grad():
            for leaf, value in kept:
                leaf.copy_(value)
        if own is not None:
            module.load_state_dict(own)

    return give_back


def figures(draws: list[list[float]]) -> dict[str, float]:
    """The best of some bounds and its standard error, from independent values of each."""
    bounds = np.array([np.mean(rate) for rate in draws])
    best = int(np.argmax(np.where(np.isfinite(bounds), bounds, -np.inf)))
    error = np.std(draws[best]) / np.sqrt(len(draws[best]))
    return {"bound": float(bounds[best]), "bound_error": float(error)}


def is_discrete(site: dict[str, Any]) -> bool:
    """Whether Pyro enumerates a site, which other minibatches may not have."""
    return site["type"] == "sample" and getattr(site["fn"], "has_enumerate_support", False)


def enumerated(model: Callable) -> Callable:
    from numpyro.contrib.funsor import config_enumerate

    return config_enumerate(model)


class Late(BaseException):
    """Too much CPU time for one fit, or one stock guide."""


def late(*_: Any) -> None:
    raise Late("more CPU time than it was given")


def plates_of(ppl: str, model: Callable, args: tuple, kwargs: dict) -> Callable:
    """``create_plates=`` for a model with local latents in plates that are subsampled."""
    dims: dict[str, int] = {}
    library = __import__(ppl)
    if ppl == "numpyro":
        seeded = library.handlers.seed(model, 0)
        trace = library.handlers.trace(seeded).get_trace(*args, **kwargs)
        sizes = {s["name"]: s["args"] for s in trace.values() if s["type"] == "plate"}
        sites = trace.values()
    else:
        trace = library.poutine.trace(model).get_trace(*args, **kwargs)
        sizes = {
            name: (site["fn"].size, len(site["value"]))
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and library.poutine.util.site_is_subsample(site)
        }
        sites = trace.nodes.values()
    for site in sites:
        dims |= {frame.name: frame.dim for frame in site.get("cond_indep_stack", ())}
    found = {
        n: (*size, dims[n])
        for n, size in sizes.items()
        if n in dims and (size[1] or size[0]) < size[0]
    }

    def create_plates(*args: Any, **kwargs: Any) -> list:
        return [
            library.plate(name, size, subsample_size=part, dim=dim)
            for name, (size, part, dim) in found.items()
        ]

    return create_plates


#: The library's own functions that Capture replaces.
STOCK: dict[Any, Callable] = {}


def keep_stock(ppl: str) -> None:
    infer = __import__(f"{ppl}.infer", fromlist=["MCMC"])
    STOCK["run"] = infer.MCMC.run
    if ppl == "pyro":
        for elbo in (infer.Trace_ELBO, infer.TraceEnum_ELBO):
            STOCK[elbo] = elbo.loss_and_grads
    else:
        STOCK["init"] = infer.SVI.init


def child(
    path: Path,
    ppl: str,
    options: str,
    full: bool,
    seconds: float,
    outputs: list[Path],
    limit: int,
) -> None:
    """Print a line of JSON for every model of a file.

    :param outputs: files for what is printed, and for errors.
    :param limit: in seconds of CPU time.
    """
    for stream, output in enumerate(outputs, 1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), stream)
    multiprocessing.set_start_method(None, force=True)  # an example may want one
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    warnings.simplefilter("ignore")
    keep_stock(ppl)
    runs = Runs(ppl, full, seconds)
    if ppl == "pyro":
        import pyro
        import torch

        torch.manual_seed(0)
    signal.signal(signal.SIGPROF, late)
    for number, (name, model, args, kwargs, nesting) in enumerate(models_of(path, ppl, options)):
        row: dict[str, Any] = {"number": number, "model": name}
        restore(ppl)
        runs.remember(model, args, kwargs)
        todo = [
            ("fit", runs.fit),
            *((n, runs.stock(n)) for n in STOCK_GUIDES),
        ]
        for what, run in [*todo, ("NUTS", runs.nuts)]:
            if what != "fit" and not full and "error" not in row["fit"]:
                continue
            if what == "NUTS" and is_bound(row["fit"]):
                continue
            began = time.process_time()
            if ppl == "pyro":
                pyro.clear_param_store()
                runs.give_back()
                pyro.set_rng_seed(0)
            try:
                signal.setitimer(signal.ITIMER_PROF, 3 * seconds + 60)
                row[what] = run(model, args, kwargs, nesting)
            except BaseException as error:  # noqa: BLE001
                row[what] = {"error": message(error)}
                if what == "fit" and "TRACEBACK" in os.environ:
                    traceback.print_exc()
            signal.setitimer(signal.ITIMER_PROF, 0)
            row[what]["seconds"] = round(time.process_time() - began, 1)
            print("ROW " + json.dumps(row), flush=True)


def restore(ppl: str) -> None:
    """Give the library its functions back, which fit and the stock guides may use."""
    infer = __import__(f"{ppl}.infer", fromlist=["MCMC"])
    infer.MCMC.run = STOCK["run"]
    if ppl == "numpyro":
        infer.SVI.init = STOCK["init"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, nargs="?")
    parser.add_argument("--only", default="", help="a regular expression of names of files")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seconds", type=float, default=30.0, help="of CPU time for fit")
    parser.add_argument("--csv", type=Path, help="append the rows to this file")
    parser.add_argument("--page", action="store_true", help="print the page of a file of rows")
    parser.add_argument("--timeout", type=int, default=300, help="seconds of CPU for a file")
    parser.add_argument("--commit", default="", help="of this library, for the rows")
    options = parser.parse_args()
    if options.page:
        print(page(options.csv, LEFT_OUT))
        return
    root = options.checkout.resolve()
    ppl = "numpyro" if (root / "numpyro").is_dir() else "pyro"
    for name in (f"{ppl}_ngvi", *PRELOADED[ppl]):  # once for all files, whose processes are forks
        importlib.import_module(name)
    files = [
        path
        for folder in FOLDERS[ppl]
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in (".py", ".ipynb") and re.search(options.only, str(path.relative_to(root)))
    ]
    for path in files:
        name = str(path.relative_to(root).with_suffix(""))
        left_out = [pattern for patterns in LEFT_OUT.values() for pattern in patterns]
        if any(re.search(rf"\b{p}", name) for p in left_out) or path.stem.startswith("_"):
            continue
        key = (
            f"{ppl}/{path.relative_to(root / 'examples').with_suffix('')}"
            if "examples" in path.parts
            else ""
        )
        for line in OPTIONS.get(key, [""]):
            show(path, root, ppl, line, options)


def show(path: Path, root: Path, ppl: str, line: str, options: Any) -> None:
    """Run a file in a process of its own, and print a row for each of its models."""
    title = f"{path.relative_to(root).with_suffix('')} {line}".strip()
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        run = multiprocessing.get_context("fork").Process(
            target=child,
            args=(path, ppl, line, options.full, options.seconds),
            kwargs={"outputs": outputs, "limit": options.timeout},
        )
        run.start()
        run.join()
        log, errors = (output.read_text(errors="replace") for output in outputs)
    end = errors.strip().splitlines()[-1:] if run.exitcode else []
    if run.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
        end = [f"more than {options.timeout:.0f} s"]
    printed = [json.loads(row[4:]) for row in log.splitlines() if row.startswith("ROW ")]
    rows = list({row["number"]: row for row in printed}.values())
    for row in rows:
        print(
            f"{title:48.48} {row['model']:24.24}",
            *(figure(row.get(n)) for n in ("fit", *STOCK_GUIDES)),
            f"{lead(row)[0]:+9.2f} {row['fit']['seconds']:5.0f} s",
            row["fit"].get("reason", "")[:60],
            flush=True,
        )
        for what in row:
            if isinstance(row[what], dict) and "error" in row[what]:
                print(f"    {what}: {row[what]['error']}")
        if "NUTS" in row and "error" not in row["NUTS"]:
            print("    NUTS gets through")
    for text in end:
        print(f"{title:48.48} -- {text[:250]}", flush=True)
    if options.csv:
        append(options.csv, ppl, title, rows, end, options.commit)


def figure(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return " " * 11
    return "    raised " if "error" in cell else f"{cell.get('bound', float('nan')):11.2f}"


if __name__ == "__main__":
    main()
