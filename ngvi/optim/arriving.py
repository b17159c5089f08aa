"""What Python hears of a device without waiting for it."""

from __future__ import annotations

from typing import Any


def is_at_hand(tensor: Any) -> bool:
    """Whether there is nothing to wait for, as on a CPU."""
    return tensor.device.type == "cpu"


class Arriving:
    """A flag on its way from the device.

    :param before: one that has been read, in the place of which it may arrive.
    :ivar is_here: whether there is nothing to wait for, as on a CPU.
    """

    def __init__(self, flag: Any, before: Arriving | None = None) -> None:
        self.is_here = is_at_hand(flag)
        self._flag, self._event = flag, None
        if flag.device.type == "cuda":
            import torch  # which the rules of this folder do without

            if before is None or before._event is None:
                place, event = torch.empty_like(flag, device="cpu", pin_memory=True), None
            else:
                place, event = before._flag, before._event
            self._flag = place.copy_(flag, non_blocking=True)
            self._event = event or torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(flag.device))

    def __bool__(self) -> bool:
        if self._event is not None:
            self._event.synchronize()  # long past, if a loss has been read since
        return bool(self._flag.numpy() if self._flag.device.type == "cpu" else self._flag)
