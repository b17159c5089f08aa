"""One update for all natural parameters together, an ordinary optimiser for the rest.

A :class:`JointOptimizer` is a ``torch.optim.Optimizer`` over the coordinates of families;
:class:`JointOptim` is the ``PyroOptim`` around it that ``SVI`` takes. What all
natural-gradient optimisers share:

- parameters that are not a family go to ``other``;
- families move by their own maps (``retract``, ``natural_step``), and stay Gaussians;
- a step with a gradient or a result that is not finite is not taken: parameters and state
  stay as they are (or return to an earlier point, if the rule can
  :meth:`~JointOptimizer.recover`), and ``num_skipped`` counts it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from pyro.optim import Adam
from pyro.optim.optim import PyroOptim
from pyro.params.param_store import normalize_param_name
from torch import Tensor

from pyro_ngvi.families.base import Family
from pyro_ngvi.families.coordinates import coordinate_of, families_in, split

Families = list[Family]


class JointOptimizer(torch.optim.Optimizer):
    """A torch optimiser that moves whole families; a rule is a subclass.

    Every parameter is a coordinate of a family, marked as such by the guide, with the natural
    gradient of the loss as its ``grad``. Each has a parameter group of its own, so that torch
    schedulers and per-parameter options work as usual.

    :param params: tensors, or groups of them, as in ``torch.optim``.
    :param options: options of every group, ``lr`` and ``beta`` among them.
    :raises ValueError: if an option is unknown or out of range, or if a tensor is not a
        coordinate of a family.
    """

    #: Default options of every coordinate, by name.
    default_options: ClassVar[dict[str, Any]]

    #: Whether a step may write over the gradients: nobody reads them after it.
    may_overwrite_gradients = False

    def __init__(self, params: Iterable, **options: Any) -> None:
        self.check_options(options)
        super().__init__(params, {**self.default_options, **options})

    @classmethod
    def check_options(cls, options: dict[str, Any]) -> None:
        """Refuse unknown options and values out of range.

        :raises ValueError: naming the option.
        """
        for name in options:
            if name not in cls.default_options:
                known = ", ".join(cls.default_options)
                raise ValueError(f"{cls.__name__} has no option {name!r}, only {known}.")
        cls.check_values({**cls.default_options, **options})

    @classmethod
    def check_values(cls, options: dict[str, Any]) -> None:
        """Refuse values out of range; ``options`` is complete.

        :raises ValueError: naming the option.
        """
        check_step_size(options["lr"], "lr")
        check_momentum(options["beta"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add coordinates, each as a group of its own.

        :raises ValueError: if a tensor is not a coordinate of a family.
        """
        options = {key: value for key, value in param_group.items() if key != "params"}
        params = param_group["params"]
        for param in [params] if isinstance(params, Tensor) else params:
            if coordinate_of(param) is None:
                raise ValueError(
                    f"{type(self).__name__} moves the posterior of a NaturalGaussianGuide, "
                    "and a tensor it was given is no part of one. Give it guide.parameters() "
                    "after the guide's first call, and other parameters to another optimiser."
                )
            group = self.group_options(param, {**self.defaults, **options})
            super().add_param_group({"params": [param], **group})

    def group_options(self, param: Tensor, options: dict[str, Any]) -> dict[str, Any]:
        """The options of one coordinate's group; rules may scale ``lr`` by coordinate."""
        return options

    def direction(self, gradients: Families, families: Families) -> Families:
        """Where to go, before the step size and the sign of descent.

        Reads and writes the momentum through :meth:`momentum` and :meth:`set_momentum`.

        :param gradients: natural gradients of the loss.
        """
        raise NotImplementedError

    def move(self, gradients: Families, families: Families) -> Families:
        """The families after the step: by default, retracted along :meth:`direction`.

        :param gradients: natural gradients of the loss, all finite.
        """
        directions = self.direction(gradients, families)
        return [
            family.retract(direction.map(lambda d, param: -self.rate(param) * d, family))
            for family, direction in zip(families, directions, strict=True)
        ]

    def recover(self, families: Families) -> Families | None:
        """Where to continue from when something is not finite; None to stay."""
        return None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every family whose coordinates have gradients.

        :param closure: re-evaluates the loss, as in ``torch.optim``.
        :return: the closure's loss.
        :raises ValueError: if the very first gradient is not finite.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        params = sorted(
            (param for group in self.param_groups for param in group["params"]),
            key=lambda param: coordinate_of(param).name,
        )
        params = [param for param in params if param.grad is not None]
        for param in params:
            self._initialise(param)
        families = families_in(params)
        gradients = [family.map(lambda param: param.grad) for family in families]
        if not all_finite(values(gradients)):
            self.skip(params)
            return loss
        before = {param: dict(self.state[param]) for param in params}
        moved = self.move(gradients, families)
        if not all_finite(values(moved)):
            self.state.update(before)
            self.skip(params)
            return loss
        for family, new in zip(families, moved, strict=True):
            family.map(Tensor.copy_, new)
        for param in params:
            self.state[param]["step"] += 1
        return loss

    @torch.no_grad()
    def skip(self, params: Iterable[Tensor]) -> None:
        """Count a step that is not taken.

        :raises ValueError: if no step has been taken at all.
        """
        params = list(params)
        owners = ", ".join(sorted({coordinate_of(param).owner for param in params}))
        for param in params:
            self._initialise(param)
        if not any(self.state[param]["step"] for param in params):
            raise ValueError(
                f"The first gradient of {owners} is not finite: the bound is not finite where "
                "the guide starts. Start elsewhere (init_loc_fn=), narrower (init_scale=), or "
                "check the data for values outside the likelihood's support."
            )
        for param in params:
            self.state[param]["num_skipped"] += 1
        families = families_in(params)
        earlier = self.recover(families)
        if earlier is not None:
            for family, old in zip(families, earlier, strict=True):
                family.map(Tensor.copy_, old)
        warnings.warn(
            f"A step of {owners} was skipped: a gradient or the step's result is not finite. "
            "Parameters keep their last good value.",
            stacklevel=3,
        )

    @property
    def num_skipped(self) -> int:
        """Steps not taken because something was not finite."""
        return max((state.get("num_skipped", 0) for state in self.state.values()), default=0)

    def momentum(self, families: Families) -> Families:
        """The stored momentum, zero at first."""
        return [family.map(lambda param: self.state[param]["momentum"]) for family in families]

    def set_momentum(self, families: Families, momentum: Families) -> None:
        """Store the momentum."""
        for family, value in zip(families, momentum, strict=True):
            for name, param in family.coordinates().items():
                self.state[param]["momentum"] = getattr(value, name)

    def count(self, families: Families) -> int:
        """Steps taken before this one."""
        return min(self.state[family.loc]["step"] for family in families)

    def rate(self, param: Tensor) -> float:
        """The ``lr`` of one coordinate."""
        return next(float(g["lr"]) for g in self.param_groups if g["params"][0] is param)

    def option(self, name: str) -> Any:
        """An option that all coordinates share."""
        return self.param_groups[0][name]

    def _initialise(self, param: Tensor) -> None:
        if not self.state[param]:
            self.state[param].update(step=0, num_skipped=0, **self.initial_state(param))

    def initial_state(self, param: Tensor) -> dict[str, Any]:
        """What a rule remembers of one coordinate, at first."""
        return {"momentum": torch.zeros_like(param)}


class JointOptim(PyroOptim):
    """A ``PyroOptim`` with one torch optimiser for all natural parameters.

    :param optim_args: options of the torch optimiser, or a callable from a parameter's name
        (such as ``"posterior.loc"``) to options. ``lr`` may be a schedule, a callable from
        the number of steps taken to a step size.
    :param clip_args: ``clip_norm`` (of the joint natural gradient) and ``clip_value``, or a
        callable from module name and parameter name to these, as in ``PyroOptim``.
    :param other: a ``PyroOptim`` for parameters that are not natural; by default
        ``pyro.optim.Adam({"lr": 1e-3})``.
    :param scheduler: makes a ``torch.optim.lr_scheduler`` from the torch optimiser, for
        instance ``partial(ExponentialLR, gamma=0.99)``. Call :meth:`step` to advance it.
    """

    torch_optimizer: ClassVar[type[JointOptimizer]]

    def __init__(
        self,
        optim_args: dict[str, Any] | Callable[..., dict[str, Any]] | None = None,
        clip_args: dict[str, Any] | Callable[..., dict[str, Any]] | None = None,
        *,
        other: PyroOptim | None = None,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    ) -> None:
        optim_args = {} if optim_args is None else optim_args
        if not callable(optim_args):
            self.torch_optimizer.check_options(optim_args)
        super().__init__(self.torch_optimizer, optim_args, clip_args)
        if other is not None and not isinstance(other, PyroOptim):
            raise TypeError(f"other must be a pyro.optim.PyroOptim, got {other!r}.")
        self.other = Adam({"lr": 1e-3}) if other is None else other
        self._make_scheduler = scheduler
        self._scheduler: Any = None
        self._tensors: dict[str, Tensor] = {}
        self._scheduled: dict[str, dict[str, Any]] = {}
        self._joint: JointOptimizer | None = None

    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        """One step, on the gradients that the parameters have.

        :param params: unconstrained tensors, as ``SVI`` hands them over.
        :raises ValueError: if none of them is natural, or the first gradient is not finite.
        """
        natural, ordinary = split(params)
        if not natural:
            raise ValueError(
                f"{type(self).__name__} sees no natural parameters among {len(ordinary)} "
                "tensors. It moves the posterior of a NaturalGaussianGuide: use that guide, or "
                "an ordinary optimiser such as pyro.optim.Adam."
            )
        self._bind(natural)
        tensors = list(natural.values())
        if not all_finite(tensor.grad for tensor in ordinary if tensor.grad is not None):
            self._joint.skip(tensors)
            return
        self._clip(tensors)
        self._update_rates()
        num_skipped = self._joint.num_skipped
        self._joint.step(*args, **kwargs)
        for tensor in tensors:
            # Not for SVI to fill with zeros, and the next gradient to be added to them.
            tensor.grad = None
        if ordinary and self._joint.num_skipped == num_skipped:
            self.other(ordinary, *args, **kwargs)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advance the scheduler, and that of ``other`` if it has one.

        :raises RuntimeError: if there is no scheduler at all.
        """
        has_other = hasattr(self.other, "step")
        if self._make_scheduler is None and not has_other:
            raise RuntimeError(f"{type(self).__name__} was made without a scheduler=.")
        if self._scheduler is not None:
            self._scheduler.step(*args, **kwargs)
        if has_other:
            self.other.step(*args, **kwargs)

    @property
    def num_skipped(self) -> int:
        """Steps not taken because something was not finite."""
        return 0 if self._joint is None else self._joint.num_skipped

    # -- state ------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The state of all optimisers and schedulers, for ``torch.save``."""
        if self._joint is None:
            return dict(self._state_waiting_to_be_consumed)
        natural = {}
        for group in self._joint.param_groups:
            (param,) = group["params"]
            natural[coordinate_of(param).name] = {
                "options": {key: value for key, value in group.items() if key != "params"},
                "state": {
                    key: value.clone() if isinstance(value, Tensor) else value
                    for key, value in self._joint.state.get(param, {}).items()
                },
            }
        scheduler = None if self._scheduler is None else self._scheduler.state_dict()
        return {
            "natural": natural,
            "scheduler": scheduler,
            "other": self.other.get_state(),
        }

    def set_state(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state of :meth:`get_state`."""
        self._state_waiting_to_be_consumed = dict(state_dict)
        self.other.set_state(state_dict.get("other", {}))
        self._tensors, self._joint, self._scheduler = {}, None, None

    # -- internals --------------------------------------------------------------------

    def _bind(self, natural: dict[str, Tensor]) -> None:
        """Make the torch optimiser, anew when a tensor is new or has been replaced."""
        if all(self._tensors.get(name) is tensor for name, tensor in natural.items()):
            return
        saved = self.get_state()
        self._tensors = dict(sorted({**self._tensors, **natural}.items()))
        self._scheduled = {}
        groups = []
        for name, tensor in self._tensors.items():
            options = self._options(name)
            if any(callable(value) for value in options.values()):
                self._scheduled[name] = options
            groups.append({"params": [tensor], **_at(options, 0)})
        self._joint = self.pt_optim_constructor(groups)
        self._joint.may_overwrite_gradients = True  # __call__ drops them
        self._restore(saved.get("natural", {}))
        if self._make_scheduler is not None:
            self._scheduler = self._make_scheduler(self._joint)
            if saved.get("scheduler") is not None:
                self._scheduler.load_state_dict(saved["scheduler"])
                self._restore(saved["natural"])  # making a scheduler resets the rates
        self.optim_objs = dict.fromkeys(self._tensors.values(), self._scheduler or self._joint)
        self._state_waiting_to_be_consumed = {}

    def _restore(self, saved: dict[str, Any]) -> None:
        for group in self._joint.param_groups:
            (param,) = group["params"]
            entry = saved.get(coordinate_of(param).name)
            if entry is not None:
                group.update(entry["options"])
                state = entry["state"].items()
                self._joint.state[param].update(
                    {k: v.to(param) if isinstance(v, Tensor) else v for k, v in state}
                )

    def _options(self, name: str) -> dict[str, Any]:
        if not callable(self.pt_optim_args):
            return self.pt_optim_args
        module, _, field = name.rpartition(".")
        arguments = (
            (normalize_param_name(name),) if self.pt_optim_args_argc == 1 else (module, field)
        )
        options = self.pt_optim_args(*arguments)
        self.torch_optimizer.check_options(options)
        return options

    def _update_rates(self) -> None:
        for group in self._joint.param_groups if self._scheduled else ():
            (param,) = group["params"]
            options = self._scheduled.get(coordinate_of(param).name)
            if options is not None:
                step = self._joint.state.get(param, {}).get("step", 0)
                group.update(self._joint.group_options(param, {**group, **_at(options, step)}))

    def _clip(self, tensors: list[Tensor]) -> None:
        if not callable(self.pt_clip_args):
            self._clip_grad(tensors, **self.pt_clip_args)
            return
        for tensor in tensors:
            coordinate = coordinate_of(tensor)
            self._clip_grad(tensor, **self.pt_clip_args(coordinate.owner, coordinate.field))


def _at(options: dict[str, Any], step: int) -> dict[str, Any]:
    return {k: v(step) if callable(v) else v for k, v in options.items()}


def check_step_size(step_size: Any, name: str) -> None:
    """Refuse a step size that is neither positive nor a schedule.

    :raises ValueError: naming the option.
    """
    if not callable(step_size) and not step_size > 0:
        raise ValueError(f"{name} must be positive or a schedule, got {step_size}.")


def check_rho(rho: Any, name: str) -> None:
    """Refuse a step size that is neither in (0, 1] nor a schedule.

    :raises ValueError: naming the option.
    """
    if not callable(rho) and not 0 < rho <= 1:
        raise ValueError(f"{name} must be in (0, 1] or a schedule, got {rho}.")


def check_momentum(beta: float, name: str = "beta") -> None:
    """Refuse a momentum outside [0, 1).

    :raises ValueError: if it is.
    """
    if not 0 <= beta < 1:
        raise ValueError(f"{name} must be in [0, 1), got {beta}.")


def check_positive(value: float, name: str) -> None:
    """Refuse a number that is not positive.

    :raises ValueError: if it is not.
    """
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}.")


def values(families: Families) -> list[Tensor]:
    """All coordinates of all families."""
    return [value for family in families for value in family.coordinates().values()]


def joint_norm(families: Families) -> Tensor:
    """Euclidean norm of the joint vector of all free coordinates."""
    tensors = [tensor for family in families for tensor in family.free_coordinates()]
    norm = _norm(tensors)
    if norm.isfinite():
        return norm
    # Squares of a float32 overflow from 1e19 on.
    largest = torch.stack([tensor.abs().max() for tensor in tensors]).max()
    return largest * _norm([tensor / largest for tensor in tensors])


def _norm(tensors: list[Tensor]) -> Tensor:
    norms = [torch.linalg.vector_norm(tensor) for tensor in tensors]
    return torch.linalg.vector_norm(torch.stack(norms))


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every entry is finite."""
    # The extremes of a tensor are not finite if one of its entries is not, NaN included.
    extremes = [torch.stack(torch.aminmax(t)) for t in tensors if t.numel()]
    return not extremes or bool(torch.stack([e.to(extremes[0]) for e in extremes]).isfinite().all())
