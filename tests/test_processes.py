"""``fit`` in other processes and threads, however they are started."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading

import pytest

from tests.ppl import SLOW_IN_NUMPYRO
from tests.processes import check, fitted

#: Of NumPyro each process compiles anew; and a process in which JAX has run must not be forked.
WAYS = [
    pytest.param("pyro", "fork", marks=pytest.mark.skipif(os.name != "posix", reason="a fork")),
    *(
        pytest.param(*pair, marks=pytest.mark.slow)
        for pair in (
            ("pyro", "forkserver"),
            ("pyro", "spawn"),
            ("numpyro", "forkserver"),
            ("numpyro", "spawn"),
        )
    ),
]


@pytest.mark.parametrize(("name", "way"), WAYS)
def test_a_pool_of_processes_fits(name, way):
    pytest.importorskip(name)
    with multiprocessing.get_context(way).Pool(2) as pool:
        check(pool.starmap_async(fitted, [(name, 0.0), (name, 1.0)]).get(timeout=300))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["numpyro", "pyro"])
def test_joblib_fits_in_processes_and_in_threads(name):
    joblib = pytest.importorskip("joblib")
    pytest.importorskip(name)
    for backend in ("loky", "threading"):
        parallel = joblib.Parallel(2, backend=backend)
        check(parallel(joblib.delayed(fitted)(name, shift) for shift in (0.0, 1.0)))


@SLOW_IN_NUMPYRO
def test_a_server_fits_in_its_threads(ppl):
    """The loop goes on meanwhile."""

    async def served():
        ticks, jobs = 0, [asyncio.to_thread(fitted, ppl.name, shift) for shift in (0.0, 1.0)]
        both = asyncio.gather(*jobs)
        while not both.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return ticks, await both

    ticks, found = asyncio.run(served())
    check(found)
    assert ticks > 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_process_forked_while_a_thread_is_in_the_midst_of_a_fit_fits_alike():
    """In the midst of a run of the model, with handlers on the stack."""
    pyro = pytest.importorskip("pyro")
    import torch

    from pyro_ngvi import fit

    inside, may_go_on = threading.Event(), threading.Event()

    def model(y, waits):
        mean = pyro.sample("mean", pyro.distributions.Normal(torch.zeros(()), 10.0))
        if waits:
            inside.set()
            may_go_on.wait(60)
        pyro.sample("y", pyro.distributions.Normal(mean, 1.0), obs=y)

    def mean_of(waits):
        pyro.set_rng_seed(0)
        result = fit(model, torch.tensor(1.0), waits, progress_bar=False, effort="quick")
        return float(result.posterior.mean[0])

    expected, checks = mean_of(False), pyro.settings.get()
    thread = threading.Thread(target=mean_of, args=(True,))
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(60)  # it would wait for ever
        is_alike = mean_of(False) == expected and pyro.settings.get() == checks
        os._exit(0 if is_alike else 1)
    may_go_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
