"""Short examples, each with a page in ``docs/stories``: ``python -m examples.stories.radon``."""
