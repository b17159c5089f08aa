"""Networks that people have: torch's modules as models, with state, frozen parts and mistakes."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("pyro")

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.nn import PyroModule, PyroSample
from pyro.nn.module import to_pyro_module_
from torch import nn

from pyro_ngvi import BLR, IVON, NaturalELBO, NaturalGaussianGuide, Snngm
from pyro_ngvi.optim import VOGN

NUM = 6
METHODS = {
    "Snngm": lambda: ("auto", Snngm(), Trace_ELBO()),
    "BLR": lambda: ("auto", BLR(), NaturalELBO(2)),
    "IVON": lambda: ("diagonal", IVON(), NaturalELBO(2, "stein")),
    "VOGN": lambda: ("diagonal", VOGN(), NaturalELBO(1, "gauss_newton")),
}


class Classifier(PyroModule):
    """A network between images and labels.

    :param layers: of the network, those with weights as latents among them; None for all.
    """

    def __init__(self, *layers, latent=None):
        super().__init__()
        self.net = nn.Sequential(*layers)
        to_pyro_module_(self.net)
        for index, layer in enumerate(self.net):
            for name, weight in list(layer.named_parameters()):
                if latent is None or index in latent:
                    prior = dist.Normal(0.0, 1.0).expand(weight.shape).to_event(weight.dim())
                    setattr(layer, name, PyroSample(prior))

    def forward(self, images, labels=None):
        logits = self.net(images)
        with pyro.plate("data", len(images)):
            pyro.sample("label", dist.Categorical(logits=logits), obs=labels)


def data():
    return torch.randn(NUM, 2), torch.arange(NUM) % 2


def stepped(model, method, num_steps=3):
    family, optimiser, loss = METHODS[method]()
    guide = NaturalGaussianGuide(model, family, init_scale=0.1)
    svi = SVI(model, guide, optimiser, loss)
    losses = torch.tensor([svi.step(*data()) for _ in range(num_steps)])
    assert losses.isfinite().all()
    return guide


@pytest.mark.parametrize("method", METHODS)
def test_a_torch_network_becomes_a_model_in_one_line(method):
    guide = stepped(Classifier(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), method)
    assert guide.latent_dim == 2 * 3 + 3 + 3 * 2 + 2
    draws = pyro.infer.Predictive(guide.model, guide=guide, num_samples=4)(data()[0])
    assert draws["label"].shape == (4, NUM)


@pytest.mark.parametrize("method", METHODS)
def test_dropout_and_batch_normalisation_keep_their_state(method):
    model = Classifier(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2))
    norm = model.net[1]
    stepped(model.eval(), method)
    assert norm.num_batches_tracked == 0 and (norm.running_mean == 0).all()
    pyro.clear_param_store()
    stepped(model.train(), method)
    assert norm.num_batches_tracked >= 3 and (norm.running_mean != 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_part_without_a_prior_is_an_ordinary_parameter(method):
    model = Classifier(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2), latent=(2,))
    before = [weight.detach().clone() for weight in model.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guide = stepped(model, method)
    assert guide.latent_dim == 3 * 2 + 2
    assert len(before) == 2
    for weight, old in zip(model.parameters(), before, strict=True):
        assert not torch.equal(weight, old)


@pytest.mark.parametrize("method", METHODS)
def test_a_frozen_part_stays(method):
    """Pyro's parameter store would make it learn."""
    model = Classifier(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2), nn.Linear(2, 2), latent=(2,))
    body, head = model.net[0].requires_grad_(False), model.net[3]
    before = [weight.detach().clone() for weight in (body.weight, head.weight)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guide = stepped(model, method)
    assert guide.latent_dim == 3 * 2 + 2
    assert torch.equal(body.weight, before[0]) and not body.weight.requires_grad
    assert not torch.equal(head.weight, before[1])


def hidden_layers():
    """``pyro.contrib.bnn``; funsor stays NumPyro's, if another test here has loaded it for that."""
    funsor = pytest.importorskip("funsor")
    backend = funsor.get_backend()
    layers = pytest.importorskip("pyro.contrib.bnn")
    if backend == "jax":
        funsor.set_backend(backend)
    return layers


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
@pytest.mark.parametrize("method", METHODS)
def test_a_hidden_layer_of_bnn_stays_in_the_model(method):
    """It has parameters of its own, and the bound's part of its weights in its density."""
    layers = hidden_layers()

    def model(images, labels):
        mean = pyro.param("mean", lambda: torch.ones(2, 3))
        scale = pyro.param("scale", lambda: 0.1 * torch.ones(2, 3), dist.constraints.positive)
        layer = layers.HiddenLayer(images, mean, scale, torch.tanh, include_hidden_bias=False)
        hidden = pyro.sample("hidden", layer)
        weight = pyro.sample("weight", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
        with pyro.plate("data", NUM):
            pyro.sample("label", dist.Categorical(logits=hidden @ weight), obs=labels)

    with pytest.raises(ValueError, match=r"'hidden' has a HiddenLayer.*hide=\['hidden'\]"):
        NaturalGaussianGuide(model)(*data())
    pyro.clear_param_store()
    family, optimiser, loss = METHODS[method]()
    guide = NaturalGaussianGuide(pyro.poutine.block(model, hide=["hidden"]), family, init_scale=0.1)
    svi = SVI(model, guide, optimiser, loss)
    assert torch.tensor([svi.step(*data()) for _ in range(3)]).isfinite().all()
    assert guide.latent_dim == 6
    assert not torch.equal(pyro.param("mean"), torch.ones(2, 3))


def test_a_network_without_latents_says_what_gives_it_a_prior():
    model = Classifier(nn.Linear(2, 3), nn.Linear(3, 2), latent=())
    guide = NaturalGaussianGuide(model)
    with pytest.raises(RuntimeError, match=r"net.*0\.weight.* have no posterior.*PyroSample"):
        guide(*data())


def test_a_network_that_is_no_part_of_the_model_is_thought_of():
    net = nn.Linear(2, 2)

    def model(images, labels):
        with pyro.plate("data", NUM):
            pyro.sample("label", dist.Categorical(logits=net(images)), obs=labels)

    with pytest.raises(RuntimeError, match="calls a network.*of its weights by to_pyro_module_"):
        NaturalGaussianGuide(model)(*data())


def test_weights_that_nothing_learns_are_noticed_unless_they_are_frozen():
    net = nn.Linear(2, 2)

    def model(images, labels, registered=False):
        bias = pyro.sample("bias", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        network = pyro.module("net", net) if registered else net
        with pyro.plate("data", NUM):
            pyro.sample("label", dist.Categorical(logits=network(images) + bias), obs=labels)

    def step(**options):
        guide = NaturalGaussianGuide(model)
        SVI(model, guide, BLR(), NaturalELBO(1, "stein")).step(*data(), **options)

    with pytest.warns(UserWarning, match=r"6 numbers .*shapes \(2,.*pyro\.module"):
        step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(registered=True)
        pyro.clear_param_store()
        net.requires_grad_(False)
        step()


def test_half_precision_that_overflows_is_an_error_of_the_start():
    one = torch.ones((), dtype=torch.float16)

    def model(y):
        mean = pyro.sample("mean", dist.Normal(0 * one, one))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, one), obs=y)

    guide = NaturalGaussianGuide(model, "diagonal")
    with pytest.raises(ValueError, match=r"observed site 'y' overflows in torch\.float16"):
        guide(200 * one.expand(8))  # 160,000 nats


def test_a_gradient_that_overflows_in_half_precision_says_so():
    def model(x, y):
        weight = pyro.sample("weight", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal((3e4 * x.half() * weight.half()).float(), 1.0), obs=y)

    guide = NaturalGaussianGuide(model, "diagonal")
    svi = SVI(model, guide, BLR(), NaturalELBO(2, "stein"))
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="float16"):
        svi.step(torch.ones(3), torch.zeros(3))
