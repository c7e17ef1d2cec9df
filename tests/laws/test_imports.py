"""Which room may import which (design: imports flow one way), and what stays out of the command line's start."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "longtail"

BASE = {"types", "errors"}
PURE = BASE | {"ports", "events", "history", "config"}
ROOM = PURE | {"models"}
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
    "trainers": ROOM | {"data"},
    "envs": PURE,
    "sandboxes": PURE,
    "weights": PURE,
    "journal": PURE,
    "observe": PURE,
    "rollout": BASE | {"ports", "events", "history"},
    "cluster": PURE,
    "loop": PURE | {"data", "algorithms", "rollout"},
}
TORCH = {"data", "algorithms", "engines", "trainers", "weights", "models", "bench"}
FILES = sorted(ROOT.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_what_it_may(path: Path):
    room = room_of(path)
    names = imported(path)
    rooms = {name.split(".")[1] for name in names if name.startswith("longtail.")} - {room}
    if room in ALLOWED:
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
