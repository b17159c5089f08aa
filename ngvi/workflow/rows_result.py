"""The rows of a result's data: their log likelihoods at its posterior, new ones and fewer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import operator
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ngvi._foreign import other_shapes
from ngvi._warn import warn
from ngvi.families.draws import noise_dim
from ngvi.families.gaussian import centred
from ngvi.inference.estimate import State
from ngvi.inference.first_look import check_seen
from ngvi.inference.hooks import SAMPLE
from ngvi.inference.posterior import to_numpy
from ngvi.inference.prices import num_affordable, say_compilation, say_price
from ngvi.inference.problem import Problem
from ngvi.inference.result import KEPT
from ngvi.inference.verdict.outcome import LOCAL
from ngvi.latents.layout import Site
from ngvi.workflow.arviz import ArvizGroups, constant_data
from ngvi.workflow.climb import climb, polished
from ngvi.workflow.elpd import elpd_data, note
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.loo import leave_out
from ngvi.workflow.loo_steps import Clock, gradients_of_steps
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.streaming import account, check_shapes, fewer, in_one_step, is_part, next_change
from ngvi.workflow.target import Target, depends, num_of_sites
from ngvi.workflow.units import Units, check_rows, make_units

#: Programs of a log density by its rows: values, gradients, second derivatives, steps.
PROGRAMS_OF_ROWS = 4


def mean_and_factor(family: Any) -> tuple[Any, Any]:
    """Return mean and factor of a family as its arrays; see :class:`DenseGaussian`."""
    return family.mean, centred(family).sample(family.ops.eye(family.dim, family.loc))


@dataclasses.dataclass(frozen=True, eq=False)
class KnownTarget:
    """The log density by its rows, the posterior, and what follows from both.

    :param made_of: attributes of the result on which they depend.
    """

    target: Target
    q: DenseGaussian
    latents: tuple[Site, ...]
    made_of: tuple[Any, ...]

    @functools.cached_property
    def optimum(self) -> DenseGaussian:
        """The optimum that the posterior is near."""
        return polished(self.target, self.q)


@contextlib.contextmanager
def of_rows(
    result: Any, plate: str | None, what: str, evaluations: float = 0.0, gradients: float = 0.0
) -> Iterator[tuple[KnownTarget, Units]]:
    """Give the log density by its rows at the posterior, and what is left out together.

    :param what: is asked for.
    :param evaluations: at most; by default those of the sites.
    :param gradients: besides these.
    """
    _check_whole(result, what)
    with result._at_model() as found:
        known = known_target(result, what, *found)
        target = known.target
        of_sites = num_of_sites(target, known.q)
        say_price(result, what, evaluations or of_sites, gradients, 0)
        with target.rows.running():
            of_latents = functools.partial(depends, target, known.q)
            yield known, make_units(target.rows, plate, known.latents, of_latents)


def updated(result: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Return the result with new rows; see ``update``."""
    _check_whole(result, "update")
    new, ppl = result._with_fields(args=args, kwargs=kwargs, change=None), result._ppl
    try:
        shapes = _shapes(new)
        beyond = ppl.out_of_bounds(new)
        if beyond and not ppl.out_of_bounds(result):  # or it may be meant
            raise IndexError(beyond)
    except Exception as error:
        why = str(error).partition("\nTrace Shapes")[0]
        unlike = other_shapes((args, kwargs), (result.args, result.kwargs))
        raise ValueError(
            f"update() runs the model with the new rows, and it does not run: {why}\nGive rows "
            f"like those of the fit, and of known groups. {unlike}"
        ) from error
    before = _shapes(result)
    check_shapes(before, shapes)
    if is_part(*(_rows(one, found) for one, found in ((new, shapes), (result, before)))):
        warn(
            "update() takes rows that are among those of the result once more, and counts them "
            "twice: give new rows alone."
        )
    if (seen := ppl.look(result.model, args, kwargs)) is not None:
        log_densities = functools.partial(ppl.log_densities, result.model, args, kwargs)
        check_seen(seen, result.model, True, log_densities)
    with _computed(), result._at_model():
        q = _dense(result)
    new.change = next_change(result, q)
    return climbed(new, result, q, "update")


def _rows(result: Any, groups: ArvizGroups) -> dict[str, np.ndarray]:
    """Return the data of which each element of the first axis is a row, by name."""
    observed = {name: site.value for name, site in groups.observed.items() if site.value.ndim}
    found = observed | constant_data(result.model, result.args, result.kwargs, groups.observed)
    count = max((len(value) for value in observed.values()), default=0)
    return {k: v for k, v in found.items() if v.ndim and len(v) == count and count}


def left_out(result: Any, rows: Any, plate: str | None) -> Any:
    """Return the result without rows; see ``without``."""
    with of_rows(result, plate, "without") as (known, units):
        numbers = units.numbers(rows)
        elements = np.flatnonzero(np.isin(units.of_element, numbers))
        if len(numbers) == units.count:
            raise ValueError("without() leaves no row: the posterior is then the prior.")
        names = ", ".join(units.label(int(row)) for row in numbers[: DEFAULTS.num_shown])
    new = result._with_fields(change=fewer(result, elements))
    return climbed(new, result, known.q, f"without({names})")


def elpd_of(result: Any, plate: str | None, clock: Clock) -> Any:
    """Return leave-one-out densities of a result for ArviZ; see ``loo``."""
    clock = clock._replace(num_draws=num_affordable(result, DEFAULTS.num_joint))
    of_steps = clock.gradients if math.isfinite(clock.gradients) else 0.0
    with of_rows(result, plate, "loo", clock.num_draws, of_steps) as (known, units):
        found = leave_out(known.target, known.optimum, units, clock)
    words = note(found, units)
    return elpd_data(found, units, {"note": words} if words else {})


def climbed(new: Any, old: Any, q: DenseGaussian, what: str) -> Any:
    """Return a changed result at the optimum of its own density.

    :param new: at the Gaussian ``q`` of the old one.
    :param what: was asked for.
    """
    start_time = time.perf_counter()
    with new._at_model() as found:
        target = known_target(new, what.partition("(")[0], *found).target
        say_price(new, what, DEFAULTS.num_joint, gradients_of_steps(q), 0)
        with target.rows.running():
            steps = climb(target, q)
    if steps is None:
        raise ValueError(f"{what}: what is left is improper. Leave out fewer rows, or fit again.")
    with new._at_model() as (problem, _):
        family = in_one_step(new.family, steps.q.mean - q.mean, steps.q.precision)
        moved = new._with_fields(params=problem.space.with_family(new.params, family))
    with moved._at_end() as (problem, state):
        noise = np.random.default_rng(0).standard_normal((DEFAULTS.num_joint, q.dim))
        log_weights = problem.log_weights(state, noise)
        cost = dataclasses.replace(problem.objective.cost)
    fields = account(old, steps, log_weights, new.change)
    if old.converged and fields["verdict"] != LOCAL:
        warn(f"{what}: {fields['reason']}.")
    return moved._with_fields(cost=cost, seconds=time.perf_counter() - start_time, **fields)


def _shapes(result: Any) -> ArvizGroups:
    """Return latents and data of a run of the model with the arguments."""
    nothing = dict.fromkeys(("log_likelihood", "predictive", "prior"), False)
    draws = result._ppl.draws(result, 1, result._ppl.key(result, SAMPLE))
    return result._ppl.groups(result, draws, nothing)[0]


def known_target(result: Any, what: str, problem: Problem, state: State) -> KnownTarget:
    """Return the log density by its rows, which the result keeps unless it is large."""
    made_of = result.model, result.args, result.kwargs, result.params, result.change
    known = vars(result).pop(KEPT, None)
    if known is None or not all(map(operator.is_, made_of, known.made_of)):
        say_compilation(result, what, PROGRAMS_OF_ROWS)
        known = KnownTarget(*_made_target(result, what, problem, state), made_of)
    dim = known.q.dim
    if dim * max(dim, len(known.target.weights)) <= DEFAULTS.numbers_at_once:
        vars(result)[KEPT] = known
    return known


def _made_target(
    result: Any, what: str, problem: Problem, state: State
) -> tuple[Target, DenseGaussian, tuple[Site, ...]]:
    if problem.objective.is_subsampled:
        raise ValueError(
            f"{what}() needs all rows, and the model sees minibatches: give it all rows, without "
            "subsample_size=, and fit(..., init=result)."
        )
    with _computed():
        rows = result._ppl.rows(result, problem, state)
    if rows.is_enumerated:
        raise ValueError(
            f"{what}() needs the likelihood of each row, and the model sums out discrete latents: "
            "write the sum as MixtureSameFamily, or use result.predictive."
        )
    check_rows(rows, rows.factors, result._ppl.library.removesuffix("_ngvi"))
    q = _dense(result)
    target = Target.of(rows, q)
    _check_finite(target, q)
    if result.change is not None:
        target = target.changed(result.change)
    return target, q, problem.space.sites


def _check_whole(result: Any, what: str) -> None:
    if result._gaussian() is not result.guide:
        raise ValueError(f"{what}() needs a NaturalGaussianGuide over all latents, not a part.")
    if noise_dim(result.family) > result.dim:
        raise ValueError(f"{what}() needs one Gaussian: fit without num_components=.")
    if result.dim > DEFAULTS.max_dim:
        raise ValueError(
            f"{what}() takes {DEFAULTS.max_dim:,} latents at most, not {result.dim:,}."
        )


def _dense(result: Any) -> DenseGaussian:
    """Return the posterior in double precision."""
    found = result._ppl.mean_and_factor(result.family)
    mean, columns = (to_numpy(array).astype(float) for array in found)
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
            f"The log likelihood of the rows cannot be computed: {error}\nCheck sizes of plates."
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
                f"infinity at the posterior's mean, first at {int(refused[0])}: leave them out."
            )
        start += site.size
