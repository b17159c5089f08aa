"""Several processes of ``torch.distributed`` give the posterior of one, and fail together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyro")

#: Measured: 1e-14.
TOLERANCE = 1e-6
RUNS = ("dense", "networks", "sparse", "first order")


def _found(name):
    command = [sys.executable, "-m", "tests.parallel.workers", name]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def same():
    return _found("same")


@pytest.fixture(scope="module")
def failing():
    return _found("failing")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_one_two_and_four_workers_with_unequal_shares_of_the_rows_end_at_the_same_posterior(
    same, name
):
    (alone,), *together = same[name]
    for workers in together:
        for found in workers:
            assert found == workers[0]  # to the bit
        np.testing.assert_allclose(workers[0]["losses"], alone["losses"], TOLERANCE, TOLERANCE)
        assert workers[0]["params"].keys() == alone["params"].keys()
        for key, values in alone["params"].items():
            np.testing.assert_allclose(workers[0]["params"][key], values, TOLERANCE, TOLERANCE)
    assert alone["losses"][0] != alone["losses"][-1]


@pytest.mark.slow
def test_workers_that_torchrun_starts_end_there_as_well(same, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "tests.parallel.workers", "torchrun", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["threads"] == 1  # threads of a process group can abort an ending program
        ((alone,), *_) = same["dense"]
        np.testing.assert_allclose(found["losses"], alone["losses"], TOLERANCE, TOLERANCE)
        for key, values in alone["params"].items():
            np.testing.assert_allclose(found["params"][key], values, TOLERANCE, TOLERANCE)


@pytest.mark.slow
def test_a_workers_products_with_rows_are_as_many_as_its_rows(same):
    """... and what does not depend on rows, which is everybody's, is little beside them."""
    (alone,), *together = same["work"]
    assert all(sum(found["rows"] for found in workers) == alone["rows"] for workers in together)
    found = [alone, *(one for workers in together for one in workers)]
    rows, operations = np.array([(one["rows"], one["operations"]) for one in found]).T
    by_row = np.diff(operations[:2]) / np.diff(rows[:2])
    of_everybody = operations - by_row * rows
    assert np.ptp(of_everybody) == 0
    assert 0 < of_everybody[0] < 0.1 * operations[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["raises", "dies"])
def test_a_worker_that_fails_ends_the_others_within_the_timeout(failing, name):
    first, last = failing[name]
    assert first["error"] == "RuntimeError" and first["seconds"] < 6.0
    assert (last and last["error"]) == ("ValueError" if name == "raises" else None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, words",
    [
        ("whole", "Worker 0 has subsampled plates of sizes {}, and worker 0 of {}"),
        ("other parameters", "Parameter 'intercept' is ((3, 1), torch.float64) for worker 1"),
        ("locals", "not the latents of a subsampled plate"),
        ("low rank", "those of family='low_rank' are not sums"),
    ],
)
def test_models_that_do_not_fit_together_are_refused_on_all_workers(failing, name, words):
    for worker in failing[name]:
        assert worker["error"] == "ValueError"
        assert words in worker["words"]


# -- one process ----------------------------------------------------------------------


@pytest.fixture
def group(tmp_path):
    import torch.distributed

    path = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=path, rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def _model(ppl):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y)

    return model


def test_a_single_worker_is_no_worker(pyro_backend, group):
    from pyro_ngvi.parallel import DataParallel

    ppl, found = pyro_backend, []
    model, y = _model(ppl), ppl.array([1.0, 2.0, 4.0])
    for wrapped in (lambda elbo: elbo, DataParallel):
        ppl.lib.clear_param_store()
        guide = ppl.guide(model)
        for _ in range(2):  # the first call draws a start
            ppl.lib.set_rng_seed(3)
            guide(y)
        elbo = wrapped(ppl.package.NaturalELBO())
        svi = ppl.package.SVI(model, guide, ppl.package.BLR(), elbo)
        losses = [svi.step(y) for _ in range(3)]
        found.append([*losses, svi.evaluate_loss(y), *guide.median().values()])
    assert found[0] == found[1]


def test_without_a_process_group_the_call_that_makes_one_is_named(pyro_backend):
    ppl = pyro_backend
    from pyro_ngvi.parallel import DataParallel

    with pytest.raises(RuntimeError, match="init_process_group"):
        DataParallel(ppl.package.NaturalELBO())


def test_a_gradient_that_workers_cannot_add_up_is_refused(pyro_backend, group):
    ppl = pyro_backend

    model, y = _model(ppl), ppl.array([1.0, 2.0, 4.0])
    with pytest.raises(TypeError, match=r"process_group.*SVI with pyro_ngvi.parallel.DataParallel"):
        ppl.package.fit(model, y, process_group=group)
