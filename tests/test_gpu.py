"""Ten models on the accelerator of each PPL: the same bounds as on the CPU, saved and loaded.

Skipped where a PPL sees none. ``GPU_TESTS=cpu`` runs them on the CPU, to see that they are sound.
"""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest

from benchmarks.models import ENTRIES, PPLS, Ppl
from tests.ppl import load

ON_CPU = os.environ.get("GPU_TESTS") == "cpu"
#: The plain class; others of the gauntlet are harder, and no harder on a GPU.
MODELS = sorted(name for name in ENTRIES if name.startswith("plain/"))
TOLERANCE = 0.1  #: nats: twice that of ``fit``


def _devices(name: str) -> tuple:
    """The CPU's and the accelerator's.

    :raises Skipped: where there is none.
    """
    if name == "numpyro":
        jax = pytest.importorskip("jax")
        cpu, other = jax.devices("cpu")[0], jax.devices()[0]
        found = other.platform != "cpu"
    else:
        torch = pytest.importorskip("torch")
        cpu, found = torch.device("cpu"), torch.cuda.is_available()
        other = torch.device("cuda") if found else cpu
    if not (found or ON_CPU):
        pytest.skip(f"{name} sees no GPU")
    return cpu, other


@contextlib.contextmanager
def _on(name: str, device):
    """Arrays without a device of their own are there."""
    if name == "numpyro":
        import jax

        with jax.default_device(device):
            yield
        return
    import torch

    with torch.device(device):
        yield


def _device_of(array) -> str:
    return array.device.type if hasattr(array.device, "type") else array.device.platform


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PPLS)
def test_a_fit_ends_where_the_cpus_does_and_is_saved_and_loaded_there(name, model, tmp_path):
    cpu, gpu = _devices(name)
    backend, entry, bounds = load(name), ENTRIES[model], []
    for device in (cpu, gpu):
        with _on(name, device):
            ppl = Ppl(name)
            args, function = entry.args(ppl), entry.model(ppl)
            # Conditional modes are chosen by their price, which is another one on each device.
            options = {"reparametrize": False, "progress_bar": False}
            result = backend.package.fit(function, *args, **options)
            assert result.converged, result.reason
            bounds.append(float(result.bound))
            draws = result.sample(3)
            place = device.platform if name == "numpyro" else device.type
            assert {_device_of(one) for one in draws.values()} == {place}
            result.save(tmp_path / place)
            loaded = backend.package.FitResult.load(tmp_path / place, function)
            again = loaded.sample(3)
            assert {_device_of(one) for one in again.values()} == {place}
            assert abs(float(loaded.bound) - bounds[-1]) < 1e-9 * abs(bounds[-1])
    assert np.ptp(bounds) < TOLERANCE
