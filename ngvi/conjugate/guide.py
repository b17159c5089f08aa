"""Sites with exponential families of their own: what may be one, and which signs its points have.

The packages' ``ConjugateGuide`` give the model's gradient; what it must satisfy is decided here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from ngvi.conjugate import KINDS
from ngvi.conjugate.factor import num_columns, signs_of_runs
from ngvi.conjugate.numpy_kinds import NUMPY_KINDS
from ngvi.errors import check_finite

#: Values or gradients of a log density agree if they differ by less, relatively.
AGREEMENT = {"float64": 1e-6, "float32": 5e-3}

#: Where on the curve of its two points a site is tried besides.
ELSEWHERE = (0.4, -1.6)

#: Of elements that depend on each other; a step evaluates the model twice as often.
MAX_COLUMNS = 32

#: Values that a site of each support takes, and one that it does not.
INSIDE: dict[str, tuple[Any, Any]] = {
    "positive": ((1e-4, 1e4), -1.0),
    "real": ((-1e4, 1e4), None),
    "unit_interval": ((1e-4, 1 - 1e-4), 2.0),
}

#: What a set-up inside of ``jax.jit`` is told.
NEEDS_DATA = (
    "The first call of a ConjugateGuide checks that its sites are conjugate, which takes the data: "
    "call svi.init(...), svi.step(...) or svi.run(...) outside of jax.jit once."
)

#: From values of the sites to the gradient of the log density in each of them.
Gradient = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
Values = dict[str, np.ndarray]


class ConjugateGuide:
    """A Gaussian, and beside it exact exponential families for conditionally conjugate sites.

    A site is conditionally conjugate if its log density, given all other latents, is linear in the
    sufficient statistics of its family: a precision with a Gamma prior, a variance with an
    inverse Gamma prior, probabilities with a Dirichlet prior, .... Declare it, and every step
    moves its factor by the exact natural gradient (Khan and Lin, 2017; Tan, section 8.4),

        lambda <- (1 - rho) lambda + rho E_q[c],

    where ``c`` are the natural parameters of its conditional, averaged over the Gaussian's draws
    and over the other factors. ``rho`` is the step size of the optimiser; ``rho = 1`` is coordinate
    ascent, all factors at once. There is no table of conjugate pairs: ``c`` is read off
    the model's gradients, exactly (:mod:`ngvi.conjugate.factor`), and the first call checks
    that the declaration is right. All other latents have a ``NaturalGaussianGuide``::

        guide = ConjugateGuide(model, {"tau": "gamma"})
        svi = SVI(model, guide, BLR(), NaturalELBO())

    The model may multiply up to three such sites. A step evaluates it twice as often as without
    (in a batch, where only what depends on the factors is repeated), and more often where declared
    sites depend on each other.

    :param model: a model of the PPL.
    :param conjugate: the families of sites, by name: ``"gamma"``, ``"inverse_gamma"``,
        ``"normal"``, ``"beta"``, ``"dirichlet"``, ``"inverse_gaussian"``,
        ``"reciprocal_inverse_gaussian"`` (of ``x`` if ``1/x`` is inverse Gaussian: the scale of a
        normal-Gamma prior); or ``"gamma_mode"``, ``"inverse_gamma_mode"``, a point at the mode of
        the conditional. Under a flat prior (``ImproperUniform``, or one that is masked) that is the
        fixed point of a hyperparameter's maximum likelihood of type II.
    :param family: of the Gaussian, as for ``NaturalGaussianGuide``.
    :param pace: the step size of the factors relative to ``rho``, in (0, 1]. Beside a network a
        shrinkage prior that adapts at once prunes inputs of which the network has not learned yet
        (``examples/deep_glm.py``): there 0.1 is better than 1.
    :raises ValueError: for an unknown family; on the first call, naming the site, for one that the
        model does not have, whose conditional is not of its family, or that is in a subsampled
        plate.
    """


def check_declared(conjugate: Any) -> dict[str, str]:
    """``conjugate``, if it names sites and families.

    :raises TypeError: if it is no mapping of names.
    :raises ValueError: if it is empty, or for an unknown family.
    """
    if not isinstance(conjugate, Mapping) or not all(isinstance(site, str) for site in conjugate):
        raise TypeError(
            "ConjugateGuide takes the families of sites by name, "
            f"ConjugateGuide(model, {{'tau': 'gamma'}}), got {conjugate!r}."
        )
    if not conjugate:
        raise ValueError("ConjugateGuide without a site is a NaturalGaussianGuide: use that.")
    for site, kind in conjugate.items():
        if kind not in KINDS:
            known = ", ".join(map(repr, KINDS))
            raise ValueError(f"Site '{site}' is declared {kind!r}; the families are {known}.")
    return dict(conjugate)


def check_pace(pace: Any) -> float:
    """``pace``, if it is in (0, 1].

    :raises ValueError: if it is not.
    """
    if not 0 < check_finite(pace, "pace") <= 1:
        raise ValueError(f"pace must be in (0, 1], got {pace!r}.")
    return float(pace)


def check_sites(
    declared: Iterable[str], latents: Iterable[str], observed: Iterable[str], enumerated: list[str]
) -> None:
    """Raise a ``ValueError`` for declared sites that are no latents of the model."""
    for site in declared:
        if site in observed:
            raise ValueError(f"Site '{site}' is observed: only latents are declared conjugate.")
        if site not in latents:
            names = ", ".join(f"'{name}'" for name in latents)
            raise ValueError(
                f"Site '{site}' is declared conjugate, and the model's latents are {names}."
            )
    if enumerated:
        raise ValueError(
            f"Discrete latent '{enumerated[0]}' is summed out, after which no conditional is "
            "conjugate: use NaturalGaussianGuide for all other latents."
        )


def check_no_factors(sites: Iterable[str]) -> None:
    """Refuse squares of single examples' gradients, of which no average over factors is exact."""
    for site in sites:
        raise NotImplementedError(
            f"curvature='gauss_newton' does not support conjugate sites ('{site}'): use "
            "NaturalELBO(curvature='stein'), 'hessian' or 'auto'."
        )


def stock_elbo(site: str, elbo: str) -> str:
    """What to say to an ELBO that draws a conjugate site."""
    return (
        f"{elbo} would draw site '{site}', declared conjugate, where exact steps need two points: "
        "use SVI(model, guide, BLR(), NaturalELBO()), or NaturalGaussianGuide for all latents."
    )


def check_not_subsampled(site: str, plate: str) -> None:
    """Refuse a site of which a minibatch visits a part."""
    raise ValueError(
        f"Site '{site}' is declared conjugate inside plate '{plate}', which is subsampled: a "
        "factor is of all elements. Leave the site to the Gaussian, with "
        "NaturalGaussianGuide(model, create_plates=...), or leave subsample_size out."
    )


def check_support(site: str, kind: str, shape: tuple[int, ...], contains: Callable) -> None:
    """Refuse a family for values that the site does not take.

    :param contains: whether the site's support contains all of an array.
    """
    support = KINDS[kind].support
    if support == "simplex":
        if not shape:
            fits = False
        else:
            inside = np.full(shape, 1e-4)
            inside[..., 0] += 1 - inside.sum(-1)
            fits = contains(inside) and not contains(np.full(shape, 2.0))
    else:
        within, outside = INSIDE[support]
        fits = all(contains(np.full(shape, value)) for value in within)
        fits = fits and not (outside is not None and contains(np.full(shape, outside)))
    if not fits:
        article = {"positive": "positive numbers", "real": "real numbers"}
        what = article.get(
            support, "numbers between 0 and 1" if support == "unit_interval" else "a simplex"
        )
        raise ValueError(
            f"Site '{site}' is declared {kind!r}, which is for {what}, and its support is not that:"
            " declare another family, or leave the site to the Gaussian."
        )


def checked(
    factors: dict[str, Any], gradient: Gradient, value: Callable[[Values], float], dtype: str
) -> dict[str, Any]:
    """Factors of numpy with their columns, if the sites are conjugate.

    :param gradient: see :func:`columns_of`.
    :param value: see :func:`check_products`.
    :param dtype: of the model.
    :raises ValueError: naming a site.
    """
    columns = columns_of(factors, gradient, dtype)
    found = {s: dataclasses.replace(one, columns=columns[s]) for s, one in factors.items()}
    check_products(found, value, dtype)
    return found


def columns_of(factors: dict[str, Any], gradient: Gradient, dtype: str) -> dict[str, tuple]:
    """Check that sites are conjugate, and find which of their elements need signs of their own.

    Costs about ``6 F + 2 F log2 n`` gradients for ``F`` sites of ``n`` elements that do not depend
    on each other.

    :param factors: of numpy, by site.
    :param gradient: of the log density, with all other latents at values that are not special.
    :return: :attr:`~ngvi.conjugate.factor.Factor.columns` by site.
    :raises ValueError: naming a site.
    """
    tolerance = AGREEMENT.get(dtype, AGREEMENT["float32"])
    # A mode's own points are too close to each other to tell.
    probes = {
        site: NUMPY_KINDS[one.name.removesuffix("_mode")].initial(site, one.mean)
        for site, one in factors.items()
    }
    start = {site: one.points(np.ones(one.elements)) for site, one in probes.items()}
    base = gradient(start)
    meets, within = {}, {}
    for site, one in probes.items():
        if not np.isfinite(base[site]).all():
            raise ValueError(
                f"The log density has no finite gradient at site '{site}', declared conjugate."
            )

        def slope_at(x: np.ndarray, site: str = site) -> np.ndarray:
            return gradient({**start, site: x})[site]

        found = gradient({**start, site: one.points(-np.ones(one.elements))})
        others = [name for name in factors if name != site]
        meets[site] = [n for n in others if not _same(found[n], base[n], tolerance)]
        within[site] = _depend_on_each_other(one, slope_at, base[site], tolerance)
        num = one.num_elements
        if within[site] and num > MAX_COLUMNS:
            raise ValueError(
                f"The {num} elements of site '{site}' depend on each other given the rest, and "
                f"ConjugateGuide takes up to {MAX_COLUMNS} of such: leave it to the Gaussian."
            )
        each = np.eye(num, dtype=bool) if within[site] else np.ones((1, num), bool)
        for some in each:
            _check_conjugate(one, factors[site], some.reshape(one.elements), slope_at, tolerance)
    columns: dict[str, tuple] = {}
    taken = 0
    for site, one in factors.items():
        size = one.num_elements if within[site] else 1
        alone = within[site] or meets[site] or any(site in meets[other] for other in meets)
        # What depends on no other may go with any: their products are not in the log density.
        columns[site] = tuple(range(taken, taken + size)) if alone else (0,)
        taken += size if alone else 0
    if taken > MAX_COLUMNS:
        raise ValueError(
            f"{taken} elements of sites {', '.join(map(repr, factors))} depend on each other, "
            f"and ConjugateGuide takes up to {MAX_COLUMNS}: leave some sites to the Gaussian."
        )
    return columns


def check_products(factors: dict[str, Any], value: Callable[[Values], float], dtype: str) -> None:
    """Refuse a model that multiplies more sites than the signs of all runs can average.

    :param factors: of numpy, with their columns.
    :param value: the log density at values of the sites.
    """
    count = num_columns(factors.values())
    if count < 4:
        return
    runs, rng = signs_of_runs(count), np.random.default_rng(0)
    means, spread = [], 0.0
    for _ in range(3):
        signs = runs * rng.choice([-1.0, 1.0], count)
        each = [
            value({site: one.points(one.signs(row[None])[0]) for site, one in factors.items()})
            for row in signs
        ]
        means.append(np.mean(each))
        spread = max(spread, np.ptp(each))
    if np.ptp(means) > AGREEMENT.get(dtype, AGREEMENT["float32"]) * spread:
        raise ValueError(
            f"The log density multiplies more than three of the elements of sites "
            f"{', '.join(map(repr, factors))}: leave some sites to the Gaussian."
        )


def _same(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    size = np.abs(one) + np.abs(other)
    return bool(np.all(np.abs(one - other) <= tolerance * (size + 1e-3 * size.max(initial=0.0))))


def _depend_on_each_other(one: Any, slope_at: Callable, base: np.ndarray, tolerance: float) -> bool:
    """Whether moving some elements changes the gradient of others; every pair is apart once."""
    index = np.arange(one.num_elements).reshape(one.elements)
    for bit in range(max(one.num_elements - 1, 0).bit_length()):
        for moves in (index >> bit & 1 == 1, index >> bit & 1 == 0):
            found = slope_at(one.points(np.where(moves, -1.0, 1.0)))
            if not _same(found[~moves], base[~moves], tolerance):
                return True
    return False


def _check_conjugate(
    one: Any, declared: Any, some: np.ndarray, slope_at: Callable, tolerance: float
) -> None:
    """Check (1) of :mod:`ngvi.conjugate.factor` for some elements, which do not depend on each
    other.

    :raises ValueError: naming the site, and the family that it has if there is one.
    """
    verdict = _verdict(one, declared, some, slope_at, tolerance)
    if verdict is None:
        return
    for kind, cls in NUMPY_KINDS.items():
        if cls.support == one.support and kind != one.name and not kind.endswith("_mode"):
            other = cls.initial(one.site, one.mean)
            if _verdict(other, other, some, slope_at, tolerance) is None:
                raise ValueError(
                    f"Site '{one.site}' is declared {declared.name!r}, and its conditional density "
                    f"is of family {kind!r}: declare it so."
                )
    raise ValueError(
        f"Site '{one.site}' is declared {declared.name!r}, {verdict} Leave it to the Gaussian (out "
        "of conjugate=), or give it a prior that is conjugate."
    )


def _verdict(
    one: Any, declared: Any, some: np.ndarray, slope_at: Callable, tolerance: float
) -> str | None:
    """Why the gradients are not those of a member of the family; None if they are."""
    points = [one.points(np.where(some, place, 1.0)) for place in (1.0, -1.0, *ELSEWHERE)]
    slopes = [slope_at(x) for x in points]
    c = one.coefficients(slopes[0], slopes[1])
    for x, slope in zip(points[2:], slopes[2:], strict=True):
        expected, size = one.predicted(c, x)
        right = np.abs(one.inside(x, slope) - expected) <= tolerance * size
        if not np.all(right[some]):
            return (
                "and is not conjugate: given the other latents, its log density is not linear in "
                "the statistics of that family."
            )
    proper = dataclasses.replace(declared, loc=c.reshape(-1)).is_proper()
    if not np.all(proper[some]):
        return (
            "and its conditional is improper: natural parameters "
            f"{c[..., ~proper & some].T[0]} are outside of the family's."
        )
    return None
