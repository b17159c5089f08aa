"""One vocabulary for the two PPLs, so that one claim is written once and tested on both.

``load("numpyro")`` and ``load("pyro")`` give the adapters; the fixture ``ppl`` of ``conftest.py``
is each in turn, in float64. An adapter has four parts:

* the packages: ``package`` (ours), ``families``, ``module("guide.layout")``, ``lib``, ``dist``,
  ``infer``, ``autoguide``, ``handlers``, ``np`` (``jax.numpy`` or ``torch``);
* arrays: :meth:`~Ppl.array`, :meth:`~Ppl.index`, :meth:`~Ppl.numpy`, :meth:`~Ppl.dtype`,
  :meth:`~Ppl.compiled`, :meth:`~Ppl.grad`, :meth:`~Ppl.jvp`;
* models: ``sample``, ``plate``, ``param``, ``factor``, ``deterministic``, :meth:`~Ppl.visited`;
* runs: :meth:`~Ppl.guide`, :meth:`~Ppl.call`, :meth:`~Ppl.set_up`, :meth:`~Ppl.optimiser`,
  :meth:`~Ppl.svi`, :meth:`~Ppl.loss_and_gradient`, :meth:`~Ppl.fit`.

The models themselves are in :mod:`tests.models`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from tests.reference import SYMMETRIC
from tests.tan.families import named

PPLS = ("numpyro", "pyro")

#: Of a claim on both packages that JAX compiles for seconds: its half in NumPyro is a slow test.
SLOW_IN_NUMPYRO = pytest.mark.parametrize(
    "ppl", [pytest.param("numpyro", marks=pytest.mark.slow), "pyro"], indirect=True
)


def slow_but(fast: str, cases: Iterable[str]) -> list[Any]:
    """Cases of which each is claimed alike, so that the fast tests have this one alone."""
    return [case if case == fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


#: Compiles in half the time; the problems of the tests are too small to notice.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

#: What torch calls the options of an optimiser.
PYRO_NAMES = {
    "step_size": "lr",
    "scale_step_size": "scale_lr",
    "precision_step_size": "precision_lr",
}


def algorithm(package: Any, name: str) -> Any:
    """An optimiser of a package by its name."""
    return getattr(importlib.import_module(f"{package.__name__}.optim"), name)


def load(name: str) -> Any:
    """The adapter of one package; the test is skipped without its PPL."""
    pytest.importorskip(name)
    return NumPyro() if name == "numpyro" else Pyro()


class Ppl:
    """What the tests need of a package and its PPL."""

    name: str

    #: Of :meth:`array` where nobody says otherwise.
    float_type = "float64"

    # -- packages ---------------------------------------------------------------------

    @property
    def is_numpyro(self) -> bool:
        return self.name == "numpyro"

    @property
    def package(self) -> Any:
        """``numpyro_ngvi`` or ``pyro_ngvi``."""
        return importlib.import_module(f"{self.name}_ngvi")

    @property
    def families(self) -> Any:
        return self.package.families

    def module(self, path: str) -> Any:
        """A submodule of ours such as ``"families.base"``."""
        return importlib.import_module(f"{self.name}_ngvi.{path}")

    @property
    def lib(self) -> Any:
        """``numpyro`` or ``pyro``."""
        return importlib.import_module(self.name)

    @property
    def dist(self) -> Any:
        return importlib.import_module(f"{self.name}.distributions")

    @property
    def infer(self) -> Any:
        return importlib.import_module(f"{self.name}.infer")

    @property
    def autoguide(self) -> Any:
        return importlib.import_module(f"{self.name}.infer.autoguide")

    @property
    def handlers(self) -> Any:
        """``block``, ``scale``, ``mask``, ``condition``, ..."""
        return importlib.import_module(
            {"numpyro": "numpyro.handlers"}.get(self.name, "pyro.poutine")
        )

    @property
    def np(self) -> Any:
        """``jax.numpy`` or ``torch``: ``exp``, ``where``, ``amax(..., axis=)``, ..."""
        return importlib.import_module({"numpyro": "jax.numpy"}.get(self.name, "torch"))

    def __getattr__(self, name: str) -> Any:
        if name in ("sample", "plate", "param", "factor", "deterministic"):
            return getattr(self.lib, name)
        raise AttributeError(name)

    # -- arrays -----------------------------------------------------------------------

    def float64(self) -> contextlib.AbstractContextManager:
        """Float64 where nobody says otherwise."""
        return self.precision("float64")

    def precision(self, dtype: str) -> contextlib.AbstractContextManager:
        """``"float32"`` or ``"float64"`` where nobody says otherwise."""
        raise NotImplementedError

    def array(self, value: Any, dtype: str | None = None) -> Any:
        """Floating point, whatever the kind of ``value``."""
        raise NotImplementedError

    def index(self, value: Any) -> Any:
        """Integers."""
        return self.array(value, "int64")

    def argument(self, value: Any) -> Any:
        """A numpy array as an argument of a model, of the kind it has; anything else as it is."""
        if not isinstance(value, np.ndarray):
            return value
        return self.index(value) if value.dtype.kind == "i" else self.array(value)

    def numpy(self, value: Any) -> np.ndarray:
        raise NotImplementedError

    def dtype(self, value: Any) -> str:
        raise NotImplementedError

    def gradient(self, function: Callable) -> Callable:
        """Reverse-mode gradient of a scalar function with respect to its first argument,
        a family or an array; the gradient has the type of the argument. A function of the same
        arguments, which NumPyro compiles once."""
        raise NotImplementedError

    def compiled(self, function: Callable) -> Callable:
        """The function, in NumPyro one program: by itself each of its operations is one, and
        takes 20 ms."""
        return function

    def grad(self, function: Callable, *args: Any) -> Any:
        """:meth:`gradient` at these arguments."""
        return self.gradient(function)(*args)

    def jvp(self, function: Callable, family: Any, tangent: Any) -> Any:
        """Forward-mode derivative of ``function(family)`` in the direction ``tangent``."""
        raise NotImplementedError

    # -- families ---------------------------------------------------------------------

    def family_class(self, family: str) -> type:
        return {
            "covariance_cholesky": self.families.CovarianceCholesky,
            "precision_cholesky": self.families.PrecisionCholesky,
            "precision": named(self.name, "Precision"),
            "diagonal": self.families.Diagonal,
        }[family]

    def family(self, family: str, loc: Any, scale: Any, dtype: str | None = None) -> Any:
        """A family with these coordinates."""
        return self.family_class(family)(self.array(loc, dtype), self.array(scale, dtype))

    def coordinates(self, family: Any) -> tuple[np.ndarray, ...]:
        """``(loc, scale)`` of a family as numpy arrays."""
        return tuple(self.numpy(value).copy() for value in family.coordinates().values())

    def copy(self, family: Any) -> Any:
        """A family that does not change with the parameters of a guide."""
        return family

    # -- models -----------------------------------------------------------------------

    @property
    def vindex(self) -> Any:
        return importlib.import_module(f"{self.name}.ops.indexing").Vindex

    def visited(self, name: str, size: int, indices: Any) -> Any:
        """A plate of ``size`` elements of which a run visits these ``indices``."""
        raise NotImplementedError

    def indices(self, plate: Any) -> Any:
        """The elements that a plate visits."""
        raise NotImplementedError

    def start_at(self, **values: Any) -> Callable:
        """``init_to_value`` for these sites."""
        values = {site: self.array(value) for site, value in values.items()}
        path = f"{self.name}.infer.{'' if self.is_numpyro else 'autoguide.'}initialization"
        return importlib.import_module(path).init_to_value(values=values)

    # -- runs -------------------------------------------------------------------------

    def forget(self) -> None:
        """Empty Pyro's parameter store, in which two guides would share what has one name."""

    def guide(self, model: Callable, family: Any = "auto", **options: Any) -> Any:
        """A ``NaturalGaussianGuide``; its family may be one of the benchmarks' by name."""
        family = self.family_class(family) if family in SYMMETRIC else family
        return self.package.NaturalGaussianGuide(model, family, **options)

    def guide_list(self, model: Callable, *parts: tuple) -> Any:
        """An ``AutoGuideList`` of ``(class, sites, options)``; the options may be left out."""
        guides = self.autoguide.AutoGuideList(model)
        for number, (cls, sites, *options) in enumerate(parts):
            options = dict(*options)
            if self.is_numpyro:
                options.setdefault("prefix", f"part{number}")
            guides.append(cls(self.handlers.block(model, expose=sites), **options))
        return guides

    def call(self, guide: Callable, *args: Any, seed: int = 0, **kwargs: Any) -> Any:
        """One run of a guide, or of a model."""
        raise NotImplementedError

    def set_up(self, guide: Callable, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """All parameters of a guide, after its first call."""
        raise NotImplementedError

    def initial(self, guide: Any) -> Any:
        """The family of a guide that is set up and not trained."""
        raise NotImplementedError

    def optimiser(
        self,
        name: str = "BLR",
        step_size: float | None = None,
        *,
        adam: float | None = None,
        **options: Any,
    ) -> Any:
        """An optimiser of ours, by NumPyro's names of options.

        :param step_size: by default the optimiser's own.
        :param adam: the step size of Adam, which moves the other parameters.
        """
        if step_size is not None:
            options["step_size"] = step_size
        return self._optimiser(name, adam, options)

    def elbo(self, name: str = "Trace_ELBO", **options: Any) -> Any:
        """A stock ELBO of the PPL, or our ``NaturalELBO``."""
        home = self.package if name == "NaturalELBO" else self.infer
        return getattr(home, name)(**options)

    def svi(
        self,
        model: Callable,
        guide: Any,
        optimiser: Any = None,
        loss: Any = None,
        args: tuple = (),
        seed: int = 0,
        **static: Any,
    ) -> Svi:
        """A run of the stock ``SVI``, set up.

        :param guide: a guide, or the family of a ``NaturalGaussianGuide``.
        :param optimiser: by default ``BLR()``.
        :param loss: by default ``NaturalELBO()``.
        :param args: of model and guide; numpy arrays are converted.
        :param static: keyword arguments of model and guide.
        """
        guide = self.guide(model, guide) if isinstance(guide, str) else guide
        optimiser = self.optimiser() if optimiser is None else optimiser
        loss = self.elbo("NaturalELBO") if loss is None else loss
        return self._svi_class(self, model, guide, optimiser, loss, args, seed, static)

    def loss_and_gradient(
        self, loss: Any, model: Callable, guide: Any, *args: Any, **kwargs: Any
    ) -> Callable[..., tuple[float, Any]]:
        """What ``loss`` leaves on a guide that is set up.

        :return: a function of the family at which, of a seed, and of other ``args`` if given; it
            gives the loss and the gradient, of the family's type.
        """
        raise NotImplementedError

    def fit(self, model: Callable, *args: Any, seed: int = 0, **options: Any) -> Any:
        """The result of ``fit`` with this seed; many a claim is of a density without data."""
        raise NotImplementedError


class Svi:
    """A run of stock ``SVI``; what can be read of it is numpy."""

    def __init__(self, ppl, model, guide, optimiser, loss, args, seed, static):
        self.ppl, self.model, self.guide, self.static = ppl, model, guide, static
        self.args = tuple(map(ppl.argument, args))
        self.svi = self._start(optimiser, loss, seed)

    def step(self, *args: Any) -> float:
        """The loss of one step, by default with the arguments of the start."""
        return float(self._step(*(tuple(map(self.ppl.argument, args)) or self.args)))

    def run(self, num_steps: int) -> np.ndarray:
        """The losses of some steps."""
        return np.array([self.step() for _ in range(num_steps)])

    def of(self, guide: Any) -> Any:
        """The family of one guide of a list."""
        raise NotImplementedError

    @property
    def family(self) -> Any:
        return self.of(self.guide)

    @property
    def gaussian(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean ``(d,)`` and covariance ``(d, d)``."""
        family = self.family
        return tuple(
            self.ppl.numpy(value).copy() for value in (family.mean, family.covariance_matrix)
        )

    def parameter(self, name: str) -> np.ndarray:
        """A parameter of the model or of a partner, constrained."""
        raise NotImplementedError

    def move_to(self, family: Any) -> None:
        """Start the optimiser again from this family."""
        raise NotImplementedError

    def seed(self, seed: int) -> None:
        raise NotImplementedError

    def median(self) -> dict[str, np.ndarray]:
        """By site, constrained."""
        return self._numpy(self.guide.median(*self._reading))

    def quantiles(self, levels: Any) -> dict[str, np.ndarray]:
        """By site, constrained: levels first."""
        raise NotImplementedError

    def posterior(self) -> Any:
        """The PPL's distribution over the latent vector."""
        return self.guide.get_posterior(*self._reading)

    def transform(self) -> Any:
        """From ``N(0, I)`` to the posterior."""
        return self.guide.get_transform(*self._reading)

    def predictive(self, num_draws: int, model: Callable | None = None) -> dict[str, np.ndarray]:
        """Draws of the guide by the PPL's ``Predictive``, or runs of ``model`` with them."""
        raise NotImplementedError

    def _numpy(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {site: self.ppl.numpy(value) for site, value in values.items()}


# -- NumPyro --------------------------------------------------------------------------


def initialised(svi: Any, key: Any, *args: Any) -> Any:
    """``svi.init`` of a guide of ours: the guide's set-up, and one program for the rest, where it
    would be one for each operation of guide and model.
    """
    import jax
    from numpyro import handlers

    def init(key):
        return svi.init(key, *args)

    if not hasattr(svi.guide, "set_up"):
        return init(key)
    with handlers.seed(rng_seed=jax.random.split(key, 3)[2]):  # the key that init has for it
        svi.guide.set_up(*args, **svi.static_kwargs)
    return jax.jit(init, compiler_options=QUICKLY)(key)


class NumPyroSvi(Svi):
    def _start(self, optimiser, loss, seed):
        import jax

        svi = self.ppl.infer.SVI(self.model, self.guide, optimiser, loss, **self.static)
        self.state = initialised(svi, jax.random.key(seed), *self.args)
        self._update = jax.jit(svi.update, compiler_options=QUICKLY)
        return svi

    def _step(self, *args):
        self.state, loss = self._update(self.state, *args)
        return loss

    @property
    def params(self) -> dict[str, Any]:
        return self.svi.get_params(self.state)

    @property
    def _reading(self):
        return (self.params,)

    def of(self, guide):
        return self.params[guide._parameter_name]

    def parameter(self, name):
        return np.asarray(self.params[name])

    def move_to(self, family):
        params = {**self.params, self.guide._parameter_name: family}
        self.state = self.state._replace(optim_state=self.svi.optim.init(params))

    def seed(self, seed):
        import jax

        self.state = self.state._replace(rng_key=jax.random.key(seed))

    def quantiles(self, levels):
        return self._numpy(self.guide.quantiles(self.params, levels))

    def predictive(self, num_draws, model=None):
        import jax

        what = {} if model is None else {"guide": self.guide}
        predictive = self.ppl.infer.Predictive(
            model or self.guide, params=self.params, num_samples=num_draws, **what
        )
        return self._numpy(predictive(jax.random.key(0), *self.args, **self.static))


class NumPyro(Ppl):
    name = "numpyro"
    _svi_class = NumPyroSvi

    @contextlib.contextmanager
    def precision(self, dtype: str) -> Iterator[None]:
        from numpyro_ngvi.tracing.compilation import enable_x64

        before, self.float_type = self.float_type, dtype
        try:
            with enable_x64(dtype == "float64"):
                yield
        finally:
            self.float_type = before

    def array(self, value: Any, dtype: str | None = None) -> Any:
        import jax.numpy as jnp

        return jnp.asarray(value, dtype or self.float_type)

    def numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)

    def dtype(self, value: Any) -> str:
        return str(value.dtype)

    def compiled(self, function: Callable) -> Callable:
        import jax

        return jax.jit(function, compiler_options=QUICKLY)

    def gradient(self, function: Callable) -> Callable:
        import jax

        return jax.jit(jax.grad(function), compiler_options=QUICKLY)

    def jvp(self, function: Callable, family: Any, tangent: Any) -> Any:
        import jax

        def derivative(family, tangent):
            return jax.jvp(function, (family,), (tangent,))[1]

        return jax.jit(derivative, compiler_options=QUICKLY)(family, tangent)

    def visited(self, name: str, size: int, indices: Any) -> Any:
        with self.handlers.substitute(data={name: self.index(indices)}):
            return self.lib.plate(name, size, subsample_size=len(indices))

    def indices(self, plate: Any) -> Any:
        return plate._indices

    def call(self, guide: Callable, *args: Any, seed: int = 0, **kwargs: Any) -> Any:
        with self.handlers.seed(rng_seed=seed), self.handlers.trace():
            return guide(*args, **kwargs)

    def set_up(self, guide: Callable, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if hasattr(guide, "set_up"):  # without a draw, whose operations are programs
            with self.handlers.seed(rng_seed=0):
                return guide.set_up(*args, **kwargs)
        trace = self.handlers.trace(self.handlers.seed(guide, 0)).get_trace(*args, **kwargs)
        return {name: site["value"] for name, site in trace.items() if site["type"] == "param"}

    def initial(self, guide: Any) -> Any:
        return guide._initial_posterior

    def _optimiser(self, name: str, adam: float | None, options: dict[str, Any]) -> Any:
        return _numpyro_optimiser(name, adam, tuple(options.items()))

    def loss_and_gradient(self, loss, model, guide, *args, **kwargs):
        import jax

        def of(params, key, args):
            return loss.loss(key, params, model, guide, *args, **kwargs)

        compiled = jax.jit(jax.value_and_grad(of), compiler_options=QUICKLY)

        def run(family, seed=0, *others):
            params, key = {guide._parameter_name: family}, jax.random.key(seed)
            value, gradient = compiled(params, key, others or args)
            return float(value), gradient[guide._parameter_name]

        return run

    def fit(self, model: Callable, *args: Any, seed: int = 0, **options: Any) -> Any:
        import jax

        options.setdefault("rng_key", jax.random.key(seed))
        options = {"progress_bar": False, "allow_prior": True, "draws": "gaussian", **options}
        return self.package.fit(model, *args, **options)


@functools.cache
def _numpyro_optimiser(name: str, adam: float | None, options: tuple) -> Any:
    # One object for one set of options: its step is compiled once for all tests.
    import optax

    import numpyro_ngvi

    options = dict(options)
    if adam is not None:
        options["other"] = optax.adam(adam)
    return algorithm(numpyro_ngvi, name)(**options)


# -- Pyro -----------------------------------------------------------------------------


class PyroSvi(Svi):
    def _start(self, optimiser, loss, seed):
        self.seed(seed)
        self.guide(*self.args, **self.static)
        return self.ppl.infer.SVI(self.model, self.guide, optimiser, loss)

    def _step(self, *args):
        return self.svi.step(*args, **self.static)

    _reading = ()

    def of(self, guide):
        return self.ppl.initial(guide)

    def parameter(self, name):
        return self.ppl.numpy(self.ppl.lib.param(name)).copy()

    def move_to(self, family):
        self.ppl.move_to(self.guide, family)
        self.svi.optim = type(self.svi.optim)(self.svi.optim.pt_optim_args)

    def seed(self, seed):
        self.ppl.lib.set_rng_seed(seed)

    def quantiles(self, levels):
        values = self.guide.quantiles(levels, *self.args, **self.static)
        return {
            site: np.stack([self.ppl.numpy(level) for level in value])
            for site, value in values.items()
        }

    def median(self):
        return self._numpy(self.guide.median(*self.args, **self.static))

    def predictive(self, num_draws, model=None):
        what = {} if model is None else {"guide": self.guide}
        predictive = self.ppl.infer.Predictive(model or self.guide, num_samples=num_draws, **what)
        return self._numpy(predictive(*self.args, **self.static))


class Pyro(Ppl):
    name = "pyro"
    _svi_class = PyroSvi

    @contextlib.contextmanager
    def precision(self, dtype: str) -> Iterator[None]:
        import torch

        before = torch.get_default_dtype(), self.float_type
        torch.set_default_dtype(getattr(torch, dtype))
        self.float_type = dtype
        try:
            yield
        finally:
            torch.set_default_dtype(before[0])
            self.float_type = before[1]

    def array(self, value: Any, dtype: str | None = None) -> Any:
        import torch

        return torch.tensor(np.asarray(value), dtype=getattr(torch, dtype or self.float_type))

    def numpy(self, value: Any) -> np.ndarray:
        return value.detach().numpy()

    def dtype(self, value: Any) -> str:
        return str(value.dtype).removeprefix("torch.")

    def gradient(self, function: Callable) -> Callable:
        import torch

        def gradient(first, *rest):
            if isinstance(first, torch.Tensor):
                leaf = first.detach().clone().requires_grad_()
                return torch.autograd.grad(function(leaf, *rest), leaf)[0]
            leaves = [c.detach().clone().requires_grad_() for c in first.coordinates().values()]
            value = function(_with(first, leaves), *rest)
            gradients = torch.autograd.grad(value, leaves, allow_unused=True)
            pairs = zip(gradients, leaves, strict=True)
            return _with(first, [torch.zeros_like(x) if g is None else g for g, x in pairs])

        def _with(family, values):
            return dataclasses.replace(
                family, **dict(zip(family.coordinates(), values, strict=True))
            )

        return gradient

    def jvp(self, function: Callable, family: Any, tangent: Any) -> Any:
        import torch

        names, primals = zip(*family.detach().coordinates().items(), strict=True)
        tangents = tuple(tangent.coordinates().values())

        def of_arrays(*values):
            return function(dataclasses.replace(family, **dict(zip(names, values, strict=True))))

        return torch.func.jvp(of_arrays, primals, tangents)[1]

    def copy(self, family: Any) -> Any:
        return family.detach().map(lambda value: value.clone())

    def visited(self, name: str, size: int, indices: Any) -> Any:
        return self.lib.plate(name, size, subsample=self.index(indices))

    def indices(self, plate: Any) -> Any:
        return plate.indices

    def forget(self) -> None:
        self.lib.clear_param_store()

    def call(self, guide: Callable, *args: Any, seed: int = 0, **kwargs: Any) -> Any:
        self.lib.set_rng_seed(seed)
        return guide(*args, **kwargs)

    def set_up(self, guide: Callable, *args: Any, **kwargs: Any) -> dict[str, Any]:
        guide(*args, **kwargs)
        return {name: v.detach().clone() for name, v in self.lib.get_param_store().items()}

    def initial(self, guide: Any) -> Any:
        return self.copy(guide.posterior.family())

    def move_to(self, guide: Any, family: Any) -> None:
        """Put the guide there."""
        import torch

        with torch.no_grad():
            guide.posterior.family().map(torch.Tensor.copy_, family)

    def _optimiser(self, name: str, adam: float | None, options: dict[str, Any]) -> Any:
        other = {key: options.pop(key) for key in ("other",) if key in options}
        if adam is not None:
            other["other"] = self.lib.optim.Adam({"lr": adam})
        options = {PYRO_NAMES.get(key, key): value for key, value in options.items()}
        return algorithm(self.package, name)(options, **other)

    def loss_and_gradient(self, loss, model, guide, *args, **kwargs):
        def run(family, seed=0, *others):
            self.move_to(guide, family)
            guide.zero_grad()
            self.lib.set_rng_seed(seed)
            value = loss.loss_and_grads(model, guide, *(others or args), **kwargs)
            return float(value), guide.posterior.family().map(lambda leaf: leaf.grad.clone())

        return run

    def fit(self, model: Callable, *args: Any, seed: int = 0, **options: Any) -> Any:
        self.lib.set_rng_seed(seed)
        options = {"progress_bar": False, "allow_prior": True, "draws": "gaussian", **options}
        return self.package.fit(model, *args, **options)
