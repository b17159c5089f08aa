"""A fit from several starts: which ones, and what comes of them.

A fit has as many legs as it takes to see the same optimum twice:

- Where the prior is elsewhere than the guide's start, both begin, and the better goes on. Where
  neither comes to the end of its first stage, as with a network, others race with them.
- An end that is no optimum is followed by other starts, a few; the best end is kept.
- Where the model has many parameters of its own, a network's weights say, other values of these
  race: about those that were given, as far as these are from zero. The given ones are never lost,
  and an end is known to be the best only if some others led to it. Of few parameters two others
  that lead to the same optimum are enough; these have several as well, where rates can take each
  other's place.
- From an optimum others are looked for; where there are several, and nothing else has led to the
  best, or fewer starts than to the others, it is not known to be the best.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ngvi.inference.audit import CERTAIN, NOTABLE_LOSS, Audit, audit, integrated, rare_loss
from ngvi.inference.climbs import high_points
from ngvi.inference.engine import Engine, Place
from ngvi.inference.following import is_one_of_many
from ngvi.inference.independent import Independent
from ngvi.inference.modes import Modes
from ngvi.inference.one_leg import (
    NO_WAY,
    OF_LATENTS,
    ROUGH_END,
    SAME,
    Begun,
    compared,
    level_of,
    surely,
)
from ngvi.inference.outcome import ANOTHER, THE_SAME, Outcome, Reason
from ngvi.inference.parameters_first import has_many
from ngvi.inference.prior import Prior
from ngvi.inference.progress import Progress
from ngvi.inference.search import MAX_GROUPS, Search
from ngvi.inference.settings import Settings
from ngvi.inference.start import (
    Start,
    find_other_start,
    find_prior_start,
    find_start,
    start_at,
    start_beside,
)

#: Ends that other starts would not change.
ENDS = (Reason.CONVERGED, Reason.UNBOUNDED)
#: Ends that are told with what is left to their optima, in nats.
LEFT = (*NO_WAY, Reason.TRIED, Reason.MAX_STEPS, Reason.MODES)
#: Ends that are no optimum, above which there may be maxima.
NO_OPTIMUM = (*NO_WAY, Reason.TRIED, Reason.RARE)
#: Starts after an end that is no optimum.
MAX_OTHERS = 3
#: Starts of a race, few at first, and the steps of each over fixed draws.
MAX_RACERS, FEW_RACERS, RACE_STEPS = 24, 8, 40
#: Parameters of the model's own that may be a network: so many numbers. Others of these race with
#: so many steps each, the best few with as many again; so many are followed to their ends.
NETWORK, OWN_RACERS, OWN_STEPS, OWN_FEW, OWN_ENDS = range(11, 5_001), 8, 80, 3, 2
#: If so many lead to the same optimum as the given ones, that is enough, and fewer are not.
OWN_SAME = 3
#: Of fewer numbers than a network's so many others begin, until so many have led to the best
#: optimum; each number is that far from the given one, which is a factor of a noise's scale.
FEW_OWN, FEW_SAME, OF_NUMBERS, FEW_STAGE = 4, 2, 1.0, (0.05, 20)
#: The first stages of this race end so near to their optima, in nats, and have so many points: over
#: a plateau of a network's weights their curvature promises nothing, where tens of nats are left.
OWN_STAGE = 0.01, 40
#: Steps with fresh draws of each racer; of the best half twice as many, and so on to three or two.
FRESH_STEPS, FRESH_PART = 40, 2
#: Minibatches of a sweep, up to which other modes are climbed to.
SWEPT = 64


class Legs(Modes):
    """The legs of one fit; see the module."""

    def __init__(
        self,
        engine: Engine,
        rng: np.random.Generator,
        settings: Settings,
        progress: Progress,
        used: int = 0,
    ) -> None:
        super().__init__(engine, rng, settings, progress, used)
        self.has_network = self._num_own() in NETWORK
        self.has_few = 0 < self._num_own() < NETWORK[0]
        self.is_rugged = False  #: whether no start came to the end of its first stage
        self.num_followed = FEW_RACERS  #: legs after the first one, then
        self._early: Independent | None = None  #: while it runs

    def run(self, place: Place | None) -> Outcome:
        """All legs, and the best end.

        :param place: the only start; None leaves the choice to the fit.
        """
        has_choice = place is None and not self.settings.deterministic
        early = prior = None
        if has_choice and (self.engine.evaluator.is_dear or has_many(self.engine)):
            prior = None if self.is_noisy else Prior.of(self.engine, self.rng)
            early = self._independently(prior)
        start = find_start(self.engine, self.rng, self.num_groups, place) or early
        if start is None:
            return Outcome(self.engine.parameters.initial, Reason.NOT_FINITE)
        if self.is_noisy or not has_choice:
            self._leg(start if early is None else self._higher(start, early))
            return self._final()
        if early is None:
            prior = Prior.of(self.engine, self.rng)
        if self._are_few(start):
            return self._only_freshly(start, prior)
        outcome = self._first_leg(start, prior, early)
        if self.has_network:
            self._race_parameters(start)
        elif not outcome.converged and not self._are_rounded_alike():
            self._others(prior)
            if self.is_rugged:
                self._allow(max(self._used + self._share - self.settings.max_steps, 0))
            is_over = self._used >= self.settings.max_steps
            if not is_over and self._best().reason not in ENDS:
                self._go_on()
        if outcome.converged:
            self._finish_what_seems_better()
        if self.has_few and self._best().converged:
            self._try_parameters(start)
        has_own = self.engine.parameters.has_ordinary and not self.has_few
        rows = self.engine.evaluator.rows
        is_none = rows is None and self._best().reason in NO_OPTIMUM
        if is_none and not has_own and not self._are_rounded_alike():
            self._climb_above(prior)
        if self._best().converged and not has_own:
            if self.is_rugged:  # the race has used up what other modes are followed with
                self._allow(max(self._used + self._share - self.settings.max_steps, 0))
            if rows is None:
                self._look_for_modes(prior)
            elif rows.size <= SWEPT * rows.visited:  # of more, looking takes longer than the fit
                self._climb_from_others(prior)
        return self._final()

    def interrupted(self, answers: bool = True) -> Outcome:
        """What there is, before the end.

        :param answers: whether the model does: the draws that a search learns from flatter it.
        """
        one, is_any = self._one, bool(self.ended or self.begun or self._reached)
        best = self._best() if is_any else None
        if best is not None:
            best = dataclasses.replace(best, reason=Reason.INTERRUPTED)
        if self._early is not None:
            return self._of_early(self._early, answers)
        if one is None:
            return best or Outcome(self.engine.parameters.initial, Reason.INTERRUPTED)
        remaining = (one.trace.distances or [math.inf])[-1]
        last = Outcome(one.place, Reason.INTERRUPTED, remaining, one.trace)
        if answers:
            last = self._audited(last)
        level = -one.trace.last_loss if last.audit is None else surely(last)
        return last if best is None or level > surely(best) + SAME else best

    def _independently(self, prior: Prior | None) -> Start | None:
        """Where independent latents lead to."""
        options = self.rng, self.settings, self.progress, self._used
        self._early = early = Independent(self.engine, *options)
        start = early.start(prior)
        self._used += len(early.search.trace)
        self._allow(len(early.search.trace))
        self._early = None
        return start

    def _of_early(self, early: Independent, answers: bool) -> Outcome:
        """Where independent latents are, or narrower, where some draws have no density."""
        distance, trace = early.search.distance, early.search.trace
        for place in early.places():
            found = Outcome(place, Reason.INTERRUPTED, distance, trace)
            found = self._audited(found) if answers else found
            if found.audit is None or math.isfinite(found.audit.bound):
                break
        return found

    def _higher(self, start: Start, other: Start) -> Start:
        """The one of two whose bound is higher over the same draws."""
        measured = self.engine.evaluator.measure(start.place, other.draws)
        return other if other.measured.value >= measured.value else start

    def _are_few(self, start: Start) -> bool:
        """Whether even the most fixed draws are fewer than the latents, and would be overfitted."""
        most = MAX_GROUPS * len(start.draws[0].points.noise)
        return self.engine.evaluator.curvature == "stein" and self.engine.evaluator.dim > most

    def _only_freshly(self, start: Start, prior: Prior | None) -> Outcome:
        """Fresh draws at every step, from the better of two starts."""
        options = self.engine, self.rng, self.num_groups
        other = None if prior is None else find_prior_start(*options, prior)
        if other is not None and other.measured.value > start.measured.value:
            start = other
        self._note(self._freshly(self._new_search(), start.place), start.name)
        return self._final()

    def _first_leg(self, start: Start, prior: Prior | None, early: Start | None = None) -> Outcome:
        """From the guide's start, or from the prior, if that is elsewhere and better.

        Where none comes to the end of its first stage, others race with them.

        :param early: where independent latents led to. They may have collapsed, so the others
            begin as well, with as many steps.
        """
        mean = self.engine.parameters.mean(self.engine.parameters.initial)
        most = math.inf
        if early is not None:
            most = max(RACE_STEPS, len(self._begin(early).search.trace))
        self._begin(start, most)
        if prior is not None and not self.is_noisy and prior.is_elsewhere(mean):
            other = find_prior_start(self.engine, self.rng, self.num_groups, prior)
            if other is not None:
                self._begin(other, most)
        if all(one.status in NO_WAY for one in self.begun):
            before = self._used
            self._audit_begun()
            jumps = self._jumps(self._ranked()[0].outcome)  # gradients tell nothing then
            self._race(prior, FEW_RACERS)
            self.is_rugged = len(self.begun) > MAX_OTHERS
            if self.is_rugged and not jumps and self._ranked()[0].status is not None:
                self._begin_at(prior, 0, MAX_RACERS - FEW_RACERS)
                self._halve()
                self.num_followed = MAX_OTHERS - 1
            self._allow(self._used - before)
        return self._finish(self._ranked()[0])

    def _race(self, prior: Prior | None, count: int) -> None:
        """Begin from other points, narrow starts in which are cheap."""
        start = find_other_start(self.engine, self.rng, self.num_groups, prior)
        if start is not None and self._used < self.settings.max_steps:
            self._begin(start)
        if prior is None or self.is_noisy:
            return
        self._begin_at(prior, (count - 1) // 2, count - 1)

    def _begin_at(self, prior: Prior | None, num_high: int, count: int) -> None:
        """Begin at the highest points and any others."""
        for point in high_points(self.engine, self.rng, prior, num_high, count):
            if self._are_rounded_alike():
                return
            start = start_at(self.engine, self.rng, self.num_groups, point, "a draw")
            if start is not None and self._used < self.settings.max_steps:
                self._begin(start, RACE_STEPS)

    def _halve(self) -> None:
        """Some steps with fresh draws for each, more for the best half, and so on.

        Where fixed draws are overfitted, the ends of first stages do not tell which start is good.
        """
        count, steps = len(self.begun), FRESH_STEPS
        while count > MAX_OTHERS:
            for begun in self._ranked()[:count]:
                search, before = begun.search, len(begun.search.trace)
                outcome = self._a_few(search, steps)
                search.place = search.best = search.rough = outcome.place
                self._used += len(search.trace) - before
                begun.status, begun.outcome = Reason.OVERFITTED, self._rough(search, outcome.reason)
            count, steps = count // FRESH_PART, 2 * steps

    def _a_few(self, search: Search, max_steps: int) -> Outcome:
        """So many steps with few fresh draws from the end of a first stage."""
        fresh = self._new_stochastic()
        fresh.trace, fresh.used = search.trace, self._used - len(search.trace)
        fresh.limit, fresh.most_groups = len(search.trace) + max_steps, fresh.num_groups
        fresh.settings = dataclasses.replace(
            self.settings, max_steps=self._used + max_steps, tolerance=ROUGH_END
        )
        return fresh.run(search.best)

    def _num_own(self) -> int:
        """How many parameters of its own the model has, of which others may race."""
        parameters = self.engine.parameters
        if not parameters.has_ordinary or self.engine.evaluator.rows is not None:
            return 0
        return sum(map(np.size, parameters.own(parameters.initial)))

    def _try_parameters(self, start: Start) -> None:
        """Begin with a few other values of few parameters, and follow what may lead higher."""
        for _ in range(FEW_OWN):
            options = self.engine, self.rng, self.num_groups, start
            other, before = start_beside(*options, OF_NUMBERS), self._used
            if other is None:
                continue
            begun = self._begin(other, OWN_STEPS, *FEW_STAGE)
            self._allow(self._used - before)
            if self._leads_to_the_best(begun):
                self.seen += 1
            else:
                self._compare_if_good(begun)
            self.seen_own = self.seen
            if self.seen >= FEW_SAME:
                return

    def _race_parameters(self, start: Start) -> None:
        """Begin with other parameters, and follow the best to their ends.

        Takes three times the steps of a leg at most.
        """
        most = self.settings.max_steps
        steps = min(OWN_STEPS, most // OWN_RACERS)
        self._allow(self._used + most - self.settings.max_steps)
        for _ in range(OWN_RACERS - 1):
            other = start_beside(self.engine, self.rng, self.num_groups, start)
            if other is not None:
                begun = self._begin(other, steps, *OWN_STAGE)
                self.seen += self._leads_to_the_best(begun)
                self.seen_own = self.seen
            if self.seen == OWN_SAME:
                return
        for begun in self._ranked()[:OWN_FEW]:
            if begun.status is Reason.TRIED:
                self._go_on_with(begun, steps)
        for begun in self._ranked()[:OWN_ENDS]:
            self._allow(self._used + most - self.settings.max_steps)
            self._finish(begun)
        self.seen = sum(start.kept == THE_SAME for start in self._best().starts)
        self.seen_own = self.seen

    def _leads_to_the_best(self, begun: Begun) -> bool:
        """Whether a first stage has ended where the best leg has."""
        best = self._best_ended()
        if begun.status is not None or not best.converged:
            return False
        self._audit_begun()
        return compared(best, begun.outcome) == THE_SAME

    def _go_on_with(self, begun: Begun, max_steps: int) -> None:
        """Some more steps of a first stage."""
        self._one = search = begun.search
        before = len(search.trace)
        search.used = self._used - before
        begun.status = search.go_on(max_steps, OWN_STAGE[0])
        self._used += len(search.trace) - before
        begun.outcome = self._rough(begun.search, begun.status)
        self._one = None

    def _others(self, prior: Prior | None) -> None:
        """Legs from other starts, until one converges."""
        if len(self.begun) < MAX_OTHERS:
            self._race(prior, MAX_OTHERS)
        count, gap, last = MAX_OTHERS, 0.0, self.settings.max_steps
        if self.is_rugged:  # many ends, and rough ones say little; the best shall have the rest
            count, gap, last = self.num_followed, math.inf, last - self._share
        for _ in range(count):
            best = self._best_ended()
            found = self._next_best(best, gap)
            if found is None or self._used >= last:
                return
            outcome = self._finish(found)
            # The same end twice: noise or a ridge, which no other start is without.
            is_same = compared(best, outcome) == THE_SAME
            if outcome.reason in ENDS or (is_same and not self.is_rugged):
                return

    def _finish_what_seems_better(self) -> None:
        """Follow rough ends that seem above an optimum: of some, noise flatters the best."""
        for _ in range(MAX_OTHERS):
            ranked = self._ranked()
            if not ranked or level_of(ranked[0].outcome) <= level_of(self._best_ended()):
                return
            if self._used >= self.settings.max_steps:
                return
            self._finish(ranked[0])

    def _go_on(self) -> None:
        """Use the steps that are left on the best end so far."""
        best = self._best()
        outcome = self._freshly(self._new_search(), best.place)
        outcome = dataclasses.replace(outcome, trace=best.trace.then(outcome.trace))
        self._note(outcome, best.starts[0].name)

    def _final(self) -> Outcome:
        """The best end, with the bound by new draws where those that chose it flatter it."""
        self._tell_apart()
        best = self._best()
        is_unsure = self.is_cut or is_one_of_many(best)
        is_unsure |= len(self.tops) > 0 and _are_climbs_blind(best)
        for one in (best, _of_own(best)):
            is_unsure |= _is_outnumbered(one) or _is_alone(one, self.has_network)
        if best.converged and is_unsure:
            best = dataclasses.replace(best, reason=Reason.MODES, is_cut=self.is_cut)
        known = best.audit
        if known is None:
            return best
        if len(self.ended) > 1:
            found = audit(self.engine, best.place, self.rng)
            known = found if math.isfinite(found.bound) else known
            best = dataclasses.replace(best, audit=known)
        # Of minibatches, so many values would take longer than the search, in sweeps as well.
        sees_all = self.engine.evaluator.rows is None and not self.engine.evaluator.is_subsampled
        looks = best.converged and sees_all
        # What a search estimates to be left is nothing beside that.
        if best.reason in LEFT and known.is_hardly_known and best.remaining < known.error:
            best = dataclasses.replace(best, reason=Reason.RARE, remaining=known.error)
        if looks:
            best = self._but_for_what_is_rare(best, known)
        return self._integrated(best) if self.engine.evaluator.is_exact else best

    def _integrated(self, best: Outcome) -> Outcome:
        """With the bound as it is integrated, which the draws have to confirm."""
        known = best.audit
        if known is None or best.reason in (Reason.RARE, Reason.EDGE, Reason.ROUNDED):
            return best
        bound, error = integrated(self.engine, best.place, self.rng)
        gap = abs(bound - known.bound)
        if not gap <= CERTAIN * known.error + error:
            if not best.converged:
                return best
            return dataclasses.replace(best, reason=Reason.JUMP, remaining=gap)
        first = best.starts[0]._replace(bound=bound, bound_error=error)
        audit = known._replace(bound=bound, error=error)
        return dataclasses.replace(best, audit=audit, starts=(first, *best.starts[1:]))

    def _but_for_what_is_rare(self, best: Outcome, known: Audit) -> Outcome:
        """Take a claim back if the bound is far lower at a few draws that no audit has met."""
        loss = rare_loss(self.engine, best.place, self.rng, known)
        if loss < NOTABLE_LOSS and not known.is_hardly_known:
            return best
        error = max(known.error, loss)
        found = known._replace(error=error)
        return dataclasses.replace(best, audit=found, reason=Reason.RARE, remaining=error)


def _of_own(best: Outcome) -> Outcome:
    """With the starts alone that tell of other parameters of the model's own: climbs have none."""
    if not best.has_ordinary:
        return best
    starts = tuple(start for start in best.starts if start.name not in OF_LATENTS)
    return dataclasses.replace(best, starts=starts, seen=best.seen_own)


def _is_alone(best: Outcome, has_network: bool = False) -> bool:
    """Whether there are other optima, and nothing else has led to this one.

    :param has_network: whether there surely are, and one more that led here may be chance.
    """
    if has_network:
        return best.seen < OWN_SAME
    kept = [start.kept for start in best.starts]
    is_one_of_some = any(words.startswith(ANOTHER) for words in kept)
    return is_one_of_some and not best.seen and THE_SAME not in kept


def _is_outnumbered(best: Outcome) -> bool:
    """Whether more starts have ended at lower optima than at the best: the next may end higher."""
    return sum(start.kept.startswith(ANOTHER) for start in best.starts) > 1 + best.seen


def _are_climbs_blind(best: Outcome) -> bool:
    """Whether there are other optima, and no climb came to an end that tells of the best, or of
    more: as of a network without correlations, where starts have missed the best by a nat.
    """
    return best.num_tops == 0 and any(start.kept.startswith(ANOTHER) for start in best.starts)
