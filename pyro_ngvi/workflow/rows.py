"""Log likelihoods of single observations; see :class:`ngvi.workflow.rows.ObservedRows`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from ngvi.estimators.additive_terms import AdditiveTerms, NotAdditiveError, Term
from ngvi.estimators.nodes import TermMoments
from ngvi.estimators.quadrature import predictors_of
from ngvi.latents.layout import plates_of
from ngvi.workflow.predictors import check_same, joined, moments_of
from ngvi.workflow.rows import Predictors, RowSite, WeightedTerms
from pyro_ngvi.estimators.moments import gradients_of
from pyro_ngvi.estimators.quadrature import TorchCalculus, derivatives, of_shape
from pyro_ngvi.families.base import Family
from pyro_ngvi.host import doubles
from pyro_ngvi.tracing.additive_terms import elementwise_terms_of
from pyro_ngvi.tracing.messengers import quiet
from pyro_ngvi.tracing.partly_observed import mask_of
from pyro_ngvi.tracing.recording import Replays
from pyro_ngvi.workflow.runs import has_data

#: Among latent vectors, how many times each element counts.
WEIGHTS = "_ngvi_weights"


class ModelRows:
    """Log likelihoods of the rows of a model and its guide.

    :param problem: of one set of arguments.
    :param here: the Gaussians by the guide's sites.
    :param is_mapped: whether latents are no affine functions of the Gaussians' coordinates.
    :param replay: has model and guide run by these.
    """

    def __init__(
        self, problem: Any, here: dict[str, Family], is_mapped: bool, replay: Callable
    ) -> None:
        self._here, self._is_mapped, self._replay = here, is_mapped, replay
        self._density = density = problem.objective.density
        self._split, self._at_once = problem.space.tensors, problem.objective.draws_per_pass
        facts, dtype = density.facts, next(iter(here.values())).loc.dtype
        self.eps = float(torch.finfo(dtype).eps)
        self.is_enumerated = facts.is_enumerated or facts.guide_is_enumerated
        means = {site: family.mean for site, family in here.items()}
        with quiet(), torch.no_grad():
            nodes = density.of(lambda: density.traces(means)[0]).nodes
        sites = {name: site for name, site in nodes.items() if site["type"] == "sample"}
        self.sites = tuple(_row_site(k, s) for k, s in sites.items() if has_data(s))
        own = [(sites[site.name], site.shape) for site in self.sites]
        scales = [np.broadcast_to(_scale(site), shape).ravel() for site, shape in own]
        masks = [np.broadcast_to(_is_masked(site), shape).ravel() for site, shape in own]
        self.weights = np.concatenate([np.ones(0), *scales])
        self.is_masked = np.concatenate([np.zeros(0, bool), *masks])
        self.factors = tuple(k for k, s in sites.items() if s["is_observed"] and _is_factor(s))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record runs within, which stay what they are."""
        with Replays() as replays:
            self._replay(replays)
            yield

    def parts(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def both(latents: dict[str, Tensor]) -> dict[str, Tensor]:
            parts, rest = self._parts(latents)
            return {"value": _flat(parts, self.sites)[0], "slopes": rest}

        return self._over_draws(both, self._split(theta))

    def jacobian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        latents, dim = self._split(theta), theta.shape[1]
        if dim <= len(self.weights):
            try:
                return self._over_draws(_forward(self._elements, dim), latents)
            except RuntimeError:  # an operation without second derivatives
                pass
        return self._over_draws(_backward(self._elements), latents)

    def weighted(
        self, theta: np.ndarray, weights: np.ndarray, prior: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        def of_one(latents: dict[str, Tensor]) -> Tensor:
            *own, prior = latents[WEIGHTS].split([len(self.weights), 1])
            parts, rest = self._parts({k: v for k, v in latents.items() if k != WEIGHTS})
            values = _flat(parts, self.sites)[0]
            # What does not count may be infinite.
            return torch.where(own[0] != 0, values, 0.0) @ own[0] + prior[0] * rest

        def weighted(*rows: Tensor) -> tuple[Tensor, ...]:
            *vectors, times = rows
            at = {k: v.detach().requires_grad_() for k, v in zip(self._here, vectors, strict=True)}
            with torch.enable_grad():
                values = self._density.over_draws(of_one, {**at, WEIGHTS: times})
                slopes = gradients_of(values.sum(), list(at.values()))
            return (values.detach(), *slopes)

        latents = self._split(theta)
        times = np.column_stack([weights, np.full(len(weights), prior)])
        latents[WEIGHTS] = torch.tensor(times).to(next(iter(latents.values())))
        found = []
        for some in self._some(latents):
            values, *slopes = self._density.replayed(weighted, *some.values())
            found.append((doubles(values), np.concatenate(list(map(doubles, slopes)), 1)))
        return _joined(found)

    def _over_draws(
        self, function: Callable[[dict[str, Tensor]], Any], latents: dict[str, Tensor]
    ) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            found = [self._density.over_draws(function, some) for some in self._some(latents)]
        return _joined([(doubles(one["value"]), doubles(one["slopes"])) for one in found])

    def _some(self, latents: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(next(iter(latents.values()))), self._at_once):
            yield {k: value[start : start + self._at_once] for k, value in latents.items()}

    def _elements(self, latents: dict[str, Tensor]) -> Tensor:
        return _flat(self._parts(latents)[0], self.sites)[0]

    def _parts(self, latents: dict[str, Tensor]) -> tuple[dict[str, Tensor], Any]:
        """Return the elements by site, and the rest of the log density."""
        of_model, of_guide = self._density.traces(latents)
        names = {site.name for site in self.sites}
        rest = -of_guide.log_prob_sum()
        for name, site in of_model.nodes.items():
            if site["type"] == "sample" and name not in names:
                rest = rest + site["log_prob_sum"]
        sites = {name: of_model.nodes[name] for name in names}
        return {
            name: scale_and_mask(site["unscaled_log_prob"], mask=site["mask"])
            for name, site in sites.items()
        }, rest

    # -- predictors -------------------------------------------------------------------

    @torch.no_grad()
    def predictors(self) -> tuple[Predictors, WeightedTerms | None] | None:
        if self._is_mapped:
            return None
        try:
            return self._predictors()
        except (NotAdditiveError, RuntimeError, ValueError):
            return None  # it has none, or operations that torch can neither record nor batch

    def _predictors(self) -> tuple[Predictors, WeightedTerms | None]:
        families = list(self._here.values())

        def of_vectors(*vectors: Tensor) -> list[Tensor]:
            latents = dict(zip(self._here, vectors, strict=True))
            parts, rest = self._density.of(lambda: self._parts(latents))
            return [*(parts[site.name] for site in self.sites), rest]

        found, rest = elementwise_terms_of(of_vectors, [q.mean for q in families])
        found.check_size(sum(family.dim for family in families))
        predictors, own = self._affine(found), None
        if rest is not None and rest.terms:
            zeros = [families[0].mean.new_zeros(term.node.shape) for term in rest.terms]
            value, weights = TorchCalculus().value_and_gradient(rest.value, zeros)
            flat = np.concatenate([doubles(one).ravel() for one in weights])
            own = WeightedTerms(self._affine(rest), flat, float(value))
        check_same(predictors, own, self, sum(family.dim for family in families))
        return predictors, own

    def _affine(self, terms: AdditiveTerms) -> Predictors:
        zeros = [torch.zeros_like(family.mean) for family in self._here.values()]
        offsets, push, _ = TorchCalculus().linear(predictors_of(terms), zeros)
        eyes = torch.eye(sum(map(len, zeros)), dtype=zeros[0].dtype, device=zeros[0].device)
        slopes = push(list(eyes.split(list(map(len, zeros)), 1)))
        found = (list(map(doubles, part)) for part in (offsets, slopes))
        offset, slope = joined(*found, terms.places)

        def of_term(term: Term, own: list[np.ndarray]) -> TermMoments:
            at = [torch.as_tensor(one).to(zeros[0]) for one in own]
            found = derivatives(of_shape(term, at[0].shape), at)
            first, second = ([doubles(x) for x in part] for part in (found.first, found.second))
            return TermMoments(doubles(found.value), first, second)

        return Predictors(
            offset, slope, lambda at: moments_of(terms.terms, at, of_term, np), self.eps
        )


def _forward(function: Callable[[dict[str, Tensor]], Tensor], dim: int) -> Callable:
    """Return values and slopes at one draw, one of all ``dim`` latents after another.

    Backward twice: torch takes a fifth of a second to import its rules for the way forward.
    """

    def at(latents: dict[str, Tensor]) -> dict[str, Tensor]:
        value, back, *_ = torch.func.vjp(function, latents)

        def pulled(weights: Tensor) -> Tensor:
            return torch.cat(list(back(weights)[0].values()), -1)

        _, push, *_ = torch.func.vjp(pulled, torch.zeros_like(value))
        eye = torch.eye(dim, dtype=value.dtype, device=value.device)
        (slopes,) = torch.vmap(push, in_dims=1, out_dims=1)(eye)
        return {"value": value, "slopes": slopes}

    return at


def _backward(function: Callable[[dict[str, Tensor]], Tensor]) -> Callable:
    """Return values and slopes at one draw, one element after another."""

    def at(latents: dict[str, Tensor]) -> dict[str, Tensor]:
        value, back, *_ = torch.func.vjp(function, latents)
        eye = torch.eye(len(value), dtype=value.dtype, device=value.device)
        (found,) = torch.vmap(back)(eye)
        return {"value": value, "slopes": torch.cat(list(found.values()), -1)}

    return at


def _joined(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    values, slopes = zip(*found, strict=True)
    return np.concatenate(values), np.concatenate(slopes)


def _scale(site: dict[str, Any]) -> np.ndarray:
    return doubles(torch.as_tensor(site["scale"]))


def _is_masked(site: dict[str, Any]) -> np.ndarray:
    mask = mask_of(site)
    return np.asarray(False) if mask is None else ~mask.cpu().numpy()


def _is_factor(site: dict[str, Any]) -> bool:
    return not site["infer"].get("_deterministic") and site["value"].numel() == 0


def _row_site(name: str, site: dict[str, Any]) -> RowSite:
    shape = tuple(site["unscaled_log_prob"].shape)
    return RowSite(name, shape, plates_of(site, len(shape)))


def _flat(parts: dict[str, Tensor], sites: tuple[RowSite, ...]) -> Tensor:
    return torch.cat([parts[site.name].reshape(-1, site.size) for site in sites], -1)
