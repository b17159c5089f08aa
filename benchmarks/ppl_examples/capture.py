"""A script or notebook is run until it begins an inference; what it infers is kept."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import json
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .data import without_downloads


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
