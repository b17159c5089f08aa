"""The examples and tutorials of Pyro and NumPyro through ``fit``; ``rows.csv`` has the results."""
