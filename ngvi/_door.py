"""The doors of public functions: what was called otherwise than it is written, and how it is.

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

#: What other libraries write, by the call and by what is written here.
ELSEWHERE = {
    "any": {
        "step_size": "lr learning_rate stepsize alpha rho",
        "num_particles": "particles num_samples num_draws n_samples",
        "num_samples": "draws num_draws n_samples n_draws size n samples",
        "num_draws": "draws num_samples n_samples n_draws size n",
        "rng_key": "seed random_seed key rng random_state prng_key",
        "seed": "rng_key random_seed key rng random_state",
        "family": "kind covariance method",
        "init_loc_fn": "init init_values init_strategy start",
        "momentum": "beta beta1 b1",
        "max_kl": "clip clip_norm kl",
        "curvature": "hessian estimator",
        "path": "file filename fname",
        "var_names": "names vars sites params parameters",
        "prob": "hdi_prob ci_prob ci level confidence quantiles percentiles",
        "plate": "dim group groups by var_name unit",
        "rows": "index indices idx row i",
        "num_warmup": "warmup warmup_steps tune burn_in num_tune",
        "num_chains": "chains n_chains",
        "target_accept_prob": "target_accept",
    },
    "fit": {
        "max_steps=, the most steps of one search. fit ends by itself, at the optimum": (
            "num_steps n_steps steps num_iterations num_iters num_iter n_iter iterations max_iter "
            "maxiter niter epochs num_epochs n_epochs max_epochs svi_steps"
        ),
        "no step size and no optimiser to give: fit chooses its own. Leave it out, or take SVI "
        "with BLR() for a loop of your own": (
            "lr learning_rate step_size stepsize optim optimizer optimiser alpha momentum scheduler"
        ),
        "progress_bar=": "verbose progress progressbar disable_progbar quiet silent show_progress",
        "no number of draws: ask the result for them, result.sample(1000)": (
            "num_samples n_samples draws num_draws samples num_particles particles num_gradients"
        ),
        "no Markov chain: the result has draws, result.sample(1000)": (
            "num_warmup warmup tune burn_in chains num_chains cores target_accept_prob kernel"
        ),
        "tolerance=, in nats": "tol atol rtol eps tol_rel_obj",
        "time_limit=, in seconds": "timeout max_time time_budget max_seconds time",
        "init_loc_fn=init_to_value(values={...})": (
            "init_values initial_values inits initvals start init_params init_strategy x0"
        ),
        'effort="quick", "standard" or "thorough", for how long other optima are looked for': (
            "exploration num_starts n_starts restarts num_restarts n_restarts"
        ),
        "no need for it: the same random seed repeats a fit. Leave it out": "deterministic",
        "no processes: SVI with pyro_ngvi.parallel.DataParallel shares rows out": "process_group",
        "batches=, an iterable of the model's arguments; or a plate with subsample_size= in the "
        "model": "batch_size minibatch_size minibatch dataloader loader",
        "callback=": "callbacks callback_fn on_step hook",
        "checkpoint=": "checkpoint_path checkpoint_dir checkpoint_file save_path",
        "family= and guide=": "method approximation autoguide guide_type variational_family",
        "create_plates= of the guide: write guide=NaturalGaussianGuide(model, create_plates=...)": (
            "create_plates"
        ),
        "no device: fit computes where the data and the model's tensors are": "device gpu cuda",
        "the seed": "seed random_seed rng_seed random_state rng rng_key key prng_key",
    },
    "FitResult": {
        "result.sample(1000)": "get_samples samples draws posterior_samples rvs",
        "result.summary()": "mean means sd std stddev median quantiles hdi stats coef",
        "result.bound": "elbo evidence log_evidence logz lower_bound",
        "result.losses": "loss history elbos",
        "len(result.trace)": "num_steps steps niter",
        "result.restarts": "starts",
        "result.validation": "audit",
        "result.cost": "num_evaluations nfev njev",
        "result.converged": "success is_converged certified",
        "result.diagnostics": "khat pareto_k k_hat",
        "result.predictive(...)": "predict posterior_predictive sample_posterior_predictive",
        "result.loo()": "waic psis_loo elpd loo_pit",
        "arviz.plot_posterior(result.to_arviz()), say": (
            "plot_posterior plot_trace plot_forest plot_pair plot_ppc plot_loss"
        ),
        "result.to_arviz()": "to_inference_data to_idata idata inference_data",
    },
    "Diagnostics": {
        "pareto_k": "khat k_hat k pareto_khat",
        "effective_sample_size": "ess n_eff neff",
    },
}


def written_here(call: str, word: str) -> str:
    """Return what is written here for a word of other libraries, or nothing."""
    rows = ELSEWHERE.get(call, {}).items()
    return next((here for here, words in rows if word in words.split()), "")


def door(function: Function) -> Function:
    """``function``, which says how it is called if it was called otherwise.

    :raises TypeError: on such a call.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        check_call(function, signature, args, kwargs)
        return function(*args, **kwargs)

    return called  # type: ignore[return-value]


def as_written(name: str, parameters: Iterable[inspect.Parameter]) -> str:
    """A function and its arguments, as they are written."""
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
    """As the user has it: a method by the class of its object, not that which it is from."""
    name = function.__qualname__.removesuffix(".__init__")
    is_method = next(iter(signature.parameters), None) == "self" and args
    return f"{type(args[0]).__name__}.{function.__name__}" if is_method and "." in name else name


def _misfit(name: str, signature: inspect.Signature, kwargs: dict[str, Any], reason: str) -> str:
    names = [one for one in signature.parameters if one != "self"]
    for keyword in kwargs:
        if keyword not in names:
            known = ELSEWHERE["any"]
            near = [one for one in names if keyword.lower() in known.get(one, "").split()]
            near = near or difflib.get_close_matches(keyword.lower(), names, 1)
            hint = f"Is {near[0]}= meant?" if near else ""
            has = ", ".join(f"{one}=" for one in names) or "none"
            return f"{name} has no argument {keyword}=. {hint or f'It has {has}.'}"
    called = as_written(name, (signature.parameters[one] for one in names))
    return f"{called} was called otherwise: {reason}."


def not_made(name: str) -> str:
    """For a class in the place of an object of it."""
    return f"{name} itself was given, where one is to be made of it: write {name}(), with brackets."


def check_parts(guide: Any, optim: Any, loss: Any) -> None:
    """Refuse classes and functions in the place of what they make, as ``SVI`` takes it.

    :raises TypeError: naming it.
    """
    if not callable(guide):
        raise TypeError(f"guide must be a guide, NaturalGaussianGuide(model) say, got {guide!r}.")
    for name, value, example in (("optim", optim, "BLR()"), ("loss", loss, "NaturalELBO()")):
        if value is None or isinstance(value, (str, float, int, dict)):
            raise TypeError(f"{name} must be an object such as {example}, got {value!r}.")
    is_function = inspect.isfunction(optim) and not hasattr(optim, "init")
    for value, is_maker in ((guide, isinstance(guide, type)), (optim, is_function), (loss, False)):
        if is_maker or isinstance(value, type):
            raise TypeError(not_made(value.__name__))


#: For a guide in the place of its model.
SWAPPED = (
    "The guide is in the place of the model: it is SVI(model, guide, optim, loss), with the model "
    "first."
)


def warn_of_optimiser(name: str) -> None:
    """Warn of an optimiser that divides each coordinate by its own size."""
    warn(
        f"{name} divides each coordinate of the gradient by its own size, so that what makes the "
        "gradient of this guide natural is lost, and it learns slowly or not at all. Write BLR() "
        "with NaturalELBO(), or Snngm() with the loss that you have."
    )
