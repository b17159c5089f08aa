"""The bound of a fit with its natural gradient, in one program for all groups."""

from __future__ import annotations

import functools
import math
import operator
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro import handlers

from ngvi.estimators.choice import CURVATURES_OF_FIT, Case, check_curvature, points_at_once
from ngvi.estimators.table import EstimateCost
from ngvi.families.points import Points
from ngvi.inference import problem
from ngvi.inference.estimate import Direction, Estimate, Sample
from ngvi.inference.prices import SLOW, warn_of_slow
from ngvi.inference.problem import ModelRun, Rows
from ngvi.inference.verdict.validation import NUM_IN_DOUBLE
from numpyro_ngvi import estimators as curvature
from numpyro_ngvi.families.coordinates import families_in
from numpyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from numpyro_ngvi.guide.reparametrized import MODES_AT_ONCE
from numpyro_ngvi.inference.evaluation import Data, Evaluation, GroupAverages
from numpyro_ngvi.inference.space import State, StateSpace, not_gaussian, posteriors
from numpyro_ngvi.tracing import LogDensity, hessian_obstacle, sites_with_missed_curvature
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import PROGRAMS, blocks, compiled, enable_x64, few_in_all
from numpyro_ngvi.tracing.prior import draws_of_prior
from numpyro_ngvi.tracing.sites import subsampled_plates
from numpyro_ngvi.tracing.traced import Traced, key_like

#: Data of more numbers than these, 256 MiB, are not copied to double precision.
MOST_NUMBERS = 2**25
#: Methods of :class:`Evaluation`, and what else is a program of one: values in double precision.
_GROUP, _POINTS, _DOUBLE = "one_group", "some_points", "in_double"
_METHODS, _OF_VALUES = {_DOUBLE: "some_values"}, ("", EstimateCost.of_draws(0, 0, 0))


class Objective(problem.Objective):
    """Runs a model with a guide; see :class:`ngvi.inference.problem.Objective`."""

    batch_in_words = "numpyro.plate('data', num_rows, subsample_size=len(y))"

    def __init__(self, run: ModelRun, space: StateSpace, estimator: str = "auto") -> None:
        check_curvature(estimator, CURVATURES_OF_FIT)
        self.model, guide, args, kwargs = run
        self._space, self._arguments = space, Arguments(args, kwargs)
        is_plain = type(guide) is NaturalGaussianGuide and not space.has_model_parameters
        products = max(curvature.num_products(family) for family in families_in(space.initial))
        obstacle = functools.partial(self._obstacle, args, kwargs)
        not_additive = functools.partial(self._not_additive, args, kwargs) if is_plain else None
        data_size = self._arguments.data_size
        self._choose(estimator, data_size, Case(space.dim, products, obstacle, not_additive, guide))
        lengths = (np.shape(array)[0] for array in self._arguments.arrays if np.ndim(array))
        num_rows = max(lengths, default=1)
        plates = self._plates(args, kwargs)
        self.is_subsampled = bool(plates)
        self.rows = rows = Rows(*plates[0]) if len(plates) == 1 else None
        visited = rows.visited / rows.size if rows else 1.0
        self._finds_modes = isinstance(guide, ReparametrizedGaussianGuide)
        sizes = (math.ceil(visited * size) for size in (data_size, num_rows))
        self._passes, self._data_size = Passes(*sizes, self._finds_modes), data_size
        self._traced = Traced(self._log_density)
        self._is_for_double = True
        self._programs: dict[tuple, Callable] = {}

    @property
    def num_programs(self) -> int:
        return PROGRAMS.counts.compiled

    @property
    def _sees_points(self) -> bool:
        """Return whether groups are run by the program of gradients at points.

        Gradients by modes take seconds to compile, where those of most densities take a third of
        one and groups run faster as a whole. On other devices all their points share a pass.
        """
        is_fixed = not self.is_subsampled and not self._space.has_model_parameters
        has_points = is_fixed and self._finds_modes and jax.default_backend() == "cpu"
        return has_points and self.estimator == "spherical"

    def _plates(self, args: tuple, kwargs: dict[str, Any]) -> list[tuple[str, int, int]]:
        start = self._space.constrain(not_gaussian(self._space.initial))
        return subsampled_plates(self.model, start, args, kwargs)

    def _take(self, args: tuple, kwargs: dict[str, Any]) -> tuple:
        self._arguments.take(args, kwargs)
        return tuple(np.shape(array) for array in self._arguments.arrays)

    def _parts(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, tuple[int, int]]:
        return {plate: (seen, size) for plate, size, seen in self._plates(args, kwargs)}

    def begin_near(self, latent: np.ndarray) -> None:
        own = getattr(self.guide, "_reparametrization", None)
        before = own and own.start
        super().begin_near(latent)
        if own is not None:
            self._traced.replace(before, own.start)

    def bound(self, state: State, sample: Sample, rows: np.ndarray | None = None) -> Estimate:
        self.cost.gradients += sum(len(group.points.weights) for group in sample)
        self.cost.products += len(sample) * self.groups.cost.num_products
        dtype = self._space.dtype
        some = (
            (Points(*(part.astype(dtype) for part in group.points)), np.uint32(group.seed))
            for group in sample
        )
        how = state, rows, some
        found = self._by_points(*how) if self._sees_points else self._compiled(_GROUP, *how)
        values, naturals, gradients, parameters = zip(*jax.device_get(found), strict=True)
        naturals = np.stack(naturals)
        leaves = zip(*map(jax.tree.leaves, parameters), strict=True)
        with np.errstate(over="ignore", invalid="ignore"):  # which the search sees
            mean = Direction(
                naturals.mean(0),
                sum(gradients) / len(sample),
                [sum(leaf) / len(sample) for leaf in leaves],
            )
        return Estimate(np.array(values, float), naturals, mean)

    def gradient(
        self, state: State, theta: np.ndarray, rows: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        self.cost.gradients += len(theta)
        # Chains ask often. More points than theirs are asked for once, by a program that is there.
        passes, is_of_chains = self._passes, POINTS_AT_ONCE < len(theta) <= self._passes.chains
        there = passes.group if self._sees_points else passes.points
        at_once = passes.chains if is_of_chains else there
        values, gradients = self._gradients(state, theta, rows, at_once)
        return values.astype(float), gradients.astype(float)

    def _gradients(
        self, state: State, theta: np.ndarray, rows: np.ndarray | None, at_once: int
    ) -> Iterable[np.ndarray]:
        own = {**self._space.initial, **not_gaussian(state)}  # one program for all Gaussians
        some = zip(blocks(theta.astype(self._space.dtype), at_once))
        found = zip(*jax.device_get(self._compiled(_POINTS, own, rows, some)), strict=True)
        return (np.concatenate(part)[: len(theta)] for part in found)

    def _by_points(self, state: State, rows: Any, some: Iterable[tuple]) -> list:
        """Run groups by the program of gradients at points, which ascents have anyway."""
        own = GroupAverages(tuple(self._space.dims.items()), self.estimator, self.groups.cost)
        average, found = compiled(own.group, of=own), []
        for points, _ in some:
            theta, _ = self._space.draw(state, points.noise)
            there = self._gradients(state, theta, rows, self._passes.group)
            found.append(average(state, points, *there))
        return found

    def log_density(
        self, state: State, theta: np.ndarray, rows: np.ndarray | None = None
    ) -> np.ndarray:
        self.cost.values += len(theta)
        points = theta.astype(self._space.dtype)
        if self._finds_modes and self._is_guides():  # by the program of the draws
            own = self._space.constrain(state)
            return np.asarray(self.guide._in_models_coordinates(points, own)[1], float)
        # A price that is not known is no reason for few.
        is_slow = self.cost.prices.draw * self._passes.values > SLOW
        parts = blocks(points, self._passes.points if is_slow else self._passes.values)
        some = ((part, np.uint32(index)) for index, part in enumerate(parts))
        found = self._compiled("some_values", state, rows, some)
        return np.concatenate([np.asarray(part, float) for part in found])[: len(theta)]

    def in_double(self, state: State, theta: np.ndarray) -> np.ndarray | None:
        """None for a model that is random, insists on single precision, or has many data."""
        if self.is_subsampled or isinstance(self.guide, ReparametrizedGaussianGuide):
            return None  # whose modes are found in the precision of the guide
        if not self._is_for_double or sum(map(np.size, self._arguments.arrays)) > MOST_NUMBERS:
            return None
        self.cost.values += 2 * len(theta)
        state, points, arrays = map(_in_double, (state, theta, self._arguments.arrays))

        def run(seed: np.uint32) -> np.ndarray:
            some = [(part, seed) for part in blocks(points, NUM_IN_DOUBLE)]
            found = self._run(_DOUBLE, state, None, some, arrays)
            return np.concatenate(found)[: len(theta)]

        try:
            with enable_x64(True):
                one, other = map(run, np.arange(2, dtype=np.uint32))
        except Exception:  # noqa: BLE001  a model need not be one for double precision
            self._is_for_double = False  # nor is it traced for that again
            return None
        return one if np.array_equal(one, other, equal_nan=True) else None

    def prior(
        self, rng: np.random.Generator, count: int
    ) -> tuple[np.ndarray | None, dict[str, float]]:
        is_plain = type(self.guide) is NaturalGaussianGuide and self.guide.create_plates is None
        seed, space = np.uint32(rng.integers(2**31) if is_plain else 0), self._space
        params = space.constrain(not_gaussian(space.initial))
        sites = [site.name for site in self.guide.sites] if is_plain else []

        def drawn(seed: np.uint32, arrays: list) -> tuple[jax.Array, dict[str, jax.Array]]:
            keys = random.split(random.key(seed), count)
            return draws_of_prior(self.model, self._arguments.rebuilt(arrays), sites, params, keys)

        try:
            run = compiled(drawn, runs_once=True)
            draws, outside = jax.device_get(self._arguments.call(run, seed))
        except Exception:  # noqa: BLE001  a prior need not be one that can be sampled
            return None, {}
        return np.asarray(draws, float) if is_plain else None, outside

    def _compiled(self, name: str, state: State, rows: Any, some: Iterable[tuple]) -> list:
        """Run a method of :class:`Evaluation` on each of some inputs, alike in shape."""
        some = list(some)
        found = self._arguments.call(self._run, name, state, rows, some)
        if math.isnan(self.cost.prices.draw):
            wait(found[0], len(jax.tree.leaves(some[0])[0]))
        return found

    def _run(self, name: str, state: State, rows: Any, some: list[tuple], arrays: list) -> list:
        rows = None if rows is None else rows.astype(np.int32)  # JAX's own integers
        dtype = jax.tree.leaves(some[0])[0].dtype
        key = key_like(jax.config.jax_default_prng_impl)
        latents = {
            site: jax.ShapeDtypeStruct((dim,), dtype) for site, dim in self._space.dims.items()
        }
        density, held = self._traced.at(latents, state, key, key, (rows, arrays))
        is_short = self._finds_modes and few_in_all(self.cost.gradients, self._data_size)
        if (name, density, is_short) not in self._programs:
            # Values are the same programs for whoever asks, with whatever estimator.
            how = (self.estimator, self.groups.cost) if name == _GROUP else _OF_VALUES
            own = Evaluation(
                density, tuple(self._space.dims.items()), *how, self._passes.inside(is_short)
            )
            method = getattr(own, _METHODS.get(name, name))
            of = own if density.is_known else None
            options = self._how_compiled(name, is_short)
            self._programs[name, density, is_short] = compiled(method, of=of, **options)
        program = self._programs[name, density, is_short]
        return [program(held, state, *one, (rows, arrays)) for one in some]

    def _how_compiled(self, name: str, is_short: bool) -> dict[str, Any]:
        if name == _DOUBLE:
            return {"runs_once": True, "num_numbers": self._data_size}
        if not self._finds_modes:
            return {}
        draws = self.groups.cost.num_gradients if name == _GROUP else self._passes.points
        return {"runs_once": is_short, "num_numbers": 0 if is_short else draws * self._data_size}

    def _is_guides(self) -> bool:
        """Return whether the guide finds modes given the same data as the model has."""
        held = jax.tree.leaves(self.guide._data)
        return all(map(operator.is_, held, self._arguments.leaves))

    # -- traced -----------------------------------------------------------------------

    def _log_density(
        self, latents: dict, state: State, guide_key: jax.Array, model_key: jax.Array, data: Data
    ) -> jax.Array:
        (rows, arrays), params = data, self._space.constrain(state)
        args, kwargs = self._arguments.rebuilt(arrays)
        model, guide = self.model, self.guide
        if rows is not None:
            # The guide's plates, where it makes them, are what the model replays.
            model, guide = (
                handlers.substitute(one, data={self.rows.plate: rows}) for one in (model, guide)
            )
        return LogDensity(model, guide, args, kwargs, model_key)(latents, params, guide_key)

    def _not_additive(self, args: tuple, kwargs: dict) -> Exception | None:
        """Why the log density is no sum of terms, or None."""
        density, here, params = self._at_start(args, kwargs)
        key = random.key(0)
        return curvature.why_not_additive(lambda latents: density(latents, params, key), here)

    def _at_start(self, args: tuple, kwargs: dict) -> tuple[LogDensity, dict, State]:
        initial = self._space.initial
        density = LogDensity(self.model, self.guide, args, kwargs, random.key(0))
        return density, posteriors(initial), self._space.constrain(initial)

    def _obstacle(self, args: tuple, kwargs: dict) -> Exception | None:
        """Why the log density has no Hessians, or None."""
        density, here, params = self._at_start(args, kwargs)
        run = self.model, self.guide, args, kwargs
        missed = functools.partial(sites_with_missed_curvature, run, here, params)
        means = {site: family.mean for site, family in here.items()}
        return hessian_obstacle(density, means, params, random.key(0), missed)


def _in_double(tree: Any) -> Any:
    """Floating point numbers as numpy's of double precision, all else as it is."""

    def converted(leaf: Any) -> Any:
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jnp.floating):
            return np.array(leaf, np.float64)
        # JAX may know this very array in single precision.
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(converted, tree)


#: Draws share a pass of a program while their rows stay in a processor's cache, and so few always
#: do: passes cost next to nothing to run, and a loop to compile.
ROWS_AT_ONCE, FEWEST_AT_ONCE = 2**17, 16
#: Points share a program that has their gradients, and the last is repeated to fill it up, as long
#: as an array has no more numbers than these: a call then costs more than a point.
POINTS_AT_ONCE, FEW_AT_POINTS = 8, 2**13
#: Values of a call: whoever wants one has the others evaluated as well.
VALUES_AT_ONCE = 128
#: More points, those of chains, share a pass of as many as these.
CHAINS_AT_ONCE = 32


class Passes(NamedTuple):
    """Numbers of evaluations that share a pass."""

    size: int  #: Numbers of the largest array, as far as they are seen.
    num_rows: int  #: Rows of the longest, likewise.
    has_modes: bool  #: Whether modes are searched for.

    @property
    def values(self) -> int:
        """Values of a call."""
        return min(VALUES_AT_ONCE, points_at_once(self.size))

    @property
    def points(self) -> int:
        """Gradients of a call, at points of ascents."""
        return POINTS_AT_ONCE if self.size <= FEW_AT_POINTS else 1

    @property
    def chains(self) -> int:
        """Gradients of a call, at more points than ascents have."""
        return min(CHAINS_AT_ONCE, self.values)

    @property
    def group(self) -> int:
        """Gradients of a call, at points of a group: by the program of ascents, if that may be."""
        return self.points if self.points > 1 else self.chains

    def inside(self, is_short: bool) -> tuple[int, int]:
        """Return how many draws share a pass within a program, with gradients and without.

        :param is_short: whether the program has few draws in all.
        """
        has_modes, most = self.has_modes and not is_short, points_at_once(self.size)
        if jax.default_backend() == "cpu":
            in_cache = max(FEWEST_AT_ONCE, ROWS_AT_ONCE // max(self.num_rows, 1))
            most = MODES_AT_ONCE if has_modes else min(most, in_cache)
        return most, (1 if has_modes else 4) * most


def wait(found: Any, count: int) -> None:
    """Wait for the first evaluations of a model, and say so if these take long.

    :param found: what comes of them, arrays.
    :param count: how many they are.
    """
    start, leaves, seconds = time.perf_counter(), jax.tree.leaves(found), 0.0
    while seconds <= SLOW and not all(leaf.is_ready() for leaf in leaves):
        time.sleep(1e-3)
        seconds = (time.perf_counter() - start) / count
    warn_of_slow(seconds, "more than ")
