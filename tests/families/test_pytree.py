"""In JAX a family is a pytree: what maps, stacks and compiles arrays takes families too."""

from __future__ import annotations

import dataclasses

import pytest

from tests.reference import FAMILIES, random_gaussian, relative_error

jax = pytest.importorskip("jax")
register = pytest.importorskip("numpyro_ngvi.pytree").register


@pytest.fixture
def family(numpyro_backend, family_name, rng):
    return numpyro_backend.family(family_name, *random_gaussian(family_name, 4, rng))


def test_a_specification_has_no_leaves_and_survives_the_round_trip(family):
    specification = type(family)()
    assert jax.tree.leaves(specification) == []
    assert jax.tree.map(lambda x: x, specification).loc is None


def test_natural_gradients_survive_jit_vmap_and_scan(family, rng):
    noise = jax.numpy.asarray(rng.normal(size=(3, 4)))

    def natural(f, z):
        return jax.grad(lambda f: (f.draw(z) ** 3).sum() + f.draw_log_prob(z))(f)

    expected = [natural(family, z) for z in noise]
    mapped = jax.jit(jax.vmap(natural, in_axes=(None, 0)))(family, noise)
    scanned = jax.lax.scan(lambda f, z: (f, natural(f, z)), family, noise)[1]
    stacked = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *expected)
    for result in (mapped, scanned):
        assert type(result) is type(family)
        for a, e in zip(jax.tree.leaves(result), jax.tree.leaves(stacked), strict=True):
            # The same operations in another order: a few roundings.
            assert relative_error(a, e) < 1e-13


def test_two_families_of_the_same_shapes_have_different_structures(numpyro_backend, rng):
    # Where they are equal, a function compiled for one may be run for the other.
    structures = {
        name: jax.tree.structure(numpyro_backend.family(name, *random_gaussian(name, 4, rng)))
        for name in FAMILIES
    }
    for name, structure in structures.items():
        assert [other for other in FAMILIES if structures[other] == structure] == [name]


def test_a_compiled_function_never_takes_one_dataclass_for_another():
    # With structures that are equal but for their hashes it did for one class in seven of these.
    def of(number):
        cls = dataclasses.make_dataclass(f"Tree{number}", [("leaf", object)], frozen=True)
        cls.number = number
        return register(cls)(jax.numpy.ones(()))

    number_of = jax.jit(lambda tree: tree.number * tree.leaf)
    assert [int(number_of(of(number))) for number in range(40)] == list(range(40))
