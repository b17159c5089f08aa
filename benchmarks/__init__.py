"""What this package and its peers cost and reach: ``python -m benchmarks NAME``.

A module is a script: its docstring says what it measures, how, and on which data, and its command.
Those with a page write a CSV and a picture into ``benchmark_output`` by :mod:`~.pages`, or with
``python -m benchmarks --publish NAME`` into ``docs/benchmarks``, with the tables of the page.
``README.md`` beside this file lists them.
"""
