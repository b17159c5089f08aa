"""Rows that are sharded over devices, of one process or of several, give the posterior of one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numpyro")

pytestmark = pytest.mark.slow

#: The issue's bar. Measured: 1e-14.
TOLERANCE = 1e-6

COMMAND = [sys.executable, "-m", "tests.parallel.devices"]
ROOT = Path(__file__).parents[2]


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


def test_two_and_four_processes_end_where_one_does(on_devices, on_processes):
    for found in on_processes:
        _assert_same(found["dense"], on_devices["dense"][0])


def test_a_fit_is_for_arrays_of_one_process(on_processes):
    for found in on_processes:
        assert found["refused"].startswith("fit takes arrays of one process, and argument 0")


def test_what_was_the_watch_names_jaxs_own_limits():
    with pytest.raises(ImportError, match="heartbeat_timeout_seconds="):
        from numpyro_ngvi.parallel import watch_processes  # noqa: F401
