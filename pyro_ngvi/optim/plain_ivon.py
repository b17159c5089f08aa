"""IVON as a plain ``torch.optim.Optimizer``, for a training loop without a PPL."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ngvi._docs import shared_doc
from ngvi.errors import check_finite, check_flag
from ngvi.optim.plain_ivon import (
    DEFAULTS,
    FLOOR,
    InitialHess,
    PlainIvon,
    check_hess_init,
    check_plain_ivon,
)
from pyro_ngvi.optim.batches import Pieces, batches, join, write

#: Of a loss that is a sum of losses, how many steps of its graph are looked at.
MAX_TERMS = 100


class Draw(NamedTuple):
    """A sample of the weights, and the gradient there."""

    noise: list[Tensor]  #: ``theta - m``, of each parameter
    gradients: list[Tensor]
    versions: list[int]  #: of the gradients, when the sample was left


@shared_doc(PlainIvon)
class PlainIVON(torch.optim.Optimizer):
    """A torch optimiser; learning-rate schedulers, ``GradScaler`` and parameter groups work.

    In the loop::

        optimizer = PlainIVON(network.parameters(), ess=len(dataset))
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

    _draw: Draw | None  #: the last sample since the last step
    _num_draws: int  #: how many there were before it, and their sums over these parameters:
    _params: list[Tensor]
    _gradients: list[Tensor]
    _products: list[Tensor]
    _is_changed: bool  #: whether their gradients were changed after sampled_params was left
    _is_sampled: bool  #: whether the parameters are a sample now

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
        options = {
            "ess": ess,
            "weight_decay": weight_decay,
            "beta1": beta1,
            "beta2": beta2,
            "hess_init": hess_init,
            "clip_radius": clip_radius,
            "debias": debias,
            "rescale_lr": rescale_lr,
        }
        self.sync = check_flag(sync, "sync")
        self._forget()
        super().__init__(params, {"lr": lr, **options, "count": 0, "num_skipped": 0})
        self.defaults["hess_init"], _ = _mean_and_values(hess_init)  # no copy of the tensors stays

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own where they have some.

        :raises ValueError: for an option outside its range, naming it.
        """
        options = {**self.defaults, **{k: v for k, v in param_group.items() if k != "params"}}
        unknown = options.keys() - self.defaults.keys() - {"name", "initial_lr"}
        if unknown:
            raise ValueError(
                f"PlainIVON has no option {sorted(unknown)[0]!r} of a parameter group, only "
                f"{', '.join(['lr', 'ess', *DEFAULTS])}."
            )
        if callable(options["lr"]):
            raise ValueError("lr must be a number: a schedule is a torch.optim.lr_scheduler.")
        mean, values = _mean_and_values(options["hess_init"])
        _rule({**options, "hess_init": mean})
        super().add_param_group({**param_group, "hess_init": mean})
        try:
            self._start_at(self.param_groups[-1]["params"], values)
        except ValueError:
            self.param_groups.pop()
            raise
        if any(p.dtype in (torch.float16, torch.bfloat16) for p in self.param_groups[-1]["params"]):
            warnings.warn(
                "Half-precision weights round small steps and samples away: keep the weights in "
                "float32, and compute in half precision by torch.autocast.",
                stacklevel=2,
            )

    def _start_at(self, params: list[Tensor], values: Mapping[Tensor, Tensor] | None) -> None:
        own = [param for param in params if param.requires_grad and values is not None]
        hesses = [(values or {}).get(param) for param in own]
        for param, hess in zip(own, hesses, strict=True):
            if hess is None or hess.shape != param.shape:
                found = "none" if hess is None else f"one of shape {tuple(hess.shape)}"
                raise ValueError(
                    "hess_init needs a tensor for each parameter, of its shape: of one of shape "
                    f"{tuple(param.shape)} it has {found}."
                )
        for param, hess in zip(own, hesses, strict=True):
            zero = torch.zeros_like(param, dtype=_state_dtype(param))
            self.state[param].update(momentum=zero, hess=zero.clone().copy_(hess.detach()))

    # -- samples ----------------------------------------------------------------------

    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """Inside, the parameters are a sample of the posterior; afterwards its mean again.

        :param train: whether :meth:`step` is to use the gradient that is taken inside; else the
            sample is for a prediction.
        :raises RuntimeError: inside of itself, or if there is no gradient at its end.
        """
        if self._is_sampled:
            raise RuntimeError("sampled_params is open already: leave it before the next sample.")
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if train:
            self._fold()
            for param in params:
                param.grad = None
        buffers, self._is_sampled = self._move_to_sample(), True
        is_first = train and not any(group["count"] for group in self.param_groups)
        try:
            with _FirstLoss(self.param_groups) if is_first else nullcontext():
                yield
        except BaseException:
            self._move_back(params, buffers, False)
            raise
        self._move_back(params, buffers, train)
        if not train:
            return
        if all(param.grad is None for param in params):
            raise RuntimeError(
                "No gradient was taken inside of sampled_params(train=True): call loss.backward() "
                "there, or sampled_params() for a prediction."
            )
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        self._params = params
        self._draw = Draw(buffers, gradients, [g._version for g in gradients])

    @torch.no_grad()
    def _move_to_sample(self) -> list[Tensor]:
        """Leaves the means in buffers."""
        buffers = []
        for group in self.param_groups:
            rule = _rule(group)
            params = [param for param in group["params"] if param.requires_grad]
            for param in params:
                if not self.state[param]:
                    zero = torch.zeros_like(param, dtype=_state_dtype(param))
                    self.state[param].update(momentum=zero, hess=zero + rule.hess_init)
            hesses = [self.state[param]["hess"] for param in params]
            means = [param.to(h.dtype, copy=True) for param, h in zip(params, hesses, strict=True)]
            for here, *rest in batches(params, means, hesses):
                mean, hess = map(join, rest)
                write(here, mean + rule.scale(hess) * torch.randn_like(hess))
            buffers += means
        return buffers

    @torch.no_grad()
    def _move_back(self, params: list[Tensor], buffers: list[Tensor], keep_noise: bool) -> None:
        self._is_sampled = False
        for here, buffer in batches(params, buffers):
            mean = join(buffer)
            noise = join(here) - mean if keep_noise else None
            write(here, mean)
            if noise is not None:
                write(buffer, noise)

    @torch.no_grad()
    def _fold(self) -> None:
        """Add the last sample to the sums of gradients and of products with the noise."""
        if self._draw is None:
            return
        noises, gradients, versions = self._draw
        changed = [g._version for g in gradients] != versions
        if self._num_draws and changed != self._is_changed:
            raise RuntimeError(
                "The gradients of some of this step's samples were changed after sampled_params "
                "was left, those of others were not: clip or unscale inside of it."
            )
        gradients = [g.to(noise.dtype) for g, noise in zip(gradients, noises, strict=True)]
        for noise, gradient in batches(noises, gradients):
            write(noise, join(noise) * join(gradient))
        if self._num_draws:
            for ours, new in ((self._gradients, gradients), (self._products, noises)):
                torch._foreach_add_(ours, new)
        else:
            self._gradients, self._products = gradients, noises
        self._num_draws, self._is_changed, self._draw = self._num_draws + 1, changed, None

    def _forget(self) -> None:
        """Drop the samples since the last step."""
        self._is_sampled, self._is_changed, self._num_draws, self._draw = False, False, 0, None
        self._params, self._gradients, self._products = [], [], []

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
        num_draws = self._num_draws + 1
        self._fold()
        params, gradients, products = self._params, self._gradients, self._products
        self._forget()
        workers = torch.distributed.get_world_size() if self.sync else 1
        for tensor in (*gradients, *products) if workers > 1 else ():
            torch.distributed.all_reduce(tensor)
        share = 1.0 / (num_draws * workers)
        at = {param: index for index, param in enumerate(params)}
        if not _can_be_squared(products, max(g["ess"] for g in self.param_groups)):
            for group in self.param_groups:
                group["num_skipped"] += 1
            warnings.warn(
                "A step was skipped: its gradient is not finite, or its square. The posterior "
                "stays as it is.",
                stacklevel=2,
            )
            return loss
        for group in self.param_groups:
            rule, count = _rule(group), group["count"] + 1
            mine = [at[param] for param in group["params"] if param in at]
            lists = [[of[index] for index in mine] for of in (params, gradients, products)]
            states = [self.state[param] for param in lists[0]]
            lists += [[state[name] for state in states] for name in ("momentum", "hess")]
            for batch in batches(*lists):
                _move(rule, batch, share, group["lr"], count)
            group["count"] = count
        return loss

    def _require_sample(self) -> None:
        if self._is_sampled:
            raise RuntimeError("step was called inside of sampled_params: leave it first.")
        if self._draw is None:
            raise RuntimeError(
                "step needs a gradient that was taken at a sample: call loss.backward() inside of "
                "'with optimizer.sampled_params(train=True):' before each step."
            )
        pairs = zip(self._params, self._draw.gradients, strict=True)
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
                like = {"device": param.device, "dtype": _state_dtype(param)}
                self.state[param][key] = value.to(**like, copy=True)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("sync", False)
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "sync": self.sync}


@shared_doc(InitialHess)
def initial_hess(
    params: Iterable[Tensor], losses: Iterable[Tensor], floor: float = FLOOR
) -> dict[Tensor, Tensor]:
    """It is an argument of :class:`PlainIVON`.

    As in::

        batches = islice(loader, 20)
        hess_init = initial_hess(network.parameters(), (loss(x, y) for x, y in batches))
        optimizer = PlainIVON(network.parameters(), ess=len(dataset), hess_init=hess_init)

    Costs one gradient a loss. Losses of a generator are differentiated as they come.

    :param params: the network's parameters; frozen ones are passed over.
    :param losses: of a minibatch each, the mean over its examples.
    :return: a tensor of each parameter, in float32 at least.
    :raises ValueError: without losses, if the gradients are all zero, or not finite.
    """
    rule = InitialHess(check_finite(floor, "floor"))
    params, count = [param for param in params if param.requires_grad], 0
    squares = [torch.zeros_like(param, dtype=_state_dtype(param)) for param in params]
    for loss in losses:
        gradients = torch.autograd.grad(loss, params, allow_unused=True)
        for square, gradient in zip(squares, gradients, strict=True):
            if gradient is not None:
                square += gradient.to(square.dtype).square()
        count += 1
    found = rule.of_squares([square / max(1, count) for square in squares])
    return dict(zip(params, found, strict=True))


class _FirstLoss(TorchFunctionMode):
    """Looks at the first loss that is differentiated: whether it is a mean over a batch.

    Nothing later can tell: a sum of ``B`` losses is the loss of a posterior ``B`` times as sharp.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__()
        self.groups, self.is_over = groups, False

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is Tensor.backward and not self.is_over:
            self.is_over = True
            node, times = _unscaled(args[0].grad_fn)
            self._look(list(_terms(node)), times)
        return func(*args, **(kwargs or {}))

    def _look(self, terms: list[tuple[Any, float]], times: float) -> None:
        """Warn of the worst that is known of the loss.

        :param terms: what its sum is of, see :func:`_terms`.
        :param times: what all of it is multiplied by.
        """
        ess = min(group["ess"] for group in self.groups)
        rows_of_sum, rows, is_mean = 1, 1, False
        for node, factor in terms:
            count, is_sum = self._rows(node)
            rows = max(rows, count)
            if is_sum and factor > 0.5:  # less may make a mean of it
                rows_of_sum = max(rows_of_sum, count)
            is_mean = is_mean or (count > 1 and not is_sum)
        if rows_of_sum > 1:
            warnings.warn(
                f"The loss is a sum over {rows_of_sum} rows, and ess={ess:g} is for a mean over "
                f"examples: of a sum the posterior is {rows_of_sum} times too sharp. Take the "
                "mean, reduction='mean'.",
                stacklevel=6,
            )
        elif is_mean and times > 1 and math.isclose(times, ess, rel_tol=1e-6):
            warnings.warn(
                f"The loss is a mean times ess={ess:g}, as of all data, and PlainIVON multiplies "
                f"by ess itself: the posterior is {ess:g} times too sharp. Take the mean alone.",
                stacklevel=6,
            )
        elif rows > ess:
            warnings.warn(
                f"ess={ess:g} is below the {rows} rows of one batch: it is the number of training "
                "examples, len(dataset), and not of batches.",
                stacklevel=6,
            )

    def _rows(self, node: Any) -> tuple[int, bool]:
        """Over how many rows a node is a mean or a sum, and whether it is a sum."""
        reduction = getattr(node, "_saved_reduction", None)  # of torch's losses: 1 mean, 2 sum
        if reduction is None:
            shape = tuple(getattr(node, "_saved_self_sym_sizes", ()))
            is_sum = type(node).__name__.startswith("SumBackward")
        else:
            shape, is_sum = tuple(node._saved_self.shape), reduction == 2
        of_weights = any(tuple(p.shape) == shape for g in self.groups for p in g["params"])
        return (shape[0] if shape and not of_weights else 1), is_sum


def _terms(node: Any) -> Iterator[tuple[Any, float]]:
    """What a loss is the sum of, by sums, differences and multiples by numbers; with factors."""
    open_ones = [(node, 1.0)]
    for _ in range(MAX_TERMS):
        if not open_ones:
            return
        node, factor = open_ones.pop()
        kind = type(node).__name__
        before = [one for one, _ in getattr(node, "next_functions", ()) if one is not None]
        number = _number(node) if kind.startswith(("MulBackward", "DivBackward")) else None
        if kind.startswith(("AddBackward", "SubBackward", "NegBackward")):
            open_ones += [(one, factor) for one in before]
        elif number is None or len(before) != 1:
            yield node, factor
        else:
            factor *= 1 / number if kind.startswith("Div") else number
            open_ones.append((before[0], factor))


def _number(node: Any) -> float | None:
    """The size of the number by which a node multiplies or divides what has a gradient."""
    values = [getattr(node, "_saved_other", None)]
    if type(node).__name__.startswith("MulBackward") and len(node.next_functions) == 2:
        # The factor is the one without a gradient.
        values = [node._saved_other, node._saved_self]
        pairs = zip(values, node.next_functions, strict=True)
        values = [value for value, (one, _) in pairs if one is not None]
    if len(values) != 1 or values[0] is None:
        return None
    if isinstance(values[0], Tensor):
        if values[0].numel() != 1:
            return None
        values = [values[0].item()]
    return abs(float(values[0])) or None


def _unscaled(node: Any) -> tuple[Any, float]:
    """What a ``GradScaler`` has multiplied, and by how much; a factor below one may be a mean's."""
    times = 1.0
    while type(node).__name__.startswith("MulBackward"):
        before = [one for one, _ in node.next_functions if one is not None]
        number = _number(node)
        if len(before) != 1 or number is None or not number >= 1:
            break
        (node,), times = before, times * number
    return node, times


def _move(rule: PlainIvon, batch: list[Pieces], share: float, lr: float, count: int) -> None:
    """Parameters, momentum and curvature of a batch, in place; what is spent on it ends with it."""
    params, gradients, products, momenta, hesses = batch
    product, gradient = join(products), join(gradients)
    hess = rule.new_hess(join(hesses), product if share == 1 else share * product)
    write(hesses, hess)
    momentum = rule.new_momentum(join(momenta), gradient if share == 1 else share * gradient)
    write(momenta, momentum)
    mean = join(params)
    change = rule.change(mean, momentum, hess, lr, count)
    change += mean
    write(params, change)


def _mean_and_values(hess_init: Any) -> tuple[Any, Mapping[Tensor, Tensor] | None]:
    """``hess_init`` as a number, and as tensors if it has some."""
    if not isinstance(hess_init, Mapping):
        return hess_init, None
    return check_hess_init([value.detach() for value in hess_init.values()]), hess_init


def _rule(options: dict[str, Any]) -> PlainIvon:
    own = {name: options[name] for name in ("ess", *DEFAULTS)}
    # Torch's schedulers end at zero, and a sample for a prediction is taken after that.
    return check_plain_ivon(1.0 if options["lr"] == 0 else options["lr"], "lr", **own)


def _state_dtype(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


def _can_be_squared(products: list[Tensor], ess: float) -> bool:
    """Whether products of gradient and noise, and so the gradients, stay finite in (5)."""
    extremes = [torch.stack(torch.aminmax(product)) for product in products if product.numel()]
    largest = torch.stack([each.to(extremes[0]) for each in extremes]).abs().max()
    return bool(ess * largest < torch.finfo(largest.dtype).max ** 0.4)  # of NaN it is false
