"""What a fit is of: model, arguments and settings as checksums, each with its name.

A checkpoint holds these and no data. Two fits are of the same if all are the same; else the first
difference has a name.

- Of arguments: kinds, shapes, precision and every number. Containers are taken apart, so that a
  difference is told by its place.
- Of the model: the code of its functions, as Python compiles it (comments and layout are free), and
  of the user's functions that it calls; the numbers, texts and arrays that it reads from
  outside: globals, closures, defaults, attributes.
- Of any other object: what it holds, as ``pickle`` takes it apart.
- Not: what libraries hold, parameters that are learned, files and databases that a model reads,
  generators of random numbers, and what cannot be taken apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import hashlib
import inspect
import pickle
import random
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ngvi.inference.files import checksum

#: By name: what something is, in words, and the checksum of what it holds.
Facts = dict[str, list[str]]

CODE = "the model's code"
#: Code in these folders is a library's.
LIBRARIES = tuple(
    sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")
)
#: ... and that of these packages, wherever they are.
PACKAGES = ("ngvi", "pyro_ngvi", "numpyro_ngvi", "pyro", "numpyro", "torch", "jax", "numpy")
#: What is told by its text.
PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice)
#: Of which each draw makes another.
RANDOM = (np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
#: Containers in containers that are followed; some hold themselves.
MAX_DEPTH = 20


class Fingerprint:
    """Gathers facts.

    :param model: its code, and what it reads, are the first.
    :param as_array: the numpy array of one of the PPL's own arrays, or None for anything else.
    """

    def __init__(self, model: Any, as_array: Callable[[Any], np.ndarray | None]) -> None:
        self._facts: Facts = {}
        self._as_array = as_array
        self._seen: dict[int, Any] = {}  # objects stay, so that no other has their number
        self._depth = 0
        self._names = {"__call__", "forward"}  #: of attributes that code reads
        self._code = hashlib.blake2b(digest_size=16)
        self._walk(model, "the model")

    @property
    def facts(self) -> Facts:
        """All of them."""
        version = "{}.{}".format(*sys.version_info)
        return {CODE: [f"of Python {version}", self._code.hexdigest()], **self._facts}

    def add(self, value: Any, name: str) -> None:
        """Note a value, or each of what a container holds."""
        for where, leaf in self._leaves(value, name):
            self._note(where, leaf)

    def _note(self, where: str, value: Any) -> None:
        """Note a value, beside what is of the same name: each prior has a scale."""
        kind, found = self._of(value, where)
        if where in self._facts:
            found = checksum(f"{self._facts[where][1]} {found}".encode()).hex()
        self._facts[where] = [kind, found]

    def add_rows(self, batches: Iterable[tuple[tuple, dict[str, Any]]], name: str) -> None:
        """Note the rows of batches, in whatever order they come: one pass over them.

        :param batches: of the model's arguments.
        """
        total, count, kinds = np.uint64(0), 0, ""
        for batch in batches:
            arrays = [self._array(leaf) for _, leaf in self._leaves(batch, name)]
            rows = [a for a in arrays if a is not None and a.ndim and not a.dtype.hasobject]
            rows = [a for a in rows if len(a) == len(rows[0])]
            if rows:
                found = np.stack([_mixed(_of_rows(a, seed)) for seed, a in enumerate(rows)])
                total = np.append(_mixed(found.sum(0)), total).sum()
                count += len(rows[0])
            kinds = ", ".join(f"{a.dtype} {a.shape[1:]}" for a in rows)
        self._facts[name] = [f"{count} rows of {kinds}", f"{total:x}"]

    # -- values -----------------------------------------------------------------------

    def _leaves(self, value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
        if depth > MAX_DEPTH:
            return
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        if isinstance(value, np.ma.MaskedArray):
            value = {"data": value.data, "mask": np.ma.getmaskarray(value)}
        if isinstance(value, Mapping):
            for key in value:
                yield from self._leaves(value[key], f"{name}[{key!r}]", depth + 1)
        elif isinstance(value, (list, tuple)) and not all(type(v) in PLAIN for v in value):
            for index, part in enumerate(value):
                yield from self._leaves(part, f"{name}[{index}]", depth + 1)
        else:
            yield name, value

    def _of(self, value: Any, where: str) -> list[str]:
        """What a value is, and its checksum."""
        array = self._array(value)
        if array is not None:
            kind, numbers = f"{array.dtype} of shape {array.shape}", array
            content = repr(numbers.tolist()) if array.dtype.hasobject else array.tobytes()
        elif isinstance(value, (*PLAIN, list, tuple, set, frozenset)):
            parts = sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else value
            is_setting = where.endswith("=")  # of fit, which is no secret
            kind = repr(value) if is_setting else f"of type {type(value).__name__}"
            content = repr(parts)
        elif callable(value):
            self._walk(value, where)
            name = getattr(value, "__qualname__", type(value).__qualname__)
            kind, content = f"{value.__module__}.{name}", ""
        else:
            kind = f"of type {type(value).__module__}.{type(value).__qualname__}"
            content = repr(self._held(value, where))
        content = content if isinstance(content, bytes) else content.encode()
        return [kind, checksum(content).hex()]

    def _held(self, value: Any, where: str) -> list[Any]:
        """What an object holds; nothing the second time, or if it cannot be taken apart."""
        is_deep = self._depth > MAX_DEPTH
        if id(value) in self._seen or is_deep or isinstance(value, RANDOM):
            return []
        try:
            parts = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001  the object's own code says so
            parts = ()
        if isinstance(parts, tuple):  # else its name
            parts = [*parts[:3], *(list(items or ()) for items in parts[3:5])]
        self._seen |= {id(value): value, id(parts): parts}
        self._depth += 1
        found = [[name, *self._of(leaf, where)] for name, leaf in self._leaves(parts, "")]
        self._depth -= 1
        return found

    def _array(self, value: Any) -> np.ndarray | None:
        if isinstance(value, (np.ndarray, np.generic, memoryview)):
            return np.asarray(value)
        try:
            array = self._as_array(value)
        except TypeError:  # a precision that numpy has not, or a sparse one
            with contextlib.suppress(TypeError, AttributeError):
                return self._as_array(value.float())
            return None
        if array is None and hasattr(value, "__array__") and not callable(value):
            with contextlib.suppress(TypeError, ValueError):
                return np.asarray(value)  # of a data frame, for instance
        return array

    # -- code -------------------------------------------------------------------------

    def _walk(self, value: Any, name: str) -> None:
        """Follow what is called: its code, and what it reads."""
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, functools.partial):
            self._walk(value.func, name)
            self._read(f"what {name} is given", [value.args, value.keywords])
        elif isinstance(value, types.MethodType):
            self._walk(value.__func__, name)
            self._walk_object(value.__self__)
        elif isinstance(value, types.FunctionType):
            self._walk_function(value)
        elif isinstance(value, type):
            for owner in value.__mro__:
                own = {} if _is_of_library(owner) else dict(vars(owner))
                for key, one in own.items():
                    one = getattr(one, "fget", getattr(one, "__func__", one))
                    if isinstance(one, types.FunctionType):
                        self._walk(one, name)
                    elif key in self._names and not hasattr(one, "__get__"):
                        self._read_all({key: one})
        else:  # what wraps a function, maybe, as handlers do
            self._walk(getattr(value, "__wrapped__", None), name)
            self._walk_object(value)

    def _walk_function(self, function: types.FunctionType) -> None:
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        read = {}
        for name, cell in cells:
            try:
                read[name] = cell.cell_contents
            except ValueError:  # not yet bound
                continue
        if not _is_of_library(function):
            names = list(_add_code(self._code, function.__code__, self._names))
            read |= {k: function.__globals__[k] for k in names if k in function.__globals__}
            defaults = [function.__defaults__, function.__kwdefaults__]
            if any(defaults):
                self._read(f"the defaults of {function.__name__}", defaults)
        self._read_all(read)
        if inner := getattr(function, "__wrapped__", None):
            self._walk(inner, function.__name__)

    def _walk_object(self, owner: Any) -> None:
        """Of an object that is, or has, the model: methods and attributes that its code reads, or
        all attributes of a library's object. Parameters are where a fit begins.
        """
        slots = [name for kind in type(owner).__mro__ for name in getattr(kind, "__slots__", ())]
        own = {name: getattr(owner, name) for name in slots if hasattr(owner, name)}
        own |= getattr(owner, "__dict__", {})
        parameters = own.pop("_parameters", None) or {}
        own = {k: v for k, v in own.items() if not k.startswith("__")}
        own |= {k: v for k, v in parameters.items() if getattr(v, "requires_grad", None) is False}
        if type(owner).__module__.partition(".")[0] in PACKAGES:
            self._read_all(own)
            return
        for folder in ("_buffers", "_modules"):  # of torch
            own |= own.pop(folder, {})
        done: set[str] = set()
        while new := self._names - done:
            done |= new
            for name in sorted(new):
                value = own.get(name, inspect.getattr_static(type(owner), name, None))
                value = getattr(value, "fget", getattr(value, "__func__", value))
                if name in own or isinstance(value, (types.FunctionType, *PLAIN[1:])):
                    self._read_all({name: value})

    def _read_all(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._read(f"what the model reads as '{name}'", value)

    def _read(self, name: str, value: Any) -> None:
        for where, leaf in self._leaves(value, name):
            if callable(leaf) and self._array(leaf) is None:
                self._walk(leaf, where)
            elif not isinstance(leaf, types.ModuleType):
                self._note(where, leaf)


def _of_rows(array: np.ndarray, seed: int) -> np.ndarray:
    """A number for each row, by all of its bytes; shape ``(n,)``."""
    content = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
    factors = np.random.default_rng(seed).integers(2**64, size=content.shape[1], dtype=np.uint64)
    return np.einsum("ij,j->i", content, factors | np.uint64(1), dtype=np.uint64, casting="unsafe")


def _mixed(numbers: Any) -> Any:
    """Numbers whose sums tell: each of 64 bits depends on all of one before."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # of splitmix64
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def _is_of_library(code: types.FunctionType | type) -> bool:
    module = code.__module__ or ""
    if isinstance(code, type):
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        is_elsewhere = module.partition(".")[0] in sys.stdlib_module_names or module == "builtins"
    else:
        file, is_elsewhere = code.__code__.co_filename, False
    is_elsewhere |= file.startswith((*LIBRARIES, "<frozen"))
    return is_elsewhere or module.partition(".")[0] in PACKAGES


def _add_code(found: Any, code: types.CodeType, attributes: set[str]) -> Iterator[str]:
    """Add a function's code to a checksum, and tell the globals that it reads.

    :param attributes: gets the names of those that it reads.
    """
    attributes |= set(code.co_names)
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _add_code(found, constant, attributes)
        elif isinstance(constant, frozenset):
            constants.append(sorted(map(repr, constant)))
        else:
            constants.append(constant)
    parts = code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars
    found.update(repr((code.co_name, *parts)).encode())
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval


def difference(old: Facts, new: Facts) -> str:
    """The first difference between two fits, in words; nothing if they are of the same."""
    for name in {**new, **old}:
        then, now = old.get(name), new.get(name)
        if then == now:
            continue
        if then is None or now is None:
            return f"{name} {'is new' if then is None else 'is missing'}"
        if name == CODE:
            if then[0] == now[0]:  # Python compiles the same code otherwise
                return f"{name} is another"
        elif then[0] != now[0]:
            return f"{name} was {then[0]}, and is {now[0]}"
        else:
            return f"{name} has other values ({now[0]})"
    return ""
