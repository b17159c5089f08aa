"""The operations of a run of torch, as :mod:`ngvi.estimators.additive_terms` wants them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ngvi.estimators.additive_terms import (
    AdditiveTerms,
    Kind,
    Node,
    NotAdditiveError,
    Op,
    Reader,
    is_sum,
)
from pyro_ngvi.tracing.messengers import OperationMode, quiet

_KINDS = {
    Kind.COPY: (
        "view _unsafe_view reshape expand unsqueeze squeeze permute transpose t slice select alias "
        "clone diagonal index index_select gather flip split split_with_sizes unbind "
        "lift_fresh _reshape_alias as_strided narrow chunk repeat"
    ),
    Kind.LINEAR: "sum cumsum mean cat stack",
    Kind.SUM: "add sub rsub neg",
    Kind.PRODUCT: "mul",
    Kind.QUOTIENT: "div",
    Kind.BILINEAR: "mm mv bmm dot",
    Kind.EACH: (
        "exp exp2 log log1p expm1 log2 log10 tanh sigmoid softplus log_sigmoid_forward sin cos tan "
        "asin acos atan atan2 sinh cosh asinh acosh atanh sqrt rsqrt pow square abs sign maximum "
        "minimum clamp clamp_min clamp_max erf erfc erfinv lgamma digamma mvlgamma where eq ne lt "
        "le gt ge logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not isnan "
        "isfinite isinf reciprocal masked_fill xlogy special_xlogy special_log_ndtr "
        "special_ndtri logaddexp binary_cross_entropy_with_logits special_erfcx special_i0e "
        "special_i1e logit relu _to_copy"
    ),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
#: Which give their argument back, if it has the result's shape.
_SAME = ("view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "alias", "clone")
#: Only the shape of the argument counts.
_OF_SHAPES = {f"{name}_like" for name in ("zeros", "ones", "full", "empty")}
_OF_SHAPES |= {f"new_{name}" for name in ("zeros", "ones", "full", "empty", "empty_strided")}
_BY_ELEMENTS = (Kind.EACH, Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT)


def terms_of(function: Callable[..., Tensor], latents: Sequence[Tensor]) -> AdditiveTerms:
    """Return the terms of a log density.

    :param function: of the latent vectors.
    :param latents: at which it is run, once; they are the nodes of the result.
    :raises NotAdditiveError: naming an operation, if it is no sum of such terms.
    """
    tape, result = _read(function, latents)
    return AdditiveTerms.of(tape.node(result), tape.latents)


def elementwise_terms_of(
    function: Callable[..., list[Tensor]], latents: Sequence[Tensor]
) -> tuple[AdditiveTerms, AdditiveTerms | None]:
    """Return tensors as functions of a few affine functions, and the terms of a number.

    :param function: of the latent vectors to a list of tensors, the last of which is the number.
    :return: the tensors as terms, and the number's, if it is a sum of such.
    :raises NotAdditiveError: naming an operation, if a tensor is no such function.
    """
    tape, (*results, number) = _read(function, latents)
    own = AdditiveTerms.elementwise([tape.node(result) for result in results], tape.latents)
    try:
        return own, AdditiveTerms.of(tape.node(number), tape.latents)
    except NotAdditiveError:
        return own, None


def _read(function: Callable[..., Any], latents: Sequence[Tensor]) -> tuple[_Tape, Any]:
    """Run a function, and return what it did and its result."""
    vectors = [vector.detach().clone() for vector in latents]
    tape = _Tape(vectors)
    with quiet(), torch.no_grad(), tape:  # checks of values read numbers
        result = function(*vectors)
    if tape.unread is not None:
        raise tape.unread
    return tape, result


#: True if a log density is a sum of terms, of a size that quadrature takes.
is_sum_of_terms = functools.partial(is_sum, terms_of)


class _Tape(OperationMode):
    """Reads the operations on what depends on the latents as they run."""

    def __init__(self, latents: list[Tensor]) -> None:
        super().__init__()
        self._reader = Reader()
        self.latents = [self._reader.latent(tuple(vector.shape)) for vector in latents]
        # The tensors are kept, so that no other gets the identity of one of them.
        self._known: dict[int, tuple[Tensor, Node | NotAdditiveError]] = {
            id(vector): (vector, node) for vector, node in zip(latents, self.latents, strict=True)
        }
        # Memory of what depends on the latents, and where it was written into.
        self._memory = {_place(vector) for vector in latents}
        self._written: dict[int, NotAdditiveError] = {}
        self.unread: NotAdditiveError | None = None  #: Set if the model has read a number.

    def node(self, tensor: Tensor) -> Node:
        """Return what is known of a tensor.

        :raises NotAdditiveError: if an operation fitted nowhere.
        """
        place = _place(tensor)
        if place in self._written:
            raise self._written[place]
        if id(tensor) not in self._known:
            if place in self._memory:  # as with ``.data``, which nobody sees being taken
                raise NotAdditiveError("a tensor that shares the memory of another")
            return self._reader.constant(tensor, tuple(tensor.shape))
        found = self._known[id(tensor)][1]
        if isinstance(found, NotAdditiveError):
            raise found
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves, structure = pytree.tree_flatten((args, kwargs))
        results = func(*args, **kwargs)
        is_known = any(isinstance(leaf, Tensor) and self._varies(leaf) for leaf in leaves)
        if not is_known or func.overloadpacket.__name__ in _OF_SHAPES:
            return results
        is_several = isinstance(results, (tuple, list))
        outputs = list(results) if is_several else [results]
        for index, output in enumerate(outputs):
            if not isinstance(output, Tensor):
                # Elsewhere the model may go on otherwise.
                name = func.overloadpacket.__name__
                self.unread = NotAdditiveError(f"{name}: the model reads a number")
                continue
            try:
                found: Node | NotAdditiveError = self._read(
                    func, leaves, structure, output, index if is_several else None
                )
            except NotAdditiveError as error:  # it may be that nothing depends on it
                found = error
                if func._schema.is_mutable:  # all views of this memory see it
                    self._written[_place(output)] = error
            self._known[id(output)] = output, found
            self._memory.add(_place(output))
        return results

    def _varies(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known or _place(tensor) in self._memory

    def _read(
        self, func: Any, leaves: list[Any], structure: Any, output: Tensor, index: int | None
    ) -> Node:
        name, shape = func.overloadpacket.__name__, tuple(output.shape)
        if func._schema.is_mutable:
            func = self._without_writing(func, name, leaves, output)
            name = func.overloadpacket.__name__
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        nodes = [self.node(leaves[place]) for place in places]
        if name in _SAME and nodes[0].shape == shape:
            return nodes[0]
        kind = _kind(func, name, leaves, nodes, output)
        if name in ("index", "index_select", "gather"):
            if any(not node.is_constant for node in nodes[1:]):
                raise NotAdditiveError(f"{name} at places that vary")
            places, nodes = places[:1], nodes[:1]
        if kind is Kind.COPY and name in ("sum", "mean"):  # of one number, whatever its type
            return self._reader.apply(
                Op(kind, lambda value: value.reshape(shape), f"reshape {shape}"), nodes, shape
            )
        if kind in _BY_ELEMENTS:
            nodes = [self._reader.filled(node, shape, torch) for node in nodes]

        def run(*values: Tensor) -> Tensor:
            given = list(leaves)
            for place, value in zip(places, values, strict=True):
                given[place] = value
            args, kwargs = pytree.tree_unflatten(given, structure)
            result = func(*args, **kwargs)
            return result if index is None else result[index]

        rest = [
            id(leaf) if isinstance(leaf, Tensor) else leaf
            for place, leaf in enumerate(leaves)
            if place not in places
        ]
        return self._reader.apply(Op(kind, run, f"{name} {index} {rest}"), nodes, shape)

    def _without_writing(self, func: Any, name: str, leaves: list[Any], output: Tensor) -> Any:
        """Return the operation that returns what this one writes, if nobody else reads there."""
        place = _place(output)
        shared = [t for t, _ in self._known.values() if _place(t) == place]
        is_own = output is leaves[0] and len(shared) == 1 and shared[0] is output
        other = getattr(torch.ops.aten, name.removesuffix("_"), None)
        if not is_own or other is None or func._overloadname not in other.overloads():
            raise NotAdditiveError(f"{name}, which writes into a tensor")
        return getattr(other, func._overloadname)


def _place(tensor: Tensor) -> int:
    """Return where a tensor's memory is, which its views share; its own identity without one."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (NotImplementedError, RuntimeError):  # as of a sparse matrix
        return id(tensor)


def _kind(func: Any, name: str, leaves: list[Any], nodes: list[Node], output: Tensor) -> Kind:
    if name in ("_to_copy", "to") and output.is_floating_point():
        return Kind.SUM
    if name in ("sum", "mean") and output.numel() == math.prod(nodes[0].shape):
        return Kind.COPY
    if name in ("addmm", "addmv", "baddbmm"):
        if not (nodes[1].is_constant or nodes[2].is_constant):
            raise NotAdditiveError(f"{name} of two values that vary")
        return Kind.LINEAR
    if name == "div" and any(isinstance(leaf, str) for leaf in leaves):
        raise NotAdditiveError(f"{name} with rounding")
    if name == "where" and not nodes[0].is_constant:
        return Kind.EACH
    if name not in _KIND_OF:
        raise NotAdditiveError(name)
    if name == "binary_cross_entropy_with_logits" and 0 not in leaves[2:]:
        raise NotAdditiveError(f"{name} of a mean")
    return _KIND_OF[name]
