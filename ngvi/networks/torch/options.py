"""Parameters of a network in groups, and the options of a rule that each group has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor

from ngvi._door import door
from ngvi._warn import warn
from ngvi.errors import check_flag
from ngvi.networks.equations import IvonEquations, check_hess_init, check_ivon, defaults_of
from ngvi.networks.torch.vectors import state_dtype

#: Options that a parameter group has as a pair, ``betas``.
BETAS = ("beta1", "beta2")


def parameters_of(params: Any) -> Any:
    """Return what an optimiser is given, if it is no network.

    :raises TypeError: for one, with what to write.
    """
    if callable(params):
        raise TypeError(
            "params must be the parameters of the network, and not itself: write "
            f"network.parameters(), with brackets, in the place of the {type(params).__name__}."
        )
    return params


@contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """Inside, all modules of a network are in evaluation mode; afterwards each as it was."""
    modules = list(network.modules()) if isinstance(network, torch.nn.Module) else []
    training = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, was in zip(modules, training, strict=True):
            module.training = was


def trained(params: Iterable[Tensor]) -> list[Tensor]:
    """Return those that are not frozen."""
    return [param for param in params if param.requires_grad]


def with_betas(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with ``beta1`` and ``beta2`` as a pair, which torch's schedulers change."""
    betas = options.get("betas", BETAS)
    pair = tuple(options.get(name, beta) for name, beta in zip(BETAS, betas, strict=True))
    return {**{k: v for k, v in options.items() if k not in BETAS}, "betas": pair}


def mean_and_values(hess_init: Any) -> tuple[Any, Any]:
    """``hess_init`` as a number, and as tensors if it has some."""
    if not isinstance(hess_init, Mapping):
        return hess_init, None
    values = {param: torch.as_tensor(value).detach() for param, value in hess_init.items()}
    return check_hess_init(list(values.values())), values


def own_groups(groups: Iterable[Any], options: Iterable[str], rule: str) -> list[dict[str, Any]]:
    """Return the groups of a ``state_dict``, if they have these options.

    :raises ValueError: for those of another optimiser.
    """
    found = [with_betas(group) for group in groups]
    missing = [name for group in found for name in options if name not in group]
    if missing:
        raise ValueError(
            f"The state is of another optimiser, without {missing[0]}: load the network's weights, "
            f"and begin with a new {rule}(network.parameters(), ess=len(data)). A posterior is in "
            "its own state_dict alone."
        )
    return found


class GroupedOptimizer(torch.optim.Optimizer):
    """Options of a rule by groups of parameters.

    :param params: the network's parameters, or groups of them.
    :param lr: ``alpha``, times ``hess_init + weight_decay``.
    :param beta2: by default that of the equations.
    :param hess_init: ``h`` before the first step: a number, or tensors by parameter. With tensors,
        parameters added later start at the mean over all weights.
    :param sync: whether to average over the workers of ``torch.distributed``, each with its own
        sample and the same number of examples.
    :raises ValueError: for an option outside its range, naming it.
    """

    equations: ClassVar[type[IvonEquations]]  #: The rule.
    sync: bool = False
    _own: Mapping[str, Any] = {}  #: Options of one rule alone.

    @door
    def __init__(
        self,
        params: Iterable,
        lr: float = 0.1,
        *,
        ess: float | None = None,
        weight_decay: float = IvonEquations.weight_decay,
        beta1: float = IvonEquations.beta1,
        beta2: float | None = None,
        hess_init: float | Mapping[Tensor, Tensor] = IvonEquations.hess_init,
        clip_radius: float = IvonEquations.clip_radius,
        debias: bool = IvonEquations.debias,
        rescale_lr: bool = IvonEquations.rescale_lr,
        sync: bool = False,
    ) -> None:
        beta2 = self.equations.beta2 if beta2 is None else beta2
        given, names = locals(), defaults_of(IvonEquations)
        options = {**self._own, **{name: given[name] for name in names}}
        options |= {"lr": lr, "ess": ess, "count": 0, "num_skipped": 0}
        super().__init__(parameters_of(params), with_betas(options))
        self.sync = check_flag(sync, "sync")
        # No copy of the tensors stays.
        self.defaults["hess_init"], _ = mean_and_values(hess_init)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with their own options if they have any.

        :raises ValueError: for an option outside its range, naming it.
        """
        given = {k: v for k, v in param_group.items() if k not in ("params", *BETAS)}
        options = {**self.defaults, **given}
        unknown = options.keys() - self.defaults.keys() - {"name", "initial_lr"}
        if unknown:
            raise ValueError(
                f"{self.equations.rule} has no option {sorted(unknown)[0]!r} of a parameter group, "
                f"only {', '.join(['lr', 'ess', *defaults_of(self.equations)])}."
            )
        if callable(options["lr"]):
            raise ValueError("lr must be a number: a schedule is a torch.optim.lr_scheduler.")
        mean, values = mean_and_values(options["hess_init"])
        options = with_betas({**self.defaults, **param_group, "hess_init": mean})
        self._equations_of(options)
        super().add_param_group(options)
        params = self.param_groups[-1]["params"]
        for param in trained(params) if values is not None else ():
            if param not in values or values[param].shape != param.shape:
                self.param_groups.pop()
                found = f"one of shape {tuple(values[param].shape)}" if param in values else "none"
                raise ValueError(
                    "hess_init needs a tensor for each parameter, of its shape: of one of shape "
                    f"{tuple(param.shape)} it has {found}."
                )
        for param in trained(params) if values is not None else ():
            self._begin(param, values[param])
        if any(param.dtype in (torch.float16, torch.bfloat16) for param in params):
            warn(
                "Half-precision weights round small steps and samples away: keep the weights in "
                "float32, and compute in half precision by torch.autocast."
            )

    def _begin(self, param: Tensor, hess: Tensor | float) -> None:
        zero = torch.zeros_like(param, dtype=state_dtype(param))
        hess = hess.to(zero) if isinstance(hess, Tensor) else hess
        self.state[param].update(momentum=zero, hess=zero + hess)

    def _equations_of(self, options: dict[str, Any]) -> Any:
        options = {**options, **dict(zip(BETAS, with_betas(options)["betas"], strict=True))}
        own = {name: options[name] for name in ("ess", *defaults_of(self.equations))}
        # Torch's schedulers end at zero, and a sample for a prediction is taken after that.
        lr = 1.0 if options["lr"] == 0 else options["lr"]
        return check_ivon(lr, "lr", self.equations, **own)
