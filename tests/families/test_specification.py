"""A family without coordinates is a specification, and says so."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.reference import FAMILIES, SCALE_NAME


@pytest.mark.parametrize(
    "use",
    [
        lambda f, z: f.dim,
        lambda f, z: f.num_parameters,
        lambda f, z: f.mean,
        lambda f, z: f.stddev,
        lambda f, z: f.variance,
        lambda f, z: f.covariance_matrix,
        lambda f, z: f.precision_matrix,
        lambda f, z: f.log_det_scale(),
        lambda f, z: f.entropy(),
        lambda f, z: f.sample(z),
        lambda f, z: f.whiten(z),
        lambda f, z: f.log_prob(z),
        lambda f, z: f.draw(z),
        lambda f, z: f.draw_log_prob(z),
        lambda f, z: f.natural_gradient(f),
        lambda f, z: f.euclidean_gradient(f),
        lambda f, z: f.retract(f),
    ],
)
def test_using_a_specification_names_it_and_the_way_out(backend, family_name, use):
    specification = backend.family_class(family_name)()
    with pytest.raises(ValueError, match=type(specification).__name__ + r".*\.initial\("):
        use(specification, backend.array(np.zeros(3)))


def test_a_family_is_frozen(backend, family_name):
    family = backend.family_class(family_name)().initial(backend.array(np.zeros(2)), 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        family.loc = backend.array(np.ones(2))


def test_coordinates_are_loc_and_the_scale_by_name(backend, family_name):
    family = backend.family_class(family_name)().initial(backend.array(np.zeros(2)), 1.0)
    assert list(family.coordinates()) == ["loc", SCALE_NAME[family_name]]


def test_names_classes_and_instances_resolve_to_the_same_specification(backend, family_name):
    resolve = backend.module("families.registry").resolve_family
    cls = backend.family_class(family_name)
    assert cls.name == family_name
    for requested in (family_name, cls, cls()):
        specification, reason = resolve(requested, dim=3)
        assert type(specification) is cls and specification.loc is None
        assert reason


def test_full_is_an_alias(backend):
    resolve = backend.module("families.registry").resolve_family
    assert type(resolve("full", dim=3)[0]) is backend.families.CovarianceCholesky


def test_auto_is_dense_up_to_a_thousand_latents_and_says_why(backend):
    resolve = backend.module("families.registry").resolve_family
    for dim, cls in [(1, "CovarianceCholesky"), (1000, "CovarianceCholesky"), (1001, "Diagonal")]:
        specification, reason = resolve("auto", dim)
        assert type(specification).__name__ == cls
        assert str(dim) in reason


def test_an_unknown_name_lists_the_known_ones(backend):
    resolve = backend.module("families.registry").resolve_family
    with pytest.raises(ValueError, match="'fool'") as error:
        resolve("fool", dim=3)
    for name in ("auto", "full", *FAMILIES):
        assert name in str(error.value)


def test_a_family_with_coordinates_is_not_a_specification(backend, family_name):
    family = backend.family_class(family_name)().initial(backend.array(np.zeros(2)), 1.0)
    resolve = backend.module("families.registry").resolve_family
    with pytest.raises(ValueError, match="already has coordinates.*init_loc_fn"):
        resolve(family, dim=2)


@pytest.mark.parametrize("nonsense", [3, None, int])
def test_other_types_are_refused(backend, nonsense):
    resolve = backend.module("families.registry").resolve_family
    with pytest.raises(TypeError, match="family must be"):
        resolve(nonsense, dim=2)
