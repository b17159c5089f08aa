"""Squared gradients of examples: from runs of single examples as from a run of all, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.latents import forest

NUM, SIDE = 6, 5
IMAGES = np.random.default_rng(0).normal(size=(NUM, 1, SIDE, SIDE))
LABELS = np.arange(NUM) % 2


def convolved(ppl, images, kernel):
    if ppl.is_numpyro:
        import jax

        return jax.lax.conv(images, kernel, (2, 2), "VALID")
    return ppl.np.nn.functional.conv2d(images, kernel, stride=2)


def network(ppl, size=None, change=lambda x: x, minibatch=None):
    """A convolution and a dense layer.

    :param size: of the plate; None for as many rows as there are.
    :param change: of the hidden layer.
    :param minibatch: which rows the model itself takes of its arguments.
    """

    def model(images, labels):
        def site(name, *shape):
            return ppl.sample(name, ppl.dist.Normal(ppl.np.zeros(shape), 0.7).to_event(len(shape)))

        kernel, bias, weight = site("kernel", 3, 1, 2, 2), site("bias", 12), site("weight", 12, 2)
        rows = images if minibatch is None else images[minibatch]
        hidden = convolved(ppl, rows, kernel).reshape(len(rows), -1)
        logits = ppl.np.tanh(change(hidden + bias)) @ weight
        labels = labels if minibatch is None else labels[minibatch]
        # Half of the data set, or all of it where the plate has a size of its own.
        options = {} if size else {"subsample_size": len(labels)}
        with ppl.plate("data", size or 2 * NUM, **options):
            ppl.sample("label", ppl.dist.Categorical(logits=logits), obs=labels)

    return model


def direction(ppl, monkeypatch, model, family, few):
    """The loss and its natural gradient, where fewer numbers than ``few`` are few."""
    gauss_newton = ppl.module("networks.gauss_newton")
    monkeypatch.setattr(gauss_newton, "FEW_NUMBERS", few)
    if not ppl.is_numpyro:
        monkeypatch.setattr(gauss_newton, "MAX_PROBED_DIAGONAL", few)
        ppl.lib.set_rng_seed(0)
    ppl.forget()
    args = tuple(map(ppl.argument, (IMAGES, LABELS)))
    guide = ppl.guide(model, family, init_scale=0.5)
    ppl.set_up(guide, *args)
    loss = ppl.elbo("NaturalELBO", num_particles=2, curvature="gauss_newton")
    value, gradient = ppl.loss_and_gradient(loss, model, guide, *args)(ppl.initial(guide), 0)
    return [np.asarray(value), *ppl.coordinates(gradient)]


@pytest.mark.fast_in_numpyro("diagonal-None-100")
@pytest.mark.parametrize(
    ("family", "size", "at_once"),
    [
        ("diagonal", None, 100),
        ("diagonal", NUM, 2**20),
        ("low_rank", None, 100),
        ("matrix_normal", None, 2**20),
    ],
)
def test_single_examples_have_the_gradients_that_they_have_together(
    ppl, family, size, at_once, monkeypatch
):
    """Of a minibatch, of all rows in a plate of a fixed size, and a few of them at a time."""
    monkeypatch.setattr(forest, "MAX_DENSIFIED_DIM", 3)
    monkeypatch.setattr(ppl.module("networks.gauss_newton"), "NUMBERS_AT_ONCE", at_once)
    model = network(ppl, size)
    alone = direction(ppl, monkeypatch, model, family, few=3)
    if not ppl.is_numpyro:
        monkeypatch.setattr(ppl.module("networks.gauss_newton"), "_is_by_rows", lambda *_: False)
    together = direction(ppl, monkeypatch, model, family, few=10**9)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.fast_in_numpyro("normalised")
@pytest.mark.parametrize("what", ["normalised", "to the next row", "rows of its own"])
def test_examples_that_are_not_those_of_single_rows_are_refused(ppl, what, monkeypatch):
    """Few of them are differentiated together all the same."""
    minibatch = ppl.index([0, 2, 3]) if what == "rows of its own" else None
    changes = {
        "normalised": lambda x: (x - x.mean(0)) / (1e-3 + x.var(0)) ** 0.5,
        "to the next row": lambda x: x + 0.1 * ppl.np.roll(x, 1, 0),
    }
    model = network(ppl, None, changes.get(what, lambda x: x), minibatch)
    assert np.isfinite(direction(ppl, monkeypatch, model, "diagonal", few=10**9)[0])
    with pytest.raises(ValueError, match=r"rows of a minibatch as arguments.*batch normalis.*IVON"):
        direction(ppl, monkeypatch, model, "diagonal", few=3)
