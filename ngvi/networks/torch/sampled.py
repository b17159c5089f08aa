"""Common parts of the optimisers of torch: samples, steps and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ngvi._warn import warn
from ngvi.errors import check_count, check_function
from ngvi.networks.torch.options import GroupedOptimizer, evaluating, own_groups, trained
from ngvi.networks.torch.vectors import TrainedWeights, Vector, alike, largest_of, state_dtype

Tensors = list[Tensor]


class SampledOptimizer(GroupedOptimizer):
    """An optimiser of the mean and curvature, whose gradients are those of a sample.

    A subclass has the equations, and estimates the curvature from a sample.
    """

    _is_open: bool = False  #: True if the parameters are a sample now.
    _is_for_step: bool = False  #: True if the last sample's gradients are for a step.
    #: The last sample since the last step: its weights, for each of these the noise and gradients,
    #: and the gradients' versions then.
    _last: Any = None
    #: Sums over the samples before it, for each weights of gradients and products with the noise.
    _sums: Any = None
    _num_samples: int = 0
    _known: Any = ((), ())  #: The weights, and their tensors.
    _is_changed: bool = False  #: True if gradients were changed after their sample was left.

    # -- samples ----------------------------------------------------------------------

    @contextmanager
    def sampled_params(self, train: bool = False) -> Iterator[None]:
        """Inside, the parameters are a sample of the posterior; afterwards its mean again.

        :param train: whether :meth:`step` will use the gradient taken inside; otherwise the
            sample is for a prediction.
        :raises RuntimeError: if nested, or if there is no gradient at its end.
        """
        if self._is_open:
            raise RuntimeError("sampled_params is open already: leave it before the next sample.")
        params = [param for group in self.param_groups for param in trained(group["params"])]
        if train:
            self._fold()
            self._begin_sample()
            for param in params:
                param.grad = None
        weights = self._weights()
        # A sample for a prediction leaves alone what the step needs.
        works = [of.work if self._last is None else of.vector() for of in weights]
        is_left = False
        self._move_to_sample(weights, works)
        self._is_for_step = train
        try:
            yield
            is_left = True
        finally:
            self._move_back(weights, works, train and is_left)
        if not train:
            return
        if not self._has_gradients(params):
            raise RuntimeError(self._no_gradient())
        gradients = [
            [torch.zeros_like(p) if p.grad is None else p.grad for p in of.params] for of in weights
        ]
        self._num_samples += 1
        self._last = weights, works, gradients, _versions(gradients)

    @torch.no_grad()
    def predict(self, network: Callable[[Any], Tensor], x: Any, n: int = 100) -> Tensor:
        """Return the outputs of a network for inputs, at draws of its weights from the posterior.

        A module is put in evaluation mode meanwhile. It takes ``n`` calls of the network.

        >>> import torch
        >>> from ngvi.torch import IVON
        >>> network = torch.nn.Linear(3, 2)
        >>> IVON(network.parameters(), ess=50).predict(network, torch.ones(5, 3), n=7).shape
        torch.Size([7, 5, 2])

        :param network: the module of these weights, or a function that calls it.
        :param x: its input.
        :param n: the number of draws.
        :return: outputs without gradients, with a leading axis of draws.
        """
        check_function(network, "network", "a module, of inputs")
        outputs = []
        for _ in range(check_count(n, "n")):
            with self.sampled_params(), evaluating(network):
                outputs.append(network(x))
        return torch.stack(outputs)

    def _weights(self) -> list[TrainedWeights]:
        """Return what is trained now, as vectors, of which the state has views."""
        groups = [(group, trained(group["params"])) for group in self.param_groups]
        for group, params in groups:
            new = [param for param in params if not self.state[param]]
            for param in new:
                self._begin(param, group["hess_init"])

        def tensors() -> list[tuple[int, ...]]:
            states = [(p, self.state[p], i) for i, (_, of) in enumerate(groups) for p in of]
            return [(i, id(p), id(of["momentum"]), id(of["hess"])) for p, of, i in states]

        if tensors() != self._known[1]:
            weights = [
                TrainedWeights(group, some, [self.state[param] for param in some])
                for group, params in groups
                for some in alike(params, [self.state[param]["hess"] for param in params])
            ]
            self._known = weights, tensors()
        return self._known[0]

    @torch.no_grad()
    def _move_to_sample(self, weights: list[TrainedWeights], works: list[Vector]) -> None:
        """Copy the means of all parameters into vectors, and replace them by a sample."""
        for of in weights:
            of.spare.all.normal_()
        self._scale(weights)
        for of, work in zip(weights, works, strict=True):
            of.spare.all += work.read(of.params).all
            of.spare.write(of.params)
        self._is_open = True

    def _scale(self, weights: list[TrainedWeights]) -> None:
        """Scale the standard normal numbers in ``spare`` to the posterior's deviations."""
        for of in weights:
            equations = self._equations_of(of.group)
            for noise, hess in of.parts(of.spare.all, of.state["hess"].all):
                noise *= equations.scale(hess)

    @torch.no_grad()
    def _move_back(
        self, weights: list[TrainedWeights], works: list[Vector], keep_noise: bool
    ) -> None:
        """Return the noise ``theta - m``, in place of the means, if it is to be kept."""
        self._is_open = False
        for of, work in zip(weights, works, strict=True):
            sample = of.spare.read(of.params) if keep_noise else of.spare
            work.write(of.params)
            if keep_noise:
                torch.sub(sample.all, work.all, out=work.all)

    @torch.no_grad()
    def _fold(self, is_last: bool = False) -> None:
        """Add the last sample to the sums of gradients and of their products with the noise.

        Not before the next one, or the step: until then gradients may be clipped.
        """
        if self._last is None:
            return
        weights, works, gradients, versions = self._last
        is_changed = _versions(gradients) != versions
        if self._sums is not None and is_changed != self._is_changed:
            raise RuntimeError(
                "The gradients of some of this step's samples were changed after sampled_params "
                "was left, those of others were not: clip or unscale inside of it."
            )
        if self._sums is not None and self._sums[0] is not weights:
            raise RuntimeError(
                "Other parameters are trained than at this step's first sample: freeze, add or "
                "load parameters between steps."
            )
        fresh = []
        for of, noise, gradient in zip(weights, works, gradients, strict=True):
            self._to_curvature(of, noise, gradient)
            fresh.append([of.spare.read(gradient).all, noise.all])
        if self._sums is not None:
            for sums, ours in zip(self._sums[1], fresh, strict=True):
                torch._foreach_add_(sums, ours)
        else:  # at the step it is the only sample, and nothing is to overwrite it
            kept = fresh if is_last else [[one.clone() for one in ours] for ours in fresh]
            self._sums = weights, kept
        self._is_changed, self._last = is_changed, None

    def _to_curvature(self, of: TrainedWeights, noise: Vector, gradients: Tensors) -> None:
        """Return what the equations make a curvature of, in place of a sample's noise."""
        raise NotImplementedError

    def _begin_sample(self) -> None:
        """Prepare a sample whose gradients are for a step."""

    def _has_gradients(self, params: Tensors) -> bool:
        """Return whether all that a step needs was taken at the sample."""
        return any(param.grad is not None for param in params)

    def _no_gradient(self) -> str:
        """Return what is said where no gradient was taken at a sample."""
        return (
            "No gradient was taken inside of sampled_params(train=True): call loss.backward() "
            "there, or sampled_params() for a prediction."
        )

    def _forget(self) -> None:
        """Drop the samples since the last step."""
        self._last, self._sums, self._num_samples = None, None, 0

    # -- steps ------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step, on the gradients taken inside ``sampled_params(train=True)``.

        :param closure: evaluates the loss and calls ``backward``; it is called at a sample.
        :return: the closure's loss.
        :raises RuntimeError: without such gradients, or if others were taken since.
        """
        loss = None
        if closure is not None:
            with self.sampled_params(train=True), torch.enable_grad():
                loss = closure()
        self._require_sample()
        self._fold(is_last=True)
        (weights, sums), count = self._sums, self._num_samples
        workers = torch.distributed.get_world_size() if self.sync else 1
        for vector in (one for pair in sums for one in pair) if workers > 1 else ():
            torch.distributed.all_reduce(vector)
        is_taken = self._can_be_taken([product for _, product in sums])
        for group in self.param_groups:
            group["count" if is_taken else "num_skipped"] += 1
        if is_taken:
            self._move(weights, sums, 1.0 / (count * workers))
        else:
            warn(
                "A step was skipped: its gradient is not finite, or its square. The posterior "
                "stays as it is."
            )
        self._forget()
        return loss

    def _move(self, weights: list[TrainedWeights], sums: list, part: float) -> None:
        """Parameters and state, in place; the sums are overwritten.

        :param sums: of each weights the gradient and what the curvature is made of.
        :param part: of these.
        """
        for of, (gradient, product) in zip(weights, sums, strict=True):
            equations, lr, count = self._equations_of(of.group), of.group["lr"], of.group["count"]
            if part != 1:
                gradient *= part
                product *= part
            state = {name: vector.all for name, vector in of.state.items()}
            for hess, change in of.parts(state["hess"], product):
                hess.copy_(equations.new_hess(hess, change))
            means = of.work.read(of.params)
            vectors = (means.all, gradient, state["momentum"], state["hess"])
            for mean, slope, momentum, hess in of.parts(*vectors):
                momentum.copy_(equations.new_momentum(momentum, equations.slope(slope, mean)))
                mean += equations.change(mean, momentum, hess, lr, count)
            means.write(of.params)

    def _can_be_taken(self, products: Tensors) -> bool:
        """Return whether gradients and curvature stay finite in a step."""
        sizes = [largest_of(product) for product in products if product.numel()]
        largest = torch.stack([size.to(sizes[0]) for size in sizes]).max()
        room = torch.finfo(largest.dtype).max ** self.equations.room
        return bool(largest < room / max(group["ess"] for group in self.param_groups))  # not of NaN

    def _require_sample(self) -> None:
        if self._is_open:
            raise RuntimeError("step was called inside of sampled_params: leave it first.")
        if self._last is None:
            raise RuntimeError(
                "step needs a gradient that was taken at a sample: call loss.backward() inside of "
                "'with optimizer.sampled_params(train=True):' before each step."
            )
        weights, _, gradients, _ = self._last
        pairs = [
            pair
            for of, ours in zip(weights, gradients, strict=True)
            for pair in zip(of.params, ours, strict=True)
        ]
        if any(param.grad is not None and param.grad is not ours for param, ours in pairs):
            raise RuntimeError(
                "A gradient was taken outside of sampled_params(train=True), where the weights are "
                "the posterior's mean: call loss.backward() inside."
            )

    @property
    def num_skipped(self) -> int:
        """The number of steps skipped because a gradient was not finite."""
        return max(group["num_skipped"] for group in self.param_groups)

    # -- state ------------------------------------------------------------------------

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a ``state_dict``, bit for bit; samples since the last step are dropped.

        :raises ValueError: for the state of another optimiser.
        """
        groups = own_groups(state_dict["param_groups"], self.defaults, self.equations.rule)
        super().load_state_dict({**state_dict, "param_groups": groups})
        self._forget()
        # Torch has cast what is float32 to the dtype of half-precision weights.
        params = [param for group in self.param_groups for param in group["params"]]
        names = [index for group in state_dict["param_groups"] for index in group["params"]]
        for param, name in zip(params, names, strict=True):
            for key, value in state_dict["state"].get(name, {}).items():
                own = value.to(device=param.device, dtype=state_dtype(param), copy=True)
                self.state[param][key] = own

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "sync": self.sync}


def _versions(gradients: list[Tensors]) -> list[list[int]]:
    return [[gradient._version for gradient in of] for of in gradients]
