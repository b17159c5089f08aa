"""Too large a step does not take a standard deviation to zero, where nothing leads back."""

from __future__ import annotations

import numpy as np

from tests.optim.table5 import driver, make

NUM_STEPS = 80


def final_scale(backend, family, guarded, monkeypatch):
    """Of the first of two latents, after one push down and then only pushes up.

    The first gradient shrinks the first latent's scale; every later one moves the second
    latent's mean and lets the first scale grow in proportion to itself, as the entropy does
    (its natural gradient is half the scale). A step is far larger than the scale.
    """
    joint = backend.module("optim.joint")
    if not guarded and backend.name == "numpyro":
        monkeypatch.setattr(joint, "_forget_where_limited", lambda momentum, *_: momentum)
    elif not guarded:
        keep = lambda self, param, *_: param  # noqa: E731
        monkeypatch.setattr(joint.JointOptimizer, "_forget_where_limited", keep)
    as_scale = np.diag if family == "covariance_cholesky" else np.asarray
    start = {"q": (family, np.zeros(2), as_scale([1.0, 1.0]))}
    run = driver(backend, make(backend, "Snngm", 1.0), start)
    run.step({"q": (family, np.zeros(2), as_scale([1.0, 0.0]))})
    for _ in range(NUM_STEPS):
        scale = run.gaussian("q")[1].ravel()[0]
        run.step({"q": (family, np.array([0.0, 1.0]), as_scale([-0.5 * scale, 0.0]))})
    return run.gaussian("q")[1].ravel()[0]


def test_unguarded_momentum_takes_the_scale_to_zero(backend, family_name, monkeypatch):
    assert final_scale(backend, family_name, False, monkeypatch) < 1e-15


def test_momentum_that_leads_out_of_the_domain_is_forgotten(backend, family_name, monkeypatch):
    # Halved once, and then only larger.
    assert final_scale(backend, family_name, True, monkeypatch) > 0.5
