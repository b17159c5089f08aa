"""Recorded functions give what the functions give, or are not replayed."""

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_ngvi import fit
from pyro_ngvi.tracing import recording
from pyro_ngvi.tracing.messengers import quiet
from pyro_ngvi.tracing.program import NotReplayableError
from pyro_ngvi.tracing.recording import Replays, recorded

DATA = torch.tensor([0.3, -1.2, 2.0, 0.7])
GROUPS = torch.tensor([0, 1, 1, 2])
X = torch.linspace(-1.0, 2.0, 18, dtype=torch.float64).reshape(6, 3)


def gradient(value):
    """Of a function of one row, as a function of rows."""

    def of_rows(x):
        def summed(row):
            return value(row).sum()

        return torch.vmap(torch.func.grad_and_value(summed))(x)

    return of_rows


def agree(function, x=X, by=1.7):
    """Whether a program does to others, of another number, what the function does."""
    program = recorded(function, [x])
    for other in (x * by, torch.cat([x, -x]), x[:1]):
        for found, expected in zip(program(other), function(other), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14, equal_nan=True)
    return program


@pytest.mark.parametrize(
    "value",
    [
        lambda x: dist.Normal(x[GROUPS], x.exp()[GROUPS]).log_prob(DATA),
        lambda x: dist.StudentT(x[0].exp(), x[1], x[2].exp()).log_prob(DATA) ** 2,
        lambda x: torch.where(x > 0.5, x**3, x.cumsum(0)) / x.new_full((), 3.0),
        lambda x: torch.linalg.cholesky(x.outer(x) + 3 * torch.eye(3, dtype=x.dtype)).logdet(),
        lambda x: torch.zeros_like(x).index_add(0, GROUPS, x[GROUPS]).masked_fill(x > 1, 2.0),
        lambda x: (torch.ones(3, 3, dtype=x.dtype) @ x) * x.detach() + float(DATA.max()),
        lambda x: DATA[DATA > 0].sum() * x.clone().mul_(2.0),
        lambda x: torch.stack([x[0] * x[1], x[1].exp() * x[2], x[0] - x[2], x[2] ** 2]) + x[0],
    ],
)
def test_programs_do_the_same(value):
    with quiet():
        agree(gradient(value))


def counted(x):
    counted.calls += 1
    return (x * counted.calls,)


counted.calls = 0


def written(x):
    written.into += x.sum()
    return (x * 1.0,)


written.into = torch.zeros((), dtype=torch.float64)
WEIGHTS = torch.ones(3, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(
    "function",
    [
        counted,
        written,
        lambda x: (x if x.sum() > 0 else -x,),
        lambda x: (x * x.sum().item(),),
        lambda x: (x * float(x.detach().numpy().sum()),),
        lambda x: (torch.as_tensor(np.exp(x.tolist())),),
        lambda x: (x + torch.randn(3),),
        lambda x: (torch.dropout(x, 0.5, True),),
        lambda x: (x[x > 0],),
        lambda x: (x * WEIGHTS,),  # which somebody may replace
        lambda x: (x.add_(1.0),),
        lambda x: (x * len(x) ** 2,),
    ],
)
def test_what_is_not_a_list_of_operations_is_refused(function):
    with pytest.raises(NotReplayableError):
        recorded(function, [X.clone()])


def test_a_branch_that_is_seen_late_ends_it():
    """A function that decides where torch does not see it."""
    sign = [1.0]
    uses = []

    def function(x):
        uses.append(len(x))
        return (x * sign[0],)

    with Replays() as replays:
        for _ in range(30):
            replays("f", function, X)
        known, sign[0] = len(uses), -1.0
        while len(uses) == known:  # until it is compared
            replays("f", function, X)
        assert torch.equal(replays("f", function, X)[0], -X)


SCALE = 1.0


def mean(y):
    at = pyro.sample("at", dist.Normal(0.0, SCALE))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(at, 1.0), obs=y)


def found(model, y, before, monkeypatch):
    monkeypatch.setattr(recording, "CALLS_BEFORE", before)
    pyro.set_rng_seed(0)
    result = fit(model, y, effort="quick", progress_bar=False)
    return np.array([result.bound, result.cost.gradients, *result.posterior.mean.tolist()])


def test_fits_never_share_a_program(monkeypatch):
    """Neither a global that has changed, nor other data of the same shapes, nor another closure."""
    y, bounds = DATA.double(), set()
    for scale, data, model in (
        (1.0, y, mean),
        (3.0, y, mean),
        (3.0, y + 1, mean),
        (3.0, y + 1, lambda y: mean(2 * y)),
    ):
        monkeypatch.setitem(globals(), "SCALE", scale)
        bounds.add(found(model, data, 0, monkeypatch)[0])
    assert len(bounds) == 4
    last = found(lambda y: mean(2 * y), y + 1, 10**9, monkeypatch)  # without programs
    assert any(one == pytest.approx(last[0], rel=1e-9) for one in bounds)
