"""IVON as a plain ``torch.optim.Optimizer``, for a training loop without a PPL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi._warn import warn
from ngvi.errors import check_flag
from ngvi.optim.ivon import DEFAULTS, InitialHess, IvonEquations, check_hess_init, check_ivon
from ngvi.torch.first_loss import FirstLoss
from ngvi.torch.vectors import batches, join, write

Tensors = list[Tensor]


@shared_doc(IvonEquations)
class IVON(torch.optim.Optimizer):
    """A torch optimiser; learning-rate schedulers, ``GradScaler`` and parameter groups work.

    In the loop::

        optimizer = IVON(network.parameters(), ess=len(dataset))
        with optimizer.sampled_params(train=True):
            loss = criterion(network(x), y)
            loss.backward()
        optimizer.step()

    Microbatches of one sample are several ``backward`` inside of ``sampled_params``, of losses that
    sum up to the mean. Of several ``sampled_params`` before a step, gradients are averaged: do not
    divide their losses.

    Inside ``sampled_params`` the parameters are a sample, outside the posterior's mean ``m``. Keep
    weights in float32 and use ``torch.autocast`` for mixed precision; momentum and curvature of
    half-precision weights are in float32. Memory: ``g``, ``h`` and the noise of a sample, two
    copies more for several samples a step.

    The first loss is looked at: of one that is a sum over a batch of rows, or of an ``ess`` below
    the rows of a batch, a warning says so.

    :param params: the network's parameters, or groups of them.
    :param lr: ``alpha``, times ``hess_init + weight_decay``.
    :param hess_init: ``h`` before the first step: a number, or tensors by parameter, as
        :func:`initial_hess` measures them. Of tensors a group keeps the mean over all weights, with
        which parameters that are added later begin.
    :param sync: averages over the workers of ``torch.distributed``, each with a sample of its own
        (seed them differently) and a network that is *not* wrapped in
        ``DistributedDataParallel``. With that wrapper, leave it False and seed all workers alike.
    :raises ValueError: for an option outside its range, naming it.
    """

    sync: bool = False
    _is_open: bool = False  #: whether the parameters are a sample now
    #: The last sample since the last step (noise, gradients, and their versions then), the sums of
    #: gradients and products with the noise over those before it, and the parameters' order.
    _last: Any = None
    _sums: Any = None
    _params: Any = ()
    _num_samples: int = 0
    _is_changed: bool = False  #: whether gradients were changed after their sample was left

    def __init__(
        self,
        params: Iterable,
        lr: float = 0.1,
        *,
        ess: float | None = None,
        weight_decay: float = DEFAULTS["weight_decay"],
        beta1: float = DEFAULTS["beta1"],
        beta2: float = DEFAULTS["beta2"],
        hess_init: float | Mapping[Tensor, Tensor] = DEFAULTS["hess_init"],
        clip_radius: float = DEFAULTS["clip_radius"],
        debias: bool = DEFAULTS["debias"],
        rescale_lr: bool = DEFAULTS["rescale_lr"],
        sync: bool = False,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "ess": ess, "weight_decay": weight_decay}
        options |= {"beta1": beta1, "beta2": beta2, "clip_radius": clip_radius}
        options |= {"hess_init": hess_init, "debias": debias, "rescale_lr": rescale_lr}
        options |= {"count": 0, "num_skipped": 0}
        super().__init__(params, options)
        self.sync = check_flag(sync, "sync")
        self.defaults["hess_init"], _ = _mean_and_values(hess_init)  # no copy of the tensors stays

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own where they have some.

        :raises ValueError: for an option outside its range, naming it.
        """
        options = {**self.defaults, **{k: v for k, v in param_group.items() if k != "params"}}
        unknown = options.keys() - self.defaults.keys() - {"name", "initial_lr"}
        if unknown:
            raise ValueError(
                f"IVON has no option {sorted(unknown)[0]!r} of a parameter group, only "
                f"{', '.join(['lr', 'ess', *DEFAULTS])}."
            )
        if callable(options["lr"]):
            raise ValueError("lr must be a number: a schedule is a torch.optim.lr_scheduler.")
        mean, values = _mean_and_values(options["hess_init"])
        _equations({**options, "hess_init": mean})
        super().add_param_group({**param_group, "hess_init": mean})
        params = self.param_groups[-1]["params"]
        for param in _trained(params) if values is not None else ():
            if param not in values or values[param].shape != param.shape:
                self.param_groups.pop()
                found = f"one of shape {tuple(values[param].shape)}" if param in values else "none"
                raise ValueError(
                    "hess_init needs a tensor for each parameter, of its shape: of one of shape "
                    f"{tuple(param.shape)} it has {found}."
                )
        for param in _trained(params) if values is not None else ():
            self._begin(param, values[param].detach())
        if any(param.dtype in (torch.float16, torch.bfloat16) for param in params):
            warn(
                "Half-precision weights round small steps and samples away: keep the weights in "
                "float32, and compute in half precision by torch.autocast."
            )

    def _begin(self, param: Tensor, hess: Tensor | float) -> None:
        zero = torch.zeros_like(param, dtype=_state_dtype(param))
        hess = hess.to(zero) if isinstance(hess, Tensor) else hess
        self.state[param].update(momentum=zero, hess=zero + hess)

    # -- samples ----------------------------------------------------------------------

    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """Inside, the parameters are a sample of the posterior; afterwards its mean again.

        :param train: whether :meth:`step` is to use the gradient that is taken inside; else the
            sample is for a prediction.
        :raises RuntimeError: inside of itself, or if there is no gradient at its end.
        """
        if self._is_open:
            raise RuntimeError("sampled_params is open already: leave it before the next sample.")
        params = [param for group in self.param_groups for param in _trained(group["params"])]
        if train:
            self._fold()
            for param in params:
                param.grad = None
        means, is_left = self._move_to_sample(), False
        is_first = train and not any(group["count"] for group in self.param_groups)
        try:
            with FirstLoss(self.param_groups) if is_first else nullcontext():
                yield
            is_left = True
        finally:
            noises = self._move_back(params, means, train and is_left)
        if not train:
            return
        if all(param.grad is None for param in params):
            raise RuntimeError(
                "No gradient was taken inside of sampled_params(train=True): call loss.backward() "
                "there, or sampled_params() for a prediction."
            )
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        self._params, self._num_samples = params, self._num_samples + 1
        self._last = noises, gradients, [gradient._version for gradient in gradients]

    @torch.no_grad()
    def _move_to_sample(self) -> Tensors:
        """The means of all parameters, which are a sample then."""
        all_means: Tensors = []
        for group in self.param_groups:
            equations, params = _equations(group), _trained(group["params"])
            for param in params:
                if not self.state[param]:
                    self._begin(param, equations.hess_init)
            hesses = [self.state[param]["hess"] for param in params]
            means = [param.to(h.dtype, copy=True) for param, h in zip(params, hesses, strict=True)]
            for here, *rest in batches(params, means, hesses):
                mean, hess = map(join, rest)
                write(here, mean + equations.scale(hess) * torch.randn_like(hess))
            all_means += means
        self._is_open = True
        return all_means

    @torch.no_grad()
    def _move_back(self, params: Tensors, means: Tensors, keep_noise: bool) -> Tensors:
        """The noise ``theta - m``, in place of the means, if it is to be kept."""
        self._is_open = False
        for batch in batches(params, means):
            for param, mean in zip(*batch, strict=True):
                noise = param - mean if keep_noise else None
                param.copy_(mean)
                if noise is not None:
                    mean.copy_(noise)
        return means

    @torch.no_grad()
    def _fold(self) -> None:
        """Add the last sample to the sums of gradients and of their products with the noise.

        Not before the next one, or the step: until then gradients may be clipped.
        """
        if self._last is None:
            return
        products, gradients, versions = self._last
        is_changed = [gradient._version for gradient in gradients] != versions
        if self._sums is not None and is_changed != self._is_changed:
            raise RuntimeError(
                "The gradients of some of this step's samples were changed after sampled_params "
                "was left, those of others were not: clip or unscale inside of it."
            )
        gradients = [g.to(noise.dtype) for g, noise in zip(gradients, products, strict=True)]
        torch._foreach_mul_(products, gradients)
        if self._sums is None:
            self._sums = gradients, products
        else:
            torch._foreach_add_(self._sums[0], gradients)
            torch._foreach_add_(self._sums[1], products)
        self._is_changed, self._last = is_changed, None

    def _forget(self) -> None:
        """Drop the samples since the last step."""
        self._last, self._sums, self._params, self._num_samples = None, None, (), 0

    # -- steps ------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step, on the gradients taken inside of ``sampled_params(train=True)``.

        :param closure: evaluates the loss and calls ``backward``; it is called with a sample.
        :return: the closure's loss.
        :raises RuntimeError: without such gradients, or if others were taken since.
        """
        loss = None
        if closure is not None:
            with self.sampled_params(train=True), torch.enable_grad():
                loss = closure()
        self._require_sample()
        self._fold()
        params, (gradients, products), count = self._params, self._sums, self._num_samples
        self._forget()
        workers = torch.distributed.get_world_size() if self.sync else 1
        for tensor in (*gradients, *products) if workers > 1 else ():
            torch.distributed.all_reduce(tensor)
        if not _can_be_squared(products, max(g["ess"] for g in self.param_groups)):
            for group in self.param_groups:
                group["num_skipped"] += 1
            warn(
                "A step was skipped: its gradient is not finite, or its square. The posterior "
                "stays as it is."
            )
            return loss
        at = {param: index for index, param in enumerate(params)}
        for group in self.param_groups:
            equations, group["count"] = _equations(group), group["count"] + 1
            mine = [at[param] for param in group["params"] if param in at]
            lists = [[of[index] for index in mine] for of in (params, gradients, products)]
            lists += [[self.state[p][name] for p in lists[0]] for name in ("momentum", "hess")]
            for batch in batches(*lists):
                _move(equations, batch, 1.0 / (count * workers), group["lr"], group["count"])
        return loss

    def _require_sample(self) -> None:
        if self._is_open:
            raise RuntimeError("step was called inside of sampled_params: leave it first.")
        if self._last is None:
            raise RuntimeError(
                "step needs a gradient that was taken at a sample: call loss.backward() inside of "
                "'with optimizer.sampled_params(train=True):' before each step."
            )
        pairs = zip(self._params, self._last[1], strict=True)
        if any(param.grad is not None and param.grad is not ours for param, ours in pairs):
            raise RuntimeError(
                "A gradient was taken outside of sampled_params(train=True), where the weights are "
                "the posterior's mean: call loss.backward() inside."
            )

    @property
    def num_skipped(self) -> int:
        """Steps not taken because a gradient was not finite."""
        return max(group["num_skipped"] for group in self.param_groups)

    # -- state ------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a ``state_dict``, bit for bit; samples since the last step are dropped."""
        super().load_state_dict(state_dict)
        self._forget()
        # Torch has cast what is float32 to the dtype of half-precision weights.
        params = [param for group in self.param_groups for param in group["params"]]
        names = [index for group in state_dict["param_groups"] for index in group["params"]]
        for param, name in zip(params, names, strict=True):
            for key, value in state_dict["state"].get(name, {}).items():
                own = value.to(device=param.device, dtype=_state_dtype(param), copy=True)
                self.state[param][key] = own

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "sync": self.sync}


@shared_doc(InitialHess)
def initial_hess(
    params: Iterable[Tensor], losses: Iterable[Tensor], floor: float = InitialHess().floor
) -> dict[Tensor, Tensor]:
    """It is an argument of :class:`IVON`.

    As in::

        batches = islice(loader, 20)
        hess_init = initial_hess(network.parameters(), (loss(x, y) for x, y in batches))
        optimizer = IVON(network.parameters(), ess=len(dataset), hess_init=hess_init)

    Costs one gradient a loss. Losses of a generator are differentiated as they come.

    :param params: the network's parameters; frozen ones are passed over.
    :param losses: of a minibatch each, the mean over its examples.
    :return: a tensor of each parameter, in float32 at least.
    :raises ValueError: without losses, if the gradients are all zero, or not finite.
    """
    params, count = _trained(params), 0
    squares = [torch.zeros_like(param, dtype=_state_dtype(param)) for param in params]
    for loss in losses:
        gradients = torch.autograd.grad(loss, params, allow_unused=True)
        for square, gradient in zip(squares, gradients, strict=True):
            if gradient is not None:
                square += gradient.to(square.dtype).square()
        count += 1
    found = InitialHess(floor).of_squares([square / max(1, count) for square in squares])
    return dict(zip(params, found, strict=True))


def _trained(params: Iterable[Tensor]) -> Tensors:
    return [param for param in params if param.requires_grad]


def _mean_and_values(hess_init: Any) -> tuple[Any, Any]:
    """``hess_init`` as a number, and as tensors if it has some."""
    if not isinstance(hess_init, Mapping):
        return hess_init, None
    return check_hess_init([value.detach() for value in hess_init.values()]), hess_init


def _equations(options: dict[str, Any]) -> IvonEquations:
    own = {name: options[name] for name in ("ess", *DEFAULTS)}
    # Torch's schedulers end at zero, and a sample for a prediction is taken after that.
    return check_ivon(1.0 if options["lr"] == 0 else options["lr"], "lr", **own)


def _state_dtype(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _can_be_squared(products: Tensors, ess: float) -> bool:
    """Whether products of gradient and noise, and so the gradients, stay finite in (5)."""
    extremes = [torch.stack(torch.aminmax(product)) for product in products if product.numel()]
    largest = torch.stack([each.to(extremes[0]) for each in extremes]).abs().max()
    return bool(ess * largest < torch.finfo(largest.dtype).max ** 0.4)  # of NaN it is false


def _move(
    equations: IvonEquations, batch: list[Tensors], part: float, lr: float, count: int
) -> None:
    """Parameters, momentum and curvature of a batch, in place; what is spent on it ends with it."""
    params, gradients, products, momenta, hesses = batch
    product, gradient = join(products), join(gradients)
    hess = equations.new_hess(join(hesses), product if part == 1 else part * product)
    write(hesses, hess)
    momentum = equations.new_momentum(join(momenta), gradient if part == 1 else part * gradient)
    write(momenta, momentum)
    mean = join(params)
    change = equations.change(mean, momentum, hess, lr, count)
    change += mean
    write(params, change)
