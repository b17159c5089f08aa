"""The processes of a group of ``torch.distributed``, and what they send each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pyro_ngvi.tracing.messengers import repeatable_noise

#: Of a worker that has failed, for the others.
SEE = "its own error says why"


class WorkerLostError(RuntimeError):
    """Another worker of the group has failed or died, or does not answer within the timeout."""


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
        """The sum over the workers, the same bits on all of them."""
        sent = tensor.to(self._device, copy=True)
        self._collect(lambda: dist.all_reduce(sent, group=self.group))
        return sent.to(tensor.device)

    def rows(self, tensor: Tensor) -> Tensor:
        """Every worker's rows, one after another; those that have fewer add zeros.

        :param tensor: shape ``(n, d)``, where ``n`` may differ.
        """
        count = int(self.table([len(tensor)]).max())
        sent = torch.cat([tensor, tensor.new_zeros(count - len(tensor), tensor.shape[-1])])
        sent = sent.to(self._device)
        found = [torch.empty_like(sent) for _ in range(self.size)]
        self._collect(lambda: dist.all_gather(found, sent, group=self.group))
        return torch.cat(found).to(tensor.device)

    def of_first(self, tensor: Tensor) -> Tensor:
        """The first worker's tensor, which has the same shape and type on all of them."""
        sent = tensor.detach().to(self._device).contiguous()
        self._collect(lambda: dist.broadcast(sent, self._first, group=self.group))
        return sent.to(tensor.device)

    def table(self, numbers: list[float]) -> np.ndarray:
        """The numbers of every worker, shape ``(workers, n)``."""
        rows = torch.zeros(self.size, len(numbers), dtype=torch.float64)
        rows[self.rank] = torch.tensor(numbers, dtype=torch.float64)
        return self.total(rows).cpu().numpy()

    def total_of_array(self, array: np.ndarray) -> np.ndarray:
        """:meth:`total` of a numpy array."""
        return self.total(torch.from_numpy(array)).numpy()

    def object_of_first(self, value: Any) -> Any:
        """The first worker's object, of anything that pickles."""
        values, options = [value], {"group": self.group, "device": torch.device(self._device)}
        self._collect(lambda: dist.broadcast_object_list(values, self._first, **options))
        return values[0]

    def of_all(self, value: Any) -> list[Any]:
        """Every worker's object, in the order of their ranks."""
        values = [None] * self.size
        self._collect(lambda: dist.all_gather_object(values, value, group=self.group))
        return values

    @contextmanager
    def same_noise(self) -> Iterator[None]:
        """Inside, all draw the random numbers that the first worker does; the others' own
        generators are as before afterwards.
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

    def agree(self, function: Callable[[], Any]) -> list[Any]:
        """What a function gives to each of them; where it raises for one, all raise.

        :raises WorkerLostError: on the workers whose own function has not raised.
        """
        value, error = None, None
        try:
            value = function()
        except Exception as raised:  # noqa: BLE001  whatever it is, the others wait for an answer
            error = raised
        found = self.of_all((value, None if error is None else _in_words(error)))
        if error is not None:
            raise error
        self.check([words for _, words in found])
        return [value for value, _ in found]

    def check(self, failures: list[str | None]) -> None:
        """Raise if a worker has failed.

        :param failures: what each says of itself, None where all is well.
        :raises WorkerLostError: naming the workers.
        """
        words = [f"{rank} ({why})" for rank, why in enumerate(failures) if why is not None]
        if words:
            raise WorkerLostError(f"Another worker has failed, that of rank {', '.join(words)}.")

    def _collect(self, collective: Callable[[], Any]) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise WorkerLostError(
                f"Worker {self.rank} of {self.size} waited for the others in vain: one of them has "
                "died, left the run, or taken longer than the timeout of init_process_group. Its "
                f"own output says why. ({_in_words(error)})"
            ) from error


def _in_words(error: Exception) -> str:
    """An error's first line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
