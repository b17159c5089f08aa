"""The workflow after a fit: groups for ArviZ, summaries, sites, leave-one-out, influence, updates.

At an optimum of the bound, the Gaussian's natural parameters are a sum of natural gradients: those
of the log prior and of each row's log likelihood. The terms of the rows are called *sites* (Khan
and Rue, 2023, *The Bayesian learning rule*, section 5, equations 15 to 17). Leaving a row out
subtracts its site, and a new row adds one.

Here is the mathematics, in numpy; a package's ``workflow`` runs the model
(:class:`~ngvi.workflow.rows.ObservedRows`).
"""
