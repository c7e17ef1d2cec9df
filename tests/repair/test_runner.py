"""The shipped test runner: what it says, and that it says the same in process and in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from longtail_repair import runner
from longtail_repair.env import workspace
from longtail_repair.memory import MemorySandbox
from longtail_repair.tasks import repair_tasks


def report(files: dict[str, str]) -> str:
    return runner.report(runner.run(files.get, sorted(path for path in files if path.startswith("tests/"))))


def package(source: str, test: str, imports: str = "f") -> dict[str, str]:
    return {
        "p/__init__.py": "",
        "p/m.py": source,
        "tests/test_m.py": f"from p.m import {imports}\n\ndef test_f():\n{test}",
    }


@pytest.mark.parametrize(
    ("source", "test", "expected"),
    [
        ("def f(x):\n    return x", "    assert f(1) == 1\n", "all 1 passed\n"),
        ("def f(x):\n    return x", "    assert f(1) == 2\n", "0 of 1 passed\nFAIL f(1) -> 1 not 2 in m.py line 1\n"),
        ("def f(x):\n    return x > 0", "    assert f(0) is True\n", "FAIL f(0) -> False not True in m.py line 1\n"),
        ("def f(x):\n    return 1 // x", "    assert f(0) == 2\n", "FAIL f(0) -> ZeroDivisionError in m.py line 1\n"),
        ("def f(x):\n    while x:\n        x += 1", "    assert f(1) == 2\n", "FAIL f(1) -> no end in m.py line 1\n"),
        ("def f(x):\n    return f(x)", "    assert f(1) == 2\n", "FAIL f(1) -> no end in m.py line 1\n"),
        ("def f(x):\n    return f(x * x)", "    assert f(3) == 2\n", "FAIL f(3) -> no end in m.py line 1\n"),
        (
            "def f(x):\n    while x:\n        x = x + x",
            "    assert f('a') == 2\n",
            "FAIL f('a') -> no end in m.py line 1\n",
        ),
        ("def f(x):\n    raise SystemExit", "    assert f(1) == 2\n", "FAIL f(1) -> SystemExit in m.py line 1\n"),
        ("def f(x)\n    return x", "    assert f(1) == 1\n", "FAIL import -> SyntaxError in m.py line 1\n"),
        ("f = 1 // 0", "    assert f(1) == 1\n", "FAIL import -> ZeroDivisionError in m.py line 1\n"),
        ("g = 1", "    assert f(1) == 1\n", "FAIL import -> ImportError: cannot import name 'f' from 'p.m' (p/m.py)\n"),
        (
            "def f(x):\n    return 'a' * 99",
            "    assert f(1) == 'a'\n",
            f"FAIL f(1) -> '{'a' * 56}... not 'a' in m.py line 1\n",
        ),
        ("def f(x):\n    return x", "    y = f(2)\n    assert y == 2\n    assert f(y) == 2\n", "all 1 passed\n"),
        (
            "def f(x):\n    return x",
            "    for y in (1, 2):\n        assert f(y) == 1\n",
            "FAIL assert -> AssertionError\n",
        ),
    ],
)
def test_what_it_says(source: str, test: str, expected: str):
    assert report(package(source, test)).endswith(expected)


def test_failures_of_different_tests_come_first():
    files = package(
        "def f(x):\n    return 0\n\ndef g(x):\n    return 0", "    assert f(1) == 1\n    assert f(2) == 2\n", "f, g"
    )
    files["tests/test_m.py"] += "\ndef test_g():\n    assert g(3) == 3\n"
    lines = report(files).splitlines()
    assert lines == [
        "0 of 2 passed",
        "FAIL f(1) -> 0 not 1 in m.py line 1",
        "FAIL g(3) -> 0 not 3 in m.py line 4",
        "FAIL f(2) -> 0 not 2 in m.py line 1",
    ]


def test_modules_are_imported_in_every_usual_way():
    files = {
        "p/__init__.py": "",
        "p/a.py": "def f(x):\n    return x",
        "p/b.py": "import p.a\nfrom p import a\nfrom . import a as b\nfrom .a import f\nimport math\n"
        "def g(x):\n    return p.a.f(x) + a.f(x) + b.f(x) + f(x) + math.floor(0.5)",
        "tests/test_b.py": "from p.b import g\n\ndef test_g():\n    assert g(2) == 8\n",
    }
    assert report(files) == "all 1 passed\n"


def test_a_broken_test_file_is_a_failing_test():
    files = package("def f(x):\n    return x", "    assert f(1) == 1\n")
    files["tests/test_z.py"] = "def test_z(:\n"
    assert report(files) == "1 of 2 passed\nFAIL import -> SyntaxError in test_z.py line 1\n"


async def test_in_process_and_in_a_process_it_says_the_same(tmp_path: Path):
    breakage = ["", "def (", "import os\nimport nothing\n", "while True:\n    pass\n"]
    for number, task in enumerate(repair_tasks("test", 8, 11, levels=(1, 3, 5))):
        spec = workspace(task)
        box = MemorySandbox(spec)
        root = tmp_path / str(number)
        path = task.data["bugs"][0]["path"]
        await box.write(path, breakage[number % 4].encode() + await box.read(path))
        for name in await box.list():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(await box.read(name))
        command = [sys.executable, "run_tests.py"]
        real = await asyncio.to_thread(subprocess.run, command, cwd=root, capture_output=True)
        ours = await box.exec(["python", "run_tests.py"])
        assert (ours.stdout.decode(), ours.exit_code) == (real.stdout.decode(), real.returncode)
        assert real.stderr == b""
        assert not list(root.rglob("*.pyc"))


def test_pytest_agrees_on_what_passes(tmp_path: Path):
    task = repair_tasks("test", 1, 2, levels=(5,))[0]
    for name, text in task.data["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-rf", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    said = subprocess.run([*command, "--rootdir=."], cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    failed = sorted(line.split()[1] for line in said.splitlines() if line.startswith("FAILED"))
    assert failed == sorted(task.data["failed"])


def test_values_are_told_without_what_was_expected(tmp_path: Path):
    for name, text in package("def f(x):\n    print('[[1]]')\n    return [x] / 1 if x else x", "    pass\n").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    asked = [
        {"setup": "from p.m import f", "calls": ["f(0)", "f(1)"]},
        {"setup": "from p.q import f", "calls": ["f(0)"]},
    ]
    command = [sys.executable, "-I", runner.__file__, "--values"]
    done = subprocess.run(command, cwd=tmp_path, input=json.dumps(asked).encode(), capture_output=True, check=True)
    assert json.loads(done.stdout) == [[[True, "0"], [False, "TypeError"]], [[False, "ModuleNotFoundError"]]]
