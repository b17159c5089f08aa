"""`fit` on models unlike those it was tuned on: what it claims, and what is so.

``models/`` has the models, a file for each class, and ``best.json`` the best bounds known.
``python -m benchmarks gauntlet --help`` lists the commands.
"""
