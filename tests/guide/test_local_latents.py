"""Latents inside a subsampled plate: only the visited ones move, by their own natural gradient."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends import BACKENDS, load

N, B = 6, 2
DATA = np.random.default_rng(3).normal(1.0, 2.0, N)
BATCHES = [np.array([3, 0]), np.array([5, 1]), np.array([2, 4])]
LOCAL = ("diagonal", "block_diagonal", "sparse_precision")


class NumPyro:
    """The few calls in which the two PPLs differ."""

    name = "numpyro"

    def __init__(self):
        import jax
        import numpyro
        import numpyro.distributions as dist
        from numpyro import handlers

        import numpyro_ngvi

        self.jax, self.numpyro, self.handlers, self.dist = jax, numpyro, handlers, dist
        self.ngvi, self.compiled = numpyro_ngvi, None
        self.sample, self.array = numpyro.sample, jax.numpy.asarray

    def plate(self, name, size, visited):
        """A plate with these elements, or random ones if None."""
        if visited is None:
            return self.numpyro.plate(name, size, subsample_size=B)
        with self.handlers.substitute(data={name: self.array(visited)}):
            return self.numpyro.plate(name, size, subsample_size=len(visited))

    def indices(self, plate):
        return plate._indices

    def start(self, guide, visited):
        self.guide = guide
        with self.handlers.seed(rng_seed=0), self.handlers.trace():
            guide(visited)
        return guide._initial_posterior

    def value_and_gradient(self, guide, family, visited, stick=True):
        """The loss and its natural gradient for one draw of whitened noise."""
        from numpyro.infer import Trace_ELBO

        def loss(family, visited):
            params = {"auto_posterior": family}
            key = self.jax.random.key(7)
            return Trace_ELBO().loss(key, params, guide.model, guide, visited)

        if self.compiled is None:
            guide._sticking_the_landing = stick
            self.compiled = self.jax.jit(self.jax.value_and_grad(loss))
        value, gradient = self.compiled(family, self.array(visited))
        return float(value), gradient

    def numpy(self, value):
        return np.asarray(value)

    def steps(self, model, guide, optimiser, visited, elbo=None, **options):
        """The families before and after a step with each minibatch."""
        from numpyro.infer import SVI, Trace_ELBO

        defaults = {"Snngm": {"step_size": 0.01}, "BLR": {}}[optimiser]
        if "lr" in options:
            options["step_size"] = options.pop("lr")
        optimiser = getattr(self.ngvi, optimiser)(**{**defaults, **options})
        svi = SVI(model, guide, optimiser, Trace_ELBO() if elbo is None else elbo)
        state = svi.init(self.jax.random.key(0), visited[0])
        found = [svi.get_params(state)["auto_posterior"]]
        update = self.jax.jit(svi.update)
        for batch in visited:
            state, loss = update(state, batch)
            assert np.isfinite(loss)
            found.append(svi.get_params(state)["auto_posterior"])
        self.params = svi.get_params(state)
        return found

    def summaries(self, guide):
        draws = guide.sample_posterior(self.jax.random.key(1), self.params, sample_shape=(5,))
        return (
            guide.median(self.params),
            guide.quantiles(self.params, [0.1, 0.9]),
            guide.get_posterior(self.params),
            draws,
        )


class Pyro:
    name = "pyro"

    def __init__(self):
        import pyro
        import pyro.distributions as dist
        import torch

        import pyro_ngvi

        self.pyro, self.torch, self.dist, self.ngvi = pyro, torch, dist, pyro_ngvi
        self.sample, self.array = pyro.sample, torch.as_tensor
        pyro.clear_param_store()
        pyro.set_rng_seed(0)

    def plate(self, name, size, visited):
        if visited is None:
            return self.pyro.plate(name, size, subsample_size=B)
        return self.pyro.plate(name, size, subsample=self.array(visited))

    def indices(self, plate):
        return plate.indices

    def start(self, guide, visited):
        guide(visited)
        return guide.posterior.family().detach()

    def value_and_gradient(self, guide, family, visited, stick=True):
        from pyro.infer import Trace_ELBO

        guide._sticking_the_landing = stick
        self.set(guide, family)
        self.torch.manual_seed(7)
        loss = Trace_ELBO().differentiable_loss(guide.model, guide, visited)
        leaves = dict(guide.posterior.named_parameters())
        gradients = self.torch.autograd.grad(loss, list(leaves.values()))
        import dataclasses

        names = [name.removesuffix("_unconstrained") for name in leaves]
        return float(loss.detach()), dataclasses.replace(
            family, **dict(zip(names, gradients, strict=True))
        )

    def set(self, guide, family):
        with self.torch.no_grad():
            for name, leaf in guide.posterior.named_parameters():
                leaf.copy_(getattr(family, name.removesuffix("_unconstrained")))

    def numpy(self, value):
        return value.detach().numpy()

    def steps(self, model, guide, optimiser, visited, elbo=None, **options):
        from pyro.infer import SVI, Trace_ELBO

        defaults = {"Snngm": {"lr": 0.01}, "BLR": {}}[optimiser]
        optimiser = getattr(self.ngvi, optimiser)({**defaults, **options})
        svi = SVI(model, guide, optimiser, Trace_ELBO() if elbo is None else elbo)
        guide(visited[0])
        found = [self.copy(guide)]
        for batch in visited:
            assert np.isfinite(svi.step(batch))
            found.append(self.copy(guide))
        return found

    def copy(self, guide):
        return guide.posterior.family().detach().map(lambda value: value.clone())

    def summaries(self, guide):
        return guide.median(), guide.quantiles([0.1, 0.9]), guide.get_posterior(), None


@pytest.fixture(params=BACKENDS)
def ppl(request):
    with load(request.param).float64():
        yield NumPyro() if request.param == "numpyro" else Pyro()


def _model(ppl):
    def model(visited=None):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 2.0))
        tau = ppl.sample("tau", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
        plate = ppl.plate("units", N, visited)
        with plate:
            effect = ppl.sample("effect", ppl.dist.Normal(mu, tau))
            spread = ppl.sample("spread", ppl.dist.LogNormal(ppl.array(0.0), 0.5))
            data = ppl.array(DATA)[ppl.indices(plate)]
            ppl.sample("y", ppl.dist.Normal(effect, spread), obs=data)

    return model


def _guide(ppl, family, **kwargs):
    def create_plates(visited=None):
        return ppl.plate("units", N, visited)

    return ppl.ngvi.NaturalGaussianGuide(_model(ppl), family, create_plates=create_plates, **kwargs)


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
    module = load(ppl.name).module
    loc = ppl.numpy(family.loc)
    if family.name == "diagonal":
        return loc, ppl.numpy(family.scale), slice(None)
    arrow = module("linalg.arrow")
    packed = family.scale_tril if family.name == "block_diagonal" else family.precision_tril
    numbers = arrow.Arrow.split(family.structure, ppl.array(np.arange(family.dim, dtype=float)))
    columns = np.concatenate(
        [
            np.broadcast_to(ppl.numpy(number)[0], shape).reshape(-1)
            for number, shapes in zip(numbers, family.structure.shapes(), strict=True)
            for shape in shapes
        ]
    ).astype(int)
    if family.name == "sparse_precision":
        factor = arrow.Arrow.unpack(at.structure, at.precision_tril)
        split = arrow.Arrow.split(at.structure, family.loc)
        loc = ppl.numpy(arrow.Arrow.join(at.structure, factor.transpose_times(split)))
    return loc, ppl.numpy(packed), columns


@pytest.mark.parametrize("stick", [True, False])
@pytest.mark.parametrize("family", LOCAL)
def test_bound_and_gradients_are_those_of_all_data(ppl, family, stick):
    guide = _guide(ppl, family)
    here = _perturbed(ppl, ppl.start(guide, BATCHES[0]))
    assert here.dim == 2 + 2 * N
    full_value, full = ppl.value_and_gradient(guide, here, np.arange(N), stick)
    full_loc, full_factor, columns = _parts(ppl, full, here)
    element = _coordinates(guide)
    values, locs, factors = [], [], []
    for batch in BATCHES:
        value, gradient = ppl.value_and_gradient(guide, here, batch, stick)
        loc, factor, _ = _parts(ppl, gradient, here)
        for part, whole, owner in (
            (loc, full_loc, element),
            (factor, full_factor, element[columns]),
        ):
            visited, unvisited = np.isin(owner, batch), (owner >= 0) & ~np.isin(owner, batch)
            assert np.abs(whole[visited]).max() > 1e-3
            np.testing.assert_allclose(part[visited], whole[visited], rtol=1e-9, atol=1e-11)
            np.testing.assert_allclose(part[unvisited], 0.0, atol=1e-12)
        values.append(value)
        locs.append(loc[element < 0])
        factors.append(factor[element[columns] < 0])
    # Every element is visited once by the three minibatches: the mean is exact.
    np.testing.assert_allclose(np.mean(values), full_value, rtol=1e-10)
    assert np.std(values) > 0.01
    np.testing.assert_allclose(np.mean(locs, 0), full_loc[element < 0], rtol=1e-9, atol=1e-11)
    whole = full_factor[element[columns] < 0]
    np.testing.assert_allclose(np.mean(factors, 0), whole, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("optimiser", ["Snngm", "BLR"])
@pytest.mark.parametrize("family", LOCAL)
def test_unvisited_locals_do_not_move(ppl, family, optimiser):
    guide = _guide(ppl, family)
    batches = BATCHES[:1] if optimiser == "Snngm" else BATCHES  # momentum carries on
    found = ppl.steps(_model(ppl), guide, optimiser, batches)
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
    arrow = load(ppl.name).module("linalg.arrow")
    factor = arrow.Arrow.unpack(family.structure, family.precision_tril)
    split = arrow.Arrow.split(family.structure, family.loc)
    whitened = ppl.numpy(arrow.Arrow.join(family.structure, factor.transpose_times(split)))
    loc = ppl.numpy(family.loc).copy()
    for index, group in zip(family.structure.split_indices(), family.structure.groups, strict=True):
        if group.parent is not None:
            loc[index] = whitened[index]
    return loc


@pytest.mark.parametrize("family", LOCAL)
def test_the_user_reads_all_elements(ppl, family):
    guide = _guide(ppl, family)
    ppl.steps(_model(ppl), guide, "Snngm", BATCHES)
    median, quantiles, posterior, draws = ppl.summaries(guide)
    assert median["effect"].shape == (N,)
    assert (ppl.numpy(median["spread"]) > 0).all()
    assert quantiles["spread"].shape == (2, N)
    assert tuple(posterior.event_shape) == (2 + 2 * N,)
    if draws is not None:
        assert draws["spread"].shape == (5, N)


@pytest.mark.parametrize("optimiser", ["Snngm", "BLR"])
def test_random_minibatches_find_the_posterior_of_all_data(ppl, optimiser):
    guide, model = _without_globals(ppl)
    options = {} if optimiser == "Snngm" else {"lr": 0.1}
    ppl.steps(model, guide, optimiser, [None] * 600, **options)
    median, *_ = ppl.summaries(guide)
    np.testing.assert_allclose(ppl.numpy(median["effect"]), 0.5 * (1.0 + DATA), atol=0.2)
    stddev = ppl.numpy(ppl.summaries(guide)[2].variance) ** 0.5
    np.testing.assert_allclose(stddev, 0.5**0.5, atol=0.15)


def _without_globals(ppl):
    def create_plates(visited=None):
        return ppl.plate("units", N, None)

    def model(visited=None):
        plate = create_plates()
        with plate:
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(1.0), 1.0))
            data = ppl.array(DATA)[ppl.indices(plate)]
            ppl.sample("y", ppl.dist.Normal(effect, 1.0), obs=data)

    guide = ppl.ngvi.NaturalGaussianGuide(model, "diagonal", create_plates=create_plates)
    return guide, model


# -- what cannot be done is said ------------------------------------------------------


@pytest.mark.parametrize("family", ["full", "precision", "low_rank"])
def test_a_dense_family_names_site_plate_and_families(ppl, family):
    with pytest.raises(ValueError, match=r"'effect'.*'units'.*'sparse_precision'"):
        ppl.start(_guide(ppl, family), BATCHES[0])


def test_blocks_across_elements_are_refused(ppl):
    family = ppl.ngvi.families.BlockDiagonal(blocks=[["mu", "tau", "effect"], ["spread"]])
    with pytest.raises(ValueError, match=r"'(effect|mu)'.*'units'"):
        ppl.start(_guide(ppl, family), BATCHES[0])


def test_auto_is_the_sparse_family(ppl):
    guide = _guide(ppl, "auto")
    ppl.start(guide, BATCHES[0])
    assert guide.family.name == "sparse_precision"
    assert "6 locals of size 2 given 2 globals" in repr(guide)


def test_without_create_plates_the_error_names_it(ppl):
    guide = ppl.ngvi.NaturalGaussianGuide(_model(ppl), "diagonal")
    with pytest.raises(ValueError, match=r"'effect'.*'units'.*\(2 of 6\).*create_plates"):
        ppl.start(guide, BATCHES[0])


def test_natural_elbo_names_the_alternative(ppl):
    guide = _guide(ppl, "diagonal")
    with pytest.raises(NotImplementedError, match="Trace_ELBO"):
        ppl.steps(_model(ppl), guide, "BLR", BATCHES[:1], ppl.ngvi.NaturalELBO())


def test_bounds_that_differ_between_elements_are_refused(ppl):
    upper = np.arange(1.0, N + 1.0)

    def create_plates(visited=None):
        return ppl.plate("units", N, visited)

    def model(visited=None):
        plate = create_plates(visited)
        with plate:
            bound = ppl.array(upper)[ppl.indices(plate)]
            ppl.sample("effect", ppl.dist.Uniform(0.0 * bound, bound))

    guide = ppl.ngvi.NaturalGaussianGuide(model, "diagonal", create_plates=create_plates)
    with pytest.raises(ValueError, match="'effect'.*bounds"):
        ppl.start(guide, BATCHES[0])


def test_a_guide_set_up_with_all_data_takes_minibatches(ppl):
    guide, dense = _guide(ppl, "diagonal"), _guide(ppl, "full")
    found = ppl.steps(_model(ppl), guide, "Snngm", [np.arange(N), BATCHES[0]])
    unvisited = ~np.isin(_coordinates(guide), [-1, *BATCHES[0]])
    assert unvisited.any()
    assert np.isfinite(ppl.numpy(found[-1].loc)).all()
    with pytest.raises(ValueError, match="'effect'.*'units'.*'diagonal'"):
        ppl.steps(_model(ppl), dense, "Snngm", [np.arange(N), BATCHES[0]])
