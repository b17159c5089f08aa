"""Fit a Gaussian to the posterior of a model, at the optimum of the bound.

Nothing needs tuning: the start is broad, steps are natural gradients in a trust region with a
quasi-Newton correction, and the number of draws adapts to their noise::

    result = fit(model, X, y)
    print(result)                     # which verdict? how good? where is it worst?
    result.sample(1000)["beta"]

``result.converged`` means that the bound is within ``tolerance`` of this optimum, by an upper 95 %
limit. ``result.verdict`` says more: ``"certified"`` if as many starts again are also unlikely to
find a better optimum, ``"local"`` if others have not been ruled out, or ``"not converged"``.

Models with minibatches get fresh draws and rows at every step, unless each step can read all rows.
Step sizes then follow the noise, and ``tolerance`` is met on average.

For a model without continuous latents, the model's parameters are fitted by maximum likelihood; the
result then has a dummy latent ``"_no_latents"``, a standard normal.

:param model: the model; its discrete latents are summed out, marked for enumeration or not.
:param args: the model's arguments.
:param family: the family of the Gaussian, as for ``NaturalGaussianGuide``.
:param num_components: the number of Gaussians in a mixture, at most 16, or ``"auto"`` for one per
    mode found. If more do not raise the bound, one is kept. The fit starts from the optima of one
    Gaussian and follows the natural gradients of weights and components
    (:mod:`ngvi.inference.mixture_fit`). ``result.family`` has ``weights`` and ``components``, and
    ``result.posterior`` is the PPL's own mixture. Locals are not reparametrised.
:param guide: a guide that contains a ``NaturalGaussianGuide``, in place of ``family``; the fit
    starts from the guide's own start.
:param init: an earlier result to continue from, of a model with the same latents.
:param init_loc_fn: the PPL's initialisation strategy for the mean; by default zero on the
    unconstrained scale.
:param reparametrize: whether to centre locals at conditional modes
    (``ReparametrizedGaussianGuide``). ``"auto"`` does so first if the model has locals and the
    other arguments permit it. If that fit is not certified, or misses much, a Gaussian over all
    latents is fitted, and the two are compared. ``True`` always does, ``False`` never. See
    :mod:`ngvi.inference.mode_centred`. ``result.posterior`` is then over standardised locals.
:param curvature: ``"spherical"`` (gradients at orthogonal points,
    :class:`~ngvi.estimators.table.Spherical`), ``"quadrature"`` (no draws, if the log density
    allows it, :class:`~ngvi.estimators.table.Quadrature`), ``"hessian"``, ``"stein"``, or
    ``"auto"``. ``"auto"`` uses quadrature for at least 100 latents, or 2000 in a structured
    family, if possible. Its second choice is ``"spherical"`` if the model has locals
    (:mod:`~ngvi.inference.samples`), then Hessians if the family needs few products, then
    ``"spherical"`` up to 2000 latents.
:param tolerance: the largest gap to the optimum, in nats.
:param max_steps: the most steps of one search.
:param effort: how long to search for other optima. ``"quick"`` fits from one start and does not
    search, so its verdict is ``"local"`` at best. ``"standard"`` spends as many gradients as the
    best optimum took, and ``"thorough"`` eight times as many. If that is fewer than 20,000, the
    search may take up to 20,000, but at most eight times as many as the best optimum took. It ends
    sooner if a better optimum is unlikely.
:param time_limit: seconds of wall-clock time, None for no limit. The limit includes the final
    validation and the report: each keeps enough time for 200 draws, at most a fifth of the limit.
    The fit stops after the step or compilation in which the limit is reached. It keeps the best
    result so far; an optimum that was already checked keeps its verdict. Ctrl-C does the same.
    Chains of NUTS with fewer than four draws each are left out then, and the report says so.
:param callback: a function called after each step with the number of steps, the bound over the
    step's draws and its estimated distance to the optimum, both in nats. If it returns True, or
    raises ``StopIteration``, the fit stops and keeps the best result so far.
:param checkpoint: a file for the best result so far, in the format of ``result.save``, written at
    most once a minute, and at the end. If the file exists, the same call starts from it, as
    with ``init=``, and verifies everything again.
:param progress_bar: whether to show the phase, the steps and the best bound so far; the last line
    is the result. ``logging.getLogger("ngvi")`` gets the same.
:param batches: the data in batches that need not fit in memory at once: an iterable that can
    be read many times, such as a ``DataLoader``, or a generator function. Each batch holds the
    model's arguments, and the model's plate gives the total number of rows; the fit is
    that of all rows. See :mod:`ngvi.inference.batches`.
:param allow_prior: whether to fit a model that observes nothing, whose posterior is its prior. By
    default that is an error, because usually a response was forgotten.
:param draws: the method that makes the draws of ``sample``, ``predictive``, ``summary`` and
    ``to_arviz``: ``"gaussian"``, ``"corrected"`` (importance weights), ``"nuts"`` (chains started
    from the fit, at most 500,000 gradients), or ``"auto"``, the cheapest of these that is accurate.
    Draws are accurate if every mean is within 0.1 standard deviations and every standard deviation
    within 10 %, by upper 95 % limits. If none are, the best are kept, and the report says
    ``doubtful``. ``"gaussian"`` computes nothing. See :mod:`ngvi.inference.draws.drawn`.
:param options: the settings of the search, a ``FitOptions``, whose defaults rarely need a change.
    See :mod:`ngvi.inference.options`.
:param kwargs: keyword arguments of the model.
:return: the result, with ``verdict``, ``converged`` and ``reason``; a fit that has not converged
    also warns.
:raises TypeError: for a keyword that neither ``fit`` nor the model has, or arguments with which the
    model cannot be called.
:raises ValueError: for a model that observes nothing, data with NaN, a tolerance or ``max_steps``
    that is not positive, an unknown curvature or family, or a guide without a
    ``NaturalGaussianGuide``. Also for an ``init`` or ``checkpoint`` of another model, conflicting
    arguments, and ``draws="nuts"`` if NUTS cannot run (minibatches, parameters of the model,
    several guides in one).
"""
