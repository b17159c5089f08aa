"""A rule as the ``PyroOptim`` that ``SVI`` takes.

:class:`JointOptim` binds the natural parameters that ``SVI`` hands over to one
:class:`~pyro_ngvi.optim.joint.Joint`, clips, and gives parameters that are not a family to
``other``.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from pyro.optim.optim import PyroOptim
from torch import Tensor

from ngvi.optim.adaptive_adam import AdamState, AdaptiveAdamRule
from ngvi.optim.rule import Rule
from pyro_ngvi.families.coordinates import split
from pyro_ngvi.optim.algebra import Algebra, algebra
from pyro_ngvi.optim.joint import Joint


class AdaptiveAdam(torch.optim.Optimizer):
    """A torch optimiser without an option, each of whose tensors has a rate of its own.

    :param params: tensors, or groups of them.
    """

    rule = AdaptiveAdamRule()

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Return one step, on the gradients that the parameters have."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for param in self._params():
            if param.grad is not None:
                own = self.state[param]
                state = AdamState(**own["adam"]) if own else self.rule.start(param)
                own["count"] = own.get("count", 0) + 1
                state = self.rule.advance(algebra, param.grad, param, state, own["count"])
                own["adam"] = state._asdict()
                param.add_(self.rule.change(state, own["count"]))
        return loss

    @torch.no_grad()
    def recover(self) -> None:
        """Take the last step back, and go on with a tenth of the rates."""
        for param in self._params():
            if own := self.state[param]:
                state = AdamState(**own["adam"])
                param.sub_(self.rule.change(state, own["count"]))
                own["adam"] = self.rule.shortened(state)._asdict()

    def _params(self) -> list[torch.Tensor]:
        return [param for group in self.param_groups for param in group["params"]]


class _Parked:
    """A run that waits for its tensors to come again, of which it keeps none alive."""

    def __init__(self, run: Joint) -> None:
        self._references = {name: weakref.ref(tensor) for name, tensor in run.tensors.items()}
        self.state = run.saved()

    def living(self) -> dict[str, Tensor]:
        """Return those of its tensors that anybody else still has."""
        found = {name: reference() for name, reference in self._references.items()}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


class JointOptim(PyroOptim):
    """A ``PyroOptim`` with one rule for all natural parameters.

    :param optim_args: options of the rule. ``lr`` may be a schedule, a callable from
        the number of steps taken to a step size.
    :param clip_args: ``clip_norm`` (of the joint natural gradient) and ``clip_value``, as in
        ``PyroOptim``.
    :param other: a ``PyroOptim`` for all other parameters; by default Adam with adaptive rates
        (:mod:`ngvi.optim.adaptive_adam`).
    :raises ValueError: for unknown options, or values out of range; on the first step, if
        there are no natural parameters or the first gradient is not finite.
    """

    #: Default options, by name.
    default_options: ClassVar[dict[str, Any]]
    #: Refuses values out of range; takes all options, in this order.
    check: ClassVar[Callable[..., Any]]
    #: The rule of what it computes with and these options.
    rule: ClassVar[Callable[..., Rule]]
    #: The ``curvature`` of ``NaturalELBO`` that it is for, if it is for one.
    curvature: ClassVar[str | None] = None

    def __init__(
        self,
        optim_args: dict[str, Any] | None = None,
        clip_args: dict[str, Any] | None = None,
        *,
        other: PyroOptim | None = None,
        **options: Any,
    ) -> None:
        self._refuse_wrapper(isinstance(optim_args, list), options)
        optim_args = {} if optim_args is None else optim_args
        self._check_options(optim_args)
        super().__init__(Joint, optim_args, clip_args)
        if not set(clip_args or ()) <= {"clip_norm", "clip_value"}:
            raise ValueError(f"clip_args may have clip_norm and clip_value, got {clip_args!r}.")
        if other is not None and not isinstance(other, PyroOptim):
            raise TypeError(f"other must be a pyro.optim.PyroOptim, got {other!r}.")
        self.other: Any = PyroOptim(AdaptiveAdam, {}) if other is None else other
        self._run: Joint | None = None
        self._parked: list[_Parked] = []

    def __call__(self, params: Iterable[Tensor], *args: Any, **kwargs: Any) -> None:
        """Return one step, on the gradients that the parameters have.

        :param params: unconstrained tensors, as ``SVI`` hands them over.
        :raises ValueError: if none of them is natural, or the first gradient is not finite.
        """
        self._refuse_wrapper(False, kwargs)
        natural, model_parameters = split(params)
        if not natural:
            raise ValueError(
                f"{type(self).__name__} sees no natural parameters among {len(model_parameters)} "
                "tensors: use a NaturalGaussianGuide, or an optimiser such as pyro.optim.Adam."
            )
        joint = self._bind(natural)
        tensors = list(natural.values())
        clip: Any = self.pt_clip_args
        self._clip_grad(tensors, **clip)
        gradients = [tensor.grad for tensor in model_parameters if tensor.grad is not None]
        joint.step(gradients)
        for tensor in tensors:
            # Not for SVI to fill with zeros, and the next gradient to be added to them.
            tensor.grad = None
        if not model_parameters:
            return
        if joint.was_taken:
            self.other(model_parameters, *args, **kwargs)
        elif joint.recovers:  # their last step is taken back with the families'
            for tensor in model_parameters:
                optimiser = self.other.optim_objs.get(tensor)
                if isinstance(optimiser, AdaptiveAdam):
                    optimiser.recover()

    @property
    def num_skipped(self) -> int:
        """The number of steps skipped or undone: not finite, or far off."""
        return 0 if self._run is None else self._run.num_skipped

    @classmethod
    def _refuse_wrapper(cls, is_wrapped: bool, options: dict[str, Any]) -> None:
        """Refuse to be one of the many torch optimisers that Pyro's schedulers make.

        :raises TypeError: naming the way out.
        """
        if is_wrapped or "scheduler" in options:
            raise TypeError(
                f"{cls.__name__} takes a schedule as lr, and neither scheduler= nor pyro.optim's "
                "ExponentialLR and its like, which make an optimiser of each tensor: "
                f"{cls.__name__}({{'lr': lambda count: 0.1 * 0.99**count}})."
            )
        if options:
            names = ", ".join(f"{name!r}: {value!r}" for name, value in options.items())
            raise TypeError(
                f"{cls.__name__} takes its options in a dictionary, {cls.__name__}({{{names}}})."
            )

    @classmethod
    def _check_options(cls, options: Any) -> None:
        """Refuse unknown options and values out of range.

        :raises TypeError: if they are no dictionary.
        :raises ValueError: naming the option.
        """
        rule = cls.__name__
        if not isinstance(options, dict):
            raise TypeError(
                f"{rule} takes its options in a dictionary, {rule}({{'lr': 0.1}}), got {options!r}."
            )
        for name in options:
            if name not in cls.default_options:
                known = ", ".join(cls.default_options)
                raise ValueError(f"{rule} has no option {name!r}, only {known}.")
        cls.check(*{**cls.default_options, **options}.values())

    # -- state ------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state of all optimisers, for ``torch.save``.

        If several runs of one optimiser use the same parameter names, it is that of the last step.
        """
        if self._run is None:
            return dict(self._state_waiting_to_be_consumed)
        return {"state": self._run.saved(), "other": self.other.get_state()}

    def set_state(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state of :meth:`get_state`.

        :raises ValueError: for the state of another optimiser.
        """
        if not isinstance(state_dict, dict) or (state_dict and "state" not in state_dict):
            raise ValueError(
                f"{type(self).__name__} was given the state of another optimiser, or none: give it "
                "its own get_state()."
            )
        self._state_waiting_to_be_consumed = dict(state_dict)
        self.other.set_state(state_dict.get("other", {}))
        self._run, self._parked = None, []

    def __getstate__(self) -> dict[str, Any]:
        # A copy takes up the state with tensors of its own, by their names.
        state = self.get_state()
        state.pop("other", None)
        nothing: dict[str, Any] = {"_parked": [], "_run": None}
        of_other = {} if isinstance(self.other, JointOptim) else {"other": _at_rest(self.other)}
        return {**vars(self), **nothing, **of_other, "_state_waiting_to_be_consumed": state}

    # -- internals --------------------------------------------------------------------

    def _rule_on(self, on: Algebra) -> Rule:
        options: Any = self.pt_optim_args
        return self.rule(on, *{**self.default_options, **options}.values())

    def _bind(self, natural: dict[str, Tensor]) -> Joint:
        """Return the run of these tensors, which goes on, takes them up or begins.

        Tensors in the place of others of their names are another guide's, or the same one's after
        ``clear_param_store``: nothing is known of them, as in ``PyroOptim``.
        """
        before, state = self._run, self._state_waiting_to_be_consumed.get("state", {})
        if before is not None:
            if _are_among(natural, before.tensors):
                return before
            self._parked = [one for one in self._parked if one.living()]
            found = next((one for one in self._parked if _are_among(natural, one.living())), None)
            if found is None and all(before.tensors.get(k, t) is t for k, t in natural.items()):
                natural, state = {**before.tensors, **natural}, before.saved()
            else:
                self._parked.append(_Parked(before))
            if found is not None:
                self._parked = [one for one in self._parked if one is not found]
                natural, state = found.living(), found.state
        self._run = Joint(dict(sorted(natural.items())), self._rule_on)
        self._run.load(state)
        self._state_waiting_to_be_consumed = {}
        return self._run


def _at_rest(optim: PyroOptim) -> PyroOptim:
    """Copy an optimiser without the tensors of Pyro's store; it goes on by their names."""
    state = {**optim._state_waiting_to_be_consumed, **optim.get_state()}
    other = copy.copy(optim)
    other.optim_objs, other.grad_clip, other._state_waiting_to_be_consumed = {}, {}, state
    return other


def _are_among(tensors: dict[str, Tensor], known: dict[str, Tensor]) -> bool:
    return all(known.get(name) is tensor for name, tensor in tensors.items())
