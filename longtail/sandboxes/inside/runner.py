"""`python script | -c code | -m module` without starting an interpreter.

The agent holds an initialised interpreter with common modules imported. A forked child of it becomes the program: this
file gives it the state that a new interpreter would have, and ends it as an interpreter ends, without the teardown of
modules that the program never touched. What cannot be given (interpreter options, PYTHON* variables, a module of the
program that shadows an imported one) runs in a new interpreter. Known differences that remain: frames of the agent lie
below the program's (`sys._getframe`, recursion is a few frames deeper), and a directory that the program itself puts on
sys.path cannot shadow a module that was imported before.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import BuiltinImporter, SourceFileLoader
from itertools import islice
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

_NAMES = ("python", "python3")
_PLACE = "/opt/bin"  # where these names are
_run_module: Any = vars(runpy)["_run_module_as_main"]  # what the interpreter itself calls for -m
_signal: Any = importlib.import_module("_signal")  # signal without its enums, which cost each child


def is_python(argv: Sequence[str], changes: Mapping[str, str]) -> bool:
    """Whether the fork server may run this command under these changes to the environment."""
    if argv[0] not in _NAMES or len(argv) < 2 or "PATH" in changes or changes.get("LONGTAIL_COLD_PYTHON") == "1":
        return False
    if any(name.startswith(("PYTHON", "LD_", "LC_", "LANG")) for name in changes):
        return False
    return not argv[1].startswith("-") or (argv[1] in ("-c", "-m") and len(argv) > 2)


def freeze_state() -> None:
    """Called once before children are forked: the collector leaves what exists now alone."""
    gc.collect()
    gc.freeze()


def become(argv: Sequence[str], changes: Mapping[str, str], fresh: frozenset[str]) -> NoReturn:
    """Be this program until it ends, under changes to the environment. `fresh` are the modules that a new interpreter
    has.

    Every page of memory that is written to costs a copy, by reference counts too: so nothing here walks through what
    the interpreter holds.
    """
    option, rest = (argv[1], argv[2:]) if argv[1] in ("-c", "-m") else ("", argv[1:])
    directory = "" if option == "-c" else os.getcwd() if option else os.path.dirname(os.path.realpath(rest[0]))
    if (not option and not os.path.isfile(rest[0])) or _shadows(directory or ".", fresh):
        os.execve(f"{_PLACE}/{argv[0]}", list(argv), {**os.environ, **changes})
    if changes:
        os.environ.update(changes)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    sys.executable = f"{_PLACE}/{argv[0]}"
    sys.path[0] = directory
    sys.orig_argv[:] = argv
    sys.argv[:] = [option or rest[0], *rest[1:]]
    modules = len(sys.modules)
    _make_main(option, rest[0])
    code = _report(_run(option, rest[0]))
    _leave(code, modules)


def _shadows(directory: str, fresh: frozenset[str]) -> bool:
    """Whether the directory holds a module named like one that was imported beforehand."""
    try:
        names = {entry.partition(".")[0] for entry in os.listdir(directory)}
    except OSError:
        return True
    return any(name in sys.modules and name not in fresh for name in names)


def _make_main(option: str, program: str) -> None:
    """A new main module. Nothing but sys.modules and the program refers to it, so that the end can collect it."""
    main = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins, __loader__=BuiltinImporter)
    if not option:
        path = os.path.abspath(program)
        main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    sys.modules["__main__"] = main


def _run(option: str, program: str) -> BaseException | None:
    """Run the main module; returns what it raised, with this file's frames cut from the traceback."""
    try:
        if option == "-m":
            _run_module(program)
        else:
            exec(_compile(option, program), sys.modules["__main__"].__dict__)
    except BaseException as error:
        return error.with_traceback(_below(error.__traceback__))
    return None


def _compile(option: str, program: str) -> CodeType:
    if option:
        return compile(program, "<string>", "exec", dont_inherit=True)
    path = os.path.abspath(program)
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _below(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _report(error: BaseException | None) -> int:
    """What the interpreter does with what leaves the main module; returns the exit code."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return -_signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    sys.stderr.write(f"{error.code}\n")
    return 1


def _leave(code: int, modules: int) -> NoReturn:
    """End as an interpreter does: threads, atexit, buffers, then the finalizers of the program's objects."""
    if (threading := sys.modules.get("threading")) is not None:
        threading._shutdown()
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    flushed = _flush()
    imported = list(islice(reversed(sys.modules), max(len(sys.modules) - modules, 0)))
    for name in ("__main__", *imported):
        sys.modules.pop(name, None)
    gc.collect()
    flushed = flushed and _flush()
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if flushed else 120)


def _flush() -> bool:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError, AttributeError) as error:
            if stream is sys.stdout:
                print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.__stderr__)
            return False
    return True
