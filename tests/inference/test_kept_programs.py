"""Programs of a fit that an earlier one has left (NumPyro), and those that it may not have."""

import gc
import threading
import weakref

import numpy as np
import pytest

jax = pytest.importorskip("jax")
numpyro = pytest.importorskip("numpyro")

import jax.numpy as jnp  # noqa: E402
import numpyro.distributions as dist  # noqa: E402

from numpyro_ngvi import fit  # noqa: E402
from numpyro_ngvi.tracing.compilation import PROGRAMS  # noqa: E402
from numpyro_ngvi.tracing.programs import what_it_does  # noqa: E402

OFFSET, IS_SHIFTED = 0.0, False


@pytest.fixture
def xla():
    """Names of the programs that XLA compiles, from here on: JAX 0.7 keeps a listener for good."""
    found = []

    def record(event, duration, **details):
        if event.endswith("backend_compile_duration"):
            found.append(details.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(record)
    return found


def data(seed=0, count=6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=count)
    return x, 0.7 * x + rng.normal(size=count)


def fitted(model, *args, **kwargs):
    return fit(model, *args, progress_bar=False, effort="quick", **kwargs)


def everything(result, x):
    result.sample()
    result.with_draws("corrected").sample(200)
    result.predictive()
    result.predictive(x, None)
    return result.diagnostics


def maybe_none(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.StudentT(5.0, slope * x, 1.0), obs=y)


def test_other_data_of_the_same_shapes_compile_nothing(xla):
    first = fitted(maybe_none, *data(0))
    everything(first, data(0)[0])
    first.to_arviz()
    assert first.cost.compiled > 0
    xla.clear()
    x, y = data(1)
    second = fitted(maybe_none, x, y)
    everything(second, x)
    second.to_arviz()
    assert xla == []
    assert (second.cost.compiled, second.cost.reused > 0) == (0, True)
    # ... and they are what a new process finds.
    PROGRAMS.clear()
    anew = fitted(maybe_none, x, y)
    assert anew.cost.compiled > 0
    np.testing.assert_array_equal(second.family.loc, anew.family.loc)
    # Who makes draws follows from measured prices, unless it is said.
    predicted = second.with_draws("gaussian").predictive()
    for name, draws in anew.with_draws("gaussian").predictive().items():
        np.testing.assert_array_equal(predicted[name], draws)


def test_a_model_whose_structure_follows_the_values_of_its_data():
    def model(x, y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        is_wide = float(np.asarray(y).max()) > 10.0  # of the numbers, which cannot be traced
        numpyro.sample("y", dist.Normal(mean, 5.0 if is_wide else 1.0).expand([4]), obs=y)

    narrow = fitted(model, np.ones(4), np.full(4, 2.0))
    wide = fitted(model, np.ones(4), np.full(4, 12.0))
    again = fitted(model, np.ones(4), np.full(4, 2.0))
    assert narrow.family.loc[0] == pytest.approx(2.0 * 4 / 5, abs=1e-3)
    assert wide.family.loc[0] == pytest.approx(12.0 * (4 / 25) / (1 + 4 / 25), abs=1e-3)
    assert again.family.loc[0] == narrow.family.loc[0]


def shifted(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    kind = dist.Laplace if IS_SHIFTED else dist.Normal
    numpyro.sample("y", kind(mean + OFFSET, 1.0).expand([len(y)]), obs=y)


def test_a_model_with_a_global_that_changes(monkeypatch):
    y = np.full(4, 2.0)
    before = fitted(shifted, y)
    monkeypatch.setitem(globals(), "OFFSET", 1.0)
    after = fitted(shifted, y)
    monkeypatch.setitem(globals(), "OFFSET", -0.0)
    assert before.family.loc[0] == pytest.approx(1.6, abs=1e-3)
    assert after.family.loc[0] == pytest.approx(0.8, abs=1e-3)
    assert float(jnp.mean(after.predictive()["y"])) == pytest.approx(0.8, abs=0.2)
    monkeypatch.setitem(globals(), "IS_SHIFTED", True)
    assert fitted(shifted, y).cost.compiled > 0


def test_a_model_with_a_closure_that_is_replaced():
    scale, link = 1.0, jnp.abs

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(link(mean) + mean, scale).expand([len(y)]), obs=y)

    y = np.full(4, 2.0)
    one = fitted(model, y, family="diagonal")
    link = jnp.zeros_like
    other = fitted(model, y, family="diagonal")
    scale = 3.0
    third = fitted(model, y, family="diagonal")
    assert other.family.loc[0] == pytest.approx(1.6, abs=1e-3)
    assert third.family.loc[0] == pytest.approx(2.0 * (4 / 9) / (1 + 4 / 9), abs=1e-3)
    assert one.family.loc[0] != pytest.approx(1.6, abs=0.1)


def test_programs_hold_neither_models_nor_data():
    class Rows:
        def __init__(self, values):
            self.values = values

    def things():
        rows = Rows(jnp.full(5, 2.0))

        def model(y):
            mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(mean, 1.0).expand([5]), obs=rows.values + 0.0 * y)

        result = fitted(model, np.zeros(5))
        result.predictive()
        return [weakref.ref(one) for one in (model, rows, result)]

    found = things()
    gc.collect()
    assert [one() for one in found] == [None] * 3


def test_a_pass_of_chains_traces_nothing(monkeypatch):
    result = fitted(maybe_none, *data(), draws="gaussian")
    with result._at_end() as (problem, state):
        theta = np.zeros((32, 1))
        expected, _ = problem.objective.gradient(state, theta)
        for name in ("eval_shape", "make_jaxpr", "jit"):
            monkeypatch.delattr(jax, name)
        found, slopes = problem.objective.gradient(state, theta)
    np.testing.assert_array_equal(found, expected)
    assert slopes.shape == (32, 1)


def test_threads_share_programs():
    PROGRAMS.clear()
    found, errors = {}, []

    def one(index):
        try:
            found[index] = fitted(shifted, np.full(3, float(index)))
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for index, result in found.items():
        assert result.family.loc[0] == pytest.approx(index * 3 / 4, abs=1e-3)
    assert sum(result.cost.compiled > 0 for result in found.values()) == 1


def user_jvp(function, times):
    """Return the function with a rule of a user's, whose derivative is ``times`` one."""
    own = jax.custom_jvp(function)
    own.defjvp(lambda primals, tangents: (own(*primals), times * tangents[0]))
    return own


def user_vjp(function, times):
    own = jax.custom_vjp(function)
    own.defvjp(lambda x: (own(x), None), jax.jit(lambda _, cotangent: (times * cotangent,)))
    return own


#: Functions whose rules a user may correct, also where the function itself is JAX's.
OF_USERS = {
    "of a function": lambda: user_jvp(lambda x: x + 0.0, 1.0),
    "of JAX's function": lambda: user_jvp(jax.nn.softplus, 1.0),
    "compiled": lambda: user_vjp(jax.nn.softplus, 1.0),
    "inside of another": lambda: jax.jit(lambda x: 2.0 * user_jvp(jnp.abs, 1.0)(x)),
    "of gradients": lambda: jax.custom_gradient(lambda x: (jnp.abs(x), lambda g: g)),
}


@pytest.mark.parametrize("which", OF_USERS)
def test_rules_of_users_are_in_no_key(which):
    assert what_it_does(jax.make_jaxpr(OF_USERS[which]())(1.0).jaxpr) is None
    for function in (jax.nn.softplus, jax.nn.relu, lambda x: dist.StudentT(x).log_prob(1.0)):
        assert what_it_does(jax.make_jaxpr(function)(1.0).jaxpr) is not None


def test_the_slope_of_a_root_is_in_the_key():
    """Of two roots of the same function, each with a solve of its own, the operations are alike."""

    def root(times):
        def found(a):
            solve = lambda slope, y: times * y / slope(1.0)  # noqa: E731
            return jax.lax.custom_root(lambda x: x - a, 1.0, lambda f, x: x - f(x), solve)

        program = jax.make_jaxpr(found)(2.0)
        before = what_it_does(program.jaxpr)
        jax.grad(lambda a: jax.core.eval_jaxpr(program.jaxpr, program.consts, a)[0])(2.0)
        assert what_it_does(program.jaxpr) == before is not None
        return before

    assert root(1.0) == root(1.0)
    assert root(1.0) != root(2.0)


@pytest.mark.slow
def test_locals_by_their_modes_compile_nothing_again(xla):
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("groups", len(y)):
            numpyro.sample(
                "y", dist.Normal(numpyro.sample("u", dist.Normal(mean, scale)), 1.0), obs=y
            )

    assert "at conditional modes" in str(fitted(model, data(0)[1]))
    xla.clear()
    second = fitted(model, data(1)[1])
    str(second)
    assert xla == [] and second.cost.compiled == 0


def test_a_rule_that_is_corrected_counts():
    def model(y, function):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.factor("y", -0.5 * jnp.sum((y - function(mean)) ** 2))

    y, options = np.full(4, 2.0), {"allow_prior": True}
    first = user_vjp(lambda x: x + 0.0, -1.0)
    wrong = fitted(model, y, function=first, callback=lambda step, *_: step >= 2, **options)
    right = fitted(model, y, function=user_vjp(lambda x: x + 0.0, 1.0), **options)
    assert not wrong.converged
    assert right.converged
    assert right.family.loc[0] == pytest.approx(1.6, abs=1e-3)


def test_an_equation_of_motion_inside_of_a_model_is_known_again():
    """JAX wraps it anew at each run; the numbers that it holds differ or not."""
    from jax.experimental.ode import odeint

    def solved(rate):
        def slope(y, t, a):
            return -a * rate * y

        def model(a):
            return odeint(slope, jax.numpy.ones(2), jax.numpy.arange(3.0), a)

        return what_it_does(jax.make_jaxpr(model)(1.0).jaxpr)

    assert solved(1.0) == solved(1.0) is not None
    assert solved(1.0) != solved(2.0)
