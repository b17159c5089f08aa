"""Trust regions in ``KL(q_new || q_old)``, in nats: what those of optimisers and fit share."""

#: The first radius.
INITIAL_RADIUS = 1.0
#: The radius past a step at whose end the bound still rises: so many times the step's length, ...
GROWTH = 10.0
#: ... and, in ``fit``, past a step that went far beyond the optimum.
SHRINKAGE = 0.25
