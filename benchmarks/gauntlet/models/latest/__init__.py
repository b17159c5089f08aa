"""Models that were written after the last change of `fit`, and run as they are, ``--which latest``.

One of them is older, ``dynamics/sunspots``, which had led to that change and proves nothing of it.
"""

from . import groups, shapes, time  # noqa: F401
