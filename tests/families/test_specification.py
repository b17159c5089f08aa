"""A family without coordinates is a specification, and says so."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.latents import layout as ngvi_layout
from ngvi.latents.blocks import find_blocks
from ngvi.latents.hierarchy import find_structure
from tests.reference import ALL_FAMILIES, SYMMETRIC


@pytest.fixture
def registry(backend):
    return backend.module("families.registry").REGISTRY


@pytest.mark.parametrize(
    "use",
    [
        lambda f, z: f.dim,
        lambda f, z: f.mean,
        lambda f, z: f.covariance_matrix,
        lambda f, z: f.sample(z),
        lambda f, z: f.natural_gradient(f),
        lambda f, z: f.natural_step(f, 0.1),
    ],
)
def test_using_a_specification_names_it_and_the_way_out(backend, family_name, use):
    specification = backend.family_class(family_name)()
    with pytest.raises(ValueError, match=type(specification).__name__ + r".*\.initial\("):
        use(specification, backend.array(np.zeros(3)))


def test_names_classes_and_instances_mean_the_same_specification(registry, backend, family_name):
    cls = backend.family_class(family_name)
    assert cls.name == family_name
    asked_by_name = () if family_name in SYMMETRIC else (family_name,)  # those are not ours
    for asked in (*asked_by_name, cls, cls()):
        specification, reason = registry.requested(asked)
        assert type(specification) is cls and specification.loc is None
        assert reason


def test_full_is_an_alias_and_auto_is_left_to_the_model(registry, backend):
    assert type(registry.requested("full").family) is backend.families.CovarianceCholesky
    assert registry.requested("auto") is None


@pytest.mark.parametrize(
    ("dim", "expected"), [(1001, "CovarianceCholesky"), (2000, "CovarianceCholesky"), (2001, None)]
)
def test_auto_is_dense_for_longer_where_the_density_is_a_sum_of_terms(registry, dim, expected):
    sites = [ngvi_layout.Site("w", 0, (dim,))]
    for is_sum in (True, False):
        layout = ngvi_layout.Layout(sites, _not_asked, lambda is_sum=is_sum: is_sum)
        family, reason = registry.automatic(layout.with_coordinates())
        is_dense = is_sum and expected is not None
        assert type(family).__name__ == (expected if is_dense else "LowRankPrecision")
        assert ("where quadrature can be taken" in reason) is is_dense


def _not_asked():
    raise AssertionError("traced")


@pytest.mark.parametrize(
    ("num_locals", "num_globals", "expected", "reason"),
    [
        (600, 3, "SparsePrecision", "locals"),
        (150, 3, "SparsePrecision", "dense only up to 200, and it has locals"),
        (150, 90, "CovarianceCholesky", "dense up to 1000"),
        (200_000, 3, "SparsePrecision", "locals"),
        (0, 1500, "LowRankPrecision", "no latent is in a plate"),
        (600, 2500, "LowRankPrecision", "2500 globals"),
        (0, 200_000, "Diagonal", "low rank only up to"),
    ],
)
def test_auto_takes_locals_where_the_model_has_them(
    registry, num_locals, num_globals, expected, reason
):
    module = ngvi_layout
    sites = [module.Site("w", 0, (num_globals,))]
    if num_locals:
        plate = module.Plate("groups", num_locals, 0)
        sites.append(module.Site("effect", num_globals, (num_locals, 2), (plate,)))
    names = [site.name for site in sites]
    pairs = {(a, b): frozenset() for a in names for b in names}
    layout = module.Layout(sites, lambda: module.Dependencies(pairs))
    family, why = registry.automatic(layout)
    assert type(family).__name__ == expected
    assert reason in why


def test_an_unknown_name_lists_the_known_ones(registry):
    with pytest.raises(ValueError, match="'fool'") as error:
        registry.requested("fool")
    for name in ("auto", "full", *ALL_FAMILIES):
        assert name in str(error.value)


def test_a_family_with_coordinates_is_not_a_specification(registry, backend, family_name):
    family = backend.family_class(family_name)().initial(backend.array(np.zeros(2)), 1.0)
    with pytest.raises(ValueError, match="already has coordinates.*init_loc_fn"):
        registry.requested(family)


@pytest.mark.parametrize("nonsense", [3, None, int])
def test_other_types_are_refused(registry, nonsense):
    with pytest.raises(TypeError, match="family must be"):
        registry.requested(nonsense)


@pytest.mark.parametrize("find", [find_blocks, find_structure])
def test_a_site_without_elements_is_in_no_block(find):
    module = ngvi_layout
    plate = module.Plate("groups", 3, 0)
    sites = [
        module.Site("mean", 0, ()),
        module.Site("effect", 1, (3,), (plate,)),
        module.Site("nothing", 4, (3, 0), (plate,)),
        module.Site("void", 4, (3, 0), (plate, module.Plate("none", 0, 1))),
    ]

    def found(sites):
        pairs = {(a.name, b.name): frozenset() for a in sites for b in sites}
        dependencies = module.Dependencies(pairs, hessian_product=lambda probes: probes)
        return repr(find(module.Layout(sites, lambda: dependencies)))

    assert found(sites) == found(sites[:2])


@pytest.mark.parametrize(("coupling", "are_local"), [(1e-12, True), (1e-6, False)])
def test_rounding_couples_no_sites(coupling, are_local):
    # ... such as the intercepts and slopes of a centred covariate, of which nothing else is seen.
    module = ngvi_layout
    plate = module.Plate("groups", 4, 0)
    sites = [module.Site(name, 4 * i, (4,), (plate,)) for i, name in enumerate("ab")]
    hessian = np.diag([1.0] * 4 + [100.0] * 4)
    noise = coupling * np.random.default_rng(0).normal(size=(4, 4))
    hessian[:4, 4:], hessian[4:, :4] = noise, noise.T
    dependencies = module.Dependencies(
        {(a, b): frozenset() for a in "ab" for b in "ab"}, hessian_product=lambda v: v @ hessian
    )
    forest, _ = find_structure(module.Layout(sites, lambda: dependencies))
    assert (forest is not None) is are_local
