"""The command line: parses, prints, and turns errors into one sentence and an exit code. Loads torch in no case itself.

Exit codes: 0 done; 1 the run failed (its directory stays valid); 2 bad input; 130 interrupted.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import pkgutil
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from longtail.config import Config, changed, dotted, load_config
from longtail.errors import LongtailError, UserError, first_cause

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

P = ParamSpec("P")
T = TypeVar("T")
app = typer.Typer(
    name="longtail",
    help="Train LLM agents with reinforcement learning: one loop, durable runs, real sandboxes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Configs = Annotated[
    list[Path], typer.Argument(help="TOML files; later ones override earlier ones.", show_default=False)
]
Overrides = Annotated[
    list[str], typer.Option("-o", help="key.sub=value, in TOML syntax; may be given again.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, nothing else.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print what would run, start nothing.")]
RunDir = Annotated[str, typer.Option(help="Where the run lives; default: runs/<name>.", show_default=False)]


def main() -> None:
    """Entry point of the `longtail` script."""
    stdout: Any = sys.stdout
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(errors="replace")  # an episode may hold what the terminal's encoding does not
    app()


# --- errors and interrupts ------------------------------------------------------------------------------------------


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Errors made on purpose become one sentence on stderr and an exit code; any other is a bug and keeps its trace."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (LongtailError, OSError, ExceptionGroup) as error:
            cause = first_cause(error)
            if cause is None:
                raise
            print(f"longtail: {_sentence(cause)}", file=sys.stderr)
            raise typer.Exit(BAD_INPUT if isinstance(cause, UserError) else FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return wrapper


def _sentence(error: Exception) -> str:
    from longtail.observe.text import printable

    return printable(" ".join(str(error).split())) or type(error).__name__


RESUMABLE = "stopped; the same command resumes"


def run_until_done(work: Coroutine[Any, Any, T], say: Callable[[str], None], stopped: str = RESUMABLE) -> T:
    """Run to the end. The first Ctrl-C (or SIGTERM) cancels the work, which stops cleanly; the second ends at once."""

    interrupts = 0

    async def guard() -> T:
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()

        def stop() -> None:
            say("stopping; press Ctrl-C again to stop at once")
            task.cancel()

        def interrupt(*_: Any) -> None:
            nonlocal interrupts
            interrupts += 1
            if interrupts > 1:
                _end_now()
            loop.call_soon_threadsafe(stop)

        before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return await task
        except asyncio.CancelledError:
            say(stopped)
            raise typer.Exit(INTERRUPTED) from None
        finally:
            if not interrupts:  # else threads and processes may still be at work, and are waited for
                for number, handler in before.items():
                    signal.signal(number, handler)

    return asyncio.run(guard())


def _end_now(*_: Any) -> NoReturn:
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # the live display hid the cursor
    os._exit(INTERRUPTED)


@contextmanager
def _progress(as_json: bool) -> Generator[Any]:
    from longtail.observe.progress import open_progress

    progress = open_progress(as_json=as_json)
    try:
        yield progress
    finally:
        progress.close()


def _teller(progress: Any) -> Callable[[str], None]:
    return lambda text: progress.tell("message", {"text": text})


# --- running --------------------------------------------------------------------------------------------------------


@app.command()
@guarded
def train(
    configs: Configs,
    o: Overrides = [],  # noqa: B006 typer reads it only
    run_dir: RunDir = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Train a policy. The same command again resumes the run."""
    config = _load(configs, o, run_dir)
    from longtail.build import check_sandboxes, prepare
    from longtail.identity import check_directory

    problem = prepare(config)
    if dry_run:
        check_directory(config)
        facts = {
            "directory": str(config.directory),
            "roles": f"sampler, trainer ({config.cluster})",
            "attempts per step": config.groups_per_step * config.rollout.group_size,
            "training tasks": len(problem.tasks),
            **_counts(problem.evaluations),
        }
        _print_plan(config, {**facts, "sandbox": asyncio.run(check_sandboxes(problem))}, as_json)
        return
    from longtail.drive import train_run

    with _progress(as_json) as progress:
        run_until_done(train_run(problem, progress), _teller(progress))


@app.command(name="eval")
@guarded
def evaluate(
    what: Annotated[list[Path], typer.Argument(help="A run directory, or TOML files.", show_default=False)],
    checkpoint: Annotated[str, typer.Option(help="A model directory; default: the run's last checkpoint.")] = "",
    tasks: Annotated[int, typer.Option(help="Tasks of each split; 0: as configured.")] = 0,
    split: Annotated[list[str], typer.Option(help="May be given again.", show_default=False)] = [],  # noqa: B006
    o: Overrides = [],  # noqa: B006
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Measure success on evaluation tasks, with 95 % intervals."""
    config, model = _evaluated(what, o, checkpoint)
    changes = {**({"tasks": tasks} if tasks else {}), **({"splits": tuple(split)} if split else {})}
    config = changed(config, {"eval": changes, "model": {"path": model}})
    from longtail.build import check_sandboxes, prepare

    problem = prepare(config)
    if not problem.evaluations:
        raise UserError("nothing to evaluate; expected [env] and eval.tasks >= 1 in the configuration")
    if dry_run:
        facts = {"model": model, "roles": f"sampler ({config.cluster})", **_counts(problem.evaluations)}
        _print_plan(config, {**facts, "sandbox": asyncio.run(check_sandboxes(problem))}, as_json)
        return
    from longtail.drive import evaluate_run

    with _progress(as_json) as progress:
        work = evaluate_run(problem, model, progress)
        result = run_until_done(work, _teller(progress), "stopped; an evaluation is not kept, it starts again")
        progress.tell("result", result)


@app.command()
@guarded
def sft(
    configs: Configs,
    o: Overrides = [],  # noqa: B006
    run_dir: RunDir = "",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Teach a policy by imitation, as a warm start."""
    config = _load(configs, o, run_dir)
    from longtail.sft import check_sft
    from longtail.sft import sft as fit

    if dry_run:
        how = check_sft(config)
        facts = {"directory": str(config.directory), "chats": how.count, "held out": how.held_out}
        _print_plan(config, facts, as_json)
        return
    with _progress(as_json) as progress:
        run_until_done(_follow(fit(config), progress), _teller(progress))
        progress.tell("result", {"model": str(config.directory / "model")})


async def _follow(reports: AsyncGenerator[Any], progress: Any) -> None:
    names = {"loss": "train/loss", "tokens_per_second": "tokens_per_s"}
    async for report in reports:
        data = {names.get(name, name): value for name, value in asdict(report).items()}
        progress.tell("step", data)


def _load(configs: list[Path], overrides: list[str], run_dir: str) -> Config:
    return load_config(configs, [*overrides, *([f"run_dir={json.dumps(run_dir)}"] if run_dir else [])])


def _evaluated(what: list[Path], overrides: list[str], checkpoint: str) -> tuple[Config, str]:
    """The configuration, and the model directory or name to measure."""
    if not what[0].is_dir():
        config = load_config(what, overrides)
        return config, checkpoint or config.model.path
    if len(what) > 1 or overrides:
        raise UserError(f"{what[0]} is a run, which has its configuration; expected nothing beside it, and no -o")
    from longtail.journal import standing
    from longtail.runs import read_config

    config, stands = read_config(what[0]), standing(what[0])
    return config, checkpoint or (str(what[0] / stands.checkpoint) if stands.checkpoint else config.model.path)


def _counts(evaluations: Mapping[str, Any]) -> dict[str, int]:
    return {f"evaluation tasks, {split}": len(tasks) for split, tasks in evaluations.items()}


def _print_plan(config: Config, facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"config": config.model_dump(mode="json"), "plan": facts}))
        return
    for key, value in dotted(config.model_dump(mode="json")).items():
        if value is not None:
            print(f"{key} = {json.dumps(value)}")
    print()
    for name, value in facts.items():
        print(f"{name}: {value}")


# --- looking --------------------------------------------------------------------------------------------------------


@app.command()
@guarded
def show(
    run: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
    trajectory: Annotated[str, typer.Argument(help="An id from the list; default: list them.")] = "",
    failed: Annotated[bool, typer.Option("--failed", help="Only those that ended unsolved.")] = False,
    solved: Annotated[bool, typer.Option("--solved", help="Only the solved ones.")] = False,
    limit: Annotated[int, typer.Option(help="The last so many; 0: all.", min=0)] = 50,
    episode: Annotated[bool, typer.Option("--episode", help="Print the last one of the list instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the trajectories of a run, or print one so that it can be followed."""
    from longtail.journal import list_trajectories
    from longtail.observe import show as view

    if not trajectory:
        lines = view.select(list_trajectories(run), failed=failed, solved=solved, limit=limit)
        if not lines:
            raise UserError(f"{run} has no such trajectory yet")
        if not episode:
            _print_lines(view.table(lines)) if not as_json else print(json.dumps([asdict(line) for line in lines]))
            return
        trajectory = lines[-1].id
    _show_episode(run, trajectory, as_json)


def _show_episode(run: Path, trajectory: str, as_json: bool) -> None:
    from longtail.observe import show as view
    from longtail.observe.episode import blocks, facts
    from longtail.runs import read_episode, renderer_or_reason

    record = read_episode(run, trajectory)
    renderer, reason = renderer_or_reason(run)
    if reason:
        print(f"longtail: {reason}", file=sys.stderr)
    if as_json:
        said = [asdict(block) for block in blocks(record, renderer)]
        print(json.dumps({**dict(facts(record)), "blocks": said}))
    else:
        _print_lines(view.page(record, renderer))


def _print_lines(lines: Any) -> None:
    console = Console(soft_wrap=True, highlight=False)
    line: Text
    for line in lines:
        console.print(line)


@app.command()
@guarded
def runs(
    directory: Annotated[Path, typer.Argument(help="A run, or the directory that holds runs.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs: status, step, success, start."""
    from longtail.runs import RunStatus, find_runs, read_status, status_lines

    found: list[RunStatus] = []
    for path in find_runs(directory):
        try:
            found.append(read_status(path))
        except UserError as error:  # one that cannot be read does not hide the others
            print(f"longtail: {_sentence(error)}", file=sys.stderr)
    if as_json:
        print(json.dumps([{**asdict(one), "directory": str(one.directory)} for one in found]))
        return
    if not found:
        raise UserError(f"no run in {directory}")
    for line in status_lines(found):
        print(line)


@app.command()
@guarded
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can do, and what to install for the rest."""
    from longtail.doctor import examine, lines_of

    findings = examine(Path.cwd())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
        return
    for line in lines_of(findings):
        print(line)


@app.command()
@guarded
def bench(
    name: Annotated[str, typer.Argument(help="generate, train or lag", show_default=False)], as_json: AsJson = False
) -> None:
    """Measure this installation; one record a line."""
    package = importlib.import_module("longtail.bench")
    known = sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))
    if name not in known:
        raise UserError(f"unknown bench '{name}'; expected one of: {', '.join(known)}")
    from longtail.build import check_installed

    check_installed()
    for record in importlib.import_module(f"longtail.bench.{name}").records():
        print(json.dumps(record) if as_json else "  ".join(f"{k} {v}" for k, v in record.items()), flush=True)
