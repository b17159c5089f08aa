"""The workflow after a fit: groups for ArviZ, summaries, sites, leave-one-out, influence, updates.

At an optimum of the bound the natural parameters of the Gaussian are a sum, the prior's natural
gradient plus one of each row's log likelihood (Khan and Rue, 2023, *The Bayesian learning rule*,
section 5, equations 15 to 17). Those of rows are *sites*: leaving a row out is a subtraction, and a
new row is an addition.

Here is the mathematics, in numpy; a package's ``workflow`` runs the model
(:class:`~ngvi.workflow.rows.ObservedRows`).
"""
