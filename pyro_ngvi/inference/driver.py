"""``fit``: from a model to its Gaussian posterior, without a number from the user."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any, Literal

import numpy as np
import pyro
import torch
from torch._C._functorch import maybe_current_level

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi._lock import serialised
from ngvi.estimators.choice import CurvatureOfFit
from ngvi.inference import fit_doc
from ngvi.inference.call import FitCall
from ngvi.inference.density import DensityModel
from ngvi.inference.mode_centred import Attempt
from ngvi.inference.options import Effort, FitOptions
from ngvi.inference.request import FitArguments
from ngvi.inference.result import PLAN
from ngvi.inference.set_up import Given, Ready
from ngvi.inference.verdict.outcome import Outcome
from ngvi.latents.choice import FamilyName
from pyro_ngvi.estimators.plan import Plan
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.gaussians import Mixture
from pyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from pyro_ngvi.guide.checks import check_graph
from pyro_ngvi.inference.result import FitResult
from pyro_ngvi.inference.set_up import (
    STARTS,
    forget_others,
    replay,
    set_store,
    set_up,
    store_as_it_was,
)
from pyro_ngvi.tracing.messengers import check_gradients, repeatable_noise
from pyro_ngvi.tracing.recording import Replays


@serialised
@shared_doc(fit_doc)
def fit(
    model: Callable,
    *args: Any,
    family: Family | type[Family] | FamilyName = "auto",
    num_components: int | Literal["auto"] = 1,
    guide: Any = None,
    init: FitResult | None = None,
    init_loc_fn: Callable | None = None,
    reparametrize: bool | Literal["auto"] = "auto",
    curvature: CurvatureOfFit = "auto",
    tolerance: float = 0.05,
    max_steps: int = 1000,
    effort: Effort = "standard",
    time_limit: float | None = None,
    callback: Callable | None = None,
    checkpoint: str | PathLike | None = None,
    progress_bar: bool = True,
    batches: Any = None,
    allow_prior: bool = False,
    draws: str = "auto",
    options: FitOptions | None = None,
    **kwargs: Any,
) -> FitResult:
    """Other examples continue from this one, whose posterior is ``N(1.99, 0.58^2)``.

    >>> import pyro.distributions as dist, torch
    >>> from pyro import plate, sample
    >>> y = torch.tensor([1.0, 2.0, 3.0])
    >>> def model(y):
    ...     mean = sample("mean", dist.Normal(0.0, 10.0))
    ...     with plate("rows", len(y)):
    ...         sample("y", dist.Normal(mean, 1.0), obs=y)
    >>> result = fit(model, y, progress_bar=False)
    >>> q = result.posterior
    >>> result.converged, f"{q.mean[0]:.2f} ± {q.variance[0]**0.5:.2f}"
    (True, '1.99 ± 0.58')
    >>> result.sample(500)["mean"].shape
    torch.Size([500])

    Afterwards the parameter store holds the fitted parameters, as after ``SVI``. The model's
    parameters start from their values there; the guide's start afresh, and replace those of the
    same names, which earlier results keep. Random numbers follow ``pyro.set_rng_seed``; a fit takes
    four of torch's.

    :raises RuntimeError: inside ``torch.inference_mode``, ``torch.vmap`` and ``torch.func``.
    """
    given = FitArguments.of(locals())
    with FitResult._ppl.around.given_to(model, guide) as model:
        call = _FitCall(fit, model, args, kwargs, given)
        with repeatable_noise(), store_as_it_was() as keep, call.monitor, call.replays:
            ready = call.ready()
            if ready.has_start:
                keep()
            return call.result(ready)


class _FitCall(FitCall):
    """A call in Pyro."""

    result_type, guide_type = FitResult, NaturalGaussianGuide
    mode_centred_guide, starts, mixture = ReparametrizedGaussianGuide, STARTS, Mixture
    seed_in_words = "pyro.set_rng_seed(1), before fit"

    def __init__(self, *call: Any) -> None:
        _check_gradients()
        super().__init__(*call)
        seeds = torch.randint(2**32, (4,), device="cpu").tolist()
        self._seed, self.replays = seeds[0], Replays()
        self._plans: list[Plan] = []
        self.rng = np.random.default_rng(seeds)

    def set_up(self, given: Given, curvature: str = "auto") -> Ready:
        ready = set_up(given, self.starts, self._seed, curvature)
        if ready.has_start:
            replay(ready.problem.objective.density, ready.guide, self.replays)
            self._plans.append(ready.problem.objective._plan)
        return ready

    def ready(self) -> Ready:
        ready = super().ready()
        facts = ready.problem.objective._plan.facts
        is_plain = not (facts.is_subsampled or facts.is_stochastic or facts.is_enumerated)
        if ready.has_start and is_plain:
            check_graph(ready.model, ready.guide, self.args, self.kwargs)
        return ready

    def by_modes(self, first: Ready) -> Attempt | None:
        store = pyro.get_param_store()
        before = store.get_state()
        found = super().by_modes(first)
        self._at_first = store.get_state()
        if found is not None and found.is_enough:
            forget_others(first.guide)
        else:
            set_store(before)
        return found

    def better(
        self, first: Ready, outcome: Outcome, at_first: Attempt | None
    ) -> tuple[Ready, Outcome]:
        found = super().better(first, outcome, at_first)
        if found[0] is not first:
            pyro.get_param_store().set_state(self._at_first)
            forget_others(first.guide)
        return found

    def mixed(self, first: Ready, outcome: Outcome) -> tuple[Ready, Outcome]:
        before = pyro.get_param_store().get_state()
        found = super().mixed(first, outcome)
        if found[0] is first:
            set_store(before)
        return found

    def set_up_mixture(self, first: Ready, count: int) -> Ready:
        forget_others(first.guide)
        return super().set_up_mixture(first, count)

    def keep_plan(self, result: FitResult) -> None:
        run = result.model, result.guide, self.args, self.kwargs
        for plan in self._plans if self.batches is None else ():
            if plan.is_for(*run[:2]):
                vars(result)[PLAN] = plan, *run


def _check_gradients() -> None:
    """Refuse to be called where torch keeps no graph, or traces.

    :raises RuntimeError: saying where that is.
    """
    check_gradients("fit", "The result's draws and predictions")
    if maybe_current_level() is not None:
        raise RuntimeError(
            "fit branches on numbers, which are not known inside torch.vmap, torch.func.grad and "
            "their like: call it outside, once for each element."
        )


@door
@shared_doc(DensityModel)
def fit_density(log_density: Callable, dim: int, **options: Any) -> FitResult:
    """Fit a Gaussian density, for instance.

    >>> precision = torch.tensor([[2.0, 0.9], [0.9, 1.0]])
    >>> result = fit_density(lambda theta: -0.5 * theta @ precision @ theta, 2, progress_bar=False)
    >>> result.verdict, f"{result.posterior.variance[0]:.3f}"
    ('certified', '0.840')

    :param options: options of ``fit``.
    :return: the result, which ``FitResult.load(path, result.model)`` reads from a file.
    """
    return fit(DensityModel(log_density, dim, "pyro"), **options)
