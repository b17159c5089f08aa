"""What a fit returns."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Predictive
from torch import Tensor
from torch.distributions import biject_to, transform_to

from ngvi.fit import arviz_bridge
from ngvi.fit.diagnostics import NUM_DRAWS, Diagnostics
from ngvi.fit.picture import plot_result
from ngvi.fit.report import final_bound, report
from ngvi.fit.trace import Trace
from pyro_ngvi.families import Family
from pyro_ngvi.fit.importance import diagnose, gaussians
from pyro_ngvi.guide import NaturalGaussianGuide
from pyro_ngvi.guide.posterior import to_distribution


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FitResult:
    """A fitted posterior, how the fit went, and whether to believe it.

    It is that of :attr:`params`, whatever becomes of the parameter store: guides of one class share
    their parameters' names, so that the guide of another fit changes what this one's returns.

    ``print(result)`` is a report. It takes thousands of evaluations of the log density for the
    diagnostics, once; ``repr(result)`` leaves them out until they have been asked for.
    """

    #: The model, and its arguments as given to ``fit``.
    model: Callable
    args: tuple = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    #: The guide, which is set up and reads its parameters from the store.
    guide: Any
    #: A copy of all parameters of model and guide, by their names in the parameter store.
    params: dict[str, Tensor]
    #: What each step looked like.
    trace: Trace
    #: Whether the bound is at its optimum, to the tolerance that was asked for.
    converged: bool
    #: Why the fit stopped and, if it has not converged, what to try.
    reason: str
    num_steps: int
    #: Gradients of the log density.
    num_gradients: int
    #: Hessian-vector products; a Hessian of ``d`` latents counts as ``d``.
    num_hessian_products: int
    #: Wall-clock time of the fit.
    seconds: float

    def __post_init__(self) -> None:
        constraints = pyro.get_param_store().get_state()["constraints"]
        found = {name: c for name, c in constraints.items() if name in self.params}
        self._store = {
            "params": {
                name: transform_to(constraint).inv(self.params[name]).detach().requires_grad_()
                for name, constraint in found.items()
            },
            "constraints": found,
        }

    # -- how it went ------------------------------------------------------------------

    @property
    def num_evaluations(self) -> int:
        """Gradient equivalents: gradients and Hessian-vector products."""
        return self.num_gradients + self.num_hessian_products

    @property
    def losses(self) -> np.ndarray:
        """Minus the bound in nats, as estimated at each step; shape ``(num_steps,)``."""
        return np.asarray(self.trace.losses, float)

    @property
    def bound(self) -> float:
        """The bound on the log evidence in nats, averaged over the last tenth of the steps."""
        return final_bound(self.trace)[0]

    @property
    def bound_error(self) -> float:
        """The standard error of :attr:`bound`, in nats, if the steps' errors are independent."""
        return final_bound(self.trace)[1]

    # -- the posterior ----------------------------------------------------------------

    @property
    def posterior(self) -> dist.Distribution:
        """The Gaussian over the unconstrained latent vector, as a Pyro distribution."""
        return to_distribution(self.family)

    @property
    def family(self) -> Family:
        """The same Gaussian in its own coordinates."""
        return self._family_of(self._gaussian())

    @property
    def family_name(self) -> str:
        """The name of the family; of each, if the guide is a list with several Gaussians."""
        return " + ".join(part.family.name for part in gaussians(self.guide)) or "no Gaussian"

    @property
    def dim(self) -> int:
        """The number of unconstrained latents that are Gaussian."""
        return sum(part.latent_dim for part in gaussians(self.guide))

    @torch.no_grad()
    def sample(self, num_samples: int = 1000) -> dict[str, Tensor]:
        """Draws of every latent site, constrained.

        :param num_samples: how many.
        :return: by site, an axis of draws followed by the site's shape.
        """
        if isinstance(self.guide, NaturalGaussianGuide):
            return _sample(self.guide, self._family_of(self.guide), num_samples)
        with self._own_parameters(), poutine.block():
            draws = Predictive(self.guide, num_samples=num_samples)(*self.args, **self.kwargs)
            trace = poutine.trace(self.guide).get_trace(*self.args, **self.kwargs)
        return {
            name: value
            for name, value in draws.items()
            if not trace.nodes[name]["infer"].get("is_auxiliary")
        }

    def predictive(self, *args: Any, num_samples: int = 1000, **kwargs: Any) -> dict[str, Tensor]:
        """Draws from the posterior predictive distribution, by Pyro's ``Predictive``.

        :param args: arguments of the model. If there are none at all, they are those of the
            fit, and the observed sites are drawn as if they had not been observed.
        :param num_samples: how many draws.
        :param kwargs: keyword arguments of the model.
        :return: by site, an axis of draws followed by the site's shape.
        """
        model = self.model
        if not args and not kwargs:
            args, kwargs = self.args, self.kwargs
            model = poutine.uncondition(model)
        predictive = Predictive(model, guide=self.guide, num_samples=num_samples)
        with self._own_parameters():
            return predictive(*args, **kwargs)

    # -- did it work ------------------------------------------------------------------

    @functools.cached_property
    def diagnostics(self) -> Diagnostics:
        """Pareto k-hat, importance-weighted bound and marginals, from 4000 draws."""
        return self.diagnose()

    def diagnose(self, num_draws: int = NUM_DRAWS, *, seed: int = 0) -> Diagnostics:
        """:attr:`diagnostics` from other draws, or more of them.

        :param num_draws: how many; each is an evaluation of the log density.
        :param seed: of these draws; Pyro's own random numbers are left as they are.
        :raises ValueError: if the guide has no ``NaturalGaussianGuide`` in it.
        :raises ModuleNotFoundError: without ArviZ.
        """
        with self._own_parameters():
            return diagnose(
                self.model, self.guide, self.args, self.kwargs, num_draws=num_draws, seed=seed
            )

    def plot(self) -> Any:
        """Bound, step sizes, importance weights and worst marginals as a matplotlib figure.

        :raises ModuleNotFoundError: without matplotlib.
        """
        return plot_result(self)

    def to_arviz(self, num_samples: int = 1000) -> Any:
        """Draws of :meth:`sample` and the observed data, for ArviZ.

        :param num_samples: how many draws; they are one chain.
        :return: an ``arviz.InferenceData``, or an ``xarray.DataTree`` from ArviZ 1 on.
        :raises ModuleNotFoundError: without ArviZ.
        """
        draws = self.sample(num_samples)
        posterior = {name: value.cpu().numpy() for name, value in draws.items()}
        first = {name: value[0] for name, value in draws.items()}
        sites = [site for part in gaussians(self.guide) for site in part.sites]
        return arviz_bridge.inference_data(
            posterior,
            self._observed(first),
            arviz_bridge.plate_dims(sites, posterior),
            {"inference_library": "pyro_ngvi", "bound": self.bound, "reason": self.reason},
        )

    @torch.no_grad()
    def _observed(self, latents: dict[str, Tensor]) -> dict[str, np.ndarray]:
        model = poutine.condition(self.model, latents)
        with self._own_parameters(), poutine.block():
            trace = poutine.trace(model).get_trace(*self.args, **self.kwargs)
        return {
            name: site["value"].cpu().numpy()
            for name, site in trace.nodes.items()
            if name in trace.observation_nodes
            and name not in latents
            and not site["infer"].get("_deterministic")
            and site["value"].numel()
        }

    # -- words ------------------------------------------------------------------------

    def __str__(self) -> str:
        return report(self, complete=True)

    def __repr__(self) -> str:
        return report(self, complete="diagnostics" in vars(self))

    def _gaussian(self) -> NaturalGaussianGuide:
        parts = gaussians(self.guide)
        if len(parts) != 1:
            raise ValueError(
                f"The guide ({type(self.guide).__name__}) has {len(parts)} NaturalGaussianGuides "
                "in it, not one: ask its parts."
            )
        return parts[0]

    def _family_of(self, part: NaturalGaussianGuide) -> Family:
        specification = part.posterior._specification
        names = {key: f"{part.posterior._pyro_name}.{key}" for key in specification.coordinates()}
        if not self._store["params"].keys() >= set(names.values()):
            return part._family().detach()  # the store is not in use
        values = {key: self.params[name].detach() for key, name in names.items()}
        return dataclasses.replace(specification, **values)

    @contextlib.contextmanager
    def _own_parameters(self) -> Iterator[None]:
        with pyro.get_param_store().scope({key: dict(v) for key, v in self._store.items()}):
            yield


def _sample(guide: NaturalGaussianGuide, family: Family, num_samples: int) -> dict[str, Tensor]:
    latent = family.sample(family.loc.new_empty(num_samples, family.dim).normal_())
    draws = {}
    for site in guide.sites:
        value = latent[:, site.start : site.start + site.size]
        prototype = guide.prototype_trace.nodes[site.name]["fn"]
        support = guide._supports.get(site.name, prototype.support)
        draws[site.name] = biject_to(support)(value.reshape(num_samples, *site.shape))
    return draws
