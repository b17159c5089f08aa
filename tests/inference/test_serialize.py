"""A result that is saved and loaded is the same result."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc

import numpy as np
import pytest

from ngvi.errors import DamagedFileError
from ngvi.inference.saved import files, serialize
from ngvi.inference.verdict.outcome import FoundOptimum, Restart
from ngvi.inference.verdict.validation import Validation
from tests.inference.results import conjugate, conjugate_result, result


def numbers(result):
    return {name: array.tobytes() for name, array in result._files.flat(result.params).items()}


def loaded(ppl, result, path, *args, data=True, model=None, **options):
    result.save(path, data=data)
    return type(result).load(path, model or result.model, *args, **options)


def test_a_result_is_what_it_was(ppl, tmp_path):
    restarts = (Restart("the guide's start", -3.5, 0.125, 20, 8, "kept"),)
    one = conjugate_result(ppl, 0.3, validation=Validation(-np.inf, np.nan), restarts=restarts)
    optimum = FoundOptimum(conjugate_result(ppl, 0.4).params, np.float64(-3.5), 0.125, 8, True, 1.0)
    one = dataclasses.replace(one, optima=(optimum,))
    two = loaded(ppl, one, tmp_path / "file")
    assert two.params.keys() == one.params.keys() and numbers(two) == numbers(one)
    for name, values in vars(one.trace).items():
        np.testing.assert_array_equal(getattr(two.trace, name), values)
    assert str([getattr(two, name) for name in serialize.PLAIN]) == str(
        [getattr(one, name) for name in serialize.PLAIN]
    )
    assert str(two.validation) == str(one.validation) and two.restarts == one.restarts
    own = [(each.bound, each.num_starts, each.weight) for each in one.optima]
    assert [(each.bound, each.num_starts, each.weight) for each in two.optima] == own
    assert two.cost == one.cost
    means = [ppl.numpy(each.posterior_of(each.optima[0]).mean) for each in (one, two)]
    np.testing.assert_array_equal(*means)
    assert not np.allclose(means[0], ppl.numpy(one.posterior.mean))
    assert [ppl.numpy(value).tobytes() for value in two.args] == [
        ppl.numpy(value).tobytes() for value in one.args
    ]
    draws = []
    for each in (one, two):
        if not ppl.is_numpyro:
            ppl.lib.set_rng_seed(1)
        draws.append(ppl.numpy(each.sample(3)["weights"]))
    np.testing.assert_array_equal(*draws)


def test_arguments_that_were_not_saved_are_asked_for(ppl, tmp_path):
    one = conjugate_result(ppl)
    with pytest.raises(ValueError, match=r"load\(path, model, ...\)"):
        loaded(ppl, one, tmp_path / "file", data=False)
    two = type(one).load(tmp_path / "file", one.model, *one.args)
    assert numbers(two) == numbers(one) and two.args == one.args
    odd = dataclasses.replace(one, kwargs={"how": print})
    with pytest.raises(TypeError, match="argument how is a builtin_function.*data=False"):
        odd.save(tmp_path / "file")


def test_a_guide_that_a_file_does_not_hold_is_asked_for(ppl, tmp_path):
    one = conjugate_result(ppl)
    one = dataclasses.replace(one, guide=ppl.autoguide.AutoGuideList(one.model))
    with pytest.raises(ValueError, match=r"AutoGuideList.*guide=\.\.\."):
        loaded(ppl, one, tmp_path / "file")


def test_families_with_options_are_made_again(ppl, tmp_path):
    model, args = conjugate(ppl)
    guide = ppl.guide(model, ppl.families.LowRankPrecision(rank=2))
    one = result(ppl, model, args, guide=guide)
    two = loaded(ppl, one, tmp_path / "file")
    assert two.family.rank == 2 and numbers(two) == numbers(one)


@pytest.mark.slow
def test_locals_by_their_modes_expand_about_the_same_point(ppl, tmp_path):
    def model(y):
        scale = ppl.sample("scale", ppl.dist.LogNormal(ppl.array(0.0), 1.0))
        with ppl.plate("groups", 3):
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), scale))
            ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(effect)), obs=y)

    start = ppl.start_at(scale=3.0, effect=np.array([1.0, -2.0, 0.5]))
    guide = ppl.package.ReparametrizedGaussianGuide(model, order=1, init_loc_fn=start)
    one = result(ppl, model, (ppl.array(np.array([0.0, 2.0, 9.0])),), guide=guide)
    two = loaded(ppl, one, tmp_path / "file")
    assert "order=1" in repr(two.guide) and numbers(two) == numbers(one)
    draws = []
    for each in (one, two):
        if not ppl.is_numpyro:
            ppl.lib.set_rng_seed(1)
        draws.append(ppl.numpy(each.sample(3)["effect"]))
    np.testing.assert_allclose(*draws, rtol=1e-12)
    one.guide._reparametrization.start = ppl.array(np.zeros(5))
    with pytest.raises(ValueError, match="another model: its locals begin at 5 .* 4 here"):
        loaded(ppl, one, tmp_path / "file")


def test_another_model_is_refused(ppl, tmp_path):
    one = conjugate_result(ppl)

    def other(X, y):
        ppl.sample("beta", ppl.dist.Normal(ppl.array(0.0), 1.0))

    with pytest.raises(ValueError, match=r"another model.*'weights' \(3,\).*'beta' \(\)"):
        loaded(ppl, one, tmp_path / "file", model=other)


@pytest.mark.fast_in_numpyro("changed0-*")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"first": "c"},
            r"another model.*'a' \(\), 'b' \(\) in the file, and 'c' \(\), 'b' \(\) here",
        ),
        ({"first": "b", "second": "a"}, r"'a' \(\), 'b' \(\) in the file, and 'b' \(\), 'a' \(\)"),
        ({"is_positive": True}, "'b' has another support"),
    ],
)
def test_as_many_latents_that_are_others_are_refused(ppl, tmp_path, changed, words):
    def make(first="a", second="b", is_positive=False):
        def model():
            ppl.sample(first, ppl.dist.Normal(ppl.array(0.0), 1.0))
            kind = ppl.dist.LogNormal if is_positive else ppl.dist.Normal
            ppl.sample(second, kind(ppl.array(0.0), 1.0))

        return model

    one = result(ppl, make())
    with pytest.raises(ValueError, match=words):
        loaded(ppl, one, tmp_path / "file", model=make(**changed))


def test_files_of_something_else_are_refused(ppl, tmp_path):
    one, path = conjugate_result(ppl), tmp_path / "file"
    one.save(path)
    whole = path.read_bytes()

    def refused(match):
        with pytest.raises(ValueError, match=match):
            type(one).load(path, one.model)

    for content in (b"", b"text", whole[: len(whole) // 2]):
        path.write_bytes(content)
        refused("is damaged, or no result that was saved")
    meta, arrays = files.unpacked(whole)
    for change, match in (
        ({"format": "else"}, "of version 6 of 'else'"),
        ({"version": 99}, "is of version 99.*reads version 6"),
        ({"library": "other_ngvi"}, r"other_ngvi\.FitResult\.load"),
        ({"structure": 1}, "orders its latents in another way"),
    ):
        files.write(path, files.packed({**meta, **change}, arrays))
        refused(match)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        type(one).load(path, one.model)


#: A key of the text, or the end of an array's name; what takes its place; words of the error.
CRAFTED = [
    ("guide", None, "'guide' has a value that no"),
    ("guide.family", "mixture", "a Gaussian that has"),
    ("guide.options", {"no": "such option"}, "no"),
    ("guide.others", {"prefix": 3, "x": "y"}, "x"),
    ("arguments", 3, "int"),
    ("arguments", {"list": []}, "not enough values"),
    ("arguments.tuple.0.tuple.0.own.1", "meta", "on 'meta'"),
    ("sites", 1, "'sites' has a value that no"),
    ("sites.0.0.2", "text", "'sites' has a value that no"),
    ("cost.gradients", "text", "'cost' has a value that no"),
    ("restarts", [[1]], "'restarts' has a value that no"),
    ("optima", None, "'optima' has a value that no"),
    ("verdict", "\x1b[2J", "'verdict' has a value that no"),
    ("verdict", "right", "'verdict' has a value that no"),
    ("reason", "\x1b]0;x\x07", "'reason' has a value that no"),
    ("seconds", "3", "'seconds' has a value that no"),
    ("structure", 2**70, "'structure' has a value that no"),
    ("more", 1, "'more' has a value that no"),
    ("validation", {"bound": "x", "error": 0.0}, "'validation' has a value that no"),
    ("change", {"bound": 0.0}, "'change' has a value that no"),
    ("data/0", np.arange(3).astype("M8[s]"), "datetime64"),
    ("data/0", np.zeros(3, np.longdouble), "an argument is 'own' of"),
    ("loc", np.array([0.0, np.nan, 0.0]), "is not finite in"),
    ("scale_tril", np.zeros((3, 3)), "its Gaussian has no density"),
    ("scale_tril", np.ones((3, 3)), "scale_tril"),
    ("trace/losses", np.zeros((2, 2)), "no result has an array"),
    ("trace/losses", np.array(["a"]), "no result has an array"),
    ("trace/losses", np.zeros(50), "columns of its trace have different lengths"),
    ("trace/losses", None, "'trace/losses' is missing"),
    ("else", np.zeros(1), "no result has an array"),
]


def placed(tree, where, value):
    """Put a value into a tree of lists and dictionaries."""
    for key in where[:-1]:
        tree = tree[int(key) if isinstance(tree, list) else key]
    key = where[-1]
    tree[int(key) if isinstance(tree, list) else key] = value


def test_what_somebody_made_is_refused_as_damaged(ppl, tmp_path):
    one, path = conjugate_result(ppl), tmp_path / "file"
    one.save(path)
    meta, arrays = files.unpacked(path.read_bytes())
    for where, value, words in CRAFTED:
        changed, others = json.loads(json.dumps(meta)), dict(arrays)
        if isinstance(value, np.ndarray):
            name = next((name for name in arrays if name.endswith(where)), where)
            others[name] = value
        elif value is None and where in others:
            del others[where]
        else:
            placed(changed, where.split("."), value)
        files.write(path, files.packed(changed, others))
        with pytest.raises(DamagedFileError) as caught:
            type(one).load(path, one.model)
        message = str(caught.value)
        assert "file' is damaged" in message and words in message, (where, message)
        assert message.partition("\n")[0].isprintable()
    files.write(path, files.packed({**meta, "reason": ""}, arrays))
    assert "posterior" in repr(type(one).load(path, one.model))


def test_a_small_file_of_a_large_gaussian_takes_no_memory(ppl, tmp_path):
    one, path = conjugate_result(ppl), tmp_path / "file"
    one.save(path)
    meta, arrays = files.unpacked(path.read_bytes())
    meta["guide"].update(family="mixture", options={"num_components": 10**9})
    files.write(path, files.packed(meta, arrays))
    tracemalloc.start()
    with pytest.raises(DamagedFileError, match="12 numbers of a Gaussian that has 3,000,000,000"):
        type(one).load(path, one.model)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24
    with pytest.raises(ValueError, match="would take .* bytes of memory"):
        files.unpacked(files.packed({"bomb": [{}] * 400_000}, {}))


def test_arguments_come_back_to_their_device_or_to_another(ppl, tmp_path):
    seen, path, place = [], tmp_path / "file", "device" if ppl.is_numpyro else "map_location"
    one = conjugate_result(ppl)
    one.save(path)

    def devices(**options):
        args = type(one).load(path, one.model, **options).args
        return {value.device if ppl.is_numpyro else value.device.type for value in args}

    here = {value.device if ppl.is_numpyro else value.device.type for value in one.args}
    assert devices() == here and devices(**{place: "cpu"}) == here
    with pytest.raises(ValueError, match=f"{place} must be.*such as 'cpu'.*'no such'"):
        devices(**{place: "no such"})
    # One that is not here any more.
    meta, arrays = files.unpacked(path.read_bytes())
    text = json.dumps(meta["arguments"])
    for old in ("cpu:0", "cpu"):
        text = text.replace(f'"{old}"', '"cuda:7"')
    assert "cuda:7" in text
    files.write(path, files.packed({**meta, "arguments": json.loads(text)}, arrays))
    assert devices() == here
    if not ppl.is_numpyro:
        with pytest.raises(Exception):  # noqa: B017, PT011  of torch, whose meta device has no numbers
            type(one).load(path, lambda X, y: seen.append(X.device.type) + y, map_location="meta")
        assert seen[0] == "meta"
