"""The house as its source has it: which room imports which, what each may depend on, and who prints."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "rootscale"
FILES = sorted(SOURCE.rglob("*.py"))
#: The rooms, lowest first; an arrow may point from a room to itself and to those before it.
ROOMS = (
    "idea",
    "compare",
    "configs",
    "training",
    "checkpoints",
    "theory",
    "lab",
    "report",
    "integrations",
    "cli",
)
#: Rooms on one floor know nothing of each other.
APART = {("integrations", "report"), ("report", "integrations")}
#: What comes with rootscale, by the lowest room that may import it.
REQUIRED = {"numpy": "idea", "torch": "training", "rich": "cli"}
OPTIONAL_ROOMS = ("compare", "configs", "report", "integrations", "cli")
STANDARD = set(__import__("sys").stdlib_module_names)


def module_name(path: Path) -> str:
    parts = ("rootscale", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "cli" if module == "rootscale.__main__" else "idea"


def imports(path: Path, lazy: bool = True, types: bool = True):
    """Every module that a file imports, with the line; lazy ones are those inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.iter_child_nodes(tree))
    while nodes:
        node = nodes.pop()
        if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in MODULES else node.module), node.lineno
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            yield node.args[0].value, node.lineno
        if not lazy and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        nodes += ast.iter_child_nodes(node)


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_arrows_point_one_way(path):
    room = room_of(module_name(path))
    for name, line in imports(path):
        if name.partition(".")[0] != "rootscale":
            continue
        other = room_of(name)
        allowed = ROOMS.index(other) <= ROOMS.index(room) and (room, other) not in APART
        allowed |= (relative(path), name) == ("__init__.py", "rootscale.training.run")  # imported when it is asked for
        assert allowed, f"{relative(path)}:{line}: {room} may not import {name}, which is in {other}"


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        name: {
            one
            for one, _ in imports(path, lazy=False, types=False)
            if one in MODULES and one != name and not name.startswith(f"{one}.") and not one.endswith("__init__")
        }
        for name, path in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_no_chain_of_imports_is_longer_than_it_is():
    graph = {
        name: {
            one
            for one, _ in imports(path, lazy=False, types=False)
            if one in MODULES and one != name and not name.startswith(f"{one}.")
        }
        for name, path in MODULES.items()
    }
    chains: dict[str, tuple[str, ...]] = {}
    for name in TopologicalSorter(graph).static_order():
        chains[name] = (name, *max((chains[one] for one in sorted(graph[name])), key=len, default=()))
    longest = max(chains.values(), key=len)
    assert len(longest) <= 21, " -> ".join(longest)  # 43 in version 0.1


WALKS = (SOURCE.parents[1] / "docs" / "architecture.md").read_text().partition("## Five walks")[2].partition("\n## ")[0]


@pytest.mark.parametrize("walk", re.split(r"\n(?=\*\*)", WALKS.strip()), ids=lambda walk: walk.split("**")[1])
def test_a_walk_of_the_architecture_has_at_most_twelve_modules_which_are_there(walk):
    modules = set(re.findall(r"`((?:\w+/)*\w+\.py)`", walk))
    assert 4 <= len(modules) <= 12, sorted(modules)
    assert not [module for module in modules if not (SOURCE / module).exists()]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_only_some_rooms_depend_on_optional_libraries(path):
    room = room_of(module_name(path))
    for name, line in imports(path):
        top = name.partition(".")[0]
        if top in STANDARD or top in ("rootscale", "__future__"):
            continue
        if top in REQUIRED:
            lowest = REQUIRED[top]
            assert ROOMS.index(room) >= ROOMS.index(lowest), f"{relative(path)}:{line}: {room} may not import {top}"
        else:
            room = room_of(module_name(path))
            optional = room in OPTIONAL_ROOMS or relative(path) in ("lab/data.py", "lab/tasks.py")  # ready-made tasks
            assert optional, f"{relative(path)}:{line}: {room} may not import {top}, which is optional"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_only_the_command_line_prints(path):
    if room_of(module_name(path)) == "cli":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        assert not called, f"{relative(path)}:{node.lineno} prints"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_function_has_the_name_of_its_module(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert path.stem not in names, f"{relative(path)} defines {path.stem}"


#: What a JAX user may be left without; the modules that only people with torch load.
WITHOUT_TORCH = ("configs", "spellings", "integrations/optax")


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_a_room_without_torch_loads_nothing_that_needs_it(room):
    """As a graph, so that it is known where optax or jax is not installed too."""
    start = {name for name, path in MODULES.items() if relative(path).startswith(room)}
    loaded, waiting = set(start), list(start)
    while waiting:
        for name, line in imports(MODULES[waiting.pop()], lazy=False, types=False):
            assert name.partition(".")[0] != "torch", f"{name} in line {line}"
            parts = name.split(".")
            for inner in (".".join(parts[:i]) for i in range(1, len(parts) + 1)):
                if inner in MODULES and inner not in loaded:
                    loaded.add(inner)
                    waiting.append(inner)
