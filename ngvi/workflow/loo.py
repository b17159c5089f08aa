"""Leave-one-out predictive densities by subtracting sites.

The cavity, the posterior without a row, has the natural parameters of the posterior less those of
the row's site. Where that is a large change, sites of the other rows are no longer those that they
were, and natural-gradient steps without the row follow. What the row then is to the cavity is an
integral over its one or two predictors, by quadrature. Of several elements together it is one over
all latents, by importance sampling from the posterior (and, after steps, from the cavity as well),
whose weights hardly vary: the posterior is the cavity times nearly the row's likelihood.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.estimators.nodes import PredictorCovariance
from ngvi.inference.draws.pareto import EQUAL, USABLE, smoothed_weights
from ngvi.workflow.climb import Steps, climb_all
from ngvi.workflow.expected import ElementSites, PredictorSites
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target
from ngvi.workflow.units import Units

#: Leverage of a unit below which the others leave a Gaussian.
MOST_LEVERAGE = 1.0 - DEFAULTS.rounding
SUBTRACTION, STEPS, IMPROPER, MASKED = "subtraction", "steps", "improper", "masked"


@dataclasses.dataclass(eq=False)
class Pointwise:
    """Predictive densities by unit, each of shape ``(R,)``."""

    elpd: np.ndarray  #: Log predictive density of the unit given all others, in nats.
    lpd: np.ndarray  #: Log predictive density given all units.
    #: Reliability on the scale of Pareto's k, up to 0.7: leverage of a row that was subtracted,
    #: what steps have left in nats, or k-hat of importance weights.
    reliability: np.ndarray
    leverage: np.ndarray  #: The part of the posterior's precision that is the unit's, at most 1.
    #: ``"subtraction"``, ``"steps"`` or ``"improper"``; ``"masked"`` of what is no observation, and
    #: has the density 0.
    how: np.ndarray
    psis: np.ndarray  #: Log predictive densities by PSIS-LOO; NaN where there are too few draws.
    psis_k: np.ndarray  #: K-hat of these.


def leave_out(target: Target, q: DenseGaussian, units: Units) -> Pointwise:
    """Return leave-one-out densities for every unit."""
    sites = target.sites(q)
    if units.are_single and isinstance(sites, PredictorSites):
        found = _single(target, q, sites, units)
    else:
        found = _joint(target, q, sites, units)
    found.how[~units.observed(target.rows.is_masked)] = MASKED
    return found


# -- one element each, by quadrature -------------------------------------------------------


def _single(target: Target, q: DenseGaussian, sites: PredictorSites, units: Units) -> Pointwise:
    order, predictors = np.argsort(units.of_element), sites.predictors
    cavity = Cavities.of(sites, q, target.weights)
    is_proper, leverage = cavity.is_proper, cavity.leverage
    reliability = np.where(is_proper, leverage, np.inf)
    how = np.where(is_proper, SUBTRACTION, IMPROPER).astype(object)
    means, covariances = cavity.means.copy(), cavity.covariances.copy()
    large = _to_refit(is_proper, leverage, cavity.shift)
    without = [np.array([element]) for element in large]
    for element, steps in zip(large, _steps(target, q, without), strict=True):
        if steps is not None:
            own = predictors.of(element)
            means[:, element], spreads = (part[:, 0] for part in own.under(steps.q))
            covariances[..., element] = spreads @ spreads.T
            reliability[element], how[element] = steps.left, STEPS
    is_known = how != IMPROPER
    covariances = np.where(is_known, covariances, 0.0)
    elpd = predictors.log_mean(means, _factor(covariances))
    full = PredictorCovariance.of(list(sites.spreads), np)
    lpd = predictors.log_mean(sites.means, full.factor)
    elpd = np.where(is_known, elpd, np.nan)
    psis = _psis(*_joint_log_likelihoods(target, q, units)[1:])
    by_unit = [one[order] for one in (elpd, lpd, reliability, leverage, how)]
    return Pointwise(*by_unit, *psis)  # type: ignore[call-arg]


def _to_refit(is_proper: np.ndarray, leverage: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return the units for which subtraction is not enough, the most influential first."""
    large = (leverage > DEFAULTS.max_leverage) | (shift > DEFAULTS.max_shift) | ~is_proper
    ranked = np.argsort(-np.where(is_proper, leverage, np.inf), kind="stable")
    return ranked[large[ranked]][: DEFAULTS.max_refits]


def _steps(target: Target, q: DenseGaussian, left_out: list[np.ndarray]) -> list[Steps | None]:
    """Take natural-gradient steps without each of some units.

    :param left_out: the elements of each.
    """
    weights = np.repeat(target.weights[None], len(left_out), 0)
    for own, elements in zip(weights, left_out, strict=True):
        own[elements] = 0.0
    return climb_all(target, q, weights)


@dataclasses.dataclass(frozen=True, eq=False)
class Cavities:
    """Distributions of each element's predictors without its site.

    By block of correlated latents ``V_c = (I - V A)^-1 V``, with the predictors' covariance ``V``
    and the site's curvature ``A``; the predictors' means are ``m - V_c g``, and those of all
    latents ``mu - Sigma J^T t``, ``t = (I - A V)^-1 g``.
    """

    means: np.ndarray  #: Shape ``(P, M)``.
    covariances: np.ndarray  #: Shape ``(P, P, M)``.
    leverage: np.ndarray  #: The largest eigenvalue of ``V A``, shape ``(M,)``.
    shift: np.ndarray  #: Shift of the latents' mean, in standard deviations, shape ``(M,)``.
    pull: np.ndarray  #: ``t``, shape ``(M, B, P)``.
    divergence: np.ndarray  #: ``KL(cavity || q)`` in nats, shape ``(M,)``.
    #: The block of each column of the spreads, shape ``(d,)``.
    labels: np.ndarray

    @property
    def is_proper(self) -> np.ndarray:
        """True where a Gaussian remains, shape ``(M,)``."""
        return self.leverage < MOST_LEVERAGE

    @classmethod
    def of(cls, sites: PredictorSites, q: DenseGaussian, weights: np.ndarray) -> Cavities:
        """Build the cavities of all elements, which count this often each, shape ``(M,)``."""
        blocks, labels = np.unique(q.noise_blocks, return_inverse=True)
        count, num = sites.spreads.shape[:2]
        order = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[order], np.arange(len(blocks)))
        spreads = sites.spreads[..., order]
        V = np.empty((num, len(blocks), count, count))
        for p in range(count):
            for r in range(count):
                V[:, :, p, r] = np.add.reduceat(spreads[p] * spreads[r], starts, 1)
        A = np.moveaxis(weights * sites.curvature, -1, 0)[:, None]
        g = (weights * sites.gradient).T[:, None, :, None]
        eigenvalues = np.linalg.eigvals(V @ A).real
        leverage = eigenvalues.max((1, 2))
        # Where nothing is left the numbers are not used.
        is_left = (leverage < MOST_LEVERAGE)[:, None, None, None]
        safe = np.where(is_left, np.eye(count) - V @ A, np.eye(count))
        left = np.linalg.inv(safe)
        within = left @ V
        t = np.swapaxes(left, 2, 3) @ g
        square = np.maximum((np.swapaxes(t, 2, 3) @ V @ t)[..., 0, 0], 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            sizes = eigenvalues / (1.0 - eigenvalues) + np.log1p(-eigenvalues)
            divergence = 0.5 * (np.maximum(sizes, 0.0).sum((1, 2)) + square.sum(1))
        means = sites.means - (within.sum(1) @ g[:, 0])[..., 0].T
        covariances = np.moveaxis(within.sum(1), 0, -1)
        shift = np.sqrt(square.sum(1))
        return cls(means, covariances, leverage, shift, t[..., 0], divergence, labels)


def _factor(covariances: np.ndarray) -> list[list[np.ndarray]]:
    """Return rows of Cholesky factors of covariances of shape ``(P, P, M)``."""
    rows: list[list[np.ndarray]] = []
    for p in range(len(covariances)):
        row: list[np.ndarray] = []
        for r in range(p):
            below = rows[r][r]
            rest = sum(a * b for a, b in zip(row, rows[r], strict=False))
            safe = np.where(below > 0, below, 1.0)
            row.append(np.where(below > 0, (covariances[p, r] - rest) / safe, 0.0))
        square = covariances[p, p] - sum(part**2 for part in row)
        row.append(np.sqrt(np.maximum(square, 0.0)))
        rows.append(row)
    return rows


# -- several elements together, by importance sampling --------------------------------------


def _joint(target: Target, q: DenseGaussian, sites: ElementSites, units: Units) -> Pointwise:
    theta, of_units, counted = _joint_log_likelihoods(target, q, units)
    log_q, found = q.log_prob(theta), []
    left_out = [units.elements(unit) for unit in range(units.count)]
    cavities = [cavity_of(target, q, sites, elements) for elements in left_out]
    is_proper = np.array([cavity is not None for cavity, _, _ in cavities])
    leverages, shifts = (np.array([one[k] for one in cavities]) for k in (1, 2))
    large = _to_refit(is_proper, leverages, shifts)
    without = [left_out[unit] for unit in large]
    steps = dict(zip(large, _steps(target, q, without), strict=True))
    for unit, elements in enumerate(left_out):
        cavity, left = cavities[unit][0], leverages[unit]
        how = IMPROPER if cavity is None else SUBTRACTION
        if (there := steps.get(unit)) is not None:
            cavity, left, how = there.q, there.left, STEPS
        if cavity is None:
            found.append((np.nan, np.inf, how))
            continue
        own_logs = of_units[:, unit]
        value, shape = _log_average(own_logs + cavity.log_prob(theta) - log_q)
        if shape > USABLE:  # half of the draws are the cavity's
            half = len(theta) // 2
            more = cavity.sample(_noise(q.dim, half, 1))
            both = np.concatenate([theta[:half], more])
            of_more = target.log_likelihood(more)[:, elements].sum(1)
            logs = np.concatenate([own_logs[:half], of_more])
            log_both = np.logaddexp(q.log_prob(both), cavity.log_prob(both)) - np.log(2.0)
            value, shape = _log_average(logs + cavity.log_prob(both) - log_both)
        found.append((value, max(shape, left), how))
    elpd, reliability, hows = map(np.array, zip(*found, strict=True))
    lpd = np.logaddexp.reduce(of_units, 0) - np.log(len(of_units))
    return Pointwise(
        elpd, lpd, reliability, leverages, hows.astype(object), *_psis(of_units, counted)
    )


def cavity_of(
    target: Target, q: DenseGaussian, sites: ElementSites, elements: np.ndarray
) -> tuple[DenseGaussian | None, float, float]:
    """Return the posterior less some sites, their leverage, and the shift of the mean in sd."""
    weights = np.zeros(len(target.weights))
    weights[elements] = target.weights[elements]
    site = sites.total(weights)
    own = q.within(site.curvature)
    leverage = float(np.linalg.eigvalsh(q.factor.T @ own @ q.factor)[-1])
    if leverage >= MOST_LEVERAGE:
        return None, leverage, np.inf
    try:
        cavity = DenseGaussian.of_precision(q.mean, q.precision - own, q.blocks)
    except np.linalg.LinAlgError:
        return None, leverage, np.inf
    step = cavity.factor @ (cavity.factor.T @ site.gradient)
    shift = float(np.linalg.norm(q.inverse @ step))
    return dataclasses.replace(cavity, mean=q.mean - step), leverage, shift


def _noise(dim: int, count: int, seed: int) -> np.ndarray:
    half = np.random.default_rng(seed).standard_normal((-(-count // 2), dim))
    return np.concatenate([half, -half])[:count]


def _joint_log_likelihoods(
    target: Target, q: DenseGaussian, units: Units
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return draws ``(K, d)``, log likelihoods of all units, ``(K, R)``, and these weighted.

    The weights are how often the posterior counts each.
    """
    count = min(DEFAULTS.num_joint, DEFAULTS.max_numbers // len(target.weights))
    theta = q.sample(_noise(q.dim, max(count, 1), 0))
    if count < DEFAULTS.num_joint and units.are_single:
        nothing = np.zeros((0, units.count))
        return theta[:0], nothing, nothing
    values = target.log_likelihood(theta)
    # What does not count may be infinite.
    counted = np.where(target.weights > 0, values, 0.0) * target.weights
    return theta, units.sums(values), units.sums(counted)


def _log_average(log_weights: np.ndarray) -> tuple[float, float]:
    """``log mean w`` of smoothed weights, and k-hat; that of nearly equal ones is 0."""
    finite = log_weights[np.isfinite(log_weights)]
    if not len(finite):
        return -np.inf, np.inf
    smoothed, shape = smoothed_weights(finite)
    value = _log_sum(finite) - np.log(len(log_weights))
    if finite.std() < EQUAL:
        return float(value), 0.0
    # The largest of the raw weights are what smoothing replaces: their sum changes with them.
    body = finite.argmin()
    scale = finite[body] - smoothed[body]
    return float(scale - np.log(len(log_weights))), float(shape)


def _log_sum(logs: np.ndarray) -> float:
    """``log sum exp``; numpy's own goes from one number to the next."""
    largest = logs.max()
    return float(np.log(np.exp(logs - largest).sum()) + largest)


def _psis(of_units: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PSIS-LOO of each unit (Vehtari, Gelman and Gabry, 2017); k-hat, 0 where weights are equal."""
    count = of_units.shape[1]
    values, shapes = np.full(count, np.nan), np.full(count, np.nan)
    for unit in range(count if len(of_units) else 0):
        used = np.isfinite(of_units[:, unit])
        if used.any():
            smoothed, shape = smoothed_weights(-counted[used, unit])
            shapes[unit] = 0.0 if counted[used, unit].std() < EQUAL else shape
            values[unit] = _log_sum(smoothed + of_units[used, unit])
    return values, shapes
