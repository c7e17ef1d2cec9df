"""The same function written in another way: changes of form that keep the meaning. Pure; seeded by the caller."""

from __future__ import annotations

import ast
from random import Random

_FLIPPED: dict[type, type[ast.cmpop]] = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}


def restyle(function: ast.FunctionDef, rng: Random) -> None:
    """Redraw the style of a function, in place."""
    for node in list(ast.walk(function)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and isinstance(node, ast.FunctionDef | ast.For | ast.While | ast.If):
            _restyle_body(body, rng, last=node is function)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and rng.random() < 0.15:
            _flip(node)


def _restyle_body(body: list[ast.stmt], rng: Random, *, last: bool) -> None:
    for place, statement in enumerate(body):
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name) and rng.random() < 0.2:
            body[place] = _spelled_out(statement)
    if not last:
        return
    if _is_choice(body) and rng.random() < 0.3:
        _to_ternary(body)
    elif _is_choice(body) and rng.random() < 0.25:
        first, second = body[-2:]
        assert isinstance(first, ast.If)
        first.orelse = [second]
        del body[-1]
    elif isinstance(body[-1], ast.Return) and isinstance(body[-1].value, ast.BinOp | ast.Call) and rng.random() < 0.15:
        body[-1:] = [
            ast.Assign(targets=[ast.Name(id="result", ctx=ast.Store())], value=body[-1].value, lineno=0),
            ast.Return(value=ast.Name(id="result", ctx=ast.Load())),
        ]


def _flip(node: ast.Compare) -> None:
    other = _FLIPPED.get(type(node.ops[0]))
    if other and not isinstance(node.comparators[0], ast.Constant):
        node.left, node.comparators, node.ops = node.comparators[0], [node.left], [other()]


def _spelled_out(statement: ast.AugAssign) -> ast.Assign:
    """x += y as x = x + y."""
    assert isinstance(statement.target, ast.Name)
    left = ast.Name(id=statement.target.id, ctx=ast.Load())
    value = ast.BinOp(left=left, op=statement.op, right=statement.value)
    return ast.Assign(targets=[statement.target], value=value, lineno=0)


def _is_choice(body: list[ast.stmt]) -> bool:
    """`if c: return a` and then `return b`."""
    if len(body) < 2 or not isinstance(body[-2], ast.If) or not isinstance(body[-1], ast.Return):
        return False
    first = body[-2]
    return len(first.body) == 1 and isinstance(first.body[0], ast.Return) and not first.orelse


def _to_ternary(body: list[ast.stmt]) -> None:
    first, second = body[-2:]
    assert isinstance(first, ast.If)
    assert isinstance(first.body[0], ast.Return)
    assert isinstance(second, ast.Return)
    if first.body[0].value is not None and second.value is not None:
        choice = ast.IfExp(test=first.test, body=first.body[0].value, orelse=second.value)
        body[-2:] = [ast.Return(value=choice)]
