"""Rows that are sharded over devices, of one process or of several, give the posterior of one."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numpyro")

from tests.parallel.devices import WATCH

pytestmark = pytest.mark.slow

#: The issue's bar. Measured: 1e-14.
TOLERANCE = 1e-6

COMMAND = [sys.executable, "-m", "tests.parallel.devices"]
ROOT = Path(__file__).parents[2]

#: After so many seconds of silence JAX takes a process for dead.
TIMEOUT = 10


def _runs(*places):
    return [
        subprocess.Popen(
            [*COMMAND, *map(str, place)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for place in places
    ]


def _port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def _found(*places):
    runs = _runs(*places)
    outputs = [run.communicate(timeout=600) for run in runs]
    for run, (_, errors) in zip(runs, outputs, strict=True):
        assert run.returncode == 0, errors[-2000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.fixture(scope="module")
def on_devices():
    return _found(())[0]


@pytest.fixture(scope="module", params=[2, 4])
def on_processes(request):
    port = _port()
    return _found(*((rank, request.param, port) for rank in range(request.param)))


def _assert_same(found, expected):
    for key in ("losses", "params"):
        for left, right in zip(found[key], expected[key], strict=True):
            np.testing.assert_allclose(left, right, TOLERANCE, TOLERANCE)
    assert found.get("words") == expected.get("words")


@pytest.mark.parametrize("name", ["dense", "networks", "locals", "fit"])
def test_one_two_and_four_devices_end_at_the_same_posterior(on_devices, name):
    alone, *together = on_devices[name]
    for found in together:
        _assert_same(found, alone)
    assert alone["losses"][0] != alone["losses"][-1]


def test_a_device_does_its_share_of_a_step_and_moves_no_rows(on_devices):
    alone, found = on_devices["work"]
    assert found["operations"] < 1.02 * alone["operations"] / 4
    assert found["moves"] == 0 and found["reductions"] == 1


@pytest.mark.parametrize("name", ["dense", "fit"])
def test_two_and_four_processes_end_where_one_does(on_devices, on_processes, name):
    for found in on_processes:
        _assert_same(found[name], on_devices[name][0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("processes")


def _end(folder, who, how, kill_after=None, sign=signal.SIGKILL, timeout=TIMEOUT):
    """Two processes of which one ends: exit code, output, seconds after that; of the other, of it.

    They write to files, as one that nobody reads stops at a full pipe, and the other one waits for
    it. What one of them has compiled, all that come after it have.
    """
    port = _port()
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
    outputs = [folder / f"{port}_{rank}.txt" for rank in range(2)]
    places = [(rank, 2, port, timeout, who, how) for rank in range(2)]
    runs = [
        subprocess.Popen(
            [*COMMAND, *map(str, place)],
            cwd=ROOT,
            env=environment,
            stdout=path.open("w"),
            stderr=subprocess.STDOUT,
        )
        for place, path in zip(places, outputs, strict=True)
    ]
    try:
        while not (line := re.search(r"^at ([\d.]+)$", outputs[who].read_text(), re.MULTILINE)):
            assert runs[who].poll() is None, outputs[who].read_text()[-2000:]
            time.sleep(0.05)
        ended = float(line[1])
        if kill_after is not None:
            time.sleep(kill_after)
            ended = time.time()
            runs[who].send_signal(sign)
        found = []
        for rank in (1 - who, who)[: 1 if sign == signal.SIGSTOP else 2]:
            code = runs[rank].wait(120)
            found.append((code, outputs[rank].read_text(), time.time() - ended))
    finally:
        for run in runs:
            run.kill()
    return found


def _needs_a_timeout():
    import jax

    if "heartbeat_timeout_seconds" not in signature(jax.distributed.initialize).parameters:
        pytest.skip("this JAX has a timeout of its own")


def test_a_first_process_that_is_killed_at_any_moment_ends_the_other_at_once(folder):
    """Ten times: the others report to it, and may be in a reduction."""
    rng = np.random.default_rng(int.from_bytes(os.urandom(4), "big"))
    for moment in rng.uniform(0.0, 0.5, size=10):
        (code, errors, seconds), (killed, *_) = _end(folder, 0, "goes on", kill_after=moment)
        assert killed == -signal.SIGKILL, moment
        assert code not in (0, -signal.SIGKILL), moment
        assert seconds < 3 * TIMEOUT, moment
        assert "another task died" in errors or "the first process has not answered" in errors


def test_a_second_process_that_is_killed_ends_the_first_within_its_timeout(folder):
    _needs_a_timeout()
    (code, errors, seconds), _ = _end(folder, 1, "goes on", kill_after=0.1)
    assert code not in (0, -signal.SIGKILL)
    assert seconds < 3 * TIMEOUT
    assert "another task died" in errors


@pytest.mark.parametrize("who", [0, 1])
def test_a_process_that_raises_ends_the_other_and_itself(folder, who):
    """JAX by itself leaves the one at its exit, and the other waiting for it in a reduction."""
    _needs_a_timeout()
    (code, errors, seconds), (own_code, own_errors, own_seconds) = _end(folder, who, "raises")
    assert code not in (0, -signal.SIGKILL) and own_code not in (0, -signal.SIGKILL)
    assert seconds < 3 * TIMEOUT and own_seconds < 4 * TIMEOUT
    assert "ValueError: the rows are spoilt" in own_errors
    words = f"process {1 - who} of 2 ends: process {who} has failed (ValueError: the rows are"
    assert words in errors or (who == 0 and "another task died" in errors)


@pytest.mark.parametrize(
    "how, words", [("exits", "left after 3 of"), ("exits from fit", "midst of")]
)
@pytest.mark.parametrize("who", [0, 1])
def test_a_process_that_leaves_others_waiting_ends_them_and_itself(folder, who, how, words):
    """By ``sys.exit``, which is no exception that anybody hears of."""
    _needs_a_timeout()
    (code, errors, seconds), (_, _, own_seconds) = _end(folder, who, how)
    assert code not in (0, -signal.SIGKILL)
    assert seconds < 3 * TIMEOUT and own_seconds < 4 * TIMEOUT
    assert f"process {1 - who} of 2 ends: process {who} has" in errors and words in errors


def test_a_first_process_that_falls_silent_ends_the_other_before_jax_would(folder):
    """It is stopped, and its connections are open; JAX waits for as many seconds as were given."""
    _needs_a_timeout()
    ((code, errors, seconds),) = _end(folder, 0, "goes on", 1.0, signal.SIGSTOP, timeout=100)
    assert code == 1
    assert seconds < 5 * WATCH
    assert "process 1 of 2 ends: the first process has not answered for" in errors


def test_a_process_that_never_begins_ends_the_other_after_the_timeout_of_the_start():
    """... of ``jax.distributed.initialize``, within which nobody can watch."""
    _needs_a_timeout()
    (run,), began = _runs((0, 2, _port(), TIMEOUT, 1, "begins")), time.monotonic()
    _, errors = run.communicate(timeout=120)
    assert run.returncode not in (0, -signal.SIGKILL)
    assert time.monotonic() - began < 4 * TIMEOUT
    assert "DEADLINE_EXCEEDED" in errors


@pytest.mark.parametrize("who", [0, 1])
def test_a_process_that_leaves_in_good_order_is_no_dead_one(folder, who):
    for code, errors, seconds in _end(folder, who, "leaves"):
        assert code == 0, errors
        assert "numpyro_ngvi:" not in errors
        assert seconds > 5.0  # longer than the watch's own timeout, which is two


def test_what_would_let_processes_decide_differently_is_refused(on_processes):
    for found in on_processes:
        assert found["refused"].startswith("time_limit= is not for data on several processes")


def test_a_process_alone_watches_nobody():
    import threading

    from numpyro_ngvi.parallel import watch_processes

    watch_processes()
    assert "ngvi-watch" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ValueError, match="timeout= is 0, and must be positive"):
        watch_processes(timeout=0)
