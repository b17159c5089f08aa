"""The trust region in ``KL(q_new || q_old)``, in nats: the numbers of all that have one."""

#: At first.
INITIAL_RADIUS = 1.0
#: At least so many times the length of a step at whose end the bound still rises.
GROWTH = 10.0
#: So much of the length of a step that went far beyond the optimum.
SHRINKAGE = 0.25
