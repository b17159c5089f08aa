"""A run that is killed anywhere and goes on from its checkpoint takes the way of a whole one."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ngvi.inference import run, store
from ngvi.inference.journal import Journal
from ngvi.inference.settings import Settings
from ngvi.inference.sweep import Rows
from tests.inference.numpy_engine import Target

CENTRE, SCALE = np.array([2.0, -1.0]), np.array([0.3, 2.0])


class Killed(BaseException):
    """What no handler of a fit expects."""


@dataclasses.dataclass
class Mortal(Target):
    """A target that dies at one of its answers."""

    dies_at: float = np.inf
    answers: int = 0

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in ("measure", "measure_values", "values_and_gradients", "values"):
            return found

        def answered(*args):
            self.answers += 1
            if self.answers > self.dies_at:
                raise Killed
            return found(*args)

        answered.__name__ = name
        return answered


@dataclasses.dataclass
class Swept(Mortal):
    """One whose answers depend on the rows that it sees."""

    def measure(self, place, draws, rows):
        measured = Target.measure(self, place, draws)
        return measured._replace(values=measured.values + rows.mean())

    def values(self, place, theta, rows):
        return Target.values(self, place, theta) + rows[0]

    def values_and_gradients(self, place, theta, rows):
        return Target.values_and_gradients(self, place, theta)


TARGETS = {
    "plain": (Mortal, {}),
    "noise": (Mortal, {"noise": 0.4}),
    "two modes": (Mortal, {"others": ((-CENTRE, 2.0),), "of_prior": (0.0, 3.0)}),
    "own parameter": (Mortal, {"of_ordinary": lambda x: (-((x - 1.0) ** 2), -2 * (x - 1.0))}),
    "jump": (Mortal, {"step": lambda theta: 3.0 * (theta[:, 0] > 2.0)}),
    "dear groups": (Mortal, {"is_dear": True, "noise": 0.4}),
    "minibatches": (Mortal, {"is_subsampled": True, "noise": 0.3}),
    "sweep": (Swept, {"rows": Rows("data", 7, 2)}),
}


def made(name, **options):
    kind, fixed = TARGETS[name]
    return kind(centre=CENTRE, scale=SCALE, **fixed, **options)


def searched(target, path=None, max_steps=60, seed=0, **options):
    """The outcome, and how often the model was asked."""
    journal = None if path is None else Journal(path, "tests", [seed])
    seeds = [seed] if journal is None else journal.seeds
    rng, settings = np.random.default_rng(seeds), Settings(0.05, max_steps, **options)
    return run.search(target.engine(), rng, settings, False, None, journal)


def way(outcome):
    """All that a fit says of itself, to the last bit."""
    place = outcome.place
    numbers = np.concatenate([place.loc, place.log_scale, [place.ordinary]])
    return numbers.tobytes(), str(outcome.trace), outcome.reason, outcome.audit, outcome.starts


#: By values alone, thousands of draws for every step: some seconds.
LONG = ("jump",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in TARGETS],
)
def test_a_run_killed_anywhere_takes_the_same_way(name, tmp_path):
    whole = made(name)
    expected = way(searched(whole))
    path = tmp_path / "file"
    for dies_at in sorted({0, 1, 2, 3, whole.answers // 2, whole.answers - 1}):
        path.unlink(missing_ok=True)
        with pytest.raises(Killed):
            searched(made(name, dies_at=dies_at), path)
        again = made(name)
        assert way(searched(again, path)) == expected
        # One question is made of several in a sweep, and where values answer it: they are asked
        # again if it was not over. Of the others only the first is: is it the same model?
        if name not in ("sweep", "jump"):
            assert again.answers == whole.answers - dies_at + (dies_at > 0)
        elif dies_at >= whole.answers // 2:
            assert again.answers < whole.answers
        assert (again.num_gradients, again.num_values) == (whole.num_gradients, whole.num_values)


def test_a_run_that_is_killed_again_and_again_arrives(tmp_path):
    expected = way(searched(made("noise")))
    for _ in range(1000):
        try:
            # One answer more in each life, besides the check.
            assert way(searched(made("noise", dies_at=2), tmp_path / "file", seed=0)) == expected
            return
        except Killed:
            pass
    pytest.fail("it never arrived")


def test_an_ended_run_is_not_run_again(tmp_path):
    expected = way(searched(made("two modes"), tmp_path / "file"))
    again = made("two modes", dies_at=1)
    assert way(searched(again, tmp_path / "file", seed=5)) == expected  # seeds are the file's


def test_a_run_goes_on_with_more_steps(tmp_path):
    """As if it had been given them at first, but for what it had asked at its end."""
    long = made("noise")
    expected = way(searched(long, max_steps=60))
    searched(made("noise"), tmp_path / "file", max_steps=4)
    again = made("noise")
    assert way(searched(again, tmp_path / "file", max_steps=60)) == expected
    assert again.answers < long.answers


@pytest.mark.parametrize("lost", [1, 13, 200])
def test_a_record_that_is_not_whole_is_dropped(lost, tmp_path):
    expected, path = way(searched(made("plain"))), tmp_path / "file"
    searched(made("plain"), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-lost])
    assert way(searched(made("plain"), path)) == expected
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-lost] + bytes([whole[-lost] ^ 1]) + whole[len(whole) - lost + 1 :])
    assert way(searched(made("plain"), path)) == expected


def test_files_of_something_else_are_refused_and_kept(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"my thesis")
    with pytest.raises(ValueError, match="is no checkpoint.*Choose another name"):
        Journal(path, "tests", [0])
    assert path.read_bytes() == b"my thesis"
    with pytest.raises(FileNotFoundError, match="folder that does not exist"):
        Journal(tmp_path / "no" / "file", "tests", [0])
    with pytest.raises((FileNotFoundError, IsADirectoryError), match="folder|directory"):
        Journal(tmp_path, "tests", [0])


def test_a_checkpoint_of_another_fit_is_refused_and_kept(tmp_path):
    path = tmp_path / "file"
    searched(made("plain"), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="another rng_key="):
        Journal(path, "tests", [1], keeps_seeds=True)
    with pytest.raises(ValueError, match="no checkpoint of this version of others"):
        Journal(path, "others", [0])
    with pytest.raises(ValueError, match=r"answers differently to the first question"):
        searched(dataclasses.replace(made("plain"), scale=2 * SCALE), path)
    with pytest.raises(ValueError, match="other shapes or another precision"):
        searched(Mortal(centre=np.zeros(3), scale=np.ones(3)), path)
    assert path.read_bytes() == before


# -- files ------------------------------------------------------------------------------


def test_a_file_holds_arrays_and_text(tmp_path):
    arrays = {"x": np.array(np.nan, np.float32), "a/b": np.arange(6)[::2], "": np.zeros((0, 2))}
    meta = {"name": "β", "bound": -np.inf}
    store.write(tmp_path / "file", store.packed(meta, arrays))
    found, same = store.unpacked((tmp_path / "file").read_bytes())
    assert found == meta and same.keys() == arrays.keys()
    for name, array in arrays.items():
        assert same[name].dtype == array.dtype
        np.testing.assert_array_equal(same[name], array)


def test_nothing_is_pickled():
    with pytest.raises(TypeError, match="'x' holds objects"):
        store.packed({}, {"x": np.array([object()])})


def test_arguments_keep_their_kinds():
    written = store.Written(lambda value: None)
    value = ({"x": [1, None, True, "text"], "y": np.arange(3)}, np.float32(0.5), (), {})
    tree = written.of(value, "arguments")
    found = store.read(tree, written.arrays, None)
    assert str(found) == str(({**value[0]}, np.array(0.5, np.float32), (), {}))
    for bad, where in ((object(), "3 is"), ({1: 2}, "3 is"), ([1, {2}], r"3\[1\] is a set")):
        with pytest.raises(TypeError, match=f"argument {where}.*data=False"):
            written.of(bad, "argument 3")


def test_a_save_that_is_killed_leaves_the_file_before(tmp_path):
    """Kill -9 while one process writes two files in turn, of which each is whole or not there."""
    path = tmp_path / "file"
    code = (
        "import sys, numpy as np\n"
        "from ngvi.inference import store\n"
        "for i in range(10**6):\n"
        "    store.write(sys.argv[1], store.packed({'i': i}, {'x': np.full(200_000, i)}))\n"
    )
    for wait in (0.0, 0.003, 0.011):
        with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
            path.unlink(missing_ok=True)
            while not path.exists():
                time.sleep(0.001)
            time.sleep(wait)
            os.kill(process.pid, signal.SIGKILL)
        meta, arrays = store.unpacked(path.read_bytes())
        assert (arrays["x"] == meta["i"]).all() and len(arrays["x"]) == 200_000


def test_a_save_that_fails_leaves_the_file_before_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    store.write(path, b"before")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(store, "on_disk", full)
    with pytest.raises(OSError, match="no space"):
        store.write(path, b"after")
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["file"]
