"""Run the tests of this folder and say in few words what failed.

    python run_tests.py            every tests/test_*.py
    python run_tests.py --values   read [{"setup": source, "calls": [expression]}] as JSON and print as JSON, for each
                                   call, [true, repr of its value] or [false, name of the error]

Only `test_*` functions with plain asserts are understood; pytest runs the same files. A test file is run statement by
statement, so that a failing assert can say the value it got and the next one still runs. Every assert has a budget of
executed lines, so that an endless loop is a failure like any other, the same on every machine. This file needs nothing
but the standard library and imports little of it: most of a short run is start-up.
"""

import builtins
import sys
from functools import lru_cache

LINE_BUDGET = 1500  # executed lines and calls per statement of a test; below the recursion limit
MAX_BITS, MAX_LENGTH = 20_000, 100_000  # of a value: what doubles at each line outgrows time and memory first
MAX_SHOWN = 4  # failures printed
MAX_REPR = 60  # characters of a printed value
MAX_TOLD = 14_000  # characters of all that --values prints
_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without the cost of importing ast


class NoEndError(BaseException):
    """The code under test ran through its line budget, or its values grew beyond use."""


CAUGHT = (Exception, NoEndError, SystemExit)  # what code under test may end with; Ctrl-C is not its doing


class Failure:
    """Why one assert did not hold."""

    def __init__(self, expression, outcome, place):
        self.expression = expression
        self.outcome = outcome
        self.place = place

    def __str__(self):
        return f"FAIL {self.expression} -> {self.outcome}" + (f" in {self.place}" if self.place else "")


class Modules:
    """Imports the modules under test from `read`, a function from path to source (None: no such file).

    Everything else is imported as usual. Nothing is cached on disk: a stale .pyc would hide an edit.
    """

    def __init__(self, read):
        self.read = read
        self.loaded = {}
        self.paths = set()  # of the modules under test
        self.builtins = dict(vars(builtins), __import__=self.import_)

    def namespace(self, name, path):
        return {"__name__": name, "__file__": path, "__builtins__": self.builtins}

    def import_(self, name, globals=None, locals=None, fromlist=(), level=0):  # noqa: A002
        if level:
            name = ".".join(filter(None, [(globals or {}).get("__name__", "").rpartition(".")[0], name]))
        top = self.load(name.partition(".")[0])
        if top is None:
            return builtins.__import__(name, globals, locals, fromlist, level)
        parts = name.split(".")
        module = top
        for end in range(2, len(parts) + 1):
            module = self.submodule(module, ".".join(parts[:end]))
        for wanted in fromlist or ():
            if not hasattr(module, wanted) and self.load(f"{name}.{wanted}") is not None:
                setattr(module, wanted, self.load(f"{name}.{wanted}"))
        return module if fromlist else top

    def submodule(self, parent, name):
        module = self.load(name)
        if module is None:
            raise ModuleNotFoundError(f"No module named {name!r}")
        setattr(parent, name.rpartition(".")[2], module)
        return module

    def load(self, name):
        if name not in self.loaded:
            path = name.replace(".", "/")
            for candidate in (path + ".py", path + "/__init__.py"):
                source = self.read(candidate)
                if source is not None:
                    break
            else:
                return None
            code = compiled(source, candidate)
            module = type(sys)(name)
            self.loaded[name] = module
            self.paths.add(candidate)
            vars(module).update(self.namespace(name, candidate))
            exec(code, vars(module))
        return self.loaded[name]

    def guarded(self, function, *arguments):
        """Call with a budget of lines of the code under test."""
        left = LINE_BUDGET

        def trace(frame, event, argument):
            nonlocal left
            if event == "call" and frame.f_code.co_filename not in self.paths:
                return None
            left -= 1
            if left < 0 or (left % 8 == 0 and outgrown(frame.f_locals.values())):
                raise NoEndError
            return trace

        previous = sys.gettrace()
        sys.settrace(trace)
        try:
            return function(*arguments)
        finally:
            sys.settrace(previous)


def outgrown(values):
    """Only plain values are asked: the length of another object is code under test."""
    return any(
        value.bit_length() > MAX_BITS if type(value) is int else type(value) in (str, list) and len(value) > MAX_LENGTH
        for value in values
    )


@lru_cache(maxsize=4096)
def compiled(source, path, mode="exec"):
    return compile(source, path, mode)


@lru_cache(maxsize=4096)
def parsed(source, path):
    """A test file as (setup code, [(test name, [statement])]); a statement is (code,) or (left, operator, right)."""
    tree = compile(source, path, "exec", _ONLY_AST)
    tests = []
    kept = []
    for node in tree.body:  # pyright: ignore[reportAttributeAccessIssue]
        if type(node).__name__ == "FunctionDef" and node.name.startswith("test_"):
            tests.append((node.name, [_statement(tree, s, source, path) for s in node.body]))
        else:
            kept.append(node)
    return _code(tree, kept, path), tests


def _code(tree, body, path):
    return compile(type(tree)(body=body, type_ignores=[]), path, "exec")


def _statement(tree, node, source, path):
    """The parts of a plain `assert left == right` (or `is`) as text; the code of any other statement."""
    if type(node).__name__ == "Assert" and node.lineno == node.end_lineno and type(node.test).__name__ == "Compare":
        test = node.test
        operators = [type(op).__name__ for op in test.ops]
        if operators in (["Eq"], ["Is"]):
            line = source.splitlines()[node.lineno - 1].encode()
            left, right = (line[p.col_offset : p.end_col_offset].decode() for p in (test.left, test.comparators[0]))
            return left, operators[0], right
    return (_code(tree, [node], path),)


def shown(value):
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= MAX_REPR else text[: MAX_REPR - 3] + "..."


def short(path):
    return path.rpartition("/")[2]


def explain(error, modules):
    """(what was raised, the function under test that raised it)."""
    outcome = "no end" if isinstance(error, NoEndError) else type(error).__name__
    if isinstance(error, SyntaxError):
        return outcome, place_of(error.filename or "", error.lineno)
    if isinstance(error, ImportError):
        return f"{outcome}: {error}", None
    place = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename in modules.paths:
            if code.co_name == "<module>":
                place = place_of(code.co_filename, trace.tb_lineno)
            elif not code.co_name.startswith("<"):  # a comprehension stands inside of its function
                place = start(code)
        trace = trace.tb_next
    return outcome, place


def start(code):
    """Where a function starts: an agent looks there first, whether it raised or returned a wrong value."""
    return place_of(code.co_filename, code.co_firstlineno)


def place_of(path, line):
    return f"{short(path)} line {line}"


def home(expression, namespace):
    """Where the function called in the expression starts."""
    called = namespace.get(expression.partition("(")[0])
    code = getattr(called, "__code__", None)
    return start(code) if code is not None else None


def run_test(statements, namespace, modules):
    """The failures of one test function."""
    failures = []
    for statement in statements:
        try:
            if len(statement) == 1:
                modules.guarded(exec, statement[0], namespace)
            else:
                left, operator, right = statement
                failures += check(left, operator, right, namespace, modules)
        except CAUGHT as error:
            failures.append(Failure(statement[0] if len(statement) > 1 else "assert", *explain(error, modules)))
            if len(statement) == 1:
                break
    return failures


def check(left, operator, right, namespace, modules):
    """The failure of one `assert left == right`, if any."""
    value = modules.guarded(eval, compiled(left, "<test>", "eval"), namespace)
    wanted = eval(compiled(right, "<test>", "eval"), namespace)
    holds = value is wanted if operator == "Is" else modules.guarded(lambda: bool(value == wanted))
    return [] if holds else [Failure(left, f"{shown(value)} not {right}", home(left, namespace))]


def run_file(path, modules):
    """[(test name, failures)] of one test file; a file that cannot be loaded fails all its tests with one reason."""
    setup, tests = parsed(modules.read(path), path)
    namespace = modules.namespace("test", path)
    try:
        modules.guarded(exec, setup, namespace)
    except CAUGHT as error:
        outcome, place = explain(error, modules)
        return [(name, [Failure("import", outcome, place)]) for name, _ in tests]
    return [(name, run_test(statements, dict(namespace), modules)) for name, statements in tests]


def run(read, paths):
    """[(test file, test name, failures)] of all test files; a broken test file is one failing test."""
    modules = Modules(read)
    results = []
    for path in paths:
        try:
            results += [(path, name, failures) for name, failures in run_file(path, modules)]
        except (SyntaxError, ValueError) as error:
            results.append((path, "", [Failure("import", *explain(error, modules))]))
    return results


def report(results):
    """The text an agent reads: a count, then first failures of as many tests as fit."""
    failing = [failures for _, _, failures in results if failures]
    if not failing:
        return f"all {len(results)} passed\n"
    lines = [f"{len(results) - len(failing)} of {len(results)} passed"]
    ranked = [failures[rank] for rank in range(2) for failures in failing if len(failures) > rank]
    texts = list(dict.fromkeys(str(failure) for failure in ranked))
    return "\n".join(lines + texts[:MAX_SHOWN]) + "\n"


def values(read, setup, calls):
    """The value of each call as [True, repr] or [False, name of the error]."""
    modules = Modules(read)
    namespace = modules.namespace("test", "")
    try:
        modules.guarded(exec, compile(setup, "<setup>", "exec"), namespace)
    except CAUGHT as error:
        return [[False, type(error).__name__]] * len(calls)
    answers = []
    for call in calls:
        try:
            value = modules.guarded(eval, compiled(call, "<call>", "eval"), namespace)
            answers.append([True, modules.guarded(repr, value)])
        except CAUGHT as error:
            answers.append([False, type(error).__name__])
    return answers


def all_values(read, parts):
    """What --values prints. Each answer has an equal share of what a sandbox passes on: a longer one fails alone, where
    a document that was cut would fail them all."""
    import json

    answers = [values(read, part["setup"], part["calls"]) for part in parts]
    share = MAX_TOLD // max(1, sum(map(len, answers)))
    return [[a if len(json.dumps(a)) <= share else [False, "too long"] for a in part] for part in answers]


def _read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs start-up time
            return file.read()
    except OSError:
        return None


def main():
    import os

    sys.dont_write_bytecode = True
    if sys.argv[1:] == ["--values"]:
        import json

        out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the code under test prints is nobody's answer
        answers = all_values(_read, json.load(sys.stdin))
        os.write(out, json.dumps(answers).encode())
        os._exit(0)
    found = os.listdir("tests")  # noqa: PTH208 - the same
    names = sorted(name for name in found if name.startswith("test_") and name.endswith(".py"))
    results = run(_read, [f"tests/{name}" for name in names])
    print(report(results), end="")
    return int(any(failures for _, _, failures in results))


if __name__ == "__main__":
    sys.exit(main())
