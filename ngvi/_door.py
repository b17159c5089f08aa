"""Suggest the right keyword when a public function is called with a wrong one.

A keyword that a function does not have is compared with those that it has, and with what other
libraries call them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from ngvi._warn import warn

Function = TypeVar("Function", bound=Callable)
#: Defaults that are written out in words; of others there are dots.
SHORT = (bool, int, float, str, type, type(None))

#: Arguments of an optimiser.
LOOP = "lr learning_rate step_size optim optimizer optimiser momentum scheduler"
#: What other libraries write, by the call and by what is written here.
ELSEWHERE = {
    "any": {
        "step_size": "lr learning_rate stepsize alpha rho",
        "lr": "learning_rate step_size stepsize alpha",
        "beta1": "b1 beta betas momentum mass",
        "beta2": "b2 betas",
        "ess": "n num_data num_examples dataset_size data_size num_rows size train_size",
        "hess_init": "h0 init_hess initial_hess hessian_init",
        "weight_decay": "prior_precision prior_prec wd decay l2 delta",
        "clip_radius": "clip clip_norm max_norm max_grad_norm clip_value",
        "num_particles": "particles num_samples num_draws n_samples quasi_random",
        "num_samples": "draws num_draws n_samples n_draws size n samples",
        "num_draws": "draws num_samples n_samples n_draws size n",
        "rng_key": "seed random_seed key rng random_state prng_key",
        "seed": "rng_key random_seed key rng random_state",
        "family": "kind covariance method",
        "init_loc_fn": "init init_values init_strategy start",
        "var_names": "names vars sites params parameters",
        "prob": "hdi_prob ci_prob ci level confidence quantiles percentiles",
        "plate": "dim group groups by var_name unit",
        "rows": "index indices idx row i",
        "num_warmup": "warmup warmup_steps tune burn_in num_tune",
    },
    "fit": {
        "max_steps=, though fit ends by itself": "num_steps n_steps steps num_iters n_iter epochs",
        "no step size and no optimiser to give: fit chooses its own, SVI takes BLR()": LOOP,
        "progress_bar=": "verbose progress progressbar disable_progbar quiet",
        "no number of draws: write result.sample(1000)": "num_samples n_samples draws samples",
        "no Markov chain: write result.nuts()": "num_warmup warmup tune chains num_chains cores",
        "tolerance=, in nats": "tol atol rtol tol_rel_obj",
        "time_limit=, in seconds": "timeout max_time time_budget max_seconds",
        "init_loc_fn=init_to_value(values={...})": "init_values inits initvals init_params x0",
        'effort="quick", "standard" or "thorough"': "exploration num_starts n_starts restarts",
        "no need for it: the same random seed repeats a fit": "deterministic",
        "no processes: SVI with pyro_ngvi.parallel.DataParallel shares rows out": "process_group",
        "batches=, or a plate with subsample_size= in the model": "batch_size minibatch dataloader",
        "callback=": "callbacks on_step hook",
        "checkpoint=": "checkpoint_path checkpoint_dir save_path",
        "family= and guide=": "method approximation autoguide guide_type",
        "guide=NaturalGaussianGuide(model, create_plates=...)": "create_plates",
        "no device: fit computes where the data are": "device gpu cuda",
        "the seed": "seed random_seed random_state rng rng_key key",
    },
    "FitResult": {
        "result.sample(1000)": "get_samples samples draws posterior_samples rvs",
        "result.summary()": "mean sd std stddev median quantile quantiles hdi to_dataframe",
        "result.bound": "elbo lower_bound",
        "result.log_evidence": "evidence marginal_likelihood log_marginal_likelihood",
        "result.losses": "loss history elbos",
        "len(result.trace)": "num_steps steps",
        "result.converged": "success certified",
        "result.diagnostics": "khat pareto_k k_hat diagnose rhat r_hat",
        "result.predictive(...)": "predict posterior_predictive",
        "result.loo()": "waic psis psis_loo elpd",
        "result.to_arviz()": "to_inference_data idata inference_data plot_trace plot_posterior",
    },
    "SVI": {"pyro.set_rng_seed(0) before it": "rng_key seed key"},
    "NaturalGaussianGuide": {
        "Predictive(model, guide=guide, ...), or fit(model, ...).sample(1000)": (
            "sample samples draws get_samples sample_posterior"
        )
    },
    "FitResult.summary": {"prob=; it is a table of all draws": "num_draws"},
    "Diagnostics": {
        "pareto_k": "khat k_hat k pareto_k_error",
        "log_weights, minus infinity at a draw without a density": "num_dropped",
        "log_weights, whose mean is the bound": "bound bound_error effective_sample_size",
        "accuracy": "are_trusted worst marginals pareto_k_error",
    },
    "LogEvidence": {"value": "mean estimate", "error": "sd std se"},
    "NutsResult": {"draws, without an MCMC of the PPL": "mcmc get_samples posterior"},
    "FitResult.nuts": {"nothing: a pass evaluates all chains": "chain_method jit_compile cores"},
}


def written_here(call: str, word: str) -> str:
    """Return what is written here for a word of other libraries, or nothing."""
    rows = ELSEWHERE.get(call, {}).items()
    return next((here for here, words in rows if word in words.split()), "")


def known_as(word: str, names: list[str], cutoff: float) -> list[str]:
    """Return which names other libraries write like this, or else one that looks like it."""
    found = [one for one in names if word in ELSEWHERE["any"].get(one, "").split()]
    return found or difflib.get_close_matches(word, names, 1, cutoff)


def door(function: Function) -> Function:
    """Return ``function`` with an error that says how it is called if it was called otherwise.

    :raises TypeError: on such a call.
    """
    signature = Checked.from_callable(function)
    signature.function = function

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return function(*args, **kwargs)

    called.__signature__ = signature  # type: ignore[attr-defined]
    return called  # type: ignore[return-value]


class Checked(inspect.Signature):
    """A signature whose ``bind``, of optax say, says how a function is called."""

    function: Any = None  #: None of one that was changed, such as a method's without ``self``.

    def bind(self, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        if self.function is not None:
            check_call(self.function, inspect.signature(self.function), args, kwargs)
        return super().bind(*args, **kwargs)


def as_written(name: str, parameters: Iterable[inspect.Parameter]) -> str:
    """Return a call of a function with its arguments, as it is written."""
    plain = [
        one.replace(
            annotation=one.empty, default=one.default if isinstance(one.default, SHORT) else ...
        )
        for one in parameters
    ]
    return f"{name}{inspect.Signature(plain)}".replace("=Ellipsis", "=...")


def check_call(
    function: Callable, signature: inspect.Signature, args: tuple, kwargs: dict[str, Any]
) -> None:
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = _name(function, signature, args)
        raise TypeError(_misfit(name, signature, kwargs, str(error))) from None


def _name(function: Callable, signature: inspect.Signature, args: tuple) -> str:
    """Return the user's name of a function: a method has the class of its object."""
    if next(iter(signature.parameters), None) != "self" or not args:
        return function.__qualname__
    name = type(args[0]).__name__
    return name if function.__name__ == "__init__" else f"{name}.{function.__name__}"


def _misfit(name: str, signature: inspect.Signature, kwargs: dict[str, Any], reason: str) -> str:
    names = [one for one in signature.parameters if one != "self"]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    for keyword in () if takes_any else kwargs:
        if keyword not in names:
            if meant := written_here(name, keyword):
                return f"{name} has no argument {keyword}=: write {meant}."
            near = known_as(keyword.lower(), names, 0.7)
            hint = f"Is {' or '.join(f'{one}=' for one in near)} meant?" if near else ""
            has = ", ".join(f"{one}=" for one in names) or "none"
            return f"{name} has no argument {keyword}=. {hint or f'It has {has}.'}"
    called = as_written(name, (signature.parameters[one] for one in names))
    return f"{called} was called with wrong arguments: {reason}."


def not_made(name: str) -> str:
    """Return the error for a class in the place of an object of it."""
    return f"{name} is a class or function: write {name}(), with brackets."


def check_parts(own: str, model: Any, guide: Any, optim: Any, loss: Any) -> None:
    """Refuse classes and functions in the place of what they make, as ``SVI`` takes it.

    :param own: the package, whose objects they must be.
    :raises TypeError: naming it.
    """
    if not callable(guide):
        raise TypeError(f"guide must be a guide, NaturalGaussianGuide(model) say, got {guide!r}.")
    for name, value, example in (("optim", optim, "BLR()"), ("loss", loss, "NaturalELBO()")):
        if value is None or isinstance(value, (str, float, int, dict)):
            raise TypeError(f"{name} must be an object such as {example}, got {value!r}.")
    names = [type(value).__module__.partition(".")[0] for value in (guide, optim, loss)]
    if {"pyro_ngvi", "numpyro_ngvi"} <= {own, *names}:
        raise TypeError(f"guide, optim and loss must all be of {own}, and one is of the other.")
    is_function = inspect.isfunction(optim) and not hasattr(optim, "init")
    for value in (model, guide, optim, loss):
        if isinstance(value, type) or (value is optim and is_function):
            raise TypeError(not_made(value.__name__))


#: For a guide in the place of its model.
SWAPPED = "The guide is in the place of the model: write SVI(model, guide, optim, loss)."


def warn_of_optimiser(name: str) -> None:
    """Warn of an optimiser that divides each coordinate by its own size."""
    warn(
        f"{name} divides each coordinate of a natural gradient by its own size, and learns slowly "
        "or not at all. Write BLR() with NaturalELBO(), or Snngm() with the loss that you have."
    )
