"""Latents in a subsampled plate: those of the minibatch move, by their own natural gradient."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ppl import SLOW_IN_NUMPYRO

N, B = 6, 2
DATA = np.random.default_rng(3).normal(1.0, 2.0, N)
BATCHES = [np.array([3, 0]), np.array([5, 1]), np.array([2, 4])]
LOCAL = ("diagonal", "block_diagonal", "sparse_precision")


def _plate(ppl, visited=None):
    """With these elements, or random ones."""
    if visited is None:
        return ppl.plate("units", N, subsample_size=B)
    return ppl.visited("units", N, visited)


def _model(ppl):
    def model(visited=None):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 2.0))
        tau = ppl.sample("tau", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
        plate = _plate(ppl, visited)
        with plate:
            effect = ppl.sample("effect", ppl.dist.Normal(mu, tau))
            spread = ppl.sample("spread", ppl.dist.LogNormal(ppl.array(0.0), 0.5))
            data = ppl.array(DATA)[ppl.indices(plate)]
            ppl.sample("y", ppl.dist.Normal(effect, spread), obs=data)

    return model


def _guide(ppl, family, **options):
    def create_plates(visited=None):
        return _plate(ppl, visited)

    ppl.forget()
    return ppl.guide(_model(ppl), family, create_plates=create_plates, **options)


def _start(ppl, guide, visited):
    """The family of a guide after its first call."""
    ppl.set_up(guide, ppl.index(visited))
    return ppl.initial(guide)


def _svi(ppl, guide, visited, optimiser="Snngm", **options):
    optimiser = ppl.optimiser(optimiser, **options)
    return ppl.svi(guide.model, guide, optimiser, ppl.elbo(), (visited,))


def _steps(ppl, guide, optimiser, batches, **options):
    """The families before and after a step with each minibatch."""
    svi = _svi(ppl, guide, batches[0], optimiser, **options)
    found = [ppl.copy(svi.family)]
    for batch in batches:
        assert np.isfinite(svi.step(batch))
        found.append(ppl.copy(svi.family))
    return found


def _perturbed(ppl, family):
    """The family at other coordinates, of its own structure."""
    import dataclasses

    rng = np.random.default_rng(0)
    changes = {}
    for name, value in family.coordinates().items():
        value = ppl.numpy(value)
        noise = rng.normal(size=value.shape)
        if name == "loc":
            changes[name] = ppl.array(value + 0.3 * noise)
        else:
            mask = value != 0
            if hasattr(family, "structure"):
                mask = _lower(ppl, family)
            changes[name] = ppl.array(np.where(mask, value * (1 + 0.1 * noise) + 0.02 * noise, 0))
    return dataclasses.replace(family, **changes)


def _lower(ppl, family):
    masks = []
    for first, *below in family.structure.shapes():
        masks.append(np.broadcast_to(np.tril(np.ones(first[:2]))[..., None], first).reshape(-1))
        masks.extend(np.ones(shape).reshape(-1) for shape in below)
    return np.concatenate(masks) > 0


def _coordinates(guide):
    """By coordinate of the latent vector, the element of the plate, or -1."""
    element = np.full(sum(site.size for site in guide.sites), -1)
    for site in guide.sites:
        if site.plates:
            element[site.indices(["units"])] = np.arange(N)[:, None]
    return element


def _parts(ppl, family, at):
    """A direction in coordinates where elements are apart: mean and factor, and whose they are."""
    loc = ppl.numpy(family.loc)
    if family.name == "diagonal":
        return loc, ppl.numpy(family.scale), slice(None)
    packed = family.scale_tril if family.name == "block_diagonal" else family.precision_tril
    structure = family.structure
    columns = np.concatenate(
        [
            np.broadcast_to(indices[0], shape).reshape(-1)
            for indices, shapes in zip(structure.split_indices(), structure.shapes(), strict=True)
            for shape in shapes
        ]
    )
    if family.name == "sparse_precision":
        loc = _whitened(ppl, at, family.loc)
    return loc, ppl.numpy(packed), columns


def _whitened(ppl, family, vector):
    """``T^T`` times a vector."""
    arrow = ppl.module("linalg.arrow").Arrow

    def product(packed, vector):
        factor = arrow.unpack(family.structure, packed)
        split = arrow.split(family.structure, vector)
        return arrow.join(family.structure, factor.transpose_times(split))

    return ppl.numpy(ppl.compiled(product)(family.precision_tril, vector))


@pytest.mark.fast_in_numpyro("sparse_precision-True")
@pytest.mark.parametrize(
    ("family", "stick"),
    [
        ("diagonal", False),
        ("block_diagonal", True),
        ("sparse_precision", True),
        pytest.param("sparse_precision", False, marks=pytest.mark.slow),
        pytest.param("diagonal", True, marks=pytest.mark.slow),
        pytest.param("block_diagonal", False, marks=pytest.mark.slow),
    ],
)
def test_bound_and_gradients_are_those_of_all_data(ppl, family, stick):
    check_bound_and_gradients(ppl, _guide(ppl, family, sticking_the_landing=stick), ppl.elbo())


def check_bound_and_gradients(ppl, guide, loss, rtol=1e-9, has_zeros=False):
    """Those of the minibatches are, by the same draws, those of all data.

    :param has_zeros: whether factors of elements that are not visited have no rounding.
    :return: what the minibatches say of the globals: locations and factors.
    """
    here = _perturbed(ppl, _start(ppl, guide, BATCHES[0]))
    assert here.dim == 2 + 2 * N
    run = ppl.loss_and_gradient(loss, guide.model, guide)
    full_value, full = run(here, 7, ppl.index(np.arange(N)))
    full_loc, full_factor, columns = _parts(ppl, full, here)
    element = _coordinates(guide)
    values, locs, factors = [], [], []
    for batch in BATCHES:
        value, gradient = run(here, 7, ppl.index(batch))
        loc, factor, _ = _parts(ppl, gradient, here)
        for part, whole, owner in (
            (loc, full_loc, element),
            (factor, full_factor, element[columns]),
        ):
            visited, unvisited = np.isin(owner, batch), (owner >= 0) & ~np.isin(owner, batch)
            assert np.abs(whole[visited]).max() > 1e-3
            np.testing.assert_allclose(part[visited], whole[visited], rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(part[unvisited], 0.0, atol=1e-12)
        assert not has_zeros or (factor[unvisited] == 0.0).all()
        values.append(value)
        locs.append(loc[element < 0])
        factors.append(factor[element[columns] < 0])
    # Every element is visited once by the three minibatches: the mean is exact.
    np.testing.assert_allclose(np.mean(values), full_value, rtol=1e-10)
    assert np.std(values) > 0.01
    np.testing.assert_allclose(np.mean(locs, 0), full_loc[element < 0], rtol=rtol, atol=1e-11)
    whole = full_factor[element[columns] < 0]
    np.testing.assert_allclose(np.mean(factors, 0), whole, rtol=rtol, atol=1e-11)
    return locs, factors


@pytest.mark.fast_in_numpyro("diagonal-BLR")
@pytest.mark.parametrize(
    ("family", "optimiser"),
    [
        *((family, "BLR") for family in LOCAL),
        ("sparse_precision", "Snngm"),
        pytest.param("diagonal", "Snngm", marks=pytest.mark.slow),
        pytest.param("block_diagonal", "Snngm", marks=pytest.mark.slow),
    ],
)
def test_locals_outside_of_the_minibatch_do_not_move(ppl, family, optimiser):
    guide = _guide(ppl, family)
    batches = BATCHES[:1] if optimiser == "Snngm" else BATCHES  # momentum carries on
    options = {"step_size": 0.01} if optimiser == "Snngm" else {}
    found = _steps(ppl, guide, optimiser, batches, **options)
    element = _coordinates(guide)
    for before, after, batch in zip(found, found[1:], batches, strict=False):
        old_loc, old_factor, columns = _parts(ppl, before, before)
        new_loc, new_factor, _ = _parts(ppl, after, after)
        if family == "sparse_precision":
            # The mean of a local given the globals, whitened, up to the globals' own mean.
            old_loc, new_loc = (_given_zero(ppl, f) for f in (before, after))
        owner = element[columns]
        moved = element < 0
        for part, old, own in ((new_loc, old_loc, element), (new_factor, old_factor, owner)):
            unvisited = (own >= 0) & ~np.isin(own, batch)
            np.testing.assert_allclose(part[unvisited], old[unvisited], rtol=1e-9, atol=1e-12)
            assert (part[np.isin(own, batch)] != old[np.isin(own, batch)]).any()
        assert (new_loc[moved] != old_loc[moved]).all()


def _given_zero(ppl, family):
    """``T_i^T E[theta_i | globals = 0]`` at the locals, the mean at the globals."""
    whitened = _whitened(ppl, family, family.loc)
    loc = ppl.numpy(family.loc).copy()
    for index, group in zip(family.structure.split_indices(), family.structure.groups, strict=True):
        if group.parent is not None:
            loc[index] = whitened[index]
    return loc


@pytest.mark.fast_in_numpyro("sparse_precision")
@pytest.mark.parametrize("family", LOCAL)
def test_the_user_reads_all_elements(ppl, family):
    svi = _svi(ppl, _guide(ppl, family), BATCHES[0])
    median, quantiles, posterior = svi.median(), svi.quantiles([0.1, 0.9]), svi.posterior()
    assert median["effect"].shape == (N,)
    assert (median["spread"] > 0).all()
    assert quantiles["spread"].shape == (2, N)
    assert tuple(posterior.event_shape) == (2 + 2 * N,)
    if ppl.is_numpyro:
        import jax

        draws = svi.guide.sample_posterior(jax.random.key(1), svi.params, sample_shape=(5,))
        assert draws["spread"].shape == (5, N)


@pytest.mark.fast_in_numpyro("Nagm-options0")
@pytest.mark.parametrize(
    ("optimiser", "options"),
    [("Nagm", {"momentum": 0.0, "scale_step_size": 0.3}), ("BLR", {"momentum": 0.0})],
)
def test_random_minibatches_find_the_posterior_of_all_data(ppl, optimiser, options):
    guide = _without_globals(ppl)
    svi = _svi(ppl, guide, None, optimiser, step_size=0.3, **options)
    # An element is visited by every third step, which contracts its error, noise included, by
    # about 0.7: the landing sticks.
    svi.run(300)
    mean, sigma = svi.gaussian
    np.testing.assert_allclose(mean, 0.5 * (1.0 + DATA), rtol=1e-6)
    np.testing.assert_allclose(sigma, 0.5 * np.eye(N), rtol=1e-6)


def _without_globals(ppl):
    def create_plates(visited=None):
        return _plate(ppl, None)

    def model(visited=None):
        plate = create_plates()
        with plate:
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(1.0), 1.0))
            data = ppl.array(DATA)[ppl.indices(plate)]
            ppl.sample("y", ppl.dist.Normal(effect, 1.0), obs=data)

    return ppl.guide(model, "diagonal", create_plates=create_plates)


# -- what cannot be done is said ------------------------------------------------------


@pytest.mark.parametrize("family", ["full", "precision", "low_rank"])
def test_a_dense_family_names_site_plate_and_families(ppl, family):
    with pytest.raises(ValueError, match=r"'effect'.*'units'.*'sparse_precision'"):
        _start(ppl, _guide(ppl, family), BATCHES[0])


def test_blocks_across_elements_are_refused(ppl):
    family = ppl.package.families.BlockDiagonal(blocks=[["mu", "tau", "effect"], ["spread"]])
    with pytest.raises(ValueError, match=r"'(effect|mu)'.*'units'"):
        _start(ppl, _guide(ppl, family), BATCHES[0])


def test_without_create_plates_the_error_names_it(ppl):
    guide = ppl.guide(_model(ppl), "diagonal")
    with pytest.raises(ValueError, match=r"'effect'.*'units'.*\(2 of 6\).*create_plates"):
        _start(ppl, guide, BATCHES[0])


def test_bounds_that_differ_between_elements_are_refused(ppl):
    upper = np.arange(1.0, N + 1.0)

    def create_plates(visited=None):
        return _plate(ppl, visited)

    def model(visited=None):
        plate = create_plates(visited)
        with plate:
            bound = ppl.array(upper)[ppl.indices(plate)]
            ppl.sample("effect", ppl.dist.Uniform(0.0 * bound, bound))

    guide = ppl.guide(model, "diagonal", create_plates=create_plates)
    with pytest.raises(ValueError, match="'effect'.*bounds"):
        _start(ppl, guide, BATCHES[0])


@SLOW_IN_NUMPYRO
def test_a_guide_set_up_with_all_data_takes_minibatches(ppl):
    guide = _guide(ppl, "diagonal")
    _, before, after = _steps(ppl, guide, "Nagm", [np.arange(N), BATCHES[0]], momentum=0.0)
    moved = ppl.numpy(before.loc) != ppl.numpy(after.loc)
    np.testing.assert_array_equal(moved, np.isin(_coordinates(guide), [-1, *BATCHES[0]]))
    with pytest.raises(ValueError, match="'effect'.*'units'.*'diagonal'"):
        _steps(ppl, _guide(ppl, "full"), "Snngm", [np.arange(N), BATCHES[0]])
