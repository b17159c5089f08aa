"""The first steps where a group of points is dear: independent latents, and few fresh draws.

One group of orthogonal points in hundreds of dimensions costs as much as tens of steps of mean
field with a few random draws each, and over a single group's fixed points (all of them at one
radius) a bound of many latents is overfitted. So a fit of many dense latents begins as a mean-field
one (:class:`~ngvi.families.diagonal.Diagonal`, Stein's lemma, fresh draws at every step), until
that is within a nat of its optimum or has had its steps. Its means and standard deviations are a
start among others: where mean field collapses, the scale of a hierarchical model's groups say, one
of them leads higher.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ngvi.estimators.options import DEFAULTS
from ngvi.inference.engine import Around, Draws, Engine, Place
from ngvi.inference.parameters_first import PAIR, ParametersFirst, has_many
from ngvi.inference.prior import Prior
from ngvi.inference.progress import Progress
from ngvi.inference.settings import Settings
from ngvi.inference.start import FINE_SCALES, Start, find_prior_start, find_start, start_about
from ngvi.inference.stochastic import MIN_GROUPS, StochasticSearch

#: Steps of mean field at most.
STEPS = 100
#: It ends so near to its optimum, in nats.
NEAR = 1.0


class Independent:
    """A search in mean field, for the start of another.

    :param engine: of the other, as are generator, settings and progress.
    :param used: steps before this one.
    """

    def __init__(
        self,
        engine: Engine,
        rng: np.random.Generator,
        settings: Settings,
        progress: Progress,
        used: int,
    ) -> None:
        self.engine = engine
        near = dataclasses.replace(settings, tolerance=NEAR)
        self.search: StochasticSearch
        self._name = "independent latents"
        if has_many(engine):
            self._name = "its parameters first"
            options = _easy(engine, PAIR), rng, near, progress
            self.search = ParametersFirst(*options, used=used)
        else:
            self.search = StochasticSearch(_easy(engine), rng, near, progress, used=used)
            self.search.limit, self.search.most_groups = STEPS, MIN_GROUPS
        self.search.is_wary = True

    def start(self, prior: Prior | None) -> Start | None:
        """Where the mean field leads to, from the better of the guide's start and the prior."""
        search = self.search
        found = [find_start(search.engine, search.rng, MIN_GROUPS)]
        if prior is not None:
            found.append(find_prior_start(search.engine, search.rng, MIN_GROUPS, prior))
        starts = [start for start in found if start is not None]
        if not starts:
            return None
        search.run(max(starts, key=lambda start: start.measured.value).place)
        best = start_about(self.engine, search.rng, self.places())
        return best and best._replace(name=self._name)

    def places(self) -> list[Place]:
        """Where it is now as a place of the other search, and narrower ones there."""
        parameters, place = self.engine.parameters, self.search.place
        mean = parameters.mean(place)
        sd = np.concatenate(list(parameters.stddevs(place).values()))
        found = [parameters.at(mean, scale * sd) for scale in FINE_SCALES]
        pairs = zip(parameters.own(place), parameters.own(parameters.initial), strict=True)
        steps = [new - old for new, old in pairs]
        return [parameters.moved(one, steps) for one in found] if steps else found


def _easy(engine: Engine, count: int = DEFAULTS.num_stein) -> Engine:
    """An engine of independent latents, whose groups have so many draws."""
    return engine._replace(
        evaluator=_Evaluator(engine.evaluator, count), parameters=_Parameters(engine.parameters)
    )


class _Evaluator(Around):
    """An evaluator of groups of few random draws."""

    def __init__(self, inner: Any, count: int) -> None:
        super().__init__(inner)
        self._count = count

    def draws(self, rng: np.random.Generator, num_groups: int) -> list[Draws]:
        """Fresh groups of draws."""
        return self._inner.groups.few(rng, num_groups, self._count)


class _Parameters(Around):
    """Parameters whose places are of independent latents."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.initial = inner.independent(inner.initial)

    def at(self, mean: np.ndarray | None, scale: float | np.ndarray) -> Place:
        return self._inner.independent(self._inner.at(mean, scale))
