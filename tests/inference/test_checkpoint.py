"""A run that is killed anywhere and goes on from its checkpoint takes the way of a whole one."""

from __future__ import annotations

import dataclasses
import errno
import io
import math
import os
import signal
import stat
import subprocess
import sys
import time
import zipfile
from contextlib import nullcontext
from io import FileIO

import numpy as np
import pytest

from ngvi.errors import DamagedFileError
from ngvi.inference import api, files, records
from ngvi.inference.checkpoint import Checkpoint
from ngvi.inference.options import FitOptions, MultiStartOptions
from ngvi.inference.problem import Rows
from ngvi.inference.request import Request
from tests.inference.numpy_problem import CENTRE, SCALE, Target, correlated, gaussian, mixture


class Killed(BaseException):
    """What no handler of a fit expects."""


@dataclasses.dataclass
class Mortal(Target):
    """A target that dies at one of its answers."""

    dies_at: float = np.inf
    answers: int = 0
    dies_of: type = Killed

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in ("bound", "gradient", "log_density"):
            return found

        def answered(*args):
            self.answers += 1
            if self.answers > self.dies_at:
                raise self.dies_of
            return found(*args)

        return answered


def of_rows(theta, rows):
    return -0.05 * (theta[:, :1] - rows) ** 2


TARGETS = {
    "plain": {},
    "noise": {"noise": 0.4},
    "two modes": {
        "smooth": mixture((0.3, CENTRE, SCALE), (0.7, -CENTRE, SCALE)),
        "of_prior": (0.0, 3.0),
    },
    "many modes": {
        "smooth": lambda theta: gaussian(theta, scale=4 * SCALE) + 3 * np.cos(2 * theta).sum(1),
        "of_prior": (0.0, 3.0),
    },
    "own parameter": {
        "smooth": lambda theta, own: gaussian(theta) - (own[0] - 1.0) ** 2,
        "own": np.zeros(1),
    },
    "jump": {"unseen": lambda theta: 3.0 * (theta[:, 0] > 2.0)},
    "expensive groups": {"smooth": correlated, "is_expensive": True, "noise": 0.4},
    "minibatches": {"is_subsampled": True, "noise": 0.3},
    "pass": {"rows": Rows("data", 7, 2), "of_rows": of_rows},
}


def made(name, **options):
    return Mortal(**{"smooth": gaussian, **TARGETS[name], **options})


def searched(
    target, path=None, max_steps=60, seed=0, facts=None, tolerance=0.05, options=None, **limits
):
    """The outcome of a fit of one target."""
    kept = nullcontext() if path is None else Checkpoint(path, "tests", [seed], facts)
    request = Request(tolerance, max_steps, options=options or FitOptions(), **limits)
    with kept as checkpoint:
        rng = np.random.default_rng([seed] if path is None else checkpoint.seeds)
        return api.optimise(target.problem(), rng, request, None, checkpoint)


def way(outcome):
    """All that a fit says of itself, to the last bit."""
    state = outcome.optimum.state
    numbers = np.concatenate([state.mean, state.log_scale, state.own])
    return (
        numbers.tobytes(),
        str(outcome.optimum.trace),
        outcome.verdict,
        str(outcome.optimum.validation),
        str(outcome.restarts(0.1)),
    )


def has_noted(path):
    """Whether a file has dropped the answers that led to an optimum."""
    with Checkpoint(path, "tests", [0]) as checkpoint:
        return checkpoint.noted is not None


#: Many starts take some seconds.
LONG = ("many modes",)


def targets(names):
    return pytest.mark.parametrize(
        "name",
        [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in names],
    )


@targets(TARGETS)
def test_a_run_killed_anywhere_takes_the_same_way(name, tmp_path):
    whole = made(name)
    expected = way(searched(whole))
    path = tmp_path / "file"
    for dies_at in sorted({0, 1, 2, whole.answers // 2, whole.answers - 1}):
        path.unlink(missing_ok=True)
        with pytest.raises(Killed):
            searched(made(name, dies_at=dies_at), path)
        again = made(name)
        assert way(searched(again, path)) == expected
        # One question is made of several in a pass, and where values answer it: they are asked
        # again if it was not over. Of the others only the first is: is it the same model?
        if name not in ("pass", "jump"):
            asked_again = again.answers - (whole.answers - dies_at)
            assert asked_again in (0, 1) and (asked_again or not dies_at or has_noted(path))
        elif dies_at >= whole.answers // 2:
            assert again.answers < whole.answers
        assert again.cost == whole.cost


@targets(["two modes", "many modes", "own parameter"])
def test_at_an_optimum_what_led_there_is_dropped_and_the_way_is_the_same(name, tmp_path):
    """A kill in each round of the search for other optima, and before its first answer."""
    options = {"options": FitOptions(multi_start=MultiStartOptions(unseen=0.0))}
    options["time_limit"] = 1e6 if name == "two modes" else math.inf  # it is checked before
    whole, path = made(name), tmp_path / "file"
    expected = way(searched(whole, **options))
    for dies_at in np.linspace(0.4, 1.0, 4) * whole.answers:
        path.unlink(missing_ok=True)
        with pytest.raises(Killed):
            searched(made(name, dies_at=int(dies_at) - 1), path, **options)
        again = made(name)
        assert way(searched(again, path, **options)) == expected
        assert again.cost == whole.cost
    assert has_noted(path)
    size = path.stat().st_size
    with pytest.raises(ValueError, match="dropped the answers.*: tolerance= was 0.05, and is 0.01"):
        searched(made(name), path, **options, tolerance=0.01)
    assert path.stat().st_size == size


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
    searched(made("noise"), tmp_path / "file", max_steps=2)
    again = made("noise")
    assert way(searched(again, tmp_path / "file", max_steps=60)) == expected
    assert again.answers < long.answers


@pytest.mark.parametrize("lost", [1, 13, 200])
def test_a_record_that_is_not_whole_is_dropped(lost, tmp_path):
    expected, path = way(searched(made("plain"))), tmp_path / "file"
    searched(made("plain"), path)
    whole = path.read_bytes()
    changed = bytes([whole[-lost] ^ 1]) + whole[len(whole) - lost + 1 :]
    for end in (b"", bytes(4096), changed):
        path.write_bytes(whole[:-lost] + end)
        with pytest.warns(UserWarning, match="bytes of checkpoint='.*file' are not whole"):
            assert way(searched(made("plain"), path)) == expected
        assert path.read_bytes() == whole


def test_files_of_something_else_are_refused_and_kept(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"my thesis")
    with pytest.raises(ValueError, match="is no checkpoint.*Choose another name"):
        Checkpoint(path, "tests", [0])
    assert path.read_bytes() == b"my thesis"
    with pytest.raises(FileNotFoundError, match="folder that does not exist"):
        Checkpoint(tmp_path / "no" / "file", "tests", [0])
    with pytest.raises((FileNotFoundError, IsADirectoryError), match="folder|directory"):
        Checkpoint(tmp_path, "tests", [0])


def test_a_checkpoint_of_another_fit_is_refused_and_kept(tmp_path):
    path = tmp_path / "file"
    searched(made("plain"), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="another rng_key="):
        Checkpoint(path, "tests", [1], keeps_seeds=True)
    with pytest.raises(ValueError, match="no checkpoint of this version of others"):
        Checkpoint(path, "others", [0])
    with pytest.raises(ValueError, match=r"answers differently to the first question"):
        searched(made("plain", smooth=lambda theta: gaussian(theta, scale=2 * SCALE)), path)
    with pytest.raises(ValueError, match="other shapes or another precision"):
        searched(made("plain", dim=3), path)
    assert path.read_bytes() == before


# -- files ------------------------------------------------------------------------------


def test_a_file_holds_arrays_and_text(tmp_path):
    arrays = {"x": np.array(np.nan, np.float32), "a/b": np.arange(6)[::2], "": np.zeros((0, 2))}
    meta = {"name": "β", "bound": -np.inf}
    files.write(tmp_path / "file", files.packed(meta, arrays))
    found, same = files.unpacked((tmp_path / "file").read_bytes())
    assert found == meta and same.keys() == arrays.keys()
    for name, array in arrays.items():
        assert same[name].dtype == array.dtype
        np.testing.assert_array_equal(same[name], array)


def test_nothing_is_pickled():
    with pytest.raises(TypeError, match="'x' holds objects"):
        files.packed({}, {"x": np.array([object()])})


def test_a_save_that_is_killed_leaves_the_file_before(tmp_path):
    """Kill -9 while one process writes two files in turn, of which each is whole or not there."""
    path = tmp_path / "file"
    code = (
        "import sys, numpy as np\n"
        "from ngvi.inference import files\n"
        "for i in range(10**6):\n"
        "    files.write(sys.argv[1], files.packed({'i': i}, {'x': np.full(200_000, i)}))\n"
    )
    for wait in (0.0, 0.003, 0.011):
        with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
            path.unlink(missing_ok=True)
            while not path.exists():
                time.sleep(0.001)
            time.sleep(wait)
            os.kill(process.pid, signal.SIGKILL)
        meta, arrays = files.unpacked(path.read_bytes())
        assert (arrays["x"] == meta["i"]).all() and len(arrays["x"]) == 200_000


def test_a_save_that_fails_leaves_the_file_before_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    files.write(path, b"before")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(files, "on_disk", full)
    with pytest.raises(OSError, match="no space"):
        files.write(path, b"after")
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["file"]


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_keeps_its_mode_and_links_are_followed(tmp_path):
    (tmp_path / "store").mkdir()
    path, link = tmp_path / "store" / "file", tmp_path / "link"
    link.symlink_to(path)
    files.write(link, b"new")  # where the link points to, though it is not there yet
    path.chmod(0o640)
    files.write(link, b"newer")
    assert link.is_symlink() and path.read_bytes() == b"newer" and mode(path) == 0o640
    assert os.listdir(tmp_path / "store") == ["file"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are pipes")
def test_only_regular_files_are_replaced_or_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for act in (lambda: files.write(pipe, b""), lambda: Checkpoint(pipe, "tests", [0])):
        with pytest.raises(ValueError, match="is a device, a pipe or a socket. Choose another"):
            act()
    with pytest.raises(ValueError, match="no regular file"):
        files.beginning(pipe, 9)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        files.write(tmp_path, b"")


def test_what_a_killed_process_left_is_removed_and_what_another_writes_is_not(tmp_path):
    path = tmp_path / "file"
    others = [tmp_path / f".{name}.part" for name in ("file.mine", "other.0123456789abcdef")]
    for other in others:
        other.write_bytes(b"")
    (tmp_path / ".file.0123456789abcdef.part").write_bytes(b"half")
    part, going_on = files._beside(path)
    with going_on:
        files.write(path, b"whole")
        assert sorted(os.listdir(tmp_path)) == sorted(
            ["file", part.name, *(other.name for other in others)]
        )
    files.write(path, b"whole")
    assert not part.exists()


def test_a_changed_bit_anywhere_is_seen():
    rng, content = np.random.default_rng(0), files.packed({"x": 1}, {"y": np.arange(9.0)})
    for bit in rng.choice(8 * len(content), 300, replace=False):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        is_told = pytest.raises(DamagedFileError, match="'name' is damaged: its checksum")
        with is_told, files.whole("name", "is damaged"):
            files.unpacked(bytes(changed))


def test_a_file_that_claims_to_be_large_takes_no_memory():
    """With a checksum that is right: somebody made it."""

    def sealed(body):
        return body + files._comment(body)

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(10**6))
    with pytest.raises(ValueError, match="more than it has bytes"):
        files.unpacked(sealed(file.getvalue()[:-2]))
    array = io.BytesIO()
    np.save(array, np.arange(3))
    for shape in (b"(9,), ", b"(3, 9)"):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", array.getvalue().replace(b"(3,), ", shape))
        with pytest.raises(ValueError, match="an array claims to be int64"):
            files.unpacked(sealed(file.getvalue()[:-2]))
    record = records.record({}, {"x": np.arange(3)})[records.HEAD :]
    assert records.read(record)[1]["x"].tolist() == [0, 1, 2]
    for shape in (b"[9]", b"[-1]", b"[3, 10000000000]"):
        with pytest.raises(ValueError, match="claims to be"):
            records.read(record.replace(b"[3]", shape))


# -- disks and other processes -------------------------------------------------------------


def test_a_full_disk_costs_a_word_and_nothing_else(tmp_path, monkeypatch):
    """A disk that is full for a time, in the midst of records, and at the head."""
    expected, whole = way(searched(made("plain"), tmp_path / "whole")), tmp_path / "whole"

    class Full(FileIO):
        room = 0

        def write(self, content):
            Full.room -= 1
            if -5 < Full.room < 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(content[: max(1, len(content) // 2)])

    def opened(path, *args, **options):
        return Full(path, "r+b")

    monkeypatch.setattr("ngvi.inference.checkpoint.open", opened, raising=False)
    for room in (0, 7):
        Full.room, path = room, tmp_path / str(room)
        with pytest.warns(
            UserWarning, match=f"'.*{room}' cannot be written.*No space left"
        ) as told:
            assert way(searched(made("plain"), path)) == expected
        assert len(told) == 1 and path.read_bytes() == whole.read_bytes()


def test_a_checkpoint_that_another_process_writes_is_refused(tmp_path):
    path = tmp_path / "file"
    code = (
        "import sys\nfrom ngvi.inference.checkpoint import Checkpoint\n"
        "with Checkpoint(sys.argv[1], 'tests', [0]):\n    print('open', flush=True)\n    input()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.readline()
        with pytest.raises(
            ValueError, match="is being written by another fit, in this or another process"
        ):
            Checkpoint(path, "tests", [0])
        process.kill()
    Checkpoint(path, "tests", [0]).close()


def test_a_checkpoint_of_another_fit_is_told_by_what_differs(tmp_path):
    path, facts = tmp_path / "file", {"argument 'y'": ["float64 of shape (3,)", "1"]}
    searched(made("plain"), path, facts=facts)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"other data.*: argument 'y' has other values \(float64"):
        searched(made("plain"), path, facts={"argument 'y'": ["float64 of shape (3,)", "2"]})
    assert path.read_bytes() == before
    assert searched(made("plain", dies_at=1), path, facts=facts)


def test_a_damaged_head_is_told_and_the_file_kept(tmp_path):
    path = tmp_path / "file"
    searched(made("plain"), path)
    whole = path.read_bytes()
    for place in (20, 30, 60, 150):
        damaged = whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match="file' is damaged: delete it to begin anew"):
            Checkpoint(path, "tests", [0])
        assert path.read_bytes() == damaged
    path.write_bytes(whole.replace(b"checkpoint 5", b"checkpoint 3"))
    with pytest.raises(DamagedFileError, match="no checkpoint of this version.*of version 3"):
        Checkpoint(path, "tests", [0])
