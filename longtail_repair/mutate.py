"""Bugs: one small change to one function, as a programmer would make it by mistake. Pure; seeded by the caller.

Both sides are formatted by ast.unparse, so the form of a line never tells that it was changed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Apply = Callable[[], None]
Site = tuple[str, Apply]  # operator, and the change of the tree it was found in


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    operator: str
    source: str  # of the function with the bug


OPERATORS: dict[str, float] = {  # name -> how often it is drawn where it is possible: the common ones less
    "arithmetic": 1.0,
    "comparison": 0.7,
    "boundary": 1.5,
    "constant": 0.6,
    "variable": 0.6,
    "return": 0.25,
    "swap": 0.8,
    "offbyone": 1.0,
    "default": 2.0,
    "branch": 1.5,
    "boolean": 1.0,
}

_ARITHMETIC: dict[type, tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.FloorDiv: (ast.Mult, ast.Mod),
    ast.Mod: (ast.FloorDiv,),
    ast.Div: (ast.Mult,),
}
_COMPARISON: dict[type, tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.Gt,),
    ast.Gt: (ast.Lt,),
    ast.LtE: (ast.GtE,),
    ast.GtE: (ast.LtE,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_BOUNDARY: dict[type, type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def mutate(source: str, rng: Random) -> Mutation | None:
    """One random mutation of a function's source (already in ast.unparse form), or None where there is none.

    The operator is drawn first, so that rare kinds of bugs are as likely as common ones.
    """
    tree = ast.parse(source)
    sites = find_sites(tree)
    if not sites:
        return None
    operators = sorted({name for name, _ in sites})
    operator = rng.choices(operators, [OPERATORS[name] for name in operators])[0]
    rng.choice([apply for name, apply in sites if name == operator])()
    mutated = ast.unparse(tree)
    return None if mutated == source else Mutation(operator=operator, source=mutated)


def find_sites(tree: ast.Module) -> list[Site]:
    """Every possible mutation of the one function in `tree`; applying one changes the tree."""
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    nodes = list(ast.walk(function))
    names = _variables(nodes)
    sites: list[Site] = []
    for node in nodes:
        for operator, finder in _FINDERS:
            sites += [(operator, apply) for apply in finder(node)]
        sites += [("variable", apply) for apply in _wrong_variable(node, names)]
    sites += [("default", apply) for apply in _wrong_default(function)]
    return sites


def _variables(nodes: Sequence[ast.AST]) -> list[str]:
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return sorted(parameters | {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)})


def _set(node: ast.AST, field: str, value: Any) -> Apply:
    return lambda: setattr(node, field, value)


def _arithmetic(node: ast.AST) -> Iterator[Apply]:
    right = node.right if isinstance(node, ast.BinOp) else node.value if isinstance(node, ast.AugAssign) else None
    if isinstance(node, ast.BinOp | ast.AugAssign) and right is not None and not _is_text(right):
        for other in _ARITHMETIC.get(type(node.op), ()):
            yield _set(node, "op", other())


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant | ast.JoinedStr) and not isinstance(getattr(node, "value", ""), int | float)


def _comparison(node: ast.AST) -> Iterator[Apply]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in _COMPARISON.get(type(node.ops[0]), ()):
            yield _set(node, "ops", [other()])


def _boundary(node: ast.AST) -> Iterator[Apply]:
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            other = _BOUNDARY.get(type(op))
            if other:
                yield _set(node, "ops", [*node.ops[:place], other(), *node.ops[place + 1 :]])


def _constant(node: ast.AST) -> Iterator[Apply]:
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            yield _set(node, "value", not value)
        elif isinstance(value, int):
            yield _set(node, "value", value + 1)
            if value > 1:
                yield _set(node, "value", value - 1)
        elif value in ("", " ", ","):
            yield _set(node, "value", {"": " ", " ": "", ",": " "}[value])


def _wrong_variable(node: ast.AST, names: Sequence[str]) -> Iterator[Apply]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        if node.id in names:
            for other in names:
                if other != node.id:
                    yield _set(node, "id", other)
        elif node.id in _TWINS:
            yield _set(node, "id", _TWINS[node.id])


def _missing_return(node: ast.AST) -> Iterator[Apply]:
    for body in _bodies(node):
        for place, statement in enumerate(body):
            if isinstance(statement, ast.Return) and statement.value is not None:
                yield _replace(body, place, [ast.Expr(value=statement.value)])


def _swap(node: ast.AST) -> Iterator[Apply]:
    if isinstance(node, ast.Call) and len(node.args) == 2 and not isinstance(node.func, ast.Attribute):
        yield _set(node, "args", node.args[::-1])
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod | ast.Div):

        def swap() -> None:
            node.left, node.right = node.right, node.left

        yield swap
    elif isinstance(node, ast.IfExp):

        def turn() -> None:
            node.body, node.orelse = node.orelse, node.body

        yield turn


def _off_by_one(node: ast.AST) -> Iterator[Apply]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        last = min(len(node.args), 2) - 1
        for sign in (1, -1):
            yield _set(node, "args", [*node.args[:last], _shift(node.args[last], sign), *node.args[last + 1 :]])
        if len(node.args) == 1:
            yield _set(node, "args", [ast.Constant(value=1), *node.args])
    elif isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Slice):
            for field in ("lower", "upper"):
                bound = getattr(node.slice, field)
                if bound is not None:
                    yield _set(node.slice, field, _shift(bound, 1))
        elif not _is_text(node.slice) and isinstance(node.ctx, ast.Load):
            yield _set(node, "slice", _shift(node.slice, 1))


def _shift(node: ast.expr, by: int) -> ast.expr:
    """The expression plus or minus one, as a person would write it."""
    match node:
        case ast.Constant(value=int(value)):
            return ast.Constant(value=value + by)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value + 1))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
            return left
        case _:
            op = ast.Add() if by > 0 else ast.Sub()
            return ast.BinOp(left=node, op=op, right=ast.Constant(value=1))


def _wrong_default(function: ast.FunctionDef) -> Iterator[Apply]:
    for place, default in enumerate(function.args.defaults):
        if isinstance(default, ast.Constant) and isinstance(default.value, int):
            value = default.value
            for other in [not value] if isinstance(value, bool) else [value + 1, value * 2, 0]:
                if other != value:
                    defaults = list(function.args.defaults)
                    defaults[place] = ast.Constant(value=other)
                    yield _set(function.args, "defaults", defaults)


def _branch(node: ast.AST) -> Iterator[Apply]:
    for body in _bodies(node):
        for place, statement in enumerate(body):
            if isinstance(statement, ast.If):
                if len(body) > 1 or statement.orelse:
                    yield _replace(body, place, statement.orelse)
                if statement.orelse:
                    yield _set(statement, "orelse", [])


def _boolean(node: ast.AST) -> Iterator[Apply]:
    if isinstance(node, ast.BoolOp):
        yield _set(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.If | ast.IfExp):
        test = node.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield _set(node, "test", test.operand)
        elif isinstance(test, ast.Name | ast.Call):
            yield _set(node, "test", ast.UnaryOp(op=ast.Not(), operand=test))


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse"):
        body = getattr(node, field, None)
        if isinstance(body, list):
            yield body


def _replace(body: list[ast.stmt], place: int, statements: list[ast.stmt]) -> Apply:
    def apply() -> None:
        body[place : place + 1] = statements

    return apply


_FINDERS: tuple[tuple[str, Callable[[ast.AST], Iterator[Apply]]], ...] = (
    ("arithmetic", _arithmetic),
    ("comparison", _comparison),
    ("boundary", _boundary),
    ("constant", _constant),
    ("return", _missing_return),
    ("swap", _swap),
    ("offbyone", _off_by_one),
    ("branch", _branch),
    ("boolean", _boolean),
)
