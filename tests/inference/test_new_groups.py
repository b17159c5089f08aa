"""Predictions for groups that the fit has not seen."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.inference.new_groups import new_groups
from ngvi.latents.layout import Plate, Site
from tests.inference import results

NUM_GROUPS, NUM_DRAWS = 6, 800


def _model(ppl):
    def model(group, n=NUM_GROUPS, y=None):
        mean = ppl.sample("mean", ppl.dist.Normal(ppl.array(0.0), ppl.array(1.0)))
        with ppl.plate("groups", n):
            effect = ppl.sample("effect", ppl.dist.Normal(mean, ppl.array(0.5)))
        with ppl.plate("rows", len(group)):
            rows = effect[..., group]
            ppl.sample("y", ppl.dist.Normal(rows, ppl.array(0.1)), obs=y)

    return model


@pytest.fixture
def fitted(ppl):
    """The mean of all groups is 0.3 ± 0.2, that of a group its own number."""
    group = ppl.index(np.arange(NUM_GROUPS))
    model = _model(ppl)
    loc = np.array([0.3, *np.arange(NUM_GROUPS)])
    tril = np.diag([0.2, *np.full(NUM_GROUPS, 0.01)])
    args = (group, NUM_GROUPS, ppl.array(np.arange(NUM_GROUPS)))
    return results.result(ppl, model, args, at=(loc, tril))


def _moments(ppl, draws):
    draws = ppl.numpy(draws)
    return draws.mean(0), draws.std(0)


#: Of a group from the prior given the globals: N(0.3, 0.2^2 + 0.5^2 (+ 0.1^2)).
NEW = 0.3, np.hypot(0.2, 0.5)


@pytest.mark.fast_in_numpyro("one more")
@pytest.mark.parametrize(
    "group, n, asked, new",
    [
        ([NUM_GROUPS, 2], NUM_GROUPS + 1, {"groups": [NUM_GROUPS]}, [True, False]),
        ([0, 3], 4, "groups", [True, True]),
    ],
    ids=["one more", "all"],
)
def test_new_groups_come_from_the_prior_given_the_globals(ppl, fitted, group, n, asked, new):
    drawn = fitted.predictive(ppl.index(group), n, num_samples=NUM_DRAWS, new_groups=asked)
    mean, sd = _moments(ppl, drawn["effect"])
    expected = [NEW if is_new else (one, 0.01) for is_new, one in zip(new, group, strict=True)]
    error = 5 / np.sqrt(NUM_DRAWS)
    for (right, scale), one in zip(expected, group, strict=True):
        assert abs(mean[one] - right) < error * scale
        assert abs(sd[one] / scale - 1) < error
    of_rows, _ = _moments(ppl, drawn["y"])
    np.testing.assert_allclose(of_rows, [right for right, _ in expected], atol=error)
    if all(new):  # those of one draw share their mean
        effects = ppl.numpy(drawn["effect"])
        assert np.corrcoef(effects[:, 0], effects[:, 3])[0, 1] == pytest.approx(0.138, abs=0.15)


def test_as_many_new_groups_as_the_fit_has(ppl, fitted):
    """Without arguments those of the fit, whose observations are drawn anew."""
    drawn = fitted.predictive(num_samples=NUM_DRAWS, new_groups=["groups"])
    mean, sd = _moments(ppl, drawn["y"])
    np.testing.assert_allclose(mean, NEW[0], atol=0.1)
    np.testing.assert_allclose(sd, np.hypot(NEW[1], 0.1), rtol=0.15)


@pytest.mark.parametrize("n", [NUM_GROUPS + 1, 1])
def test_a_plate_of_another_size_is_refused_by_name(ppl, fitted, n):
    with pytest.raises(ValueError, match=f"Plate 'groups' has {n} .*new_groups='groups'.*'effect'"):
        fitted.predictive(ppl.index([0]), n, num_samples=2)


def test_an_index_beyond_the_last_group_is_refused_by_name(ppl, fitted):
    for asked in (None, "groups"):
        with pytest.raises(ValueError, match="beyond the last of plate 'groups'.*'effect'"):
            fitted.predictive(ppl.index([NUM_GROUPS]), num_samples=2, new_groups=asked)


@pytest.mark.fast_in_numpyro
def test_known_groups_are_predicted_as_ever(ppl, fitted):
    drawn = fitted.predictive(ppl.index([1, 5, 5, 0]), num_samples=50)
    mean, _ = _moments(ppl, drawn["y"])
    np.testing.assert_allclose(mean, [1, 5, 5, 0], atol=0.1)


def test_a_prediction_of_counts_looks_at_plates_too(ppl):
    """An observed site that is discrete is no latent that the guide should have refused."""

    def model(group, n=3, y=None):
        with ppl.plate("groups", n):
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), ppl.array(1.0)))
        with ppl.plate("rows", len(group)):
            ppl.sample("y", ppl.dist.Bernoulli(logits=effect[..., group]), obs=y)

    group = ppl.index([0, 1, 2])
    guide = ppl.guide(model, "full")
    ppl.set_up(guide, group, 3, ppl.array([0.0, 1.0, 1.0]))
    with pytest.raises(ValueError, match="'effect'.*\\(4,\\)"):
        ppl.call(guide, ppl.index([3]), 4)


# -- which are new --------------------------------------------------------------------


def _sites(n, m=2, other=3):
    return [
        Site("mean", 0, (other,)),
        Site("a", 0, (n, m), (Plate("groups", n, 0), Plate("items", m, 1))),
    ]


@pytest.mark.parametrize(
    "asked, n, message",
    [
        ("children", 2, "'children'.*'groups', 'items'"),
        ({"groups": [4]}, 4, "from 0 to 3"),
        ({"groups": [3, 3]}, 4, "different indices"),
        ({"groups": 0.5}, 4, "different indices"),
        ({"groups": [3]}, 4, "leaves 3 of the plate's 4"),
        ("items", 4, "Plate 'groups' has 4"),
    ],
)
def test_what_cannot_be_new_is_refused(asked, n, message):
    with pytest.raises(ValueError, match=message):
        new_groups(asked, _sites(2), _sites(n))
