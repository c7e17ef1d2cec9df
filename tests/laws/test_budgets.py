"""How large things may be: code that is read in one sitting stays short."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "longtail"
FILES = sorted(ROOT.rglob("*.py"))

FILE, CLASS, FUNCTION, P90 = 450, 250, 80, 30  # lines
ARGUMENTS = 6
# These take more: the options of a command, the fields of an event, what a constructor shares out. None may be added.
TAKE_MORE = {"cli.py evaluate", "cli.py show", "events.py attempt_started", "rollout/model.py __init__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> list[Function]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Function)]


def classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


def length(node: ast.ClassDef | Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def arguments(function: Function) -> int:
    taken = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([argument for argument in taken if argument.arg not in ("self", "cls")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_classes_and_functions_are_short(path: Path):
    assert len(path.read_text().splitlines()) <= FILE
    assert [node.name for node in classes(path) if length(node) > CLASS] == []
    assert [node.name for node in functions(path) if length(node) > FUNCTION] == []


def test_nine_of_ten_functions_fit_in_thirty_lines():
    lengths = sorted(length(node) for path in FILES for node in functions(path))
    assert lengths[len(lengths) * 9 // 10] <= P90


def test_functions_take_few_arguments():
    found = {
        f"{path.relative_to(ROOT)} {node.name}"
        for path in FILES
        for node in functions(path)
        if arguments(node) > ARGUMENTS
    }
    assert found == TAKE_MORE
