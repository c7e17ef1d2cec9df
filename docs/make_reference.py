"""Writes docs/reference.md from the source of the public names: `python docs/make_reference.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import longtail

_ESCAPED_BAR = r"\|"
PAGE = Path(__file__).parent / "reference.md"
HEAD = """# Reference

What `from longtail import ...` offers. This page is made from the docstrings.
"""


def page() -> str:
    return "\n".join([HEAD, *(line for name in longtail.__all__ for line in _entry(name))])


def _entry(name: str) -> Iterator[str]:
    module, node, lines = _definition(f"longtail.{longtail._HOME[name]}", name)
    yield f"## {name}\n"
    match node:
        case ast.ClassDef():
            yield f"```text\nclass {name}{_bases(node)}    # {module}\n```\n"
            yield from _doc(node)
            yield from _fields(node, lines)
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("_"):
                    yield f"**`{_signature(member)}`**\n"
                    yield from _doc(member)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield f"```text\n{_signature(node)}    # {module}\n```\n"
            yield from _doc(node)
        case _:
            yield f"```text\n{ast.unparse(node)}    # {module}\n```\n"
            if comment := _comment(node, lines):
                yield f"{comment}\n"


def _definition(module: str, name: str) -> tuple[str, ast.stmt, list[str]]:
    """Where a name is defined, following imports: the module, the statement, the module's lines."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    for node in ast.parse(source).body:
        match node:
            case ast.ImportFrom(module=str(origin)) if name in {alias.name for alias in node.names}:
                return _definition(origin, name)
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found):
                pass
            case ast.Assign(targets=[ast.Name(id=found)]):
                pass
            case _:
                continue
        if found == name:
            return module, node, source.splitlines()
    raise LookupError(f"{module} does not define {name}")


def _bases(node: ast.ClassDef) -> str:
    return f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in node.decorator_list):
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}"
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{kind} {node.name}({ast.unparse(node.args)}){returns}"


def _doc(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if doc := ast.get_docstring(node):
        yield f"{doc}\n"


def _fields(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
    if not fields:
        return
    if _bases(node) == "(Section)":
        yield "Its fields: [Configuration](configuration.md).\n"
        return
    yield "| field | type | default | is |\n|---|---|---|---|"
    for field in fields:
        default = f"`{ast.unparse(field.value)}`" if field.value else "required"
        name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
        cells = (f"`{name}`", f"`{kind}`", default, _comment(field, lines))
        yield f"| {' | '.join(cell.replace('|', _ESCAPED_BAR) for cell in cells)} |"
    yield ""


def _comment(node: ast.stmt, lines: list[str]) -> str:
    """What stands after a statement on its last line."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode().strip().removeprefix("# ")


if __name__ == "__main__":
    PAGE.write_text(page())
