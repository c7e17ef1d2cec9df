"""Which room may import which (design: imports flow one way), and what stays out of the command line's start."""

import ast
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "longtail"

BASE = {"types", "errors"}
PURE = BASE | {"ports", "events", "history", "config"}
ROOM = PURE | {"models"}
# Every module and folder of the package has a row: what it may import besides itself.
ALLOWED = {
    "types": set(),
    "errors": {"types"},
    "ports": BASE,
    "events": {"types"},
    "history": BASE | {"events"},
    "config": BASE,
    "data": BASE | {"ports"},
    "fakes": BASE | {"ports"},
    "algorithms": BASE | {"ports", "data", "config"},
    "models": BASE | {"ports", "config"},
    "engines": ROOM,
    "trainers": ROOM,
    "envs": PURE,
    "sandboxes": PURE,
    "weights": PURE,
    "journal": PURE,
    "observe": PURE,
    "rollout": BASE | {"ports", "events", "history"},
    "cluster": PURE,
    "loop": PURE | {"data", "algorithms", "rollout"},
    # The wiring layer: these put the rooms together, each those that its command needs.
    "named": BASE | {"ports", "events", "envs"},
    "build": PURE
    | {
        "named",
        "algorithms",
        "cluster",
        "engines",
        "envs",
        "fakes",
        "identity",
        "journal",
        "loop",
        "models",
        "rollout",
        "sandboxes",
    }
    | {"trainers", "weights", "whole"},
    "identity": PURE | {"journal", "models"},
    "whole": BASE | {"ports"},
    "runs": PURE | {"engines", "journal", "observe"},
    "drive": PURE | {"build", "runs", "loop", "journal", "observe"},
    "sft": PURE | {"build", "identity", "journal", "named", "algorithms", "data", "engines", "trainers"},
    "doctor": BASE | {"models", "sandboxes"},
    "cli": PURE | {"build", "identity", "drive", "runs", "sft", "doctor", "journal", "observe"},
    "bench": PURE | {"algorithms", "data", "engines", "models", "observe", "trainers"},
    "__init__": PURE | {"drive", "envs"},
    "__main__": {"cli"},
}
TORCH = {"data", "algorithms", "engines", "trainers", "weights", "models", "bench"}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def package_of(path: Path) -> str:
    return ".".join(path.parent.relative_to(ROOT.parent).parts)


def imported(source: str, package: str) -> set[str]:
    """The full names of what a module of the package imports, wherever in it it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = resolve_name("." * node.level + (node.module or ""), package)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def rooms_in(names: set[str]) -> set[str]:
    """`from longtail import x` of a name that is no module is an import of the package's own front."""
    rooms = {name.split(".")[1] if "." in name else "__init__" for name in names if name.split(".")[0] == "longtail"}
    return {room if room in ALLOWED else "__init__" for room in rooms}


def test_every_module_and_folder_has_a_row():
    assert {room_of(path) for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import longtail.engines.local", {"engines"}),
        ("from longtail import build", {"build"}),
        ("from longtail import train", {"__init__"}),
        ("import longtail", {"__init__"}),
        ("from . import wire", {"sandboxes"}),
        ("from ...engines import local", {"engines"}),
        ("from ... import drive", {"drive"}),
        ("def late():\n    from ...trainers.head import CHUNK", {"trainers"}),
        ("import os, longtailed", set()),
    ],
)
def test_every_way_to_import_is_seen(source: str, rooms: set[str]):
    assert rooms_in(imported(source, "longtail.sandboxes.inside")) == rooms


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path: Path):
    room = room_of(path)
    names = imported(path.read_text(), package_of(path))
    rooms = rooms_in(names) - {room}
    assert rooms <= ALLOWED[room], f"{path} must not import {sorted(rooms - ALLOWED[room])}"
    if room not in TORCH:
        assert not {name for name in names if name.split(".")[0] == "torch"}, f"{path} must not import torch"
    if room != "journal":
        assert not {name for name in names if name.split(".")[0] in ("apsw", "sqlite3")}, f"{path}: SQL is journal's"


@pytest.mark.parametrize(
    "code", ["import longtail", "import longtail.cli", "import longtail.loop", "import longtail.build"]
)
def test_importing_does_not_load_torch(code: str):
    script = f"{code}; import sys; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
