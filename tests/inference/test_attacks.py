"""What befalls a checkpoint and a result from outside: at most a word, and never other numbers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
import warnings

import numpy as np
import pytest

from ngvi.errors import DamagedFileError
from ngvi.inference import files, records
from ngvi.inference.checkpoint import Checkpoint
from tests.inference.results import conjugate_result
from tests.inference.test_checkpoint import TARGETS, Killed, Mortal, gaussian, made, searched, way
from tests.ppl import SLOW_IN_NUMPYRO

resource = pytest.importorskip("resource")


@dataclasses.dataclass
class Attacked(Mortal):
    """A target at one of whose answers something happens."""

    attack: object = None
    moment: int = 3

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in ("bound", "gradient", "log_density"):
            return found

        def answered(*args):
            if self.answers == self.moment:
                self.attack()
            return found(*args)

        return answered


def attacked(path, attack, moment=3):
    options = {"smooth": gaussian, **TARGETS["two modes"]}
    return way(searched(Attacked(**options, attack=attack, moment=moment), path))


@pytest.fixture(scope="module")
def expected():
    return way(searched(made("two modes")))


def limited(kind, most):
    """Lets the process have no more of something."""
    return lambda path: resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def replaced_by(make):
    def attack(path):
        path.unlink()
        make(path)

    return attack


ATTACKS = {
    "deleted": lambda path: path.unlink(),
    "its folder deleted": lambda path: shutil.rmtree(path.parent),
    "a pipe": replaced_by(os.mkfifo),
    "a folder": replaced_by(os.mkdir),
    "emptied": lambda path: os.truncate(path, 0),
    "overwritten": lambda path: path.write_bytes(b"x" * 100),
    "small files only": limited(resource.RLIMIT_FSIZE, 3000),
    "no files": limited(resource.RLIMIT_NOFILE, 3),
    "elsewhere": lambda path: os.chdir("/"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("moment", [3, 23])
def test_what_becomes_of_the_file_costs_a_fit_a_word_at_most(
    attack, moment, expected, tmp_path, monkeypatch
):
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    kinds = (resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
    before = [(kind, resource.getrlimit(kind)) for kind in kinds]
    path = (tmp_path / "folder" / "file").relative_to(tmp_path)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = attacked(path, lambda: attack(tmp_path / path), moment)
    finally:
        for kind, limit in before:
            resource.setrlimit(kind, limit)
    assert found == expected
    assert all("file' cannot be written" in str(one.message) for one in told) and len(told) <= 1


def test_two_fits_of_one_process_do_not_share_a_checkpoint(expected, tmp_path):
    """Nor lets one go of it where somebody else reads the file."""
    path = tmp_path / "file"

    def attack():
        path.read_bytes()
        with pytest.raises(ValueError, match="is being written by another fit, in this or another"):
            searched(made("two modes"), path)

    assert attacked(path, attack) == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_forked_child_keeps_nobody_from_the_checkpoint(tmp_path):
    """One that is still there when its parent is no more, as workers that read data are."""
    path = tmp_path / "file"
    reads, writes = os.pipe()
    with Checkpoint(path, "tests", [0]) as checkpoint:
        child = os.fork()
        if not child:
            checkpoint.close()
            os.write(writes, b"!")
            time.sleep(60)
            os._exit(0)
    try:
        assert os.read(reads, 1)
        Checkpoint(path, "tests", [0]).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_file_that_ends_anywhere_or_lacks_a_record_gives_the_same_numbers(tmp_path):
    expected, path = way(searched(made("noise"))), tmp_path / "file"
    with pytest.raises(Killed):  # before it has noted an optimum
        searched(made("noise", dies_at=15), path)
    whole, ends = path.read_bytes(), []
    with path.open("rb") as file:
        file.readline()
        ends += [file.tell() for _ in records.contents(file)]
    assert len(ends) > 5
    spans = list(itertools.pairwise(ends))
    changed = [whole[: end + more] for end in ends for more in (0, 1, 28)]
    changed += [whole[:a] + whole[b:] for a, b in spans]  # one is missing
    changed += [whole[:b] + whole[a:] for a, b in spans]  # one is there twice
    for content in changed[:: len(changed) // 12]:
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The last .* bytes of checkpoint=")
            assert way(searched(made("noise"), path)) == expected


def test_a_fit_that_is_interrupted_anywhere_goes_on(expected, tmp_path):
    path = tmp_path / "file"
    for moment in (1, 5, 15, 30, 42):
        path.unlink(missing_ok=True)
        with contextlib.suppress(KeyboardInterrupt):
            searched(made("two modes", dies_at=moment, dies_of=KeyboardInterrupt), path)
        assert way(searched(made("two modes"), path)) == expected


@SLOW_IN_NUMPYRO
@pytest.mark.filterwarnings("ignore:fit has not converged")
def test_a_fit_after_one_that_ctrl_c_has_ended_is_as_ever(ppl, tmp_path):
    """Wherever that was: in the library, in the PPL, or in the midst of a write."""
    one = conjugate_result(ppl)
    rng, path = np.random.default_rng(), tmp_path / "file"

    def fitted(seconds=None):
        if not ppl.is_numpyro:
            ppl.lib.clear_param_store()
        old = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds or 0.0)
            result = ppl.fit(one.model, *one.args, checkpoint=path, family="full")
        except KeyboardInterrupt:  # before the first step
            return None
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, old)
        return ppl.numpy(result.posterior.mean).tobytes(), result.cost

    began = time.monotonic()
    (numbers, cost), longest = fitted(), time.monotonic() - began
    for seconds in rng.uniform(0.001, longest, 5):
        path.unlink()
        fitted(seconds)
        again = fitted()
        assert again[0] == numbers and again[1].gradients == cost.gradients, seconds


def test_a_long_name_is_a_name(tmp_path):
    path = tmp_path / ("ä" * 127)
    stem = files._stem(path)
    (tmp_path / f"{stem}0123456789abcdef.part").write_bytes(b"half")
    files.write(path, b"whole")
    assert path.read_bytes() == b"whole" and os.listdir(tmp_path) == [path.name]


def test_a_huge_file_with_nothing_in_it_is_refused_unread(ppl, tmp_path):
    one, path = conjugate_result(ppl), tmp_path / "file"
    one.save(path)
    os.truncate(path, 2**31)
    tracemalloc.start()
    with pytest.raises(DamagedFileError, match="checksum is missing"):
        type(one).load(path, one.model)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24
    path.write_bytes(b"")
    os.truncate(path, 2**31)
    with pytest.raises(DamagedFileError, match="is no checkpoint"):
        Checkpoint(path, "tests", [0])


@pytest.mark.slow  # where two threads get no two cores they wait for each other
@pytest.mark.filterwarnings("ignore:fit has not converged")
def test_on_two_threads_a_fit_goes_on_to_the_same_bits_and_after_one_thread_to_the_same_posterior(
    tmp_path,
):
    """Of torch: XLA has as many as there are cores."""
    torch, pyro = pytest.importorskip("torch"), pytest.importorskip("pyro")
    from pyro_ngvi import fit

    y = torch.tensor(np.random.default_rng(0).standard_normal(5000))  # enough to be divided

    def model(y):
        mean = pyro.sample("mean", pyro.distributions.Normal(y.new_zeros(()), 10.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", pyro.distributions.StudentT(5.0, mean, 1.0), obs=y)

    def die(step, *_):
        if step == 2:
            raise Killed

    def fitted(threads, **options):
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        torch.set_num_threads(threads)
        return fit(
            model, y, effort="quick", max_steps=3, progress_bar=False, **options
        ).posterior.mean

    def gone_on(one, other):
        path = tmp_path / f"{one}{other}"
        with pytest.raises(Killed):
            fitted(one, checkpoint=path, callback=die)
        return fitted(other, checkpoint=path)

    before = torch.get_num_threads()
    try:
        whole = fitted(2)
        assert torch.equal(gone_on(2, 2), whole)
        torch.testing.assert_close(gone_on(1, 2), whole, rtol=0.0, atol=1e-6)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_arguments_come_back_to_the_second_of_two_devices_where_there_are_two(tmp_path):
    pytest.importorskip("numpyro")
    code = """
import sys, jax, numpy as np, numpyro, numpyro.distributions as dist
from numpyro_ngvi import FitResult, fit

def model(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

if len(jax.devices()) == 2:
    y = jax.device_put(np.arange(3.0), jax.devices()[1])
    fit(model, y, effort="quick", progress_bar=False).save(sys.argv[1])
place = sys.argv[2] if len(sys.argv) == 3 else None
result = FitResult.load(sys.argv[1], model, **({} if place is None else {"device": place}))
(place,) = result.args[0].devices()
print(place.id, float(result.sample(3)["mean"].mean()) > 0)
"""
    for count, place, expected in ((2, [], 1), (2, ["cpu:0"], 0), (1, [], 0)):
        options = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
        found = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "file"), *place],
            env={**os.environ, **options},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        assert found.stdout.splitlines()[-1] == f"{expected} True"
