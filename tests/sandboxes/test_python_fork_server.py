"""A Python program does the same in a fork of the agent as in a new interpreter."""

import asyncio
import re

import pytest

from longtail.sandboxes.bwrap import BwrapSandboxes
from longtail.types import ExecResult, SandboxSpec

pytestmark = pytest.mark.asyncio(loop_scope="module")

PACKAGE = {
    "pkg/__init__.py": b"NAME = __name__\n",
    "pkg/__main__.py": b"import sys; from . import NAME; print(NAME, __name__, __package__, sys.argv, sys.path[0])\n",
    "pkg/broken.py": b"def f(x):\n    return 1 / x\nf(0)\n",
    "test_sums.py": b"import unittest\nclass T(unittest.TestCase):\n  def test_a(self): self.assertEqual(1, 2)\n",
    "sub/helper.py": b"VALUE = 7\n",
    "sub/script.py": b"import helper, sys; print(helper.VALUE, __file__, sys.argv, sys.path[0])\n",
}
STATE = """
import builtins, gc, locale, os, signal, sys, threading
main = sys.modules["__main__"]
print(sorted((k, type(v).__name__) for k, v in vars(main).items() if k.startswith("__")))
print(__name__, __doc__, __package__, __spec__, __builtins__ is builtins, vars(main) is globals())
print(sys.argv, sys.path, sys.orig_argv[1:], sys.executable, sys.prefix, sys.flags, sys.warnoptions)
print(os.getcwd(), sorted(os.environ.items()), os.getpid() == os.getsid(0) == os.getpgid(0))
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.isatty())
print(sys.stdout.seekable(), sys.stdout.fileno(), locale.getpreferredencoding(), gc.isenabled(), gc.get_threshold())
print({s.name: str(signal.getsignal(s)) for s in signal.valid_signals() if hasattr(s, "name")})
print(threading.current_thread() is threading.main_thread(), os.umask(0), hash("text"), sys.getrecursionlimit())
print(exit, quit, sys.gettrace(), sys.excepthook, sys.displayhook, len(os.listdir("/proc/self/fd")))
import json; print(json.__file__, json.dumps({"a": 1}))
"""
SCRIPTS = {
    "prints": "print('out'); import sys; print('err', file=sys.stderr)",
    "state": STATE,
    "exit code": "import sys; sys.exit(7)",
    "exit text": "import sys; sys.exit('stopped')",
    "exit none": "raise SystemExit",
    "exit big": "raise SystemExit(300)",
    "builtin exit": "exit(3)",
    "abort": "import os; os.abort()",
    "os exit": "import os; print('lost'); os._exit(4)",
    "exception": "def f(x):\n    return 1 / x\n\nprint('before')\nf(0)\n",
    "chained": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('no') from e\n",
    "group": "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])",
    "syntax": "print('never')\ndef f(:\n    pass\n",
    "indentation": "if 1:\nprint(2)\n",
    "interrupt": "raise KeyboardInterrupt",
    "excepthook": "import sys\nsys.excepthook = lambda t, v, tb: print('hook', t.__name__, tb.tb_lineno)\n1 / 0\n",
    "atexit": (
        "import atexit\natexit.register(print, 'one')\natexit.register(lambda: 1 / 0)\natexit.register(print, 'two')\n"
    ),
    "finalizer": "class A:\n  def __del__(self): print('gone', log)\nlog = [1]\na = A(); b = A(); b.self = b\n",
    "unclosed file": "f = open('out.txt', 'w'); f.write('x' * 10)",
    "thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('late'))).start()\nprint('end')\n"
    ),
    "daemon": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('end')\n"
    ),
    "fork": "import os\nif os.fork() == 0:\n    print('child')\nelse:\n    os.wait(); print('parent')\n",
    "subprocess": (
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(1)'], capture_output=True))"
    ),
    "multiprocessing": (
        "import multiprocessing as m\nif __name__ == '__main__':\n"
        "    print(m.get_context('fork').Pool(2).map(abs, [-1, -2]))"
    ),
    "pickle": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A)) is A)",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass A:\n  x: int = 1\nprint(A(), A.__module__)",
    "closed stdout": "import sys; print('x'); sys.stdout.close()",
    "full": "import sys; sys.stdout = open('/dev/full', 'w'); print('x')",
    "replaced stdout": "import io, sys; print('kept'); sys.stdout = io.StringIO(); print('gone')",
    "input": "print(input('? '), input())",
    "warning": "import warnings; warnings.simplefilter('always'); warnings.warn('careful', stacklevel=1)",
    "encoding": "# -*- coding: latin-1 -*-\nprint(len('\xe9'))",
    "random": "import random; print(0 <= random.random() < 1)",
    "asyncio": "import asyncio\nasync def main(): await asyncio.sleep(0); print('ok')\nasyncio.run(main())",
    "relative import": "from . import x",
    "missing import": "import no_such_module",
    "unittest main": (
        "import unittest\nclass T(unittest.TestCase):\n  def test(self): self.fail('no')\nunittest.main(argv=['t'])"
    ),
}
COMMANDS = {
    "module": ["-m", "pkg", "a", "-b"],
    "module of package": ["-m", "pkg.broken"],
    "missing module": ["-m", "no_such_module"],
    "script in directory": ["sub/script.py", "x"],
    "absolute script": ["/workspace/sub/script.py"],
    "missing script": ["missing.py"],
    "directory": ["pkg"],
    "option": ["-O", "-c", "print(__debug__)"],
    "no code": ["-c"],
    "version": ["--version"],
    "from stdin": ["-"],
    "code with arguments": ["-c", "import sys; print(sys.argv, __name__)", "a", "-m"],
}


def comparable(result: ExecResult) -> tuple[object, ...]:
    """The result without what differs between two runs of anything: addresses, durations, the switch of this test."""
    same = re.compile(rb"(?<=at )0x[0-9a-f]+|(?<=Ran 1 test in )[0-9.]+|(?<=LONGTAIL_COLD_PYTHON', ')[01]")
    return result.exit_code, same.sub(b"-", result.stdout), same.sub(b"-", result.stderr), result.timed_out


async def both_ways(bwrap: BwrapSandboxes, arguments: list[str], files: dict[str, bytes]) -> None:
    async def run(cold: str) -> ExecResult:
        sandbox = await bwrap.create(SandboxSpec(files=PACKAGE | files))
        env = {"LONGTAIL_COLD_PYTHON": cold}
        result = await sandbox.exec(["python", *arguments], stdin=b"first\nsecond\n", env=env)
        await sandbox.close()
        return result

    forked, new = await asyncio.gather(run("0"), run("1"))
    assert comparable(forked) == comparable(new)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=list(SCRIPTS))
async def test_a_script_does_the_same(bwrap: BwrapSandboxes, script: str) -> None:
    encoding = "latin-1" if "latin-1" in script else "utf-8"
    await both_ways(bwrap, ["program.py", "x"], {"program.py": script.encode(encoding)})


@pytest.mark.parametrize("name", ["prints", "exception", "syntax", "state", "exit text"])
async def test_code_on_the_command_line_does_the_same(bwrap: BwrapSandboxes, name: str) -> None:
    await both_ways(bwrap, ["-c", SCRIPTS[name]], {})


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=list(COMMANDS))
async def test_a_command_does_the_same(bwrap: BwrapSandboxes, arguments: list[str]) -> None:
    await both_ways(bwrap, arguments, {})


async def test_unittest_as_a_module_does_the_same(bwrap: BwrapSandboxes) -> None:
    await both_ways(bwrap, ["-m", "unittest", "-v"], {})


@pytest.mark.parametrize("shadow", ["json.py", "unittest/__init__.py", "typing.py"])
async def test_a_module_of_the_program_shadows_the_standard_library(bwrap: BwrapSandboxes, shadow: str) -> None:
    name = shadow.partition(".")[0].partition("/")[0]
    files = {shadow: b"WHO = 'mine'\n", "program.py": f"import {name}; print({name}.WHO)\n".encode()}
    sandbox = await bwrap.create(SandboxSpec(files=files))
    for arguments in (["program.py"], ["-c", f"import {name}; print({name}.WHO)"]):
        assert (await sandbox.exec(["python", *arguments])).stdout == b"mine\n"
    await sandbox.close()


async def test_variables_of_the_interpreter_are_honoured(bwrap: BwrapSandboxes) -> None:
    sandbox = await bwrap.create(SandboxSpec(files={"lib/mine.py": b"X = 1\n"}))
    result = await sandbox.exec(["python", "-c", "import mine; print(mine.X)"], env={"PYTHONPATH": "lib"})
    assert result.stdout == b"1\n"
    await sandbox.close()


async def test_what_one_program_does_is_not_seen_by_the_next(bwrap: BwrapSandboxes) -> None:
    sandbox = await bwrap.create(SandboxSpec())
    spoil = (
        "import builtins, json, os, sys; builtins.spoiled = json.spoiled = 1; sys.path.clear(); os.environ['S'] = '1'"
    )
    await sandbox.exec(["python", "-c", spoil])
    look = "import json, os; print(hasattr(json, 'spoiled'), hasattr(__builtins__, 'spoiled'), 'S' in os.environ)"
    assert (await sandbox.exec(["python3", "-c", look])).stdout == b"False False False\n"
    await sandbox.close()
