"""The scripts of Tan's figures and of its tables of networks, in miniature."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("numpyro")
pytest.importorskip("pyro")
pytest.importorskip("matplotlib")

import jax
import jax.numpy as jnp
from scipy import integrate, optimize

from benchmarks import pages, tan_figure3, tan_table7, tan_table8, tan_table9, tan_table10
from benchmarks.tan_methods import marks_until, path
from examples import deep_glm
from numpyro_ngvi import Snngm
from numpyro_ngvi.families import Diagonal


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a command writes, in place of the documentation."""
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    monkeypatch.setattr(pages, "pages", list)
    return tmp_path


def test_adam_on_natural_gradients_leaves_the_gaussians_as_in_figure_3_and_snngm_does_not():
    *_, run = tan_figure3.exact_numpyro("Adam, natural", "Covariance", 50)
    assert np.isnan(run.bound)
    *_, run = tan_figure3.exact_numpyro("Snngm", "Covariance", 50)
    assert len(run.states) == 50
    assert run.bound > tan_figure3.until_it_is_there(np.array([[2.0, 0.01]])).bound + 1


def test_both_packages_take_as_many_steps_in_figure_3(monkeypatch):
    monkeypatch.setattr(tan_figure3, "STARTS", [(1.05, 0.002)])
    counts = [
        len(run("Snngm", "CovarianceCholesky", 100)[0].states)
        for run in (tan_figure3.exact_numpyro, tan_figure3.exact_pyro)
    ]
    assert 5 < counts[0] == counts[1] < 100


@pytest.mark.slow
def test_the_command_of_figure_3(folder, monkeypatch):
    monkeypatch.setattr("sys.argv", ["", "--exact-steps", "20", "--max-steps", "3"])
    tan_figure3.main()
    assert len(pages.read("tan_figure3.csv")) == 9
    assert len(pages.read("tan_figure3_svi.csv")) == 4
    assert (folder / "tan_figure3.png").exists()


# -- curves ---------------------------------------------------------------------------------------


def test_a_curve_has_the_marks_of_a_logarithmic_axis_and_the_end():
    assert marks_until(100) == [1, 2, 5, 10, 20, 50, 100]
    assert marks_until(30) == [1, 2, 5, 10, 20, 30]


def test_a_path_comes_to_the_same_end_whatever_is_kept_of_it(rng):
    X = jnp.asarray(rng.normal(size=(8, 2)))

    def estimate(q, memory, key, X, y):
        natural = Diagonal(X.mean(0) - q.loc, jax.random.normal(key, (2,)))
        return natural, memory + 1

    start = Diagonal().initial(jnp.zeros(2), 1.0), estimate, X, X[:, 0], 4
    (one, _), (end, count) = path(Snngm(1e-2), *start, [1, 3], 0, 0)
    ((other, _),) = path(Snngm(1e-2), *start, [3], 0, 0)
    assert count == 6  # two minibatches a pass
    np.testing.assert_array_equal(end.loc, other.loc)
    assert not np.allclose(one.loc, end.loc)


@pytest.mark.slow
def test_the_command_of_table_7_writes_the_curves_of_figure_6(folder, monkeypatch):
    monkeypatch.setattr(tan_table7, "NUM_ROWS", 1000)
    monkeypatch.setattr(tan_table7, "BATCH", 500)
    chosen = "--covariances diagonal --dims 50 --epochs 5 --methods Snngm `BLR()`"
    monkeypatch.setattr("sys.argv", ["", *chosen.split()])
    tan_table7.main()
    for row, curve in zip(pages.read("tan_table7.csv"), pages.read("tan_figure6.csv"), strict=True):
        assert curve["5"] == row["below the optimum"]
        assert 0 <= float(curve["5"]) < float(curve["1"])
    assert (folder / "tan_figure6.png").exists()


@pytest.mark.slow
def test_the_command_of_table_8_writes_the_curves_of_figure_7(folder, monkeypatch, rng):
    pd = pytest.importorskip("pandas")
    X = rng.normal(size=(60, 3))
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=(X[:, 0] > 0).astype(int))
    (folder / "logistic").mkdir()
    frame.to_csv(folder / "logistic" / "german_credit_design.csv.gz", index=False)
    monkeypatch.setattr(tan_table8, "PROBLEMS", {"German": (60, 20)})
    chosen = ["--covariances", "full", "--methods", "Snngm", "`BLR()`"]
    monkeypatch.setattr("sys.argv", ["", "--data-dir", str(folder), *chosen])
    tan_table8.main()
    *firsts, newton = pages.read("tan_table8.csv")
    *curves, curve = pages.read("tan_figure7.csv")
    assert [row["20"] for row in curves] == [row["below the optimum"] for row in firsts]
    assert curve["30"] == newton["below the optimum"]
    assert list(curve)[4:] == ["1", "2", "5", "10", "20", "30"]  # in order
    assert (folder / "tan_figure7.png").exists()


# -- networks -------------------------------------------------------------------------------------


def _by_row(log_likelihood, theta, X, y):
    """The sum of the squares of rows' gradients, row by row."""
    of_row = jax.vmap(lambda x, y: jax.grad(log_likelihood)(theta, x[None], y[None]))
    return (of_row(X, y) ** 2).sum(0)


def test_squares_of_rows_gradients_by_what_enters_a_layer_and_its_slopes(rng):
    network = tan_table10.Network(2, 3, is_binary=True)
    theta, X = jnp.asarray(rng.normal(size=network.dim)), jnp.asarray(rng.normal(size=(3, 2)))
    y = jnp.array([0.0, 1.0, 1.0])
    taps = jnp.zeros((3, 20)), jnp.zeros((3, 20)), jnp.zeros(3)

    def log_likelihood(theta, X, y, taps=(0.0, 0.0, 0.0)):
        return network.log_likelihood(network.layers(theta, X, taps)[1], y, None)

    @jax.jit
    def both(theta):
        slopes = jax.grad(log_likelihood, 3)(theta, X, y, taps)
        found = network.squares(network.layers(theta, X)[0], slopes)
        return found, _by_row(log_likelihood, theta, X, y)

    found, expected = both(theta)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_squares_of_a_convolutions_rows_are_of_sums_over_places(rng):
    network = tan_table9.LeNet(8, 1, 3, is_full=False)
    theta, y = network.start(0).loc, jnp.array([0, 1, 9])
    x = jnp.asarray(rng.normal(size=(3, 8, 8, 1)))

    def log_likelihood(theta, x, y):
        return network.log_likelihood(theta, x, y, (0.0,) * 5)[0]

    @jax.jit
    def both(theta):
        slopes = jax.grad(network.log_likelihood, 3, has_aux=True)
        slopes, entering = slopes(theta, x, y, network.no_taps(theta, x))
        return network.squares(entering, slopes), _by_row(log_likelihood, theta, x, y)

    found, expected = both(theta)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5 * expected.max())


def test_the_networks_of_table_9_have_the_papers_weights():
    assert tan_table9.LeNet(28, 1, 1, is_full=True).dim == 61_706
    assert tan_table9.LeNet(32, 3, 1, is_full=True).dim == 83_126


def test_the_inputs_part_of_a_deep_glms_bound_is_the_integral_over_tau_at_the_best_gamma(rng):
    network, m = tan_table10.Network(1, 10, is_binary=True), tan_table10.UNITS
    squares = rng.uniform(0.5, 2.0, network.dim)
    squares[-2 * m - 1 :] = 0.0  # without biases
    size = squares[:m].sum()

    def minus(log_gamma):
        rate = 0.5 * math.exp(2 * log_gamma)

        def density(log_tau):
            tau, shape = math.exp(log_tau), (m + 1) / 2
            normal = -0.5 * m * math.log(2 * math.pi * tau) - 0.5 * size / tau
            gamma = shape * (math.log(rate) + log_tau) - rate * tau - math.lgamma(shape)
            return math.exp(normal + gamma + 30.0)

        return 30.0 - math.log(integrate.quad(density, -6, 6)[0])

    of_input = -optimize.minimize_scalar(minus, bounds=(-1, 4), method="bounded").fun
    precision = network.num_shrunk / squares[m : m + network.num_shrunk].sum()
    of_rest = 0.5 * network.num_shrunk * (math.log(precision / (2 * math.pi)) - 1)
    assert network.of_weights(squares) == pytest.approx(of_input + of_rest, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Binary", "Protein"])
def test_the_command_of_table_10(name, folder, monkeypatch, rng):
    (folder / "regression").mkdir()
    X = rng.normal(size=(200, 3))
    np.savez(folder / "regression" / "uci_protein.npz", X=X, y=X @ X[0] + 10)
    size = ["--rows", "200", "--inputs", "6", "--epochs", "3", "--methods", "Snngm", "VOGN", "IVON"]
    monkeypatch.setattr("sys.argv", ["", "--data-dir", str(folder), "--data", name, *size])
    tan_table10.main()
    rows = pages.read("tan_table10.csv")
    assert [row["method"] for row in rows] == ["Snngm", "VOGN", "IVON"]
    assert all(np.isfinite(float(row["bound"])) for row in rows)
    assert (folder / "tan_table10.png").exists()


def test_an_input_is_told_apart_if_its_gamma_is_below_those_of_all_that_do_not_matter():
    gamma = np.array([1.0, 1.0, 7.0, 1.0, 1.0, 5.0, 9.0])
    assert deep_glm.RELEVANT["binary"] == 5
    assert tan_table10.told_apart("Binary", gamma) == "4 of 5"


@pytest.mark.slow
def test_the_command_of_table_9(folder, monkeypatch, rng):
    import io

    from PIL import Image

    images = rng.integers(0, 255, (300, 28, 28), dtype=np.uint8)
    coloured = rng.integers(0, 255, (300, 32, 32, 3), dtype=np.uint8)
    labels, files = rng.integers(0, 10, 300), []
    for image in coloured:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG")
        files.append(np.frombuffer(file.getvalue(), np.uint8))
    offsets, whole = np.cumsum([0, *map(len, files)]), np.concatenate(files)
    parts = {"train": (images, labels), "test": (images[:9], labels[:9])}
    (folder / "images").mkdir()
    of_mnist = {f"{k}_{p}": v for p, xy in parts.items() for k, v in zip("xy", xy, strict=True)}
    np.savez(folder / "images" / "mnist.npz", **of_mnist)
    of_cifar = {f"jpeg_{p}": whole for p in parts} | {f"offsets_{p}": offsets for p in parts}
    of_cifar |= {f"y_{p}": labels for p in parts}
    np.savez(folder / "images" / "cifar10_jpeg.npz", **of_cifar)
    size = ["--rows", "256", "--epochs", "2", "--methods", "Snngm", "VOGN"]
    monkeypatch.setattr("sys.argv", ["", "--data-dir", str(folder), *size])
    tan_table9.main()
    rows = pages.read("tan_table9.csv")
    assert [row["data"] for row in rows] == ["MNIST", "MNIST", "CIFAR-10", "CIFAR-10"]
    assert all(np.isfinite(float(row["bound"])) for row in rows)
    assert (folder / "tan_table9.png").exists()
