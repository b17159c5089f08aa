"""On a GPU: everything is where the model's tensors are, and steps wait as seldom as on a CPU."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pyro = pytest.importorskip("pyro")

if not torch.cuda.is_available():
    pytest.skip("no GPU of CUDA", allow_module_level=True)

from pyro import distributions as dist  # noqa: E402

from pyro_ngvi import BLR, IVON, SVI, NaturalELBO, NaturalGaussianGuide, fit  # noqa: E402

#: Waits of a step: for the loss and for whether the step is taken; and of IVON for its step size,
#: of BLR for slopes and for each attempt at a length.
RUNS = {"IVON": (IVON, "diagonal", "stein", 3), "BLR": (BLR, "full", "auto", 4)}
DIM, NUM_ROWS = 5, 200


@pytest.fixture
def problem():
    pyro.clear_param_store()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(NUM_ROWS, DIM)), rng.integers(0, 2, NUM_ROWS)
    X, y = (torch.as_tensor(one, dtype=torch.float32, device="cuda") for one in (X, y))
    zero, one = torch.zeros(DIM, device="cuda"), torch.ones(DIM, device="cuda")

    def model(X, y):
        weights = pyro.sample("weights", dist.Normal(zero, one).to_event(1))
        with pyro.plate("data", len(y), device="cuda"):
            pyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)

    yield model, X, y
    pyro.clear_param_store()


@pytest.mark.parametrize("name", RUNS)
def test_steps_stay_on_the_device_and_wait_seldom(problem, name):
    model, X, y = problem
    optimiser, family, curvature, most = RUNS[name]
    guide = NaturalGaussianGuide(model, family)
    svi, steps = SVI(model, guide, optimiser(), NaturalELBO(curvature=curvature)), 10
    with pyro.validation_enabled(False):
        for _ in range(3):
            svi.step(X, y)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(steps):
                    svi.step(X, y)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [str(one.filename) for one in caught if "synchroniz" in str(one.message)]
    assert len(waits) <= most * steps, waits
    assert {param.device.type for param in guide.parameters()} == {"cuda"}


def test_a_fit_stays_on_the_device(problem):
    model, X, y = problem
    result = fit(model, X, y, progress_bar=False)
    assert result.converged
    assert {draw.device.type for draw in result.sample(3).values()} == {"cuda"}


def test_locals_are_found_on_the_device():
    pyro.clear_param_store()
    group = torch.arange(300, device="cuda").repeat_interleave(3)

    def model(y):
        mean = pyro.sample("mean", dist.Normal(torch.zeros((), device="cuda"), 1.0))
        with pyro.plate("groups", 300, device="cuda"):
            effect = pyro.sample("effect", dist.Normal(mean, 1.0))
        with pyro.plate("rows", len(y), device="cuda"):
            pyro.sample("y", dist.Normal(effect[group], 1.0), obs=y)

    guide = NaturalGaussianGuide(model)
    guide(torch.randn(900, device="cuda"))
    assert guide.posterior.family().name == "sparse_precision"
