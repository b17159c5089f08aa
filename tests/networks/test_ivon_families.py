"""``IVON()`` learns a network with every family, also from minibatches of many rows.

One draw's curvature is noise of both signs, the larger the more rows a minibatch stands for. Where
that is not damped (:meth:`ngvi.linalg.definite.Definite.damped`) losses of these runs end between
1e5 and 1e30, in both packages.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests.ppl import slow_but

RNG = np.random.default_rng(0)
NUM, BATCH, SIZES = 5000, 50, ((10, 8), (8, 4))
IMAGES = RNG.normal(size=(NUM, SIZES[0][0]))
LABELS = (IMAGES @ RNG.normal(size=(SIZES[0][0], SIZES[1][1]))).argmax(1)
#: Of the labels alone, without looking at the images.
BLIND = NUM * np.log(SIZES[1][1])


def network(ppl):
    def model(images, labels):
        weights = [
            ppl.sample(f"W{i}", ppl.dist.Normal(ppl.np.zeros(size), size[0] ** -0.5).to_event(2))
            for i, size in enumerate(SIZES)
        ]
        logits = ppl.np.tanh(images @ weights[0]) @ weights[1]
        with ppl.plate("data", NUM, subsample_size=BATCH):
            ppl.sample("label", ppl.dist.Categorical(logits=logits), obs=labels)

    return model


@pytest.mark.parametrize(
    "family",  # auto is covariance_cholesky
    slow_but(
        "auto", ["auto", "precision", "block_diagonal", "low_rank", "matrix_normal", "diagonal"]
    ),
)
def test_a_run_of_ivon_learns(ppl, family):
    model, rng = network(ppl), np.random.default_rng(1)
    guide = ppl.guide(model, family)
    loss = ppl.elbo("NaturalELBO", num_particles=1, curvature="stein")
    svi = ppl.svi(model, guide, ppl.optimiser("IVON"), loss, args=(IMAGES[:BATCH], LABELS[:BATCH]))
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no step is skipped
        for _ in range(150):
            rows = rng.choice(NUM, BATCH, replace=False)
            losses.append(float(svi.step(IMAGES[rows], LABELS[rows])))
    assert np.isfinite(losses).all()
    assert np.mean(losses[-20:]) < 0.7 * BLIND
