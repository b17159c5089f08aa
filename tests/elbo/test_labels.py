"""The parts of a step have names in JAX's programs and in torch's profiler."""

import pytest

LABELS = ("draws", "log_density", "moments", "direction", "rule")


@pytest.fixture(scope="module")
def numpyro_step():
    jax, numpyro = pytest.importorskip("jax"), pytest.importorskip("numpyro")
    import numpyro_ngvi

    def model(y):
        numpyro.sample("y", numpyro.distributions.Normal(mean_of(numpyro), 1.0), obs=y)

    guide = numpyro_ngvi.NaturalGaussianGuide(model)
    svi = numpyro.infer.SVI(model, guide, numpyro_ngvi.BLR(), numpyro_ngvi.NaturalELBO())
    y = jax.numpy.array(1.0)
    program = jax.jit(svi.update).lower(svi.init(jax.random.key(0), y), y)
    return program.as_text(debug_info=True)


@pytest.fixture(scope="module")
def pyro_step():
    torch, pyro = pytest.importorskip("torch"), pytest.importorskip("pyro")
    import pyro_ngvi

    def model(y):
        pyro.sample("y", pyro.distributions.Normal(mean_of(pyro), 1.0), obs=y)

    guide = pyro_ngvi.NaturalGaussianGuide(model)
    svi = pyro.infer.SVI(model, guide, pyro_ngvi.BLR(), pyro_ngvi.NaturalELBO())
    y = torch.tensor(1.0)
    svi.step(y)
    with torch.profiler.profile() as profile:
        svi.step(y)
    return "\n".join(one.key for one in profile.key_averages())


def mean_of(library):
    return library.sample("mean", library.distributions.Normal(0.0, 1.0))


@pytest.mark.fast_in_numpyro("draws")
@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("library", ["numpyro", "pyro"])
def test_a_part_of_a_step_has_a_name(library, label, request):
    assert label in request.getfixturevalue(f"{library}_step")
