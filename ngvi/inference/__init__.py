"""The search of a fit, its end, and what it says of its result."""

from ngvi.inference.saved import files as files
