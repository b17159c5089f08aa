"""A fit keeps its best result so far in a file, and the same call begins there."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

from ngvi.errors import DamagedFileError
from ngvi.inference.saved import checkpoint, files
from ngvi.inference.saved.checkpoint import Checkpoint
from ngvi.inference.set_up import Given
from tests import models
from tests.inference.results import conjugate, conjugate_result


class Killed(BaseException):
    """What no handler of a fit expects."""


def die(step, *_):
    if step == 3:
        raise Killed


def fitted(ppl, model, args=(), **options):
    if not ppl.is_numpyro:
        ppl.lib.clear_param_store()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fit has not converged")
        return ppl.fit(model, *args, seed=3, **options)


def read(ppl, path):
    return Checkpoint(path).read(ppl.package.FitResult._ppl.library)


def loaded(ppl, path, model):
    kind = ppl.package.FitResult
    return kind._files.result(kind, read(ppl, path), Given(model, (), {}, None, None))


def own_parameter(ppl):
    """A scale of the model's own, which is constrained."""
    scale = ppl.param("scale", ppl.array(0.5), constraint=ppl.dist.constraints.positive)
    x = ppl.sample("x", ppl.dist.Normal(ppl.array([0.0, 1.0]), 1.0).to_event(1))
    ppl.sample("y", ppl.dist.Normal(x.sum(), scale), obs=ppl.array(2.0))
    ppl.sample("z", ppl.dist.LogNormal(ppl.array(0.0), 1.0), obs=scale)


def minibatches(ppl):
    X, y = models.regression_data()
    model = models.glm(ppl, "bernoulli")
    model(ppl.array(X), ppl.array(y > 0), subsample_size=len(y) // 2)


def hierarchy(ppl):
    scale = ppl.sample("scale", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
    with ppl.plate("groups", 4):
        effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), scale))
        ppl.sample("y", ppl.dist.Normal(effect, 1.0), obs=ppl.array([0.0, 2.0, -1.0, 4.0]))


KINDS = {
    "own parameter": (own_parameter, {}),
    "minibatches": (minibatches, {"max_steps": 20}),
    "conditional modes": (hierarchy, {"reparametrize": True}),
}


@pytest.mark.fast_in_numpyro("own parameter")
@pytest.mark.parametrize(
    "kind",
    ["own parameter", "minibatches", pytest.param("conditional modes", marks=pytest.mark.slow)],
)
def test_a_killed_fit_begins_at_its_best_result_and_verifies_it_anew(
    ppl, kind, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoint, "WRITE_EVERY", -1.0)
    (make, options), path = KINDS[kind], tmp_path / "file"

    def model():
        return make(ppl)

    with pytest.raises(Killed):
        fitted(ppl, model, checkpoint=path, callback=die, **options)
    kept = loaded(ppl, path, model)
    assert kept.verdict == "not converged" and kept.reason.startswith("it is the best result")
    result = fitted(ppl, model, checkpoint=path, **options)
    assert result.restarts[0].name == "the guide's start" and len(result.restarts) == 1
    again = loaded(ppl, path, model)
    assert again.bound == result.bound and again.reason == result.reason


def test_a_result_with_a_lower_bound_does_not_replace_the_best(ppl, tmp_path):
    one, path = conjugate_result(ppl), tmp_path / "file"
    keeper = Checkpoint(path)
    assert not keeper.is_due and read(ppl, path) is None
    for seconds, bound in ((1.0, -5.0), (2.0, -9.0), (3.0, -np.inf), (4.0, -4.0)):
        keeper.keep(dataclasses.replace(one, seconds=seconds), bound)
        expected = seconds if seconds in (1.0, 4.0) else 1.0
        assert read(ppl, path).meta["seconds"] == expected


def test_a_full_disk_costs_a_word_and_nothing_else(ppl, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    keeper, one = Checkpoint(tmp_path / "file"), conjugate_result(ppl)
    monkeypatch.setattr(files, "on_disk", full)
    with pytest.warns(UserWarning, match="file' cannot be written.*no space"):
        keeper.keep(one, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keeper.keep(one, 0.0)


def test_a_file_of_anything_else_is_refused_and_kept(ppl, tmp_path):
    model, args = conjugate(ppl)
    path = tmp_path / "file"
    old = b"ngvi checkpoint 5\n" + bytes(100)
    for content, words in (
        (b"my thesis", "is damaged, or no result"),
        (old, "is damaged, or no result"),
    ):
        path.write_bytes(content)
        with pytest.raises(DamagedFileError, match=words):
            fitted(ppl, model, args, checkpoint=path)
        assert path.read_bytes() == content

    def other():
        ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))

    path.unlink()
    fitted(ppl, other, checkpoint=path, allow_prior=True, effort="quick")
    with pytest.raises(ValueError, match="The result is of another model"):
        fitted(ppl, model, args, checkpoint=path)
    with pytest.raises(FileNotFoundError, match="folder that does not exist"):
        fitted(ppl, model, args, checkpoint=tmp_path / "no" / "file")


def test_the_guide_is_that_of_the_call_whatever_the_file_says(ppl, tmp_path):
    model, args = conjugate(ppl)
    for noted, asked in (("diagonal", {}), ("full", {"family": "diagonal"})):
        path = tmp_path / noted
        fitted(ppl, model, args, checkpoint=path, family=noted, effort="quick")
        kept = path.read_bytes()
        with pytest.raises(ValueError, match="another model, guide or precision"):
            fitted(ppl, model, args, checkpoint=path, **asked)
        assert path.read_bytes() == kept
        again = fitted(ppl, model, args, checkpoint=path, family=noted)
        assert again.converged and again.verdict == "local"


#: Factors of a checkpoint's numbers, and words in its text, that somebody has put there.
CRAFTED = {
    "another mean": ({"loc": 0.5}, {}),
    "another verdict": ({}, {"verdict": "certified", "reason": "believe me"}),
    "another family": ({}, {"family": "mixture", "options": {"num_components": 2}}),
    "no family": ({}, {"family": None}),
    "other options": ({}, {"family": "low_rank", "options": {"rank": 1}}),
}


def test_a_crafted_checkpoint_is_a_place_to_begin_and_nothing_else(ppl, tmp_path):
    model, args = conjugate(ppl)
    path = tmp_path / "file"
    right = fitted(ppl, model, args, checkpoint=path)
    meta, arrays = files.unpacked(path.read_bytes())
    for what, (parts, words) in CRAFTED.items():
        crafted = {**meta, **{k: v for k, v in words.items() if k in meta}}
        crafted["guide"] = meta["guide"] | {k: v for k, v in words.items() if k not in meta}
        moved = {k: v * parts.get(k.rpartition(".")[2], 1.0) for k, v in arrays.items()}
        files.write(path, files.packed(crafted, moved))
        found = fitted(ppl, model, args, checkpoint=path)
        assert type(found.family) is type(right.family) and "believe" not in found.reason, what
        np.testing.assert_allclose(found.bound, right.bound, atol=0.05)
