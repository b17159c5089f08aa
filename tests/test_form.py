"""How the code of the three packages is written: sizes, imports, layers, numbers and names.

The sources are parsed and never imported, so that this takes a second and needs no PPL.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests import budgets

ROOT = Path(__file__).parent.parent
PACKAGES = ("ngvi", "pyro_ngvi", "numpyro_ngvi")

MAX_LINES_OF_FILE = 400
MAX_LINES_OF_FUNCTION = 60
MAX_METHODS = 25
MAX_FILES_OF_FOLDER = 40

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

SPEED, MEMORY = "the same in another way, sooner", "what is in memory or in the cache at once"
WORDS = "when a message has a remark"
IDLE = "half and twice as much change no fit (docs/mechanisms.md)"
PRICE = "half and twice as much change what a check costs, and no fit (docs/mechanisms.md)"
#: Module-level numbers outside of ``options.py``, each with what it is. A number that decides how a
#: fit goes does not belong here: it is a field, with a default and its reason, of the options of
#: its package, or of the rule or dataclass that it belongs to.
CONSTANTS = {
    "ngvi.conjugate.guide.TOLERANCE": "rounding",
    "ngvi.conjugate.families.LARGE": "where an asymptotic series is exact",
    "ngvi.errors.SMALL_RHO": WORDS,
    "ngvi.estimators.additive_terms.MAX_PREDICTORS": "there are nodes for one and two",
    "ngvi.estimators.additive_terms.MAX_JACOBIAN_NUMBERS": MEMORY,
    "ngvi.estimators.additivity.NUMBERS_AT_ONCE": MEMORY,
    "ngvi.estimators.choice.DRAWS_AT_ONCE": SPEED,
    "ngvi.estimators.choice._MAX_NAMES": WORDS,
    "ngvi.estimators.nodes.MAX_NUMBERS": MEMORY,
    "ngvi.estimators.nodes.ROUNDING_UNITS": "rounding",
    "ngvi.estimators.points.MAX_PROBED_DIAGONAL": SPEED,
    "ngvi.estimators.table.NUMBERS_AT_ONCE": MEMORY,
    "ngvi.families.mixture.CUTS": "rounding",
    "ngvi.families.mixture.SECTIONS": SPEED,
    "ngvi.families.points.LEVELS": "the ends of what has a finite radius",
    "ngvi.workflow.loo_draws.PART": SPEED,
    "ngvi.workflow.loo_steps.BAR_AFTER": "seconds without a bar",
    "ngvi.workflow.loo_steps.NUM_STEPS": "measured: three to five",
    "ngvi.workflow.loo_steps.NUM_STEPS_BY_PREDICTORS": "measured: rows within 0.03 nats",
    "ngvi.inference.api.NUM_KEPT": "length of a list in the result",
    "ngvi.inference.saved.checkpoint.WRITE_EVERY": "seconds of work that a kill may cost",
    "ngvi.inference.local_search.NO_ESTIMATE": "empty",
    "ngvi.inference.map_ascent.GAINED": "of a line search (Nocedal and Wright, 2006)",
    "ngvi.inference.map_ascent.LEFT": "of a line search (Nocedal and Wright, 2006)",
    "ngvi.inference.verdict.optima.CONCENTRATIONS": "nodes of an integral over a prior",
    "ngvi.inference.verdict.outcome.BEYOND_PRECISION": WORDS,
    "ngvi.inference.problem.VALUES_OF_A_GRADIENT": "of reverse mode (Griewank and Walther, 2008)",
    "ngvi.inference.metric.NUMBERS_OF_PAIRS": MEMORY,
    "ngvi.inference.mixture_fit.LEAST_GAIN": "nats that a component is worth",
    "ngvi.inference.mixture_fit.MAX_COMPONENTS": "where a refusal begins, before any step",
    "ngvi.inference.mixture_fit.NUM_PLACES": "draws that choose a start",
    "ngvi.inference.mixture_fit.WIDTH": "of a start",
    "ngvi.inference.map_ascent.MEMORY": "pairs of SciPy's L-BFGS-B",
    "ngvi.inference.draws.accuracy.ALIKE": "chi-square of 0.14 sd",
    "ngvi.inference.draws.accuracy.LARGEST_R_HAT": "of a verdict (Vehtari et al., 2021)",
    "ngvi.inference.draws.accuracy.MAX_TAILS": "seconds of tails",
    "ngvi.inference.draws.accuracy.SENSELESS": WORDS,
    "ngvi.inference.draws.accuracy.TWO_SIDED": "of a limit of 95 %",
    "ngvi.inference.draws.accuracy.AT_ONCE": MEMORY,
    "ngvi.inference.draws.by_weights.EXACT": "nats that are as good as none",
    "ngvi.workflow.rows_result.PROGRAMS_OF_ROWS": "values, gradients, Hessians, steps",
    "ngvi.inference.draws.by_weights.FIRST_DRAWS": "draws within 0.05 sd",
    "ngvi.inference.draws.by_weights.HOPELESS": "where weights are of no use",
    "ngvi.inference.draws.by_weights.LEAST_SECONDS": "seconds that nobody minds",
    "ngvi.inference.draws.by_weights.MAX_LATENTS": MEMORY,
    "ngvi.inference.draws.by_weights.MOST_OF_MIXTURE": "kurtoses of hundreds",
    "ngvi.inference.draws.by_weights.NUMBERS_HELD": MEMORY,
    "ngvi.inference.draws.by_weights.SPREADS": "measured: a tail of 30 sd is met",
    "ngvi.inference.draws.proposals.MAX_FEW": "measured at up to seven",
    "ngvi.inference.draws.proposals.NUM_COMPONENTS": SPEED,
    "ngvi.inference.draws.proposals.NUM_OF_PRIOR": "quartiles within a sixth of their distance",
    "ngvi.inference.draws.by_weights.MOST_DRAWS": "draws within 0.05 sd",
    "ngvi.inference.draws.going_on.MOST_GRADIENTS": "of four chains of NUTS",
    "ngvi.inference.draws.going_on.USUAL_GRADIENTS": "of hierarchies",
    "ngvi.inference.draws.sampler.STEP_OF_CHAINS": "measured",
    "ngvi.inference.draws.sampler.DEAR": "hierarchies by modes take fewer steps",
    "ngvi.inference.draws.drawn.TIMES_THE_FIT": "a tenth of the draws' seconds is the fit's",
    "ngvi.inference.draws.pareto.EQUAL": "nats that are as good as none",
    "ngvi.inference.draws.pareto.ERRORS_OF_K": "none, one and two standard errors",
    "ngvi.inference.draws.pareto.LEAST": "of ArviZ",
    "ngvi.inference.draws.accuracy.MANY_DRAWS": "k-hat within an eighth of the tail of more",
    "ngvi.inference.draws.pareto.PRIOR_SHAPE": "prior of Vehtari et al. (2024)",
    "ngvi.inference.draws.pareto.SCALE_PRIOR": "prior of Zhang and Stephens (2009)",
    "ngvi.inference.draws.pareto.SHAPE_PRIOR": "prior of Vehtari et al. (2024)",
    "ngvi.inference.draws.pareto.USABLE": "threshold of Vehtari et al. (2024)",
    "ngvi.inference.saved.serialize.VERSION": "of a file",
    "ngvi.inference.set_up.MANY": "where a refusal begins, before any step",
    "ngvi.inference.starts.APART": "distance of a normal distribution's quartiles",
    "ngvi.inference.starts.QUARTILES": "a quarter and three",
    "ngvi.inference.stochastic.DECAY": "Adam's, of Kingma and Ba (2015)",
    "ngvi.inference.stochastic.EPSILON": "Adam's, of Kingma and Ba (2015)",
    "ngvi.inference.stochastic.NUM_PLATEAUS": "which no model of the benchmarks comes to",
    "ngvi.inference.stochastic.SQUARE_DECAY": "Adam's, of Kingma and Ba (2015)",
    "pyro_ngvi.inference.first_look.OF_LOOPS": "ten times those of most models",
    "ngvi.inference.prices.PART": "what a user hardly notices beside the fit",
    "ngvi.inference.prices.SLOW": WORDS,
    "ngvi.inference.prices.UNSAID": "seconds that a user waits without a word",
    "ngvi.inference.prices.OF_A_FIT": WORDS,
    "ngvi.inference.prices.FREE": "what a user hardly notices",
    "ngvi.inference.prices.FEW_DRAWS": "as many as a validation takes at least",
    "ngvi.inference.prices.FEWEST_DRAWS": "a pass",
    "ngvi.inference.data_passes.MAX_MINIBATCHES": "where noise costs less than a pass",
    "ngvi.inference.model_parameters.FIRST_STEP": "of a line search",
    "ngvi.inference.model_parameters.GROWTH": "of a line search",
    "ngvi.inference.samples.MAX_CHAIN_DIM": "where noise times cost is flat",
    "ngvi.inference.samples.PART_OF_LATENTS": "where noise times cost is flat",
    "ngvi.inference.samples.QUINTIC_DIM": "where noise times cost is less",
    "ngvi.inference.samples.QUINTIC_POINTS": "where noise times cost is less",
    "ngvi.inference.verdict.runaway.DISTANT": IDLE,
    "ngvi.inference.verdict.runaway.FARTHER": IDLE,
    "ngvi.inference.verdict.runaway.NUM_DRAWS": PRICE,
    "ngvi.inference.verdict.runaway.PARAMETER_DISTANT": IDLE,
    "ngvi.inference.verdict.validation.NODES": PRICE,
    "ngvi.inference.verdict.validation.NUM_IN_DOUBLE": IDLE,
    "ngvi.inference.verdict.validation.NUM_LINES": PRICE,
    "ngvi.inference.verdict.validation.SINGLE": "between the units of single and double precision",
    "ngvi.inference.verdict.validation.STRETCH": IDLE,
    "ngvi.inference.draws.accuracy.MISSED_BY_DIVERGENCE": "of eight schools, centred",
    "ngvi.inference.draws.chains.AT_ONCE": MEMORY,
    "ngvi.inference.draws.coordinates.MAX_DENSE": MEMORY,
    "ngvi.inference.draws.coordinates.SHRINKAGE": "of few draws",
    "ngvi.inference.draws.coordinates.WORTH": "where a change is worth its steps",
    "ngvi.inference.draws.sampler.ACCEPT_PROB": "of Stan",
    "ngvi.inference.draws.sampler.DIVERGENT_PART": "where steps are too long",
    "ngvi.inference.draws.sampler.BY_MODES": "what Newton's method takes",
    "ngvi.inference.draws.others.FAR_BELOW": "nats that are no part of a posterior",
    "ngvi.inference.draws.others.HEAVY": "where a jump is worth its gradient",
    "ngvi.inference.draws.others.DRAWS_ELSEWHERE": "a mass to a tenth",
    "ngvi.inference.draws.nuts.MOST_DRAWS": "of a chain, 25,600 in all",
    "ngvi.inference.draws.sampler.FEWEST_TO_TRY": "several times what chains that stand count as",
    "ngvi.inference.draws.sampler.POOR": "of a pilot that a fifth as many draws would pay",
    "ngvi.inference.draws.sampler.MOST_ACCEPT_PROB": "of Stan's advice",
    "ngvi.inference.draws.sampler.NOT_FINITE_PART": "of a verdict",
    "ngvi.inference.draws.nuts.NUM_DRAWS": "of a start",
    "ngvi.inference.draws.sampler.ROUND": "of the first look",
    "ngvi.inference.draws.sampler.WINDOWS": "of a warm-up, each with twice the draws",
    "ngvi.inference.draws.trajectories.DIVERGENCE": "of Stan",
    "ngvi.inference.draws.trajectories.FEWEST": "of a variance of half a chain",
    "ngvi.inference.draws.trajectories.MAX_DEPTH": "of Stan",
    "ngvi.inference.draws.proposals.DEGREES": "a t with three moments",
    "ngvi.inference.draws.accuracy.ENOUGH_DRAWS": "threshold of Vehtari et al. (2021)",
    "ngvi.inference.draws.proposals.MAX_HEAVY": "where a t has no weights",
    "ngvi.inference.draws.proposals.NUMBERS_AT_ONCE": MEMORY,
    "ngvi.inference.draws.proposals.NUM_DRAWS": "draws within 0.05 sd",
    "ngvi.inference.draws.proposals.ROUNDS": "of an adaptation",
    "ngvi.inference.report.NUM_SHOWN": "length of a list in a picture",
    "ngvi.inference.report.OF_WORDS": "width of a report",
    "ngvi.inference.report.SMALLEST_WEIGHT": "size of a picture",
    "ngvi.inference.report.WIDTH": "width of a report",
    "ngvi.latents.forest.MAX_DENSIFIED_DIM": "memory: where a refusal begins",
    "ngvi.latents.forest.MAX_RUNS": SPEED,
    "ngvi.latents.hierarchy.MAX_GLOBALS": "memory: where a refusal begins",
    "ngvi.linalg.arrow_step.MAX_ENTRY": "range of single precision",
    "ngvi.linalg.batched.SMALL": SPEED,
    "ngvi.linalg.matrices.SMALL_TRIANGLE": SPEED,
    "ngvi.networks.examples.FEW_NUMBERS": MEMORY,
    "ngvi.optim.quasi_newton.LARGEST_SQUARE": "range of single precision",
    "ngvi.optim.rule.TINY": "range of single precision",
    "ngvi.networks.torch.vectors.ELSEWHERE": SPEED,
    "ngvi.networks.torch.vectors.ON_CPU": SPEED,
    "numpyro_ngvi.estimators.hessian.MAX_BATCHED_PRODUCTS": SPEED,
    "numpyro_ngvi.estimators.hessian.NUMBERS_AT_ONCE": MEMORY,
    "numpyro_ngvi.estimators.hessian.PRODUCTS_AT_ONCE": MEMORY,
    "numpyro_ngvi.estimators.quadrature.FEWEST_AT_ONCE": SPEED,
    "numpyro_ngvi.estimators.quadrature.NUMBERS_AT_ONCE": MEMORY,
    "numpyro_ngvi.inference.objective.CHAINS_AT_ONCE": MEMORY,
    "numpyro_ngvi.inference.objective.FEWEST_AT_ONCE": SPEED,
    "numpyro_ngvi.inference.objective.FEW_AT_POINTS": SPEED,
    "numpyro_ngvi.guide.reparametrized.MODES_AT_ONCE": SPEED,
    "numpyro_ngvi.inference.objective.VALUES_AT_ONCE": SPEED,
    "numpyro_ngvi.inference.objective.MOST_NUMBERS": MEMORY,
    "numpyro_ngvi.inference.objective.POINTS_AT_ONCE": SPEED,
    "numpyro_ngvi.inference.metric.DEAR": MEMORY,
    "numpyro_ngvi.inference.objective.ROWS_AT_ONCE": MEMORY,
    "numpyro_ngvi.inference.space.MOST_DRAWS_AT_ONCE": SPEED,
    "numpyro_ngvi.inference.space.NUMBERS_AT_ONCE": MEMORY,
    "numpyro_ngvi.linalg.matrices.CUMSUM_BLOCK": SPEED,
    "numpyro_ngvi.linalg.matrices.INVERTED_BLOCK": SPEED,
    "numpyro_ngvi.linalg.matrices.SMALL_SUM": SPEED,
    "numpyro_ngvi.linalg.matrices.SMALL_TRIANGLE": SPEED,
    "numpyro_ngvi.tracing.prior.AT_ONCE": MEMORY,
    "numpyro_ngvi.workflow.rows.JACOBIANS_AT_ONCE": MEMORY,
    "numpyro_ngvi.workflow.rows.NUMBERS_AT_ONCE": MEMORY,
    "numpyro_ngvi.workflow.rows.VALUES_AT_ONCE": MEMORY,
    "ngvi.networks.examples.NUMBERS_ON_GPU": MEMORY,
    "numpyro_ngvi.networks.gauss_newton.NUMBERS_AT_ONCE": MEMORY,
    "pyro_ngvi.guide.reparametrized.NUMBERS_AT_ONCE": MEMORY,
    "numpyro_ngvi.svi.FIRST_LOOKS": SPEED,
    "numpyro_ngvi.svi.LOOK_EACH": SPEED,
    "numpyro_ngvi.svi.MOST_STEPS": MEMORY,
    "numpyro_ngvi.tracing.compilation.DRAWS_OF_ANY_FIT": SPEED,
    "numpyro_ngvi.tracing.compilation.FEW_IN_ALL": SPEED,
    "numpyro_ngvi.tracing.compilation.MANY": SPEED,
    "numpyro_ngvi.tracing.compilation.MOST_KEPT": MEMORY,
    "numpyro_ngvi.tracing.programs._FEW": MEMORY,
    "pyro_ngvi.estimators.hessian.BYTES_AT_ONCE": MEMORY,
    "pyro_ngvi.estimators.hessian.MAX_AT_ONCE": MEMORY,
    "pyro_ngvi.estimators.plan.BYTES_OF_RESULT": SPEED,
    "pyro_ngvi.estimators.plan.BYTES_PER_PASS": MEMORY,
    "pyro_ngvi.estimators.plan.RESULTS_AT_ONCE": MEMORY,
    "pyro_ngvi.estimators.quadrature.FAR": "rounding",
    "pyro_ngvi.estimators.quadrature.NUMBERS_AT_ONCE": MEMORY,
    "pyro_ngvi.inference.metric.MAX_NUMBERS": SPEED,
    "pyro_ngvi.inference.metric.MIN_ROWS": SPEED,
    "pyro_ngvi.inference.objective.FEW_DRAWS": "failures before a prior is given up",
    "pyro_ngvi.inference.objective.MOST_NUMBERS": MEMORY,
    "pyro_ngvi.inference.objective.WHOLE_RUNS": "one run in five that raises is met",
    "pyro_ngvi.linalg.batched.FEW_ENTRIES": SPEED,
    "pyro_ngvi.networks.gauss_newton.NUMBERS_AT_ONCE": MEMORY,
    "pyro_ngvi.tracing.particles._ROUNDING": "rounding",
    "pyro_ngvi.tracing.recording.CALLS_BEFORE": SPEED,
    "pyro_ngvi.tracing.recording.FEW_ROWS": "of a trial, which is none of one row",
    "pyro_ngvi.tracing.recording.MORE_ROWS": "of a recording, which few sizes are multiples of",
}

#: Class names that are more than a mirrored pair with its base, and why.
SHARED_CLASS_NAMES = {
    **dict.fromkeys(
        ("Spherical", "Quadrature", "Hessian", "GaussNewton", "Stein", "Mean"),
        "ngvi.estimators.table says what an estimator needs and costs, the packages compute it",
    ),
    "VOGN": "that of a plain loop in torch, and those of SVI",
    "Matrices": "the base in ngvi has a base of the packages between",
    "IVON": "for loops without a PPL (ngvi.torch), and for Pyro's",
}


@functools.cache
def _sources() -> dict[str, tuple[Path, ast.Module, int]]:
    """By the module's name: its path, its syntax tree and its number of lines."""
    found = {}
    for path in sorted(itertools.chain(*((ROOT / package).rglob("*.py") for package in PACKAGES))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.relative_to(ROOT), ast.parse(text), len(text.splitlines())
    return found


def _nodes(*kinds: type[ast.AST]):
    """All nodes of these kinds, as ``(module, node)``."""
    for module, (_, tree, _) in _sources().items():
        yield from ((module, node) for node in ast.walk(tree) if isinstance(node, kinds))


@functools.cache
def _imports() -> dict[str, set[str]]:
    """The modules of the three packages that each imports, in functions and for types as well."""
    found: dict[str, set[str]] = {module: set() for module in _sources()}
    for module, node in _nodes(ast.Import, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: line {node.lineno} has a relative import"
            names = [f"{node.module}.{name}" for name in names]
        found[module] |= {_module(name) for name in names if name.partition(".")[0] in PACKAGES}
    return {module: names - {module} for module, names in found.items()}


def _module(name: str) -> str:
    """The module that has a name, or is it."""
    while name not in _sources():
        name = name.rpartition(".")[0]
    return name


# -- sizes ----------------------------------------------------------------------------


def test_no_file_is_too_long():
    long = {str(path): lines for path, _, lines in _sources().values() if lines > MAX_LINES_OF_FILE}
    assert not long


def test_no_function_is_too_long():
    lengths = {
        f"{module}.{node.name}": node.end_lineno - node.lineno + 1
        for module, node in _nodes(*FUNCTIONS)
    }
    long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES_OF_FUNCTION}
    assert not long


def test_no_class_has_too_many_methods():
    methods = {
        f"{module}.{node.name}": sum(isinstance(one, FUNCTIONS) for one in node.body)
        for module, node in _nodes(ast.ClassDef)
    }
    assert not {name: number for name, number in methods.items() if number > MAX_METHODS}


def test_no_folder_has_too_many_files():
    folders = Counter(path.parent for path, _, _ in _sources().values())
    assert not {path: files for path, files in folders.items() if files > MAX_FILES_OF_FOLDER}


# -- budgets --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "name", "budget"),
    [
        pytest.param(places, name, budget, id=f"{name} of {', '.join(places)}")
        for places, row in budgets.rows()
        for name, (budget, _) in row.items()
    ],
)
def test_budgets_are_kept_and_gains_too(places, name, budget):
    now = budgets.measured(places, [name])[name]
    assert now <= budget, "a line is added where one goes"
    assert budget <= now * (1 + budgets.SLACK) + 1, "write down the gain: python -m tests.budgets"


@functools.cache
def _origins(module: str) -> dict[str, tuple[str, str]]:
    """By name in a module what it was imported from, as module and name."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(_sources()[module][1])
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@functools.cache
def _chain(module: str, name: str) -> tuple[ast.ClassDef, ...]:
    """A class of the three packages and all its bases among them."""
    origin = _origins(module).get(name)
    if origin is not None:
        return _chain(*origin) if origin[0] in _sources() else ()
    body = _sources()[module][1].body
    found = next((one for one in body if isinstance(one, ast.ClassDef) and one.name == name), None)
    if found is None:
        return ()
    bases = [_base(module, base) for base in found.bases]
    return (found, *dict.fromkeys(itertools.chain(*(_chain(*base) for base in bases if base))))


def _base(module: str, node: ast.expr) -> tuple[str, str] | None:
    """Module and name of a base, ``Base``, ``Base[T]`` or ``module.Base``."""
    node = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(node, ast.Name):
        return module, node.id
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
        return None
    home = ".".join(_origins(module).get(node.value.id, ()))
    return (home, node.attr) if home in _sources() else None


def _names(module: str, name: str) -> tuple[int, int]:
    """Methods and public names of a class, over the chain of its bases."""
    methods, public = set(), set()
    for node in itertools.chain(*(one.body for one in _chain(module, name))):
        if isinstance(node, FUNCTIONS):
            methods.add(node.name)
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        names = [one.id for one in targets if isinstance(one, ast.Name)]
        public |= {one for one in (*names, getattr(node, "name", "_")) if not one.startswith("_")}
    return len(methods), len(public)


def _budgets_of_classes() -> dict[str, tuple[int, int]]:
    """The second table of ``docs/budgets.md``: by class, methods and public names."""
    text = budgets.PAGE.read_text(encoding="utf-8").partition("\n| class |")[2]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:] if line[:1] == "|"]
    return {row[0].strip("`"): (int(row[1]), int(row[3])) for row in rows}


def test_classes_keep_their_budgets_over_all_bases():
    allowed = _budgets_of_classes()
    most = [max(column) for column in zip(*allowed.values(), strict=True)]
    found = {
        f"{module}.{node.name}": _names(module, node.name) for module, node in _nodes(ast.ClassDef)
    }
    for name, budget in allowed.items():
        assert found[name] <= budget and found[name][1] <= budget[1], (name, found[name])
        assert all(
            a <= now * (1 + budgets.SLACK) + 1 for a, now in zip(budget, found[name], strict=True)
        ), name
    assert not {name for name, (methods, public) in found.items() if methods > most[0]}


# -- imports and layers ---------------------------------------------------------------


def test_no_modules_import_each_other():
    """Imports in functions and for types count: each module can be read after what it imports."""
    try:
        TopologicalSorter(_imports()).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def _names_in(cell: str) -> list[str]:
    """The names in backticks, of which ``{pyro,numpyro}_ngvi.tracing`` is two."""
    names = []
    for name in re.findall(r"`([^`]+)`", cell):
        parts = [part.split(",") for part in re.split(r"[{}]", name)]
        names += ["".join(choice) for choice in itertools.product(*parts)]
    return names


@functools.cache
def _layers() -> dict[str, set[str]]:
    """By layer what it may import, itself included: the table of ``docs/changing_the_code.md``."""
    text = (ROOT / "docs" / "changing_the_code.md").read_text(encoding="utf-8")
    section = text.partition("\n## The layers\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    assert rows[0] == ["layer", "what is in it", "may import"]
    found: dict[str, set[str]] = {}
    for row, _, may in rows[2:]:
        allowed = set(found) if may == "everything above" else set(_names_in(may))
        found |= {layer: allowed | {layer} for layer in _names_in(row)}
    return found


def _layer(module: str) -> str | None:
    """The layer of a module; that of a whole package is its door, ``__init__``, alone."""
    name = module
    while name not in _layers():
        name = name.rpartition(".")[0]
        if name in PACKAGES or not name:
            return None
    return name


def test_the_layers_are_those_of_the_table():
    assert not [name for name in _layers() if name not in _sources()], "no such module"
    assert not set().union(*_layers().values()) - _layers().keys(), "no layer"
    assert not [module for module in _sources() if _layer(module) is None], "without a layer"


def test_the_table_of_layers_has_no_cycle():
    try:
        TopologicalSorter({layer: may - {layer} for layer, may in _layers().items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_each_layer_imports_what_it_may():
    wrong = [
        f"{module} imports {name}"
        for module in _sources()
        for name in _imports()[module]
        if _layer(name) not in _layers()[_layer(module)]
    ]
    assert not wrong


def test_no_ppl_package_imports_the_other():
    pairs = [("pyro_ngvi", "numpyro_ngvi"), ("numpyro_ngvi", "pyro_ngvi")]
    for module, (mine, other) in itertools.product(_sources(), pairs):
        if module.startswith(mine):
            assert not [name for name in _imports()[module] if name.startswith(other)], module


# -- numbers --------------------------------------------------------------------------


def _is_of_numbers(node: ast.expr) -> bool:
    """Whether an expression is made from numbers, or a container of such ones."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.UnaryOp):
        return _is_of_numbers(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_of_numbers(node.left) and _is_of_numbers(node.right)
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and all(map(_is_of_numbers, node.elts))
    if isinstance(node, ast.Dict):
        return bool(node.values) and all(map(_is_of_numbers, node.values))
    if isinstance(node, ast.Call):  # as of np.linspace
        return bool(node.args) and all(map(_is_of_numbers, node.args))
    return False


def _numbers(tree: ast.Module):
    """Upper-case names of a module that are bound to numbers."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
            for name, value in pairs:
                is_constant = isinstance(name, ast.Name) and name.id.isupper()
                if is_constant and _is_of_numbers(value):
                    yield name.id


def test_numbers_that_decide_are_options():
    found = {
        f"{module}.{name}"
        for module, (path, tree, _) in _sources().items()
        if path.name != "options.py"
        for name in _numbers(tree)
    }
    assert found - CONSTANTS.keys() == set(), "make it a field of the options"
    assert CONSTANTS.keys() - found == set(), "is gone"


# -- names ----------------------------------------------------------------------------


def test_no_class_name_stands_for_two_things():
    """A name is one class of each package; one of ngvi is then the base of the others."""
    places, is_base = defaultdict(list), defaultdict(bool)
    for module, node in _nodes(ast.ClassDef):
        if not node.name.startswith("_"):
            places[node.name].append(module)
            is_base[module, node.name] = any(
                ast.unparse(base).split("[")[0].split(".")[-1].lstrip("_") == node.name
                for base in node.bases
            )
    wrong = {}
    for name, modules in places.items():
        packages = [module.partition(".")[0] for module in modules]
        has_base = "ngvi" not in packages or all(
            is_base[module, name] for module in modules if not module.startswith("ngvi.")
        )
        if len(set(packages)) < len(packages) or not has_base:
            wrong[name] = modules
    assert {name: at for name, at in wrong.items() if name not in SHARED_CLASS_NAMES} == {}
    assert SHARED_CLASS_NAMES.keys() - wrong.keys() == set(), "no longer shared"


def test_no_test_of_fit_replaces_what_is_private():
    """A test that must is a test of how, and not of what."""
    wrong = []
    for path in sorted((ROOT / "tests" / "inference").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".setattr")):
                continue
            names = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
            if any(re.match(r"_(?!_)", str(name).rpartition(".")[2]) for name in names):
                wrong.append(f"{path.name}: line {node.lineno}")
    assert not wrong


# -- sentences ------------------------------------------------------------------------

#: First words of what is the middle of a sentence.
FRAGMENTS = re.compile(
    "(And|As|At|Because|Before|Beside|Between|But|By|For|From|How|If|In|Into|Its|Nor|Of|On|Or|Over"
    "|So|Such|That|Their|Those|To|What|When|Where|Whether|Which|Who|Whose|With|Without)\\b"
)


def test_no_docstring_begins_in_the_middle_of_a_sentence():
    wrong = []
    for module, node in _nodes(ast.Module, ast.ClassDef, *FUNCTIONS):
        text = ast.get_docstring(node) or ""
        if FRAGMENTS.match(text) or text[:1].islower():
            wrong.append(f"{module}.{getattr(node, 'name', '')}: {text.splitlines()[0]}")
    assert not wrong


def test_comments_of_fields_are_whole_sentences():
    wrong = []
    for path, _, _ in _sources().values():
        text = re.sub(r"\n\s*#:", "\n#:", (ROOT / path).read_text(encoding="utf-8"))
        for found in re.findall(r"(?:^|  )#:(.*(?:\n#:.*)*)", text, re.MULTILINE):
            comment = found.replace("\n#:", "").strip()
            if not re.match(r"[A-Z0-9`].*\.$", comment):
                wrong.append(f"{path}: {comment}")
    assert not wrong
