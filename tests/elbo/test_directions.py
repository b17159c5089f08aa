"""``NaturalELBO`` where its direction can be written out, and what stands beside the Gaussian."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.latents import forest
from tests.models import PRIOR_SCALE, SUBSAMPLE, logistic, logistic_data
from tests.ppl import SLOW_IN_NUMPYRO, slow_but

#: So small that draws are all but at the mean, and large enough to see the curvature beside it.
SCALE = 1e-4


def specification(ppl, name):
    if name == "blocks":
        return ppl.families.BlockDiagonal(blocks=[range(1), range(1, 3)])
    if name == "low_rank":
        return ppl.families.LowRankPrecision(rank=2)
    return name


def repeated():
    """Rows that are all alike: any minibatch of them says the same."""
    X, y = logistic_data()
    return np.repeat(X[:1], len(y), 0), np.ones(len(y))


@pytest.mark.fast_in_numpyro("*-gauss_newton-repeated*")
@pytest.mark.parametrize(
    ("name", "curvature", "rows"),
    [
        ("covariance_cholesky", "mean", "all"),
        ("precision_cholesky", "hessian", "all"),
        ("blocks", "hessian", "all"),
        ("diagonal", "gauss_newton", "all"),
        ("low_rank", "gauss_newton", "all"),
        ("diagonal", "hessian", "repeated rows"),
        ("covariance_cholesky", "gauss_newton", "repeated rows"),
    ],
)
def test_each_family_gets_its_part_of_the_curvature(ppl, name, curvature, rows, monkeypatch):
    """Also of minibatches, each of whose rows stands for several, and its square is scaled once."""
    if name == "low_rank":
        monkeypatch.setattr(forest, "MAX_DENSIFIED_DIM", 1)  # gradients of rows, and no matrix
    X, y = logistic_data() if rows == "all" else repeated()
    kwargs = {} if rows == "all" else {"subsample_size": SUBSAMPLE}
    model, args = logistic(ppl), tuple(map(ppl.argument, (X, y)))
    guide = ppl.guide(model, specification(ppl, name))
    ppl.set_up(guide, *args)
    q = guide.family.initial(ppl.array(np.array([0.3, -0.2, 0.5])), SCALE)
    elbo = ppl.elbo("NaturalELBO", num_particles=2, curvature=curvature)
    _, gradient = ppl.loss_and_gradient(elbo, model, guide, *args, **kwargs)(q)
    p = 1 / (1 + np.exp(-X @ ppl.numpy(q.mean)))
    residuals = X * (y - p)[:, None]
    squares = residuals.T @ residuals if "gauss" in curvature else (X.T * (p * (1 - p))) @ X
    precision = PRIOR_SCALE**-2 * np.ones(3)
    slope = residuals.sum(0) - precision * ppl.numpy(q.mean)
    if name == "low_rank":
        at = map(ppl.array, (slope, residuals, precision))
        expected, still = q.natural_gradient_from_rows(*at), q.map(lambda value: 0.0 * value)
    else:
        probes = q.hessian_probes()
        hessian = -squares - np.diag(precision)
        products = np.stack([hessian @ (probes == c) for c in range(probes.max() + 1)])
        expected = q.bonnet_price(ppl.array(slope), q.assemble_hessian(ppl.array(products)))
        still = q.bonnet_price(ppl.array(0 * slope), q.assemble_hessian(ppl.array(0 * products)))
    parts = (family.coordinates().values() for family in (gradient, expected, still))
    for actual, wanted, of_entropy in zip(*parts, strict=True):
        wanted = ppl.numpy(wanted - of_entropy)
        error = np.linalg.norm(ppl.numpy(-actual - of_entropy) - wanted)
        assert error <= 1e-3 * np.linalg.norm(wanted)


def gradient_of_parameter(ppl, loss, model, guide, family, y):
    if ppl.is_numpyro:
        import jax

        def of(scale):
            params = {guide._parameter_name: family, "scale": scale}
            return loss.loss(jax.random.key(0), params, model, guide, y)

        return float(jax.jit(jax.grad(of))(ppl.array(1.5)))
    scale = ppl.param("scale")
    scale.unconstrained().grad = None
    ppl.move_to(guide, family)
    loss.loss_and_grads(model, guide, y)
    return scale.unconstrained().grad.item()


@pytest.mark.fast_in_numpyro("hessian")
@pytest.mark.parametrize("curvature", ["hessian", "stein", "mean"])
def test_model_parameters_get_the_gradient_of_the_stock_elbo(ppl, curvature):
    def model(y):
        positive = ppl.dist.constraints.positive
        scale = ppl.param("scale", ppl.array(1.5), constraint=positive)
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(x, scale), obs=y)

    y, guide = ppl.array([1.0, 3.0, 2.0]), ppl.guide(model, "diagonal")
    ppl.set_up(guide, y)
    family = ppl.family("diagonal", [0.7], [1e-9])
    found = [
        gradient_of_parameter(ppl, loss, model, guide, family, y)
        for loss in (ppl.elbo("NaturalELBO", curvature=curvature), ppl.elbo())
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-7)


# -- partners in a list of guides ---------------------------------------------------------


def two_sites(ppl):
    def model():
        a = ppl.sample("a", ppl.dist.Normal(ppl.array(1.0), 0.5))
        ppl.sample("b", ppl.dist.Normal(a, 0.5))

    return model


@SLOW_IN_NUMPYRO
@pytest.mark.parametrize(
    "partner", slow_but("AutoDelta", ["AutoNormal", "AutoDelta", "NaturalGaussianGuide"])
)
def test_partners_learn_beside_it_each_given_the_other(ppl, partner):
    """Also their standard deviations, so that their own ``log q`` counts."""
    ours = ppl.package.NaturalGaussianGuide
    cls, model = getattr(ppl.autoguide, partner, ours), two_sites(ppl)
    guide = ppl.guide_list(model, (ours, ["a"], {"init_scale": 0.3}), (cls, ["b"]))
    svi = ppl.svi(model, guide, ppl.optimiser("BLR", 0.2, adam=0.03))
    svi.run(400)
    # Mean field: given b, the precision of a is 1/0.25 + 1/0.25; that of b given a is 1/0.25.
    family = svi.of(guide[0])
    np.testing.assert_allclose(ppl.numpy(family.mean), 1.0, atol=0.1)
    np.testing.assert_allclose(ppl.numpy(family.stddev), 8**-0.5, rtol=1e-3)
    np.testing.assert_allclose(svi.median()["b"], 1.0, atol=0.15)
    if partner != "AutoDelta":
        draws = svi.predictive(2000)["b"]
        assert draws.std() == pytest.approx(0.5, rel=0.2)


def test_a_guide_of_another_kind_is_refused(ppl):
    model = two_sites(ppl)
    guide = ppl.autoguide.AutoNormal(model)
    with pytest.raises(ValueError, match="no NaturalGaussianGuide"):
        ppl.svi(model, guide, ppl.lib.optim.Adam(0.1 if ppl.is_numpyro else {"lr": 0.1})).step()
