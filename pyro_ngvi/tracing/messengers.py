"""What runs of a log density need: latents, a minibatch, quiet, repeatable noise, sites."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ngvi.errors import scaled_guide
from pyro_ngvi.families.base import Family
from pyro_ngvi.tracing.sites import conjugate_site_of, family_of

#: What to do where the values of latents decide which others there are.
SAME_LATENTS = (
    "Every run of the model must sample the guide's latents, and no others: choose between them "
    "with torch.where, or leave one out with poutine.mask."
)


class Posteriors(Messenger):
    """Collects the families that the guide draws from, which draw their mean.

    :param last: the site after which nothing else of a run is wanted; None for a whole run.
    :ivar found: Gaussians with live coordinates, by the name of the sample site.
    :ivar conjugate_sites: conjugate sites with live natural parameters, by name.
    :ivar visited: how often a minibatch counts each coordinate, by the site, where it visits a
        part of them (:mod:`ngvi.guide.subsampled_latents`).
    """

    def __init__(self, last: str | None = None) -> None:
        super().__init__()
        self.last = last
        self.visited: dict[str, Tensor] = {}
        self.found: dict[str, Family] = {}
        self.conjugate_sites: dict[str, Any] = {}

    def collect(self, run: Callable[[], Any]) -> Any:
        """Run the guide inside, and return its result; None where the run ends with ``last``."""
        try:
            return run()
        except _KnownError:
            return None

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if msg["name"] in self.found:
            scale = msg["scale"]
            if not (isinstance(scale, (int, float)) and scale == 1.0):
                raise ValueError(scaled_guide(scale, "poutine.scale"))
            if msg["name"] == self.last:
                raise _KnownError

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        conjugate = conjugate_site_of(msg)
        if conjugate is not None:
            self.conjugate_sites[msg["name"]] = conjugate
            msg["value"], msg["done"] = conjugate.detach().mean.expand(msg["fn"].shape()), True
        family = family_of(msg)
        if family is None:
            return
        if msg["infer"].get("is_minibatch"):
            self.visited[msg["name"]] = msg["fn"].family.weights
        if msg["fn"].batch_shape.numel() != 1:
            raise NotImplementedError(
                f"NaturalELBO draws site '{msg['name']}' once, but it is inside a plate, where "
                f"its batch shape is {tuple(msg['fn'].batch_shape)}: take the guide out of it."
            )
        self.found[msg["name"]] = family
        msg["value"] = family.mean.detach().expand(msg["fn"].shape())
        msg["done"] = True


class Drawn(dist.Delta):
    """Of a value that is its own: the two are not compared, entry by entry."""

    def log_prob(self, value: Tensor) -> Tensor:
        return self.log_density


class GivenLatents(Messenger):
    """Gives the guides their latent vectors, and hides the ``log q`` of these.

    :param latents: unconstrained vectors by the name of the guide's sample site, and values of
        conjugate sites.
    """

    def __init__(self, latents: dict[str, Tensor]) -> None:
        super().__init__()
        self.latents = latents

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        value = self.latents.get(msg["name"])
        if value is not None:
            if conjugate_site_of(msg) is None:
                msg["fn"] = Drawn(value, log_density=0.0, event_dim=1)
            msg["value"] = value
            msg["done"] = True
        elif type(msg["fn"]) is dist.Delta and msg["value"] is None:
            msg["fn"] = Drawn(msg["fn"].v, msg["fn"].log_density, msg["fn"].event_dim)


class Registered(Messenger):
    """Collects the tensors of all parameters that a run names: what SVI's optimiser sees.

    :ivar tensors: unconstrained, by their identity.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[int, Tensor] = {}

    def _pyro_post_param(self, msg: dict[str, Any]) -> None:
        value = msg["value"]
        value = value.unconstrained() if hasattr(value, "unconstrained") else value
        self.tensors[id(value)] = value


class PartnerDraws(Messenger):
    """Records what partner guides draw in a plate of particles, to give it to single runs.

    :param names: the partners' sites.
    :param dim: the dimension of the plate.
    :ivar index: the particle whose draws are given; ``None`` while recording.
    """

    def __init__(self, names: frozenset[str], dim: int) -> None:
        super().__init__()
        self.names, self.dim = names, dim
        self.index: int | None = None
        self._values: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if self.index is None or msg["done"] or msg["name"] not in self._values:
            return
        value = self._values[msg["name"]].select(self.dim - msg["fn"].event_dim, self.index)
        msg["value"], msg["done"] = value.reshape(msg["fn"].shape()), True

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if self.index is None and msg["name"] in self.names:
            self._values[msg["name"]] = msg["value"].detach()


class NoNewLatents(Messenger):
    """Refuses latents that only some runs of the model have, as soon as one is met.

    :raises ValueError: when run, naming the site.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        is_given = msg["done"] or msg["is_observed"] or msg["value"] is not None
        if not (is_given or site_is_subsample(msg) or isinstance(msg["fn"], dist.Delta)):
            raise ValueError(
                f"Latent site '{msg['name']}' was missing when the guide was set up. {SAME_LATENTS}"
            )


def check_no_latent_is_gone(model_trace: poutine.Trace, guide_trace: poutine.Trace) -> None:
    """Refuse a run of the model without a latent that the guide draws, or with a larger one, for
    which it would stand by broadcasting.

    :raises ValueError: naming the site.
    """
    for name, site in guide_trace.nodes.items():
        is_drawn = site["type"] == "sample" and isinstance(site["fn"], dist.Delta)
        if not is_drawn or site["infer"].get("is_auxiliary"):
            continue
        if name not in model_trace.nodes:
            raise ValueError(
                f"Latent site '{name}' is missing in a run of the model. {SAME_LATENTS}"
            )
        event, value = model_trace.nodes[name]["fn"].event_shape, site["value"].shape
        if event and value[-len(event) :] != event:
            raise ValueError(
                f"Latent site '{name}' has events of shape {tuple(event)} in a run of the model, "
                f"and its value in the guide is of shape {tuple(value)}. {SAME_LATENTS}"
            )


class WithoutSequences(Messenger):
    """A model without its sequential plates, which AutoGuide does not support, and whose elements
    are sites of their own.
    """

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        frames = msg["cond_indep_stack"]
        msg["cond_indep_stack"] = tuple(frame for frame in frames if frame.vectorized)


class UnknownMinibatch(Exception):  # noqa: N818
    """A plate is subsampled of which no minibatch is known."""


class _KnownError(Exception):
    """All is known that was wanted of a run."""


class Minibatch(Messenger):
    """Records the indices of subsampled plates in one run, and pins them in the others.

    :ivar indices: of the elements that are visited, by plate.
    :ivar sizes: of these plates.
    """

    def __init__(self) -> None:
        super().__init__()
        self.indices: dict[str, Tensor] = {}
        self.sizes: dict[str, int] = {}
        self._recording = False
        self._drawn_from: dict[str, Any] = {}
        self._last: Any = None  # the state of the generators after the last plate
        self._enough: frozenset[str] | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let the run draw a minibatch that later runs repeat."""
        self._recording = True
        try:
            with self:
                yield
        finally:
            self._recording = False

    def draw(self, run: Callable[[], Any], plates: frozenset[str] | None) -> frozenset[str] | None:
        """Inside :meth:`recording`, run a model for its minibatch.

        :param plates: whose indices are all that the run draws at random: once these are known,
            the rest of it is left out. None for a whole run.
        :return: such plates, or None if something is drawn after them.
        """
        self._enough, self._last = plates, None if plates else NoiseState()
        try:
            if plates is None or not plates <= self.indices.keys():
                run()
        except _KnownError:
            return plates
        finally:
            self._enough = None
        if plates is not None:
            return plates
        return frozenset(self.indices) if self._last.is_now() else None

    @property
    def drawn_from(self) -> dict[str, Any] | None:
        """What indices were drawn from, by plate and in order; None if some were given."""
        is_all = self._drawn_from.keys() == self.indices.keys()
        return dict(self._drawn_from) if is_all else None

    def draw_again(self, drawn_from: dict[str, Any]) -> None:
        """Inside :meth:`recording`, draw as a run did, without running anything.

        :param drawn_from: by the plates of that run. A run whose plates are of other sizes after
            all raises :class:`UnknownMinibatch`.
        """
        for name, fn in drawn_from.items():
            if name not in self.indices:
                pyro.sample(name, fn)

    def _fits(self, msg: dict[str, Any]) -> bool:
        """Whether the indices that are there are those of such a plate."""
        fn, indices = msg["fn"], self.indices[msg["name"]]
        return fn.size == self.sizes[msg["name"]] and fn.subsample_size == len(indices)

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if not site_is_subsample(msg) or msg["value"] is not None:
            return
        if msg["name"] in self.indices and self._fits(msg):
            msg["value"], msg["done"] = self.indices[msg["name"]], True
        elif self._recording and is_subsampled(msg):
            self._drawn_from[msg["name"]] = msg["fn"]
        elif not self._recording and is_subsampled(msg):
            raise UnknownMinibatch(
                f"The subsampled plate '{msg['name']}' was not in the run before: give it the same "
                "name in every run of the model."
            )

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        if self._recording and site_is_subsample(msg) and is_subsampled(msg):
            self.indices[msg["name"]] = msg["value"]
            self.sizes[msg["name"]] = int(msg["fn"].size)
            if self._enough is None:
                self._last = NoiseState()
            elif self._enough <= self.indices.keys():
                raise _KnownError


def is_subsampled(site: dict[str, Any]) -> bool:
    """Whether a plate's subsample site draws a part of the plate."""
    size = site["fn"].subsample_size
    return size is not None and size < site["fn"].size


@contextmanager
def quiet() -> Iterator[None]:
    """No validation by Pyro or torch, whose checks cost time and stop ``torch.func``.

    Everything is as before afterwards, also where torch's default differs from Pyro's.
    """
    validate_args = torch.distributions.Distribution._validate_args
    try:
        with pyro.validation_enabled(False), warnings.catch_warnings():
            # Operations without a batching rule are looped over: slower, and right.
            warnings.filterwarnings("ignore", "There is a performance drop")
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validate_args)


_FACTORISATIONS = {torch.linalg.cholesky, torch.cholesky, Tensor.cholesky}
_INVERSES = {torch.cholesky_inverse, Tensor.cholesky_inverse}


class NanCholesky(TorchFunctionMode):
    """Inside, the factor of a matrix that is not positive definite is NaN, as in other PPLs.

    ``torch.linalg.cholesky`` raises if one matrix of a batch is not positive definite, by rounding
    at one draw, say; and ``torch.cholesky_inverse`` (of ``MultivariateNormal``) at a factor with a
    zero. A draw without a density is no reason to give up the others.
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORISATIONS and "out" not in kwargs:
            upper = kwargs.pop("upper", False)
            factor, info = torch.linalg.cholesky_ex(*args, **kwargs)
            factor = torch.where((info == 0)[..., None, None], factor, torch.nan)
            return factor.mT if upper else factor
        if func in _INVERSES and "out" not in kwargs:
            is_zero = args[0].diagonal(dim1=-2, dim2=-1) == 0
            args = (args[0].masked_fill(is_zero.any(-1)[..., None, None], torch.nan), *args[1:])
        return func(*args, **kwargs)


def check_gradients(what: str, but: str) -> None:
    """Refuse to be called where torch keeps no graph, and makes tensors that never have one.

    :param what: what needs gradients.
    :param but: what does not.
    :raises RuntimeError: saying where that is.
    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{what} needs gradients: call it outside torch.inference_mode(). {but} may be made "
            "inside."
        )


@contextmanager
def repeatable_noise() -> Iterator[None]:
    """Random numbers drawn inside are drawn again outside."""
    with torch.random.fork_rng(devices=_devices()):
        yield


class NoiseState:
    """The state of torch's generators, to draw the same random numbers again."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._devices = {device: torch.cuda.get_rng_state(device) for device in _devices()}

    def is_now(self) -> bool:
        """Whether nothing was drawn since."""
        now = NoiseState()
        if not torch.equal(self._cpu, now._cpu) or len(self._devices) < len(now._devices):
            return False
        return all(torch.equal(old, now._devices[device]) for device, old in self._devices.items())

    @contextmanager
    def again(self) -> Iterator[None]:
        """Random numbers as from that state on; the generators go on as if unused."""
        with repeatable_noise():
            torch.set_rng_state(self._cpu)
            for device, state in self._devices.items():
                torch.cuda.set_rng_state(state, device)
            yield


def _devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
