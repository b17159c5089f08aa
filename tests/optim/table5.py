"""Tan's Table 5, transcribed literally to numpy, and drivers for both packages' optimisers.

A *point* is a dict from a name to ``(family name, loc, scale)``; ``lambda`` is the joint vector
of the free coordinates of all of them. Gradients are of a loss, so that the signs of the
paper, which maximises, are turned here.
"""

from __future__ import annotations

import numpy as np

from tests import reference
from tests.ppl import QUICKLY


def _join(point):
    return np.concatenate([reference.flatten(*gaussian) for gaussian in point.values()])


def _split(vector, like):
    point = {}
    for name, (family, loc, scale) in like.items():
        size = reference.flatten(family, loc, scale).size
        point[name] = (family, *reference.unflatten(family, vector[:size], len(loc)))
        vector = vector[size:]
    return point


def snngm(point, gradients, alpha_0, beta):
    """Middle column: ``alpha_0`` a function of the number of steps taken before.

    :param gradients: natural gradients of the loss, or functions of the point that yield them.
    """
    lam, m, trajectory = _join(point), 0.0, []
    for t, gradient in enumerate(gradients, start=1):
        gradient = gradient(_split(lam, point)) if callable(gradient) else gradient
        g = -_join(gradient)  # 1. natural gradient estimate
        m = beta * m + (1 - beta) * g / np.linalg.norm(g)  # 2.
        m_hat = m / (1 - beta**t)  # 3.
        lam = lam + alpha_0(t - 1) * np.sqrt(lam.size) * m_hat  # 4.
        trajectory.append(_split(lam, point))
    return trajectory


def nagm(point, gradients, alpha, alpha_scale, beta, max_norm):
    """Right column, ``alpha`` for means and ``alpha_scale[family]`` for scales (section 6)."""
    m, trajectory = 0.0, []
    for t, gradient in enumerate(gradients, start=1):
        euclidean = {
            name: (family, *reference.euclidean_gradient(*point[name], *gradient[name][1:]))
            for name, (family, _, _) in point.items()
        }
        g = -_join(euclidean)  # 1. Euclidean gradient estimate
        g = min(1, max_norm / np.linalg.norm(g)) * g  # 2.
        m = beta * m + (1 - beta) * g  # 3.
        momentum, moved = _split(m, point), {}
        for name, (family, loc, scale) in point.items():  # 4.
            n_loc, n_scale = reference.natural_gradient(family, loc, scale, *momentum[name][1:])
            step = alpha_scale[family](t - 1) * n_scale
            moved[name] = (family, loc + alpha(t - 1) * n_loc, scale + step)
        point = moved
        trajectory.append(point)
    return trajectory


# -- the packages' optimisers on the same gradients -----------------------------------


class NumPyroDriver:
    def __init__(self, backend, optimiser, point, parameters=None, dtype="float64"):
        import jax

        self.backend, self.optimiser, self.dtype = backend, optimiser, dtype
        self.params = self._tree(point, parameters)
        self.state = optimiser.init(self.params)
        self._update = jax.jit(optimiser.update, compiler_options=QUICKLY)

    def _tree(self, point, parameters):
        tree = {name: self.backend.family(*g, self.dtype) for name, g in point.items()}
        tree.update({k: self.backend.array(v, self.dtype) for k, v in (parameters or {}).items()})
        return tree

    def step(self, gradient, parameters=None):
        import optax

        updates, self.state = self._update(
            self._tree(gradient, parameters), self.state, self.params
        )
        self.params = optax.apply_updates(self.params, updates)

    def gaussian(self, name):
        return self.backend.coordinates(self.params[name])

    def parameter(self, name):
        return np.asarray(self.params[name])

    @property
    def num_skipped(self):
        return int(self.state.num_skipped)


class PyroDriver:
    def __init__(self, backend, optimiser, point, parameters=None, dtype="float64"):
        coordinates = backend.module("families.coordinates")
        self.backend, self.optimiser, self.dtype = backend, optimiser, dtype
        self.params = {}
        for name, (family, loc, scale) in point.items():
            specification = backend.family_class(family)()
            values = backend.family(family, loc, scale, dtype).coordinates()
            for field, tensor in values.items():
                tensor.requires_grad_()
                coordinates.mark(tensor, coordinates.Coordinate(specification, name, field))
                self.params[f"{name}.{field}"] = tensor
        for name, value in (parameters or {}).items():
            self.params[name] = backend.array(value, dtype).requires_grad_()

    def step(self, gradient, parameters=None):
        for name, (family, loc, scale) in gradient.items():
            fields = "loc", reference.SCALE_NAME[family]
            for field, value in zip(fields, (loc, scale), strict=True):
                self.params[f"{name}.{field}"].grad = self.backend.array(value, self.dtype)
        for name, value in (parameters or {}).items():
            self.params[name].grad = self.backend.array(value, self.dtype)
        self.optimiser(set(self.params.values()))  # SVI hands over an unordered set

    def gaussian(self, name):
        return tuple(
            self.backend.numpy(tensor).copy()
            for key, tensor in self.params.items()
            if key.startswith(f"{name}.")
        )

    def parameter(self, name):
        return self.backend.numpy(self.params[name]).copy()

    @property
    def num_skipped(self):
        return self.optimiser.num_skipped


def driver(backend, optimiser, point, parameters=None, dtype="float64"):
    return {"numpyro": NumPyroDriver, "pyro": PyroDriver}[backend.name](
        backend, optimiser, point, parameters, dtype
    )


# -- instances ------------------------------------------------------------------------


def start(rng):
    """Two families at once."""
    return {
        name: (family, *reference.random_gaussian(family, dim, rng))
        for name, family, dim in [
            ("dense", "covariance_cholesky", 3),
            ("mean_field", "diagonal", 2),
        ]
    }


def random_gradients(point, num_steps, rng, size=1.0):
    """Natural gradients of no particular loss, lower triangular where they must be."""
    gradients = []
    for _ in range(num_steps):
        gradient = {}
        for name, (family, loc, scale) in point.items():
            g_scale = size * rng.normal(size=scale.shape)
            g_scale = np.tril(g_scale) if family == "covariance_cholesky" else g_scale
            gradient[name] = (family, size * rng.normal(size=loc.shape), g_scale)
        gradients.append(gradient)
    return gradients


def assert_same(driver, point, rtol=1e-11):
    """Rounding of 20 steps of numbers of order one, and of solves with condition 1e3."""
    for name, (_, loc, scale) in point.items():
        actual_loc, actual_scale = driver.gaussian(name)
        np.testing.assert_allclose(actual_loc, loc, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(actual_scale, scale, rtol=rtol, atol=rtol)
