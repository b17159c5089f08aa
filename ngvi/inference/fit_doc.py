"""Fit a Gaussian to the posterior of a model, to the optimum of the bound.

Nothing needs tuning: the start is broad, steps are natural gradients in a trust region with a
quasi-Newton correction, and draws are as many as their noise requires::

    result = fit(model, X, y)
    print(result)                     # which verdict? how good? where is it worst?
    result.sample(1000)["beta"]

``result.converged`` means that the upper 95 % limit of what is left to this optimum is at most
``tolerance``. ``result.verdict`` says more: ``"certified"`` if it is also unlikely that as many
starts again would find a better optimum, ``"local"`` if others have not been ruled out, or ``"not
converged"``.

Models that see a part of their rows get fresh draws and rows at every step, unless all rows can be
read each time. Step sizes then follow the noise, and ``tolerance`` is met on average.

Of a model without continuous latents its own parameters are fitted, by maximum likelihood; the
result then has a latent ``"_no_latents"``, a standard normal on which nothing depends.

:param model: a model, whose discrete latents are summed out, marked for enumeration or not.
:param args: its arguments.
:param family: of the Gaussian, as for ``NaturalGaussianGuide``.
:param num_components: of a mixture of Gaussians of this family: a number, or one if more would
    not raise the bound, or ``"auto"``, one for each mode that is met; at most 16. It begins at the
    optima of one Gaussian, and goes on along the natural gradients of weights and components
    (:mod:`ngvi.inference.mixture_fit`). ``result.family`` has ``weights`` and ``components``, and
    ``result.posterior`` is the PPL's own mixture. Locals are then taken as they are.
:param guide: a guide with a ``NaturalGaussianGuide`` in it, in place of ``family``; its own
    start is used.
:param init: go on from an earlier result of a model with the same latents.
:param init_loc_fn: an initialisation strategy of the PPL's for the mean; by default zero on the
    unconstrained scale.
:param reparametrize: whether locals are by their modes (``ReparametrizedGaussianGuide``).
    ``"auto"`` fits them first, where the model has locals and the other arguments leave the choice.
    If that is not certified, or misses much, a Gaussian over all latents is fitted, and then both
    are compared. ``True`` has it whatever it misses, ``False`` never. See
    :mod:`ngvi.inference.mode_centred`. The report says so, and ``result.posterior`` is then over
    standardised locals.
:param curvature: ``"spherical"`` (gradients at orthogonal points,
    :class:`~ngvi.estimators.table.Spherical`), ``"quadrature"`` (no points, where the log density
    allows it, :class:`~ngvi.estimators.table.Quadrature`), ``"hessian"``, ``"stein"``, or
    ``"auto"``. The last takes quadrature where it can be, from 100 latents on, or 2000 of a
    structured family. Else it takes ``"spherical"`` where the model has locals
    (:mod:`~ngvi.inference.samples`), Hessians where the family's take few products, or
    ``"spherical"`` up to 2000 latents.
:param tolerance: what may be left to the optimum, in nats.
:param max_steps: the most steps of one search.
:param effort: ``"quick"`` for the local optimum from one start, without a claim about others: its
    verdict is ``"local"`` at best; ``"standard"``; or ``"thorough"``, which looks for other optima
    eight times as long. For each gradient that led to the best optimum others take none, one or
    eight; or 20,000 in all if that is more, but no more than eight times as many as led to the
    best one. The search ends sooner where a better optimum is unlikely.
:param time_limit: in seconds of wall-clock time, None for no limit. It has the last validation and
    the report in it: no evaluation begins that would leave them less than 200 draws each, or a
    fifth of the time, by what one has taken so far. A fit ends with the first step, or the
    compilation, in which it is reached, and keeps what there is: an optimum that was found and
    checked before is claimed. So does one that Ctrl-C interrupts.
:param callback: called after each step with the number of steps, the bound over the step's
    draws and its estimated distance to the optimum, both in nats. If it returns True, or raises
    ``StopIteration``, the fit ends and keeps what there is.
:param checkpoint: a file that keeps the best result so far, as ``result.save`` writes it: at most
    once a minute, and at the end. The same call with the file there begins at that result, as
    with ``init=``, and verifies everything anew.
:param progress_bar: show what the fit is doing, its steps and the best bound so far; the last line
    is the result. ``logging.getLogger("ngvi")`` hears the same.
:param batches: the data in batches that need not fit the memory at once: an iterable that can
    be read many times, such as a ``DataLoader``, or a generator function. Each gives the
    model's arguments, and the model's plate says how many rows there are in all; the fit is
    that of all rows. See :mod:`ngvi.inference.batches`.
:param allow_prior: fit a model that observes nothing, whose posterior is its prior. By default that
    is an error, because mostly a response was forgotten.
:param draws: who makes the draws of ``sample``, ``predictive``, ``summary`` and ``to_arviz``, as
    the last phase: ``"gaussian"``, ``"corrected"`` (by importance weights), ``"nuts"`` (chains
    that go on from the fit), or ``"auto"``, the cheapest of these that is shown to be accurate:
    every mean within 0.1 standard deviations, and every standard deviation within 10 %, by upper
    95 % limits. Where none is, they are the best there are, and the report says ``doubtful``. With
    ``"gaussian"`` nothing is computed. See :mod:`ngvi.inference.draws.drawn`.
:param options: the numbers by which the search decides, a ``FitOptions``; each has a default
    that needs no change. See :mod:`ngvi.inference.options`.
:param kwargs: keyword arguments of the model.
:return: the result, with ``verdict``, ``converged`` and ``reason``; a fit that has not converged
    also warns.
:raises TypeError: for a keyword that neither ``fit`` nor the model has, or arguments with which the
    model cannot be called.
:raises ValueError: for a model that observes nothing, data with NaN, a tolerance or a number of
    steps that is not positive, an unknown curvature or family, or a guide without a
    ``NaturalGaussianGuide``. So do an ``init`` or a ``checkpoint`` of another model, an argument
    that another one makes meaningless, and ``draws="nuts"`` where NUTS cannot run (minibatches,
    parameters of the model's own, several guides in one).
"""
