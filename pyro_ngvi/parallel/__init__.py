"""Runs on ``torch.distributed`` in which each worker sees its own rows of the data."""

from pyro_ngvi.parallel.data_parallel import DataParallel

__all__ = ["DataParallel"]
