"""The size of things: short files and functions, calls that can be read, each class name once, modules named for what
they hold."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "noether"
FILES = sorted(PACKAGE.rglob("*.py"))

MOST_LINES = 350
MOST_LINES_OF_A_FUNCTION = 60
MOST_POSITIONAL = 6
RIDDLES = {"again", "alone", "standing", "reach", "ending", "words", "problem", "search"}
"""Names of modules that do not say what is in them."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(file: Path) -> str:
    return str(file.relative_to(REPOSITORY))


def names_of_our_own(tree: ast.Module) -> set[str]:
    """Returns the functions and classes that a file defines or imports from the package."""
    found = {node.name for node in tree.body if isinstance(node, Function | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("noether"):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_files_functions_and_calls_are_short(file: Path) -> None:
    text = file.read_text()
    tree, wrong = ast.parse(text), []
    if (lines := text.count("\n")) > MOST_LINES:
        wrong.append(f"{lines} lines")
    own = names_of_our_own(tree)
    for node in ast.walk(tree):
        if isinstance(node, Function):
            if (length := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION:
                wrong.append(f"{node.name} has {length} lines")
            parameters = [p.arg for p in (*node.args.posonlyargs, *node.args.args) if p.arg not in ("self", "cls")]
            if len(parameters) > MOST_POSITIONAL:
                wrong.append(f"{node.name} takes {len(parameters)} positional arguments")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in own and len(node.args) > MOST_POSITIONAL:
            wrong.append(f"line {node.lineno} hands {ast.unparse(node.func)} {len(node.args)} positional arguments")
    assert not wrong, f"{name_of(file)}: {'; '.join(wrong)}"


def test_a_class_name_is_used_once() -> None:
    places = defaultdict(list)
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{name_of(file)}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


def test_a_module_is_named_for_what_it_holds() -> None:
    assert not [name_of(file) for file in FILES if file.stem in RIDDLES]
