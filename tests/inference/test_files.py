"""Files of results: written whole or not at all, and read without pickle."""

from __future__ import annotations

import io
import os
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
import zipfile

import numpy as np
import pytest

from ngvi.errors import DamagedFileError
from ngvi.inference.saved import files
from ngvi.inference.saved.checkpoint import Checkpoint
from tests.inference.results import conjugate_result


def test_nothing_is_pickled():
    with pytest.raises(TypeError, match="'x' holds objects"):
        files.packed({}, {"x": np.array([object()])})


def test_a_save_that_is_killed_leaves_the_file_before(tmp_path):
    """Kill -9 while one process writes two files in turn, of which each is whole or not there."""
    path = tmp_path / "file"
    code = (
        "import sys, numpy as np\n"
        "from ngvi.inference.saved import files\n"
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
    for act in (lambda: files.write(pipe, b""), lambda: Checkpoint(pipe)):
        with pytest.raises(ValueError, match="is a device, a pipe or a socket. Choose another"):
            act()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        files.write(tmp_path, b"")


def test_a_changed_bit_is_seen_or_changes_nothing():
    rng, x = np.random.default_rng(0), np.arange(9.0)
    content, seen = files.packed({"x": 1}, {"y": x}), 0
    for bit in rng.choice(8 * len(content), 300, replace=False):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            with files.whole("name", "is damaged"):
                meta, arrays = files.unpacked(bytes(changed))
                assert meta == {"x": 1} and arrays["y"].tobytes() == x.tobytes()
        except DamagedFileError:
            seen += 1
    assert seen > 200


def test_a_file_that_claims_to_be_large_takes_no_memory():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(10**6))
    with pytest.raises(ValueError, match="more than it has bytes"):
        files.unpacked(file)
    array = io.BytesIO()
    np.save(array, np.arange(3))
    for shape in (b"(9,), ", b"(3, 9)"):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x.npy", array.getvalue().replace(b"(3,), ", shape))
        with pytest.raises(ValueError, match="an array claims to be int64"):
            files.unpacked(file)


def test_a_huge_file_with_nothing_in_it_is_refused_unread(ppl, tmp_path):
    one, path = conjugate_result(ppl), tmp_path / "file"
    one.save(path)
    os.truncate(path, 2**31)
    tracemalloc.start()
    with pytest.raises(DamagedFileError, match="is damaged"):
        type(one).load(path, one.model)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24
