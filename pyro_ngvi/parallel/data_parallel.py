"""An ELBO whose gradients are the mean over workers, each of which has its own rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from pyro import poutine
from pyro.infer import ELBO
from torch import Tensor

from pyro_ngvi.parallel.rows import SeesRows, check_linear, shared_plates, shares
from pyro_ngvi.tracing.messengers import SPLIT_OVER_WORKERS, quiet, repeatable_noise

if dist.is_available():
    # torch.func imports this module, whose functions have the process group of that moment as a
    # default. Such a group outlives `destroy_process_group`, and its threads can abort a program
    # that ends. Here the module is imported before there is a group.
    import torch.distributed.nn


class Workers:
    """The workers of a process group; every method is called by all of them at once.

    :param process_group: as in ``torch.distributed``; None is the default group.
    :ivar rank: of this worker, from zero.
    :ivar size: how many there are.
    :raises RuntimeError: if there is no group, or this process is not in it.
    """

    def __init__(self, process_group: Any = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise RuntimeError(
                "There is no process group: call torch.distributed.init_process_group('gloo') "
                "('nccl' on GPUs) first, in each of the processes that torchrun starts."
            )
        self.group = process_group
        self.rank, self.size = dist.get_rank(process_group), dist.get_world_size(process_group)
        if self.rank < 0:
            raise RuntimeError("This process is not in the process group that was given.")
        is_nccl = "nccl" in str(dist.get_backend(process_group))
        self._device = torch.device("cuda", torch.cuda.current_device()) if is_nccl else "cpu"
        self._first = 0 if process_group is None else dist.get_global_rank(process_group, 0)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over the workers, the same bits on all of them."""
        sent = tensor.to(self._device, copy=True)
        dist.all_reduce(sent, group=self.group)
        return sent.to(tensor.device)

    def of_first(self, tensor: Tensor) -> Tensor:
        """Return the first worker's tensor, which has the same shape and type on all of them."""
        sent = tensor.detach().to(self._device).contiguous()
        dist.broadcast(sent, self._first, group=self.group)
        return sent.to(tensor.device)

    def of_all(self, value: Any) -> list[Any]:
        """Every worker's object, in the order of their ranks."""
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    @contextmanager
    def same_noise(self) -> Iterator[None]:
        """Let all draw the random numbers that the first worker does.

        The others' own generators are as before afterwards.
        """
        states = [self.of_first(torch.get_rng_state())]
        if torch.cuda.is_initialized():
            states.append(self.of_first(torch.cuda.get_rng_state()))
        if self.rank == 0:
            yield
            return
        with repeatable_noise():
            torch.set_rng_state(states[0])
            if states[1:]:
                torch.cuda.set_rng_state(states[1])
            yield


class DataParallel(ELBO):
    """Any ELBO, over the rows of all workers of a ``torch.distributed`` process group.

    Every worker runs the same program on its own rows, or on a minibatch of them, in a plate that
    says how many there are in all::

        def model(X, y):
            ...
            with pyro.plate("data", num_rows_of_all, subsample=y):
                pyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)

        svi = SVI(model, NaturalGaussianGuide(model), BLR(), DataParallel(NaturalELBO()))

    The plate's scale makes each worker's bound one of all rows, with the prior in it once. Their
    mean, weighted by the numbers of their rows, is that of the rows which all of them see. So are
    its natural gradients, curvature included, which are linear in the log density: they are summed
    before an optimiser normalises or limits them, and every worker takes the same step. Those of
    family ``"low_rank"`` are not linear, and those of latents in a subsampled plate belong to its
    elements: both are refused.

    Draws are those of the first worker's random numbers, which the others take over for the time
    of a step; before the first step they take over its parameters. A step sends the gradients of
    all parameters, once, and five kilobytes of random numbers. If a worker raises or dies,
    ``torch.distributed`` raises on the others, at the latest after the ``timeout`` of
    ``init_process_group``. All must make the same calls, that of ``evaluate_loss`` too.

    :param elbo: a stock ELBO that is linear in the log density (``RenyiELBO`` is not), or
        ``NaturalELBO()``.
    :param process_group: None is the default group.
    :raises RuntimeError: without a process group.
    :raises ValueError: in the first step, if the workers' parameters or plates are not the same, or
        a worker's plate is whole; for gradients that are no sum over rows.
    """

    def __init__(self, elbo: Any, process_group: Any = None) -> None:
        super().__init__(num_particles=elbo.num_particles, max_plate_nesting=elbo.max_plate_nesting)
        self.elbo, self.workers = elbo, Workers(process_group)
        self._set_up: _Shared | None = None

    def loss(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """Minus the bound of all rows in nats."""
        with torch.no_grad():
            return self._together(self.elbo.loss, False, (model, guide, args, kwargs))

    def loss_and_grads(self, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> float:
        """Minus the bound of all rows in nats; leaves its gradients in the parameters' ``grad``."""
        return self._together(self.elbo.loss_and_grads, True, (model, guide, args, kwargs))

    def _get_trace(self, *args: Any) -> Any:
        return self.elbo._get_trace(*args)

    # -- a step -----------------------------------------------------------------------

    def _together(self, function: Callable, has_grads: bool, run: tuple) -> float:
        model, guide, args, kwargs = run
        if not self._set_up or (self._set_up.seen.model, self._set_up.guide) != (model, guide):
            self._set_up = self._new_set_up(*run)
        workers, (seen, _, plates, leaves) = self.workers, self._set_up
        token = SPLIT_OVER_WORKERS.set(True)
        try:
            with workers.same_noise():
                loss = float(function(seen, guide, *args, **kwargs))
        finally:
            SPLIT_OVER_WORKERS.reset(token)
        found = np.array(workers.of_all([loss, *(seen.fraction(plate) for plate in plates)]))
        weights = shares(plates, found[:, 1:])
        if has_grads:
            self._add_up(leaves, float(weights[workers.rank]))
        return float(weights @ found[:, 0])

    def _add_up(self, leaves: list[Tensor], weight: float) -> None:
        """Let every gradient be its weighted sum over the workers, all of one type at once."""
        for dtype in sorted({leaf.dtype for leaf in leaves}, key=str):
            some = [leaf for leaf in leaves if leaf.dtype == dtype]
            grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in some]
            total = self.workers.total(weight * torch.cat([grad.reshape(-1) for grad in grads]))
            for leaf, part in zip(some, total.split([leaf.numel() for leaf in some]), strict=True):
                leaf.grad = part.reshape(leaf.shape)

    def _new_set_up(self, model: Callable, guide: Callable, args: tuple, kwargs: dict) -> _Shared:
        """Make the parameters, and take those of the first worker.

        :raises ValueError: if the workers' parameters or plates are not the same.
        """
        seen, leaves = SeesRows(model), dict[str, Tensor]()

        def run() -> tuple[dict, dict]:
            # What a run makes, every later one sees.
            capture = poutine.trace(param_only=True)
            with repeatable_noise(), quiet(), poutine.block(), capture:
                trace = poutine.trace(guide).get_trace(*args, **kwargs)
                poutine.replay(seen, trace=trace)(*args, **kwargs)
            nodes = sorted(capture.trace.nodes.items())
            leaves.update({name: node["value"].unconstrained() for name, node in nodes})
            kinds = {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in leaves.items()}
            check_linear(trace)
            return seen.parts, kinds

        parts, kinds = zip(*self.workers.of_all(run()), strict=True)
        for rank, of_one in enumerate(kinds):
            for name in sorted({*of_one, *kinds[0]}):
                if of_one.get(name) != kinds[0].get(name):
                    raise ValueError(
                        f"Parameter '{name}' is {of_one.get(name)} for worker {rank} and "
                        f"{kinds[0].get(name)} for worker 0: all latents and parameters must be "
                        "the same for all workers, which share rows of data only."
                    )
        plates = shared_plates(list(parts))
        with torch.no_grad():
            for leaf in leaves.values():
                leaf.copy_(self.workers.of_first(leaf))
        trained = [leaf for leaf in leaves.values() if leaf.requires_grad]
        return _Shared(seen, guide, plates, trained)


class _Shared(NamedTuple):
    """Results of the first call with a model and a guide."""

    seen: SeesRows
    guide: Callable
    plates: list[str]
    leaves: list[Tensor]
