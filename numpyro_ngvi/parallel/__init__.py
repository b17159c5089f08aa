"""Runs on several processes of ``jax.distributed``: none of them waits for one that is lost."""

from numpyro_ngvi.parallel.watch import watch_processes

__all__ = ["watch_processes"]
