"""Group from a posterior and their importance weights ``p(y, theta) / q(theta)``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from pyro import poutine
from torch import Tensor

from ngvi.inference.diagnostics import NUM_DRAWS, Diagnostics, from_log_weights, undefined
from ngvi.inference.resampling import NUM_DRAWS as MANY_DRAWS
from ngvi.latents.layout import sites_of_all
from pyro_ngvi.estimators import log_q, make_plan
from pyro_ngvi.guide import NaturalGaussianGuide
from pyro_ngvi.tracing import inspect
from pyro_ngvi.tracing.messengers import repeatable_noise


def diagnose(
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict,
    *,
    num_draws: int = NUM_DRAWS,
    seed: int = 0,
) -> Diagnostics:
    """Diagnostics of a fitted guide.

    The weights are those of all that the guide draws: partners in an ``AutoGuideList`` included,
    whose own coordinates are not among the marginals. Discrete latents that the model marks for
    enumeration are summed out.

    :param model: a Pyro model.
    :param guide: a ``NaturalGaussianGuide``, or a guide with one in it.
    :param args: arguments of both.
    :param kwargs: keyword arguments of both.
    :param num_draws: how many draws.
    :param seed: of the draws; Pyro's own random numbers are left as they are.
    :raises ValueError: if there is no ``NaturalGaussianGuide``.
    """
    check_has_gaussian(guide)
    with repeatable_noise(), poutine.block():
        torch.manual_seed(seed)
        facts = inspect(model, guide, args, kwargs)
        if facts.is_subsampled:
            return undefined(
                "undefined: the model sees minibatches, whose density is not that of all data"
            )
        if facts.guide_is_enumerated:
            return undefined(
                "undefined: the guide has enumerated sites, whose draws have no single weight"
            )
        draws = ImportanceDraws(model, guide, args, kwargs, num_draws, seed)
        log_weights, rounding = draws.log_weights()
        return from_log_weights(log_weights, draws.moments, draws.sites, rounding)


def gaussians(guide: Any) -> list[NaturalGaussianGuide]:
    """The ``NaturalGaussianGuide`` in a guide: itself, or parts of an ``AutoGuideList``."""
    if not isinstance(guide, torch.nn.Module):
        return []
    return [part for part in guide.modules() if isinstance(part, NaturalGaussianGuide)]


def check_has_gaussian(guide: Any) -> None:
    """Raise a ``ValueError`` if there is no ``NaturalGaussianGuide`` in a guide."""
    if not gaussians(guide):
        raise ValueError(
            "fit and diagnostics need a NaturalGaussianGuide, alone or in an AutoGuideList, and "
            f"there is none in the guide ({type(guide).__name__}). pyro.infer.importance has "
            "psis_diagnostic for guides of any kind."
        )


class ImportanceDraws:
    """The same draws each time they are asked for, a chunk at a time.

    With ``d = 10^5`` four thousand draws would not fit the memory: they are drawn anew for their
    moments, when their weights are known.

    :ivar sites: that the coordinates belong to.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict,
        num_draws: int = NUM_DRAWS,
        seed: int = 0,
    ) -> None:
        self.num_draws, self.seed = num_draws, seed
        # The plan says how draws share a run.
        plan, self._density = make_plan(model, guide, args, kwargs)
        self.families = {site: family.detach() for site, family in self._density.posteriors.items()}
        known = {f"_{part._pyro_name}_latent": part.own_sites for part in gaussians(guide)}
        self.sites = sites_of_all({s: q.dim for s, q in self.families.items()}, known)
        self.dim = sum(family.dim for family in self.families.values())
        draws_per_pass = min(num_draws, plan.draws_per_pass(args, kwargs))
        self._num_chunks = -(-num_draws // draws_per_pass)
        self._chunk = -(-num_draws // self._num_chunks)

    @torch.no_grad()
    def log_weights(self) -> tuple[np.ndarray, float]:
        """``log w`` in nats, shape ``(num_draws,)``, and the rounding error of one."""
        densities, of_q = [], []
        for noise in self._chunks():
            densities.append(_in_double(self._density(self._sample(noise))))
            of_q.append(_in_double(log_q(self.families, noise)))
        density = np.concatenate(densities)[: self.num_draws]
        finite = density[np.isfinite(density)]
        size = np.abs(finite).max(initial=0.0) + self.dim
        eps = max(torch.finfo(family.loc.dtype).eps for family in self.families.values())
        return density - np.concatenate(of_q)[: self.num_draws], eps * float(size)

    @torch.no_grad()
    def log_densities(self, site: str, latents: np.ndarray) -> np.ndarray:
        """``log p(y, theta)`` in nats at vectors of one family, shape ``(n, d)``."""
        count = min(self._chunk, len(latents))
        padded = np.pad(latents, ((0, -len(latents) % count), (0, 0)), "edge")
        like = self.families[site].loc
        found = [
            _in_double(self._density({site: torch.as_tensor(some).to(like)}))
            for some in padded.reshape(-1, count, latents.shape[1])
        ]
        return np.concatenate(found)[: len(latents)]

    @torch.no_grad()
    def moments(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weighted means and mean squares of the draws, in sds of ``q`` from its mean.

        :param weights: shape ``(m, num_draws)``.
        :return: two arrays of shape ``(m, d)``.
        """
        missing = self._num_chunks * self._chunk - self.num_draws
        padded = np.pad(weights, ((0, 0), (0, missing)))
        means = squares = np.zeros((len(weights), self.dim))
        for index, noise in enumerate(self._chunks()):
            latents = self._sample(noise)
            parts = [
                (latents[site] - family.mean) / family.stddev
                for site, family in self.families.items()
            ]
            standard = torch.cat(parts, -1)
            some = padded[:, index * self._chunk : (index + 1) * self._chunk]
            some = torch.as_tensor(some).to(standard)
            means = means + (some @ standard).cpu().numpy()
            squares = squares + (some @ standard.square()).cpu().numpy()
        return means, squares

    # -- chunks -----------------------------------------------------------------------

    def _chunks(self) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self._num_chunks):
            yield self._noise(generator, self._chunk)

    def _noise(self, generator: torch.Generator, count: int) -> dict[str, Tensor]:
        return {
            site: torch.randn(count, family.dim, generator=generator, dtype=family.loc.dtype).to(
                family.loc.device
            )
            for site, family in self.families.items()
        }

    def _sample(self, noise: dict[str, Tensor]) -> dict[str, Tensor]:
        return {site: family.sample(noise[site]) for site, family in self.families.items()}


def _in_double(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()


class FittedGaussian:
    """See :class:`ngvi.inference.resampling.Posterior`; to be made and asked where noise
    repeats.
    """

    def __init__(self, model: Callable, guide: Any, args: tuple, kwargs: dict) -> None:
        self._draws = ImportanceDraws(model, guide, args, kwargs, MANY_DRAWS)
        ((self._site, self._family),) = self._draws.families.items()
        self.sites = self._draws.sites
        self.mean = _in_double(self._family.mean)
        self.log_det_scale = float(self._family.log_det_scale())

    def sample(self, noise: np.ndarray) -> np.ndarray:
        return _in_double(self._family.sample(self._as_own(noise)))

    def covariance(self, indices: np.ndarray) -> np.ndarray:
        family = self._family
        origin = torch.zeros_like(family.mean)
        transposed = torch.func.vjp(lambda noise: family.sample(noise) - family.mean, origin)[1]
        rows = origin.new_zeros(len(indices), len(origin))
        rows[range(len(indices)), indices] = 1.0
        halves = torch.stack([transposed(row)[0] for row in rows])
        return _in_double(family.sample(halves) - family.mean).T

    def log_density(self, latents: np.ndarray) -> np.ndarray:
        return self._draws.log_densities(self._site, latents)

    def _as_own(self, numbers: np.ndarray) -> Tensor:
        return torch.as_tensor(numbers).to(self._family.loc)
