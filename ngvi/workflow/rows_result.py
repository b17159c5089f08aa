"""What a result says of single rows: sites, leave-one-out, influence; new rows, and fewer."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Self

import numpy as np

from ngvi._door import door
from ngvi.inference.arguments import ModelCall
from ngvi.inference.change import Change
from ngvi.inference.first_look import Seen, check_seen
from ngvi.inference.posterior import to_numpy
from ngvi.inference.problem import Problem
from ngvi.inference.result import Result
from ngvi.latents.layout import Site
from ngvi.workflow.arviz import ArvizGroups
from ngvi.workflow.climb import climb
from ngvi.workflow.elpd import elpd_data, note
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.influence import Influence, influence
from ngvi.workflow.kept import KEPT, PLAN, KnownTarget
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.sites import Sites
from ngvi.workflow.streaming import (
    ChangedObjective,
    OneStep,
    account,
    check_shapes,
    fewer,
    next_change,
)
from ngvi.workflow.target import Target
from ngvi.workflow.units import Units, check_rows, make_units


def mean_and_factor(family: Any) -> tuple[Any, Any]:
    """Of a family, as its arrays; see :class:`DenseGaussian`."""
    return family.mean, family.centred().sample(family.ops.eye(family.dim, family.loc))


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class RowsResult(Result):
    """The part of a result that knows rows."""

    #: In NumPyro one program.
    _mean_and_factor: ClassVar[Callable] = staticmethod(mean_and_factor)
    #: A package's first look at a model, its arguments and its keyword arguments.
    _look: ClassVar[Callable[..., Seen | None]]

    def _rows(self, problem: Problem, state: Any) -> Any:
        """The observations' log likelihoods, :class:`~ngvi.workflow.rows.ObservedRows`."""
        raise NotImplementedError

    def _running(self) -> AbstractContextManager:
        """Around all runs of the model."""
        return contextlib.nullcontext()

    def _own_problem(self) -> tuple[Problem, Any]:
        """The model's problem at the arguments, and the state that the result has."""
        raise NotImplementedError

    def _groups(
        self, draws: dict[str, Any], wanted: dict[str, bool]
    ) -> tuple[ArvizGroups, dict[str, str]]:
        """Groups for ArviZ, without constant data, and why which of these are missing.

        :param draws: of :meth:`sample`.
        :param wanted: ``"log_likelihood"``, ``"predictive"`` and ``"prior"``.
        """
        raise NotImplementedError

    def _out_of_bounds(self) -> str:
        """What a run with the arguments finds of indices beyond an array's end, if it goes on."""
        return ""

    def _moved_to(self, problem: Problem, state: Any, step: OneStep) -> Self:
        """A copy with the Gaussian to which a step leads."""
        raise NotImplementedError

    # -- rows -------------------------------------------------------------------------

    @door
    def sites(self, plate: str | None = None) -> Sites:
        """The natural gradient of each row's expected log likelihood.

        At the optimum they and the prior's add up to the posterior's natural parameters (Khan and
        Rue, 2023, section 5, equations 15 to 17). They cost some values of each row where rows see
        one or two affine functions of the latents, as in regressions, and else ``8 d`` of each
        row's gradients.

        :param plate: whose elements are rows; by default all plates of the observed sites together.
        :raises ValueError: for a model that has no rows: a likelihood outside of plates or in a
            factor, enumerated latents, minibatches, missing data; or more than 2,000 latents.
        """
        with self._target(plate, "sites") as (known, units):
            return Sites.of(known.target, known.q, units)

    @door
    def loo(self, plate: str | None = None) -> Any:
        """Leave-one-out predictive densities, by subtracting each row's site.

        Before it a few steps lead from what the fit has left to the optimum. Where a row is a large
        part of the posterior, natural-gradient steps without it follow, and an integral
        over what the row sees is the predictive density: by quadrature of one or two affine
        functions, else by importance sampling. ``pareto_k`` says how far to believe each,
        on the scale of k-hat. The coordinates of ``loo_i`` have how it was made (``how``), the
        row's ``leverage``, and PSIS-LOO from draws of the same posterior with its k-hat (``psis``,
        ``psis_k``), which agrees where that k-hat is below 0.7::

            arviz.compare({"one": one.loo(), "other": other.loo()})
            result.loo("schools").loo_i  # a whole school at a time

        :param plate: whose elements are left out one at a time, with all their rows; by default
            those of all plates around the observed sites.
        :return: ``ELPDData`` of ArviZ, pointwise. ``loo_i.attrs["note"]`` says what a reader should
            know. Where without a row the posterior is improper its density is NaN. What a mask
            leaves out is no observation: its density is 0, and it is counted nowhere.
        :raises ModuleNotFoundError: without ArviZ.
        :raises ValueError: as :meth:`sites`.
        """
        with self._target(plate, "loo") as (known, units):
            found = known.leave_out(plate, units)
        words = note(found, units)
        return elpd_data(found, units, {"note": words} if words else {})

    @door
    def influence(self, plate: str | None = None) -> Influence:
        """How far each row moves the posterior, the most influential first.

        Outliers and mislabelled rows are among the first. It has ``table()``, a pandas frame, and
        ``plot()``.

        :param plate: as for :meth:`loo`.
        :raises ValueError: as :meth:`sites`.
        """
        with self._target(plate, "influence") as (known, units):
            return influence(known.target, known.optimum, units, known.latents)

    # -- new rows, and fewer ----------------------------------------------------------

    def update(self, *args: Any, **kwargs: Any) -> Self:
        """The posterior with new rows: the old one is their prior.

        Natural-gradient steps on the new rows alone, whose cost the number of earlier rows does not
        change. It is exact for conjugate models. Otherwise sites of earlier rows stay what they
        were when these came, and ``change.drift`` adds up, in nats, half of the variance that
        ``log w`` had each time: what their being Gaussians costs. :attr:`reason` says so where a
        fit of all rows may be elsewhere. ``bound`` is then an estimate of all rows' bound, which
        without the earlier ones nobody knows: ``bound_error`` has these variances in it. The fit
        and its guide stay as they are::

            result = fit(model, X[:1000], y[:1000])
            result = result.update(X[1000:2000], y[1000:2000])

        :param args: arguments of the model, with the new rows alone.
        :param kwargs: keyword arguments of the model.
        :return: a result whose arguments are these, and whose bound is about all rows so far.
        :raises TypeError: for what are no arguments of the model.
        :raises ValueError: for rows of another shape, with which the model does not run or indexes
            beyond the end of an array; for new groups, which are new latents; and as :meth:`sites`.
            So do data that ``fit`` refuses, NaN or outside of their support.
        """
        ModelCall(self.update, self.model, args, kwargs, "no seed").check()
        self._check_whole("update")
        new = self._with_fields(args=args, kwargs=kwargs, change=None)
        try:
            shapes = new._shapes()
            beyond = new._out_of_bounds()
            if beyond and not self._out_of_bounds():  # or it may be meant
                raise IndexError(beyond)
        except Exception as error:
            raise ValueError(
                f"update() runs the model with the new rows, and it does not run: {error}\nThey "
                "must be like those of the fit, but for their number, and of known groups."
            ) from error
        check_shapes(self._shapes(), shapes)
        if (seen := self._look(self.model, args, kwargs)) is not None:
            check_seen(seen, self.model, args, kwargs, allow_prior=True)
        with _computed(), new._at_model():
            q = self._dense()
        return new._climbed(self, q, "update", next_change(self, q))

    @door
    def without(self, rows: Any, plate: str | None = None) -> Self:
        """The posterior without some rows, by subtraction and natural-gradient steps.

        :param rows: numbers of the rows, one or several.
        :param plate: whose elements they are; as for :meth:`loo`.
        :return: a result with the same arguments, in which these rows do not count.
        :raises ValueError: for rows that are not there, or without which the posterior is improper;
            and as :meth:`sites`.
        """
        with self._target(plate, "without") as (known, units):
            numbers = units.numbers(rows)
            elements = np.flatnonzero(np.isin(units.of_element, numbers))
            names = ", ".join(units.label(int(row)) for row in numbers[: DEFAULTS.num_named])
        what, change = f"without({names})", fewer(self, elements)
        return self._with_fields()._climbed(self, known.q, what, change)

    def _climbed(self, old: Self, q: DenseGaussian, what: str, change: Change) -> Self:
        """At the optimum of its own density."""
        start_time, self.change = time.perf_counter(), change
        with self._running():
            target = self._known_target(what.partition("(")[0]).target
            with target.rows.running():
                steps = climb(target, q, DEFAULTS.num_update_steps, DEFAULTS.update_left)
        if steps is None:
            raise ValueError(
                f"{what}: the posterior that is left is improper, or natural gradients do not find "
                "it. Leave out fewer rows, or fit again."
            )
        with self._at_model() as (problem, state):
            step = OneStep(steps.q.mean - q.mean, steps.q.precision)
            new = self._moved_to(problem, state, step)
        with new._at_end() as (problem, state):
            noise = np.random.default_rng(0).standard_normal((DEFAULTS.num_validated, q.dim))
            log_weights = problem.log_weights(state, noise)
            cost = dataclasses.replace(problem.objective.cost)
        fields = account(old, steps, log_weights, change)
        return new._with_fields(cost=cost, seconds=time.perf_counter() - start_time, **fields)

    def _shapes(self) -> ArvizGroups:
        """Latents and data of a run of the model with the arguments."""
        nothing = dict.fromkeys(("log_likelihood", "predictive", "prior"), False)
        return self._groups(self.sample(1, corrected=False), nothing)[0]

    def _with_fields(self, **fields: Any) -> Self:
        """A copy, which computes its diagnostics anew."""
        new = copy.copy(self)
        vars(new).pop("diagnostics", None)
        if PLAN in vars(self):
            vars(new)[PLAN] = vars(self)[PLAN]
        vars(new).update(fields)
        return new

    @contextlib.contextmanager
    def _at_model(self) -> Iterator[tuple[Problem, Any]]:
        with self._running():
            yield self._own_problem()

    @contextlib.contextmanager
    def _at_end(self) -> Iterator[tuple[Problem, Any]]:
        with self._at_model() as (problem, state):
            if self.change is not None:
                rows = self._rows(problem, state)
                changed = ChangedObjective(problem.objective, rows, self.change)
                problem = problem.replace(objective=changed)
            yield problem, state

    def _check_density(self, problem: Problem, who: str, way_out: str) -> None:
        super()._check_density(problem, who, way_out)
        if self.change is not None and who == "whitened_density()":
            raise ValueError(
                "NUTS and whitened_density() run the model with its own prior and all rows of its "
                "arguments, and to this posterior rows were added, or left out: fit all rows."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in (KEPT, PLAN)}

    # -- helpers ----------------------------------------------------------------------

    @contextlib.contextmanager
    def _target(self, plate: str | None, what: str) -> Iterator[tuple[KnownTarget, Units]]:
        """The log density by its rows, at the posterior, and what is left out together.

        :param what: is asked for.
        """
        self._check_whole(what)
        with self._running():
            known = self._known_target(what)
            rows = known.target.rows
            with rows.running():
                yield known, make_units(rows, plate, known.latents, lambda: known.depends)

    def _known_target(self, what: str) -> KnownTarget:
        return KnownTarget.of(self, lambda: self._made_target(what))

    def _made_target(self, what: str) -> tuple[Target, DenseGaussian, tuple[Site, ...]]:
        problem, state = self._own_problem()
        if problem.objective.is_subsampled:
            raise ValueError(
                f"{what}() needs the likelihood of each row, and the model sees minibatches: "
                "give it all rows, without subsample_size=, and fit(..., init=result)."
            )
        with _computed():
            rows = self._rows(problem, state)
        if rows.is_enumerated:
            raise ValueError(
                f"{what}() needs the likelihood of each row, and the model sums out discrete "
                "latents over all of them: write the sum as a distribution, "
                "MixtureSameFamily, or use result.predictive."
            )
        check_rows(rows, rows.factors, self.library.removesuffix("_ngvi"))
        q = self._dense()
        target = Target.of(rows, q)
        _check_finite(target, q)
        if self.change is not None:
            target = target.changed(self.change)
        return target, q, problem.space.sites

    def _check_whole(self, what: str) -> None:
        guide = self._gaussian()
        if guide is not self.guide:
            raise ValueError(
                f"{what}() needs a NaturalGaussianGuide over all latents, and it is a part of "
                f"{type(self.guide).__name__}."
            )
        if self.family.noise_dim > self.dim:
            raise ValueError(
                f"{what}() subtracts natural parameters of a Gaussian, and a mixture has none: fit "
                "one Gaussian, without num_components=."
            )
        if self.dim > DEFAULTS.max_dim:
            raise ValueError(
                f"{what}() takes the posterior's covariance, and {self.dim:,} latents are more "
                f"than the {DEFAULTS.max_dim:,} of which it fits in memory."
            )

    def _dense(self) -> DenseGaussian:
        """The posterior in double precision."""
        mean, columns = (
            to_numpy(array).astype(float) for array in self._mean_and_factor(self.family)
        )
        return DenseGaussian(mean, columns.T).with_own_factor()


@contextlib.contextmanager
def _computed() -> Iterator[None]:
    """Say of an error within whose it is.

    :raises ValueError: instead of it.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"The log likelihood of the rows cannot be computed: {error}\nCheck that the data have "
            "the size of their plates."
        ) from error


def _check_finite(target: Target, q: DenseGaussian) -> None:
    """Refuse data that are missing, or that cannot be.

    :raises ValueError: naming the first.
    """
    with _computed():
        values, rows = target.log_likelihood(q.mean[None])[0], target.rows
        if target.predictors is not None:  # whose slopes may be NaN where a mask hides the value
            at = target.predictors.at(q.mean[None])
            values = values + 0.0 * np.sum(target.predictors.derivatives(at).first, axis=0)[0]
    # Of NaN in the data NumPyro makes minus infinity. What does not count may be that.
    is_refused = np.isnan(values) | (np.isneginf(values) & (rows.weights > 0))
    start = 0
    for site in rows.sites:
        refused = np.flatnonzero(is_refused[start : start + site.size])
        if len(refused):
            raise ValueError(
                f"{len(refused)} of {site.size} log likelihoods of '{site.name}' are NaN or minus "
                f"infinity at the posterior's mean, the first at {int(refused[0])}: leave out what "
                "is missing, or is not in the distribution's support, by a mask or from the data."
            )
        start += site.size
