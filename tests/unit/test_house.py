"""The house rules that no linter knows: layers, cycles, sizes, and tests that do not sleep."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "slurm_robust"

# What each unit may import, beside its own modules. Lower units come first.
MAY_IMPORT: dict[str, str] = {
    "util": "",
    "model": "util",
    "config": "util model",
    "jobdir": "util model",
    "kernel": "model",
    "slurm": "util model",
    "telemetry": "util model",
    "terminal": "util model",
    "templates": "util model config slurm terminal",
    "wire": "util model",
    "releases": "util model config",
    "sandbox": "util model kernel",
    "analysis": "util model config kernel terminal",
    "checkpoint": "util model jobdir",
    "ledger": "util model slurm",
    "nodes": "util model config kernel",
    "policy": "util model config slurm analysis",
    "inspector": "util model config kernel analysis nodes",
    "hooks": "util model config kernel slurm telemetry nodes",
    "worker": "util model kernel checkpoint releases",
    "integrations": "model checkpoint worker",
    "agent": "util model config jobdir kernel slurm wire checkpoint nodes policy inspector releases worker",
    "engine": "util model config analysis policy wire",
    "evidence": "util model analysis policy",
    "trainings": "util model slurm terminal checkpoint policy",
    "diagnostics": (
        "util model config slurm terminal wire releases analysis nodes worker evidence trainings"
    ),
    "doctor": (
        "util model config kernel slurm terminal wire releases checkpoint nodes hooks policy trainings"
    ),
    "sharing": "util model config slurm terminal evidence trainings doctor",
    "notify": "util model config jobdir terminal wire evidence trainings",
    "drills": "util model terminal wire evidence notify diagnostics",
    "updates": "util model config terminal wire releases evidence trainings notify diagnostics",
    "inventory": "util model slurm terminal wire checkpoint policy trainings",
    "page": "util model ledger",
    "report": "util model slurm telemetry terminal checkpoint ledger page policy evidence trainings",
    "fleet": "util model config slurm terminal ledger policy",
    "controller": (
        "util model config jobdir slurm telemetry wire releases analysis checkpoint ledger policy engine "
        "evidence diagnostics"
    ),
    "run": (
        "util model config jobdir slurm releases terminal wire analysis checkpoint policy worker trainings "
        "diagnostics doctor controller"
    ),
    "simulator": "util model config ledger page policy terminal analysis wire engine",
    "admin": "util model config kernel slurm terminal analysis nodes hooks policy fleet simulator",
    "cli": (
        "util model config slurm templates terminal analysis sandbox diagnostics doctor sharing notify "
        "drills updates inventory page report trainings fleet controller run simulator admin"
    ),
}
# Fakes, for tests of ours and of users. What simulates jobs plays with the same.
TESTING = "testing"
SIMULATOR = "simulator"

MODULES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(path) for path in MODULES}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(node: ast.AST, *, at_run_time: bool) -> Iterator[str]:
    """Modules of ours that ``node`` imports; with ``at_run_time`` only what importing the file imports."""
    for child in ast.iter_child_nodes(node):
        if at_run_time and (is_type_checking(child) or isinstance(child, ast.FunctionDef | ast.Lambda)):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names if alias.name.startswith("slurm_robust"))
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            module = child.module or ""
            if module.startswith("slurm_robust"):
                for alias in child.names:
                    submodule = f"{module}.{alias.name}"
                    yield submodule if submodule in NAMES else module
        yield from imports(child, at_run_time=at_run_time)


class Facts(NamedTuple):
    """What is asked about a module; its tree, of which all together fill the memory, is not kept."""

    imported: frozenset[str]
    imported_at_run_time: frozenset[str]
    imports_torch: bool
    reaches: list[str]


@cache
def facts(path: Path) -> Facts:
    tree = ast.parse(path.read_text(), str(path))
    at_top = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    return Facts(
        imported=frozenset(imports(tree, at_run_time=False)),
        imported_at_run_time=frozenset(imports(tree, at_run_time=True)),
        imports_torch=any(name.split(".")[0] == "torch" for name in at_top),
        reaches=reaches(tree),
    )


def unit_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in (*MAY_IMPORT, TESTING) else None


def may_import(unit: str, other: str) -> bool:
    if unit in (other, TESTING) or (unit, other) == (SIMULATOR, TESTING):
        return True
    return other in MAY_IMPORT[unit].split()


def test_the_table_has_every_unit() -> None:
    units = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert units - {TESTING} == set(MAY_IMPORT)


def test_units_import_only_what_the_table_says() -> None:
    wrong = [
        f"{dotted(path)} imports {other}"
        for path in MODULES
        if (unit := unit_of(dotted(path)))
        for other in sorted(facts(path).imported)
        if (other_unit := unit_of(other)) and not may_import(unit, other_unit)
    ]
    assert wrong == []


def test_the_table_promises_nothing_that_is_not_used() -> None:
    used = {(unit_of(dotted(path)), unit_of(other)) for path in MODULES for other in facts(path).imported}
    idle = [
        f"{unit}: {other}"
        for unit, others in MAY_IMPORT.items()
        for other in others.split()
        if (unit, other) not in used
    ]
    assert idle == []


# With these alone a module can tell no time, open no file and no socket, and start nothing.
PURE = {
    "__future__",
    "collections",
    "dataclasses",
    "enum",
    "itertools",
    "functools",
    "math",
    "msgspec",
    "re",
    "types",
    "typing",
}


def test_the_engine_is_pure() -> None:
    """No clock, file, socket, thread or process: events and answers come in, effects go out."""
    outside = {
        f"{dotted(path)}: {name}"
        for path in sorted((PACKAGE / "engine").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
        if name.split(".")[0] not in PURE | {"slurm_robust"}
    }
    assert outside == {"slurm_robust.engine.units.departure: signal"}  # the number of SIGTERM


def circles(graph: dict[str, set[str]]) -> dict[str, list[str]]:
    """What is left when every module that imports, or is imported by, none of the others is taken away."""
    graph = dict(graph)
    while ends := [
        name
        for name, others in graph.items()
        if not others & graph.keys() or not any(name in graph[other] for other in graph)
    ]:
        for end in ends:
            del graph[end]
    return {name: sorted(others & graph.keys()) for name, others in graph.items()}


def test_each_public_class_has_a_name_of_its_own() -> None:
    """A reader who finds one by its name finds the only one. Users import ``RobustCallback`` by framework."""
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert twice.keys() == {"RobustCallback"}, twice


def test_modules_import_each_other_in_no_circle() -> None:
    """Nor where the way back is deferred into a function, or for type checkers only."""
    graph = {dotted(path): facts(path).imported & NAMES - {dotted(path)} for path in MODULES}
    assert circles(graph) == {}


@pytest.mark.parametrize(
    "hidden",
    [
        "if TYPE_CHECKING:\n    from slurm_robust.engine.core import Core",
        "def work():\n    from slurm_robust.engine.core import Core",
        "class Unit:\n    def work(self):\n        import slurm_robust.engine.core",
    ],
)
def test_a_hidden_way_back_is_a_circle(hidden: str) -> None:
    core, unit = "slurm_robust.engine.core", "slurm_robust.engine.units.starts"
    back = set(imports(ast.parse(hidden), at_run_time=False))
    assert circles({core: {unit}, unit: back}) == {core: [unit], unit: [core]}


def of_the_core(node: ast.AST) -> bool:
    """Whether ``node`` is an attribute of the core, of one of its units, or of a unit's context."""
    while isinstance(node, ast.Attribute):
        node = node.value
        if isinstance(node, ast.Name) and node.id in ("core", "context"):
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("_core", "_context"):
            return True
    return False


def reaches(tree: ast.AST) -> list[str]:
    """Attributes of the core that are set, and private ones that are read, by others."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and of_the_core(node)]
    return [ast.unparse(n) for n in found if not isinstance(n.ctx, ast.Load) or n.attr.startswith("_")]


def test_nobody_reaches_into_the_core() -> None:
    """Stages, units and the loop use its methods: they set no attribute of it, and no private one is read."""
    found = {
        dotted(path): facts(path).reaches
        for path in sorted([*(PACKAGE / "controller").rglob("*.py"), *(PACKAGE / "engine").rglob("*.py")])
    }
    wrong = [f"{module}: {', '.join(attributes)}" for module, attributes in found.items() if attributes]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("core.diagnosis = None", True),
        ("core.starts.all_ended = False", True),
        ("del self._core.held", True),
        ("self._context._effects.append(effect)", True),
        ("core.record(event)", False),
        ("self._context = context", False),
    ],
)
def test_what_reaches_into_the_core(line: str, is_one: bool) -> None:
    assert bool(reaches(ast.parse(line))) == is_one


# Jobs that tests submit are programs of their own; they may stand for work by sleeping.
TESTS = [path for path in sorted((ROOT / "tests").rglob("*.py")) if "scripts" not in path.parts]


def calls(path: Path, name: str) -> bool:
    """Whether a file calls a function or method of that name."""
    text = path.read_text()
    if name not in text:  # as in most, which need not be parsed
        return False
    called = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return name in {
        call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in called
    }


def test_tests_do_not_sleep() -> None:
    """A test that sleeps is either too slow or too fast for some machine: tests.waiting.wait_for."""
    asleep = [str(path.relative_to(ROOT)) for path in TESTS if calls(path, "sleep")]
    assert not asleep, "\n".join(asleep)


def test_threads_are_started_in_one_place() -> None:
    """One module decides that they are daemons, what they are called and what becomes of their errors."""
    allowed = {
        "slurm_robust.util.threads",
        "slurm_robust.nodes.gpus.reading",  # in every prolog, and it looks at the thread's frames
    }
    assert {dotted(path) for path in MODULES if calls(path, "Thread")} == allowed


# What is raised there ends in the traceback of a script, or in an agent: its message says all.
IN_A_SCRIPT = ("agent", "checkpoint", "integrations", "worker")


@pytest.mark.slow
def test_an_error_that_a_command_may_show_names_its_fix() -> None:
    """Where it is raised, or in its class; mypy finds what lacks it where a class takes it as an argument."""
    trees = {path: ast.parse(path.read_text()) for path in MODULES}
    classes = {
        node.name: node for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)
    }
    lacking = [
        f"{path.relative_to(ROOT)}:{node.lineno} raises {name}"
        for path, tree in trees.items()
        if unit_of(dotted(path)) not in IN_A_SCRIPT
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        for name in (ast.unparse(node.exc.func).rpartition(".")[2],)
        if not (names_fix(name, classes) or any(word.arg == "fix" for word in node.exc.keywords))
    ]
    assert not lacking, "\n".join(lacking)


def names_fix(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether each error of this class has a fix; what is no error of ours needs none."""
    if name == "SrobustError" or name not in classes:
        return name not in classes
    own = classes[name]
    bases = [names_fix(base.id, classes) for base in own.bases if isinstance(base, ast.Name)]
    return not is_ours(name, classes) or "fix" in ast.unparse(own.body) or all(bases)


def is_ours(name: str, classes: dict[str, ast.ClassDef]) -> bool:
    bases = classes[name].bases if name in classes else []
    return name == "SrobustError" or any(is_ours(ast.unparse(base), classes) for base in bases)


def test_importing_every_module_does_nothing(tmp_path: Path) -> None:
    """In a bare environment each module can be imported, and none prints, starts or writes anything."""
    names = [dotted(path) for path in MODULES if path.stem != "__main__" and not needs_torch(path)]
    code = (
        "import importlib, sys, threading\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert 'torch' not in sys.modules\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60
    )
    assert (found.stdout, found.stderr, found.returncode) == ("", "", 0)
    assert list(tmp_path.iterdir()) == []


def needs_torch(path: Path) -> bool:
    """Whether importing this module imports torch: those are for workers only."""
    seen: set[Path] = set()
    queue = [path]
    while queue:
        current = queue.pop()
        if current in seen or not current.exists():
            continue
        seen.add(current)
        if facts(current).imports_torch:
            return True
        queue += [ROOT / (name.replace(".", "/") + ".py") for name in facts(current).imported_at_run_time]
    return False


def test_the_package_offers_what_it_says() -> None:
    package = importlib.import_module("slurm_robust")
    assert all(getattr(package, name) for name in package.__all__)
