"""Log likelihoods of single observations; see :class:`ngvi.workflow.rows.ObservedRows`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyro.distributions.util import scale_and_mask
from torch import Tensor

from ngvi.estimators.additive_terms import AdditiveTerms, Term, evaluate
from ngvi.estimators.nodes import TermMoments, pairs
from ngvi.latents.layout import Plate
from ngvi.workflow.predictors import check_same, joined
from ngvi.workflow.rows import Predictors, RowSite
from pyro_ngvi.estimators.quadrature import TorchCalculus, derivatives
from pyro_ngvi.families.base import Family
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.additive_terms import elementwise_terms_of
from pyro_ngvi.tracing.messengers import quiet
from pyro_ngvi.tracing.partly_observed import mask_of
from pyro_ngvi.workflow.runs import has_data


class ModelRows:
    """Those of a model and its guide.

    :param density: of one set of arguments.
    :param here: the Gaussians by the guide's sites.
    :param split: latent vectors ``(K, d)`` by these sites.
    :param at_once: draws that share a run.
    """

    def __init__(
        self,
        density: LogDensity,
        here: dict[str, Family],
        split: Callable[[np.ndarray], dict[str, Tensor]],
        at_once: int,
    ) -> None:
        self._density, self._here, self._split, self._at_once = density, here, split, at_once
        facts, dtype = density.facts, next(iter(here.values())).loc.dtype
        self.eps = float(torch.finfo(dtype).eps)
        self.is_enumerated = facts.is_enumerated or facts.guide_is_enumerated
        means = {site: family.mean for site, family in here.items()}
        with quiet(), torch.no_grad():
            nodes = density.of(lambda: density.traces(means)[0]).nodes
        sites = {name: site for name, site in nodes.items() if site["type"] == "sample"}
        self.sites = tuple(_row_site(k, s) for k, s in sites.items() if _is_row(s))
        own = [(sites[site.name], site.shape) for site in self.sites]
        scales = [np.broadcast_to(_scale(site), shape).ravel() for site, shape in own]
        masks = [np.broadcast_to(_is_masked(site), shape).ravel() for site, shape in own]
        self.weights = np.concatenate([np.ones(0), *scales])
        self.is_masked = np.concatenate([np.zeros(0, bool), *masks])
        self.factors = tuple(k for k, s in sites.items() if s["is_observed"] and _is_factor(s))

    def log_likelihood(self, theta: np.ndarray) -> np.ndarray:
        latents, found = self._split(theta), []
        with torch.no_grad():
            for start in range(0, len(theta), self._at_once):
                some = {k: value[start : start + self._at_once] for k, value in latents.items()}
                parts = self._density.over_draws(self._by_site, some)
                found.append(_flat(parts, self.sites))
        return torch.cat(found).double().cpu().numpy()

    def jacobian(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = zip(*map(self._at_one, theta), strict=True)
        return np.stack(values), np.stack(slopes)

    @torch.enable_grad()
    def _at_one(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        latents = {k: v.requires_grad_() for k, v in self._split(theta[None]).items()}
        parts = self._density.over_draws(self._by_site, latents, one_by_one=True)
        values = _flat(parts, self.sites)[0]
        inputs = list(latents.values())
        options: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
        eye = torch.eye(len(values), dtype=values.dtype, device=values.device)
        try:
            found = torch.autograd.grad(
                values, inputs, eye, retain_graph=True, is_grads_batched=True, **options
            )
        except RuntimeError:  # an operation without a rule for batches
            rows = [
                torch.autograd.grad(value, inputs, retain_graph=True, **options) for value in values
            ]
            found = tuple(map(torch.stack, zip(*rows, strict=True)))
        slopes = torch.cat([part[:, 0] for part in found], -1)
        return _numpy(values), _numpy(slopes)

    def _by_site(self, latents: dict[str, Tensor]) -> dict[str, Tensor]:
        nodes = self._density.traces(latents)[0].nodes
        return {
            site.name: scale_and_mask(
                nodes[site.name]["unscaled_log_prob"], mask=nodes[site.name]["mask"]
            )
            for site in self.sites
        }

    # -- predictors -------------------------------------------------------------------

    @torch.no_grad()
    def predictors(self) -> Predictors | None:
        try:
            return self._predictors()
        except Exception:  # noqa: BLE001  a model may do what this cannot follow
            return None

    def _predictors(self) -> Predictors:
        calculus, families = TorchCalculus(), list(self._here.values())

        def of_vectors(*vectors: Tensor) -> list[Tensor]:
            latents = dict(zip(self._here, vectors, strict=True))
            found = self._density.of(lambda: self._by_site(latents))
            return [found[site.name] for site in self.sites]

        latents, terms = elementwise_terms_of(of_vectors, [family.mean for family in families])
        found = AdditiveTerms(terms[0].node, tuple(latents), tuple(terms))
        found.check_size(sum(family.dim for family in families))
        nodes = [list(term.predictors) for term in terms]
        zeros = [torch.zeros_like(family.mean) for family in families]

        def affine(*vectors: Tensor) -> list[Tensor]:
            known = dict(zip(map(id, latents), vectors, strict=True))
            return evaluate([one for some in nodes for one in some], known)

        offsets, push, _ = calculus.linear(affine, zeros)
        eyes = torch.eye(sum(map(len, zeros)), dtype=zeros[0].dtype, device=zeros[0].device)
        slopes = push(list(eyes.split(list(map(len, zeros)), 1)))
        places = [len(some) for some in nodes]
        offset, slope = joined(list(map(_numpy, offsets)), list(map(_numpy, slopes)), places)
        predictors = Predictors(
            offset,
            slope,
            functools.partial(self._values, terms),
            functools.partial(self._derivatives, terms),
            self.eps,
        )
        check_same(predictors, self, families[0].dim if len(families) == 1 else len(eyes))
        return predictors

    def _values(self, terms: list[Term], at: list[np.ndarray]) -> np.ndarray:
        def of(term: Term, own: list[Tensor]) -> Tensor:
            return _valued(term, own)(own)

        return np.concatenate([_rows(of(term, own)) for term, own in self._places(terms, at)], 1)

    def _derivatives(self, terms: list[Term], at: list[np.ndarray]) -> TermMoments:
        count, found = len(at), []
        for term, own in self._places(terms, at):
            moments = derivatives(_valued(term, own), own)
            few = len(own)
            second = dict(zip(pairs(few), map(_rows, moments.second), strict=True))
            nothing = np.zeros_like(_rows(moments.value))
            firsts = [*map(_rows, moments.first), *[nothing] * (count - few)]
            found.append(
                (
                    _rows(moments.value),
                    firsts,
                    [second.get(pair, nothing) for pair in pairs(count)],
                )
            )
        values, firsts, seconds = zip(*found, strict=True)
        return TermMoments(
            np.concatenate(values, 1),
            [np.concatenate(parts, 1) for parts in zip(*firsts, strict=True)],
            [np.concatenate(parts, 1) for parts in zip(*seconds, strict=True)],
        )

    def _places(self, terms: list[Term], at: list[np.ndarray]) -> list[tuple[Term, list[Tensor]]]:
        """Of each site's term its own predictors, shape ``(B, *shape)``."""
        found, start, like = [], 0, next(iter(self._here.values())).loc
        for term, site in zip(terms, self.sites, strict=True):
            stop = start + site.size
            own = [
                one[:, start:stop].reshape(-1, *site.shape) for one in at[: len(term.predictors)]
            ]
            found.append((term, [torch.as_tensor(one).to(like) for one in own]))
            start = stop
        return found


def _valued(term: Term, own: list[Tensor]) -> Callable[[list[Tensor]], Tensor]:
    def expanded(constant: Any) -> Tensor:  # for operations that do not broadcast
        return torch.as_tensor(constant).expand(own[0].shape)

    return functools.partial(term.value, constant=expanded)


def _is_row(site: dict[str, Any]) -> bool:
    return site["is_observed"] and has_data(site)


def _scale(site: dict[str, Any]) -> np.ndarray:
    return _numpy(torch.as_tensor(site["scale"]))


def _is_masked(site: dict[str, Any]) -> np.ndarray:
    mask = mask_of(site)
    return np.asarray(False) if mask is None else ~mask.cpu().numpy()


def _is_factor(site: dict[str, Any]) -> bool:
    return not site["infer"].get("_deterministic") and site["value"].numel() == 0


def _row_site(name: str, site: dict[str, Any]) -> RowSite:
    shape = tuple(site["unscaled_log_prob"].shape)
    frames = [frame for frame in site["cond_indep_stack"] if frame.vectorized]
    plates = (Plate(frame.name, int(frame.size), len(shape) + frame.dim) for frame in frames)
    return RowSite(name, shape, tuple(plates))


def _flat(parts: dict[str, Tensor], sites: tuple[RowSite, ...]) -> Tensor:
    return torch.cat([parts[site.name].reshape(-1, site.size) for site in sites], -1)


def _rows(value: Tensor) -> np.ndarray:
    return _numpy(value.reshape(len(value), -1))


def _numpy(value: Tensor) -> np.ndarray:
    return value.detach().double().cpu().numpy()
