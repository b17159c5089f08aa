"""The error of an import of ``watch_processes``, which is gone."""


def __getattr__(name: str) -> None:
    if name == "watch_processes":
        raise ImportError(
            "watch_processes is gone: jax.distributed.initialize ends processes that wait for a "
            "lost one, after heartbeat_timeout_seconds= and shutdown_timeout_seconds=."
        )
    raise AttributeError(name)
