"""A log density as a sum of terms, each a function of a few affine functions of the latents.

A logistic regression is ``sum_i f(y_i, x_i^T beta)`` plus the prior: every term depends on *one*
affine function of the latents, its linear predictor. In a mixed model with learned scales, terms
depend on two, ``u_g`` and ``log tau``. Under a Gaussian these functions are jointly Gaussian in one
or two dimensions. The bound and its gradients are therefore integrals over one or two dimensions,
which quadrature computes to rounding, without noise, for any number of latents.

This module has the algebra that finds the terms of a program, without tensors. A package reads the
operations of a log density in order, and gives each its :class:`Kind`. :meth:`Reader.apply` tracks
which results are constant, affine in the latents, elementwise functions of a few affine functions,
or sums of such. Any other operation raises a :class:`NotAdditiveError`, and other estimators are
used.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

#: Affine functions that a term may see.
MAX_PREDICTORS = 2
#: Numbers in the Jacobians of all terms: half a gigabyte in double precision.
MAX_JACOBIAN_NUMBERS = 2**26


class NotAdditiveError(Exception):
    """The log density is no sum of terms of a few affine functions; says which operation."""


class Kind(enum.Enum):
    """Kinds of operations, by what they do with their arguments."""

    COPY = "each entry of the result is one of the only argument"
    LINEAR = "linear in all arguments together"
    SUM = "linear in all arguments together, element by element"
    EACH = "element by element"
    PRODUCT = "element by element, linear in each argument"
    QUOTIENT = "element by element, linear in the first argument"
    BILINEAR = "linear in each argument"


class Op(NamedTuple):
    """An operation.

    :param run: of the values of all arguments.
    :param name: with all options: the same operation has the same name.
    """

    kind: Kind
    run: Callable[..., Any]
    name: str


class Level(enum.IntEnum):
    """Kinds of values."""

    CONSTANT = 0
    AFFINE = 1  #: Affine in the latents.
    LOCAL = 2  #: Each element a function of a few affine values of the same shape.
    SUM = 3  #: Linear in local values.


class Node:
    """A value of the program.

    :ivar shape: its own.
    """

    def __init__(
        self,
        level: Level,
        shape: tuple[int, ...],
        op: Op | None = None,
        inputs: Sequence[Node] = (),
        value: Any = None,
    ) -> None:
        self.level, self.shape, self.inputs = level, shape, tuple(inputs)
        self.op: Any = op
        self.value = value  #: Value of a constant.
        self._form: Form | None = None

    @property
    def is_constant(self) -> bool:
        """Tell whether the latents do not matter."""
        return self.level is Level.CONSTANT

    @property
    def form(self) -> Form:
        """The value as a function of its predictors, element by element; it may be one itself."""
        if self._form is None:
            self._form = Form(self)
        return self._form

    def goes_by_elements(self) -> bool:
        """Tell whether a sum is a function of its predictors as well, and then it has that form."""
        try:
            self._form = _joined(self)
        except NotAdditiveError:
            return False
        return True


class Form:
    """An elementwise expression: a predictor, a constant, or an operation on such.

    :param node: the predictor, or the constant.
    :param predictors: all affine values in it.
    """

    def __init__(
        self, node: Node | None = None, op: Op | None = None, parts: Sequence[Form] = ()
    ) -> None:
        self.node, self.parts = node, tuple(parts)
        self.op: Any = op
        if node is not None:
            self.predictors: tuple[Node, ...] = () if node.is_constant else (node,)
        else:
            found = itertools.chain(*(part.predictors for part in parts))
            self.predictors = tuple(dict.fromkeys(found))


class Term(NamedTuple):
    """A local value of which the log density is a linear function."""

    node: Node
    predictors: tuple[Node, ...]

    def value(
        self, predictors: Sequence[Any], constant: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        """Evaluate the term at values of its predictors, element by element.

        :param constant: of a constant what goes with such values.
        """
        known: dict[int, Any] = dict(zip(map(id, self.predictors), predictors, strict=True))

        def of(form: Form) -> Any:
            if form.node is not None:
                node = form.node
                return constant(node.value) if node.is_constant else known[id(node)]
            if id(form) not in known:
                known[id(form)] = form.op.run(*map(of, form.parts))
            return known[id(form)]

        return of(self.node.form)


class Reader:
    """Follows a program; see the module."""

    def __init__(self) -> None:
        self._copies: dict[tuple, Node] = {}
        self._forms: dict[tuple[int, str], Form] = {}
        self._numbers: dict[int, Node] = {}  #: Numbers of the originals, by copy.

    def latent(self, shape: tuple[int, ...]) -> Node:
        """Return a vector of latents."""
        return Node(Level.AFFINE, tuple(shape))

    def constant(self, value: Any, shape: tuple[int, ...] = ()) -> Node:
        """Return what the latents do not change."""
        return Node(Level.CONSTANT, tuple(shape), value=value)

    def apply(self, op: Op, inputs: Sequence[Node], shape: tuple[int, ...]) -> Node:
        """Return the result of an operation.

        :param inputs: its arguments, of the shape of the result where it goes element by element,
            or constants without one.
        :raises NotAdditiveError: if it fits nowhere.
        """
        varying = [node for node in inputs if not node.is_constant]
        if not varying:
            return self.constant(op.run(*(node.value for node in inputs)), shape)
        kind = _kind_here(op, inputs)
        level = max(node.level for node in varying)
        if kind is Kind.COPY:
            return self._copy(op, inputs, shape, level)
        if kind is Kind.LINEAR:
            return self._linear(op, inputs, shape, level)
        if kind is Kind.SUM:
            return self._sum(op, inputs, shape, level)
        if kind is Kind.EACH:
            sums = [node for node in varying if node.level is Level.SUM]
            if all(node.goes_by_elements() for node in sums):
                return self._each(op, inputs, shape)
        raise NotAdditiveError(f"{op.name.split(' ')[0]} of a value of kind {level.name}")

    def filled(self, node: Node, shape: tuple[int, ...], xp: Any) -> Node:
        """Broadcast a value among larger ones; a constant number stays what it is."""
        if node.shape == shape or (node.is_constant and node.shape == ()):
            return node
        fill = Op(Kind.COPY, lambda value: xp.broadcast_to(value, shape), f"fill {shape}")
        return self.apply(fill, [node], shape)

    def _linear(self, op: Op, inputs: Sequence[Node], shape: tuple, level: Level) -> Node:
        if level is Level.AFFINE:
            return Node(level, shape, op, inputs)
        return Node(Level.SUM, shape, op, inputs)

    def _sum(self, op: Op, inputs: Sequence[Node], shape: tuple, level: Level) -> Node:
        if level is Level.SUM:
            return Node(level, shape, op, inputs)
        counts = [len(node.form.predictors) for node in inputs]
        together = self._each(op, inputs, shape, check=False)
        if len(together.form.predictors) <= max(1 if level is Level.AFFINE else 0, *counts):
            together.level = level
            return together
        return self._linear(op, inputs, shape, level)

    def _each(self, op: Op, inputs: Sequence[Node], shape: tuple, *, check: bool = True) -> Node:
        node = Node(Level.LOCAL, shape, op, inputs)
        node._form = Form(op=op, parts=[node.form for node in inputs])
        if check and len(node.form.predictors) > MAX_PREDICTORS:
            count = len(node.form.predictors)
            raise NotAdditiveError(f"{op.name.split(' ')[0]} of {count} affine values")
        return node

    def _copy(self, op: Op, inputs: Sequence[Node], shape: tuple, level: Level) -> Node:
        (inner,) = inputs
        if level is Level.SUM:
            return Node(level, shape, op, inputs)
        name, is_number = op.name, math.prod(inner.shape) == 1
        if is_number:
            name = f"fill {shape}"  # whichever way a number is spread
        is_predictor = inner.form.node is inner
        if is_predictor:
            first = self._numbers.get(id(inner), inner)
            if is_number and first.shape == shape:
                return first
            key = (id(first), name, shape)
            if key not in self._copies:
                self._copies[key] = copy = Node(Level.AFFINE, shape, op, inputs)
                if is_number and math.prod(shape) == 1:
                    self._numbers[id(copy)] = first
            return self._copies[key]
        node = Node(level, shape, op, inputs)
        node._form = self._copied(inner.form, op, name, inner.shape, shape)
        return node

    def _copied(self, form: Form, op: Op, name: str, old: tuple, shape: tuple) -> Form:
        key = (id(form), name)
        if key in self._forms:
            return self._forms[key]
        if form.node is None:
            parts = [self._copied(part, op, name, old, shape) for part in form.parts]
            copied = Form(op=form.op, parts=parts)
        elif form.node.is_constant and form.node.shape != old:  # a number for all entries
            copied = form
        else:
            copied = self.apply(op, [form.node], shape).form
        copied.origin = form  # type: ignore[attr-defined]  # which keeps its identity alive
        self._forms[key] = copied
        return copied


class AdditiveTerms(NamedTuple):
    """A log density by its terms."""

    result: Node
    latents: tuple[Node, ...]
    terms: tuple[Term, ...]

    @classmethod
    def of(cls, result: Node, latents: Sequence[Node]) -> AdditiveTerms:
        """Return the terms of the scalar that a program returns for vectors of latents."""
        found: dict[int, Node] = {}
        nodes, seen = [result], set()
        while nodes:
            node = nodes.pop()
            if id(node) in seen or node.is_constant:
                continue
            seen.add(id(node))
            if node.level is Level.SUM or _has_simpler(node):
                nodes.extend(node.inputs)
            else:
                found[id(node)] = node
        terms = (Term(node, node.form.predictors) for node in found.values())
        return cls(result, tuple(latents), tuple(terms))

    @classmethod
    def elementwise(cls, nodes: Sequence[Node], latents: Sequence[Node]) -> AdditiveTerms:
        """Return arrays as one term each; see :func:`term_of`."""
        return cls(nodes[0], tuple(latents), tuple(map(term_of, nodes)))

    @property
    def predictors(self) -> tuple[Node, ...]:
        """All affine values."""
        return tuple(dict.fromkeys(one for term in self.terms for one in term.predictors))

    @property
    def places(self) -> list[list[int]]:
        """The indices of the affine values that each term sees."""
        index = {id(one): k for k, one in enumerate(self.predictors)}
        return [[index[id(one)] for one in term.predictors] for term in self.terms]

    def check_size(self, dim: int) -> None:
        """Refuse what would not fit.

        :param dim: ``d``, the number of latents.
        :raises NotAdditiveError: for too many numbers in the Jacobians, or none.
        """
        if not self.terms:
            raise NotAdditiveError("no latent changes it")
        numbers = dim * sum(math.prod(one.shape) for one in self.predictors)
        if numbers > MAX_JACOBIAN_NUMBERS:
            raise NotAdditiveError(f"the Jacobians of its terms would have {numbers:.1e} numbers")

    def value(self, of_terms: Sequence[Any]) -> Any:
        """Return the log density, of the values of its terms."""
        pairs = zip(self.terms, of_terms, strict=True)
        return evaluate([self.result], {id(term.node): value for term, value in pairs})[0]


def is_sum(terms_of: Callable[..., AdditiveTerms], density: Callable, latent: Any) -> bool:
    """Tell whether a log density is a sum of terms, of a size that quadrature takes.

    :param terms_of: the package's.
    :param latent: where it is run, ``(d,)``.
    """
    try:
        terms_of(density, [latent]).check_size(len(latent))
    except Exception:  # noqa: BLE001  a model may do what this cannot follow
        return False
    return True


def evaluate(nodes: Sequence[Node], known: dict[int, Any]) -> list[Any]:
    """Return the values of some nodes.

    :param known: values by the identity of their nodes, those of the latents among them.
    """
    known = dict(known)

    def of(node: Node) -> Any:
        if node.is_constant:
            return node.value
        if id(node) not in known:
            known[id(node)] = node.op.run(*map(of, node.inputs))
        return known[id(node)]

    return [of(node) for node in nodes]


def _has_simpler(node: Node) -> bool:
    """Tell whether a value's parts cost less.

    A part of a sum may see fewer affine values, and one number for all rows is enough.

    """
    if node.level is not Level.LOCAL:
        return False
    parts = [part for part in node.inputs if not part.is_constant]
    if node.op.kind is Kind.COPY:
        return math.prod(parts[0].shape) < math.prod(node.shape)
    if _kind_here(node.op, node.inputs) is not Kind.SUM:
        return False
    fewest = min(len(part.form.predictors) for part in parts)
    return fewest < len(node.form.predictors) or any(map(_has_simpler, parts))


def _kind_here(op: Op, inputs: Sequence[Node]) -> Kind:
    """Return what an operation is in those of its arguments that vary."""
    varies = [not node.is_constant for node in inputs]
    if op.kind is Kind.PRODUCT:
        return Kind.SUM if sum(varies) == 1 else Kind.EACH
    if op.kind is Kind.QUOTIENT:
        return Kind.SUM if varies[0] and sum(varies) == 1 else Kind.EACH
    if op.kind is Kind.BILINEAR:
        if sum(varies) > 1:
            raise NotAdditiveError(f"{op.name.split(' ')[0]} of two values that vary")
        return Kind.LINEAR
    return op.kind


def term_of(node: Node) -> Term:
    """Return a value that is, element by element, a function of a few affine functions.

    :raises NotAdditiveError: if it is none.
    """
    if node.is_constant:
        raise NotAdditiveError("no latent changes it")
    node._form = form = _joined(node)
    if len(form.predictors) > MAX_PREDICTORS:
        raise NotAdditiveError(f"an element of {len(form.predictors)} affine values")
    return Term(node, form.predictors)


def _joined(node: Node) -> Form:
    """Return the form of a sum as well, if it goes by elements."""
    if node.level is not Level.SUM:
        return node.form
    if _kind_here(node.op, node.inputs) is not Kind.SUM:
        raise NotAdditiveError(f"{node.op.name.split(' ')[0]} of a sum")
    if any(one.shape not in ((), node.shape) for one in node.inputs):
        raise NotAdditiveError("a sum of other shapes")
    return Form(op=node.op, parts=[_joined(one) for one in node.inputs])
