"""The processes of a group of ``torch.distributed``, and what they send each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pyro_ngvi.tracing.messengers import repeatable_noise


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

    def table(self, numbers: list[float]) -> np.ndarray:
        """Return the numbers of every worker, shape ``(workers, n)``."""
        rows = torch.zeros(self.size, len(numbers), dtype=torch.float64)
        rows[self.rank] = torch.tensor(numbers, dtype=torch.float64)
        return self.total(rows).cpu().numpy()

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
