"""Data-parallel runs on ``torch.distributed``: each worker sees its own rows of the data."""

from pyro_ngvi.parallel.data_parallel import DataParallel

__all__ = ["DataParallel"]
