"""The posteriors of posteriordb that have reference draws, as NumPyro and Pyro models.

`numpyro_models.POSTERIORS` and `pyro_models.POSTERIORS` map the names of the posteriors to
their models; `data` reads the collection from a directory that the caller names; `check`
holds every model against the reference draws:

    python -m benchmarks posteriordb.check --data-dir DIR

The benchmark compares `fit` with the stock guide on all of them:

    python -m benchmarks posteriordb --data-dir DIR --out OUT
"""
