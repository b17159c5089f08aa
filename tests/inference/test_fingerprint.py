"""What a checkpoint is of: a difference is seen, and told by its name."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import re
import types

import numpy as np
import pytest
import scipy.sparse

from ngvi.inference.fingerprint import Fingerprint, difference

SCALE = 2.0


def plain(value):
    return None


def facts(model=print, **arguments):
    found = Fingerprint(model, plain)
    for name, value in arguments.items():
        found.add(value, name)
    return found.facts


X = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (X, X.astype("f4"), r"a was float64 of shape \(2, 3\), and is float32 of shape \(2, 3\)"),
        (X, X.T, r"a was .*\(2, 3\), and is .*\(3, 2\)"),
        (X, np.where(X == 4, np.nextafter(X, 5), X), r"a has other values \(float64 of shape"),
        ({"x": [X, 1]}, {"x": [X, 2]}, r"a\['x'\]\[1\] has other values"),
        ({"x": 1}, {"y": 1}, r"a\['y'\] is new"),
        ([1, 2.0, "z"], [1, 2.0, "y"], "a has other values"),
        ((1, X), ([2], X), r"a\[0\] was of type int, and is of type list"),
        ({3, "b"}, {"b", 4}, "a has other values"),
        (np.array(["u", None]), np.array([None, "u"]), "a has other values"),
    ],
)
def test_a_difference_of_arguments_is_named(old, new, words):
    assert re.search(words, difference(facts(a=old), facts(a=new)))
    assert not difference(facts(a=old), facts(a=old))


def test_every_number_and_every_bit_counts():
    rng = np.random.default_rng(0)
    for dtype in ("f4", "f8"):
        data = rng.standard_normal((50, 4)).astype(dtype)
        for _ in range(200):
            other, place = data.copy(), tuple(rng.integers(data.shape))
            other[place] = np.nextafter(other[place], np.inf, dtype=dtype)
            assert difference(facts(y=data), facts(y=other)) == (
                f"y has other values ({data.dtype} of shape (50, 4))"
            )


def made(code, **names):
    names.setdefault("__name__", "user")
    exec(compile(code, "user.py", "exec"), names)  # noqa: S102
    return names["model"]


MODEL = "def model(y):\n    return {}\n"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("y + 1", "y + 2", "the model's code is another"),
        ("abs(y)", "min(y)", "the model's code is another"),
        ("[v + 1 for v in y]", "[v + 2 for v in y]", "the model's code is another"),
        ("y + 1", "(y  +\n 1)  # the same", ""),
    ],
)
def test_the_models_code_counts_and_its_layout_does_not(old, new, words):
    assert difference(*(facts(made(MODEL.format(code))) for code in (old, new))) == words


def test_what_the_model_reads_from_outside_counts():
    def named(**names):
        return facts(made(MODEL.format("helper(y) * data['x'][0]"), **names))

    def helper(y, scale=1.0):
        return y * scale

    def changed(y, scale=2.0):
        return y * scale

    changed.__code__ = helper.__code__
    changed.__name__ = "helper"
    data = {"x": [X, "text"]}
    before = named(helper=helper, data=data, unread=1)
    assert not difference(before, named(helper=helper, data={"x": [X.copy(), "text"]}, unread=2))
    told = difference(before, named(helper=helper, data={"x": [X + 1, "text"]}))
    assert told.startswith("what the model reads as 'data'['x'][0] has other values (float64")
    assert difference(before, named(helper=changed, data=data)).startswith("the defaults of ")


@dataclasses.dataclass
class Sizes:
    rows: int


class OfObject:
    shift = 1.0

    def __init__(self, scale, sizes):
        self.scale, self.sizes, self.itself, self.calls = scale, Sizes(sizes), self, []

    def method(self, y):
        return self.helper(y) + self.sizes.rows

    def helper(self, y):
        return y * self.scale + self.shift

    def __call__(self, y):
        return self.method(y)


@pytest.mark.parametrize("attribute", ["method", "__call__", None])
def test_an_objects_attributes_count_if_its_code_reads_them(attribute, monkeypatch):
    def of(*parts):
        model = OfObject(*parts)
        model.calls.append(len(parts) + np.random.default_rng().random())
        return facts(model if attribute is None else getattr(model, attribute))

    assert not difference(of(X, 1), of(X.copy(), 1))
    assert "'scale' has other values" in difference(of(X, 1), of(X + 1, 1))
    assert "'sizes'['rows'] has other values" in difference(of(X, 1), of(X, 2))
    before = of(X, 1)
    monkeypatch.setattr(OfObject, "shift", 2.0)
    assert "'shift' has other values" in difference(before, of(X, 1))
    monkeypatch.setattr(OfObject, "helper", lambda self, y: y * self.scale - self.shift)
    assert difference(before, of(X, 1)) == "the model's code is another"


def test_partial_and_wrapped_models_are_followed():
    def model(y, scale):
        return y * scale

    def of(scale, wrapped):
        @functools.wraps(model)
        def handled(*args):
            return wrapped(*args)

        return facts(functools.partial(handled, scale=scale))

    assert not difference(of(1.0, model), of(1.0, model))
    assert "what the model is given[1]['scale'] has other" in difference(
        of(1.0, model), of(2.0, model)
    )
    assert difference(of(1.0, model), of(1.0, lambda y: y)) == "the model's code is another"


class Settings:
    scale = 1.0

    def __init__(self, scale):
        self.scale = scale


class Slots:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def __call__(self):
        return self.scale


class Kind(enum.Enum):
    ONE, TWO = 1, 2


HOLDERS = {
    "object": Settings,
    "objects": lambda scale: {"all": [Settings(Settings(scale))]},
    "slots": Slots,
    "enum": Kind,
    "namespace": lambda scale: types.SimpleNamespace(scale=scale),
    "deque": lambda scale: collections.deque([0, scale]),
    "decimal": decimal.Decimal,
    "date": lambda day: datetime.date(2020, 1, day),
    "array": lambda scale: array.array("d", [scale]),
    "bytes": lambda scale: memoryview(bytes([scale])),
    "sparse": lambda scale: scipy.sparse.csr_matrix([[0.0, scale]]),
    "masked": lambda scale: np.ma.array([0.0, 1.0], mask=[False, scale == 1]),
    "two of a name": lambda scale: [Slots(scale), Slots(3)],
    "class": lambda scale: type("Settings", (), {"scale": scale}),
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_what_any_object_holds_counts(holder):
    """As an argument, and as what a model reads."""

    def of(scale):
        held = holder(scale)

        def model():
            return held.scale

        return facts(model, a=None if isinstance(held, type) else held)

    def read(scale):
        return facts(functools.partial(lambda given: given.scale, holder(scale)))

    for each in (of, read):
        assert not difference(each(1), each(1))
        assert "other values" in difference(each(1), each(2))


def test_frozen_weights_of_a_network_count_and_those_that_are_learned_do_not():
    nn = pytest.importorskip("torch").nn

    def of(weight, is_learned):
        net = nn.Linear(1, 1)
        nn.init.constant_(net.weight, weight)
        nn.init.constant_(net.bias, 0.0)
        as_array = lambda v: v.detach().numpy() if hasattr(v, "detach") else None  # noqa: E731
        return Fingerprint(net.requires_grad_(is_learned), as_array).facts

    assert not difference(of(1.0, False), of(1.0, False))
    assert not difference(of(1.0, True), of(2.0, True))
    assert "'weight' has other values" in difference(of(1.0, False), of(2.0, False))


def test_what_cannot_be_an_array_of_numpy_is_taken_apart(ppl):
    def of(number):
        if ppl.is_numpyro:
            value = pytest.importorskip("jax").random.key(number)
        else:
            value = ppl.array(np.array([[0.0, number]])).to_sparse()
        found = Fingerprint(print, ppl.package.FitResult._files.as_array)
        found.add([value], "a")
        return found.facts

    assert not difference(of(1), of(1))
    assert "a[0] has other values" in difference(of(1), of(2))


def test_a_long_chain_of_objects_is_followed_to_an_end():
    chain = None
    for _ in range(10_000):
        chain = Settings(chain)
    assert facts(a=chain)


def test_what_holds_itself_or_no_numbers_is_followed_to_an_end():
    loop = {"x": 1}
    loop["loop"] = loop
    before = facts(a=loop, b=object(), c=np.random.default_rng(0))
    assert not difference(before, facts(a=loop, b=object(), c=np.random.default_rng(1)))


def test_rows_count_in_any_order_and_in_batches_of_any_sizes():
    rng = np.random.default_rng(0)
    data = rng.standard_normal((30, 3)).astype("f4"), rng.integers(5, size=30)

    def of(order, size, data):
        found = Fingerprint(print, plain)
        parts = np.split(order, range(size, 30, size))
        found.add_rows([((data[0][part],), {"y": data[1][part]}) for part in parts], "batches=")
        return found.facts

    order, before = np.arange(30), of(np.arange(30), 8, data)
    assert not difference(before, of(rng.permutation(order), 7, data))
    for row in range(30):
        other = data[0].copy(), data[1]
        other[0][row, 1] += 1e-3
        told = difference(before, of(order, 8, other))
        assert told == "batches= has other values (30 rows of float32 (3,), int64 ())"
    swapped = data[0], np.where(order == 0, data[1][1] + 1, data[1])
    assert difference(before, of(order, 8, swapped))
    assert difference(before, of(order[:-1], 8, data)).startswith("batches= was 30 rows")


def test_what_handlers_hold_around_a_model_counts(ppl):
    def model(y):
        ppl.sample("y", ppl.dist.Normal(ppl.sample("x", ppl.dist.Normal(0.0, 1.0)), 1.0), obs=y)

    def of(model):
        return Fingerprint(model, ppl.package.FitResult._files.as_array).facts

    for make, words in (
        (lambda size: ppl.package.tempered(model, size), "'tempering' has other values"),
        (lambda size: ppl.handlers.scale(model, scale=size), "'scale' has other values"),
        (lambda size: ppl.handlers.condition(model, data={"y": ppl.array([size])}), "'data'.'y'."),
    ):
        assert not difference(of(make(0.5)), of(make(0.5)))
        assert re.search(words, difference(of(make(0.5)), of(make(0.25))))
