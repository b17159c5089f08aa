"""The workflow on top of a fit, as far as it runs the model; see :mod:`ngvi.workflow`."""
