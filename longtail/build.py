"""Turns a Config into a Run: the only file that chooses implementations.

Everything that can be wrong with the input is found here, before a process starts or a file is written.
"""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

from longtail import events
from longtail.algorithms.presets import Algorithm, preset
from longtail.cluster.inline import InlineCluster
from longtail.cluster.processes import ProcessCluster
from longtail.config import Config, EngineConfig, TrainerConfig
from longtail.errors import InfrastructureError, LongtailError, UserError
from longtail.fakes import MemoryJournal, NoTrace
from longtail.identity import check_directory, manifest
from longtail.journal import SqliteJournal
from longtail.loop import Run
from longtail.models.load import resolve
from longtail.named import check_rollout, check_task, load_rollout, load_tasks
from longtail.ports import (
    Cluster,
    Engine,
    Journal,
    Renderer,
    RolloutFn,
    Rollouts,
    Sandbox,
    Sandboxes,
    Tracer,
    Trainer,
)
from longtail.rollout.attempt import World
from longtail.rollout.scheduler import Plan, Scheduler
from longtail.sandboxes.probe import enforcement, open_sandboxes
from longtail.types import Group, Message, Sampling, SandboxSpec, StepResult, Task
from longtail.weights.files import FileWeights
from longtail.weights.place import weight_directory
from longtail.whole import WholeSteps


class SystemClock:
    """Implements ports.Clock."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds)


class Watch(Protocol):
    """What looks at a run while it goes: observe.Observer."""

    @property
    def trace(self) -> Tracer: ...

    def report(self, step: int, groups: Sequence[Group], result: StepResult) -> None: ...

    def report_evaluation(self, step: int, split: str, groups: Sequence[Group]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a run is about, checked: nothing was started for it yet."""

    config: Config
    rollout: RolloutFn
    tasks: Sequence[Task]
    evaluations: Mapping[str, Sequence[Task]]
    algorithm: Algorithm
    renderer: Renderer


def prepare(config: Config, rollout: RolloutFn | None = None, tasks: Sequence[Task] | None = None) -> Problem:
    """Find and check everything that the config names. Raises UserError."""
    evaluations: dict[str, Sequence[Task]] = {}
    if rollout is None or tasks is None:
        named = config.env
        if named is None:
            raise UserError("the configuration has no [env] section; expected env.entry and env.tasks")
        rollout = load_rollout(named.entry, named.params)
        tasks = load_tasks(named.tasks, "train", named.num_tasks, config.seed, named.task_params)
        if config.eval.tasks:
            evaluations = {
                split: load_tasks(named.tasks, split, config.eval.tasks, config.eval.seed, named.task_params)
                for split in config.eval.splits
            }
    else:
        check_rollout(rollout)
        if len(tasks):
            check_task(tasks[0], "the tasks")  # load_tasks() has looked at those that are named
    if not len(tasks):
        raise UserError("the training tasks are empty; expected at least one")
    if (check := getattr(rollout, "__longtail_check__", None)) is not None:
        check(tasks[0])
    algorithm = preset(config.algorithm.name, config.algorithm.overrides)
    if config.max_lag >= 1 and not algorithm.off_policy_correction:
        raise UserError(
            f"max_lag={config.max_lag} trains on older versions, but algorithm '{algorithm.name}' declares no "
            "correction; set algorithm.overrides.importance_cap (2.0 is usual) or max_lag=0"
        )
    check_installed()
    check_weights(config.model.path)
    renderer = open_renderer(config.model.path)
    if tasks[0].prompt:  # a template that cannot show it, or what an environment says, is refused here
        renderer.start(tasks[0].prompt)
    for role in getattr(rollout, "__longtail_roles__", ()):
        renderer.more([Message(role=role, content="")], ended=True)
    return Problem(
        config=config,
        rollout=rollout,
        tasks=tasks,
        evaluations=evaluations,
        algorithm=algorithm,
        renderer=renderer,
    )


def check_installed() -> None:
    for module in ("torch", "transformers"):
        if importlib.util.find_spec(module) is None:
            raise UserError(f"{module} is not installed; training needs it: pip install 'longtail[torch]'")


def check_weights(model: str) -> None:
    """Raises UserError for a local model without a file of weights."""
    where = resolve(model)
    if isinstance(where, Path) and not any(file.suffix in (".safetensors", ".bin") for file in where.iterdir()):
        raise UserError(f"model '{model}': {where} holds no weights; expected *.safetensors")


def open_renderer(model: str) -> Renderer:
    """What a model makes of text; it shows that there is such a model, and that it can chat. Raises UserError."""
    from longtail.engines.renderer import HFRenderer

    return HFRenderer(model)


# --- roles: built in their own process by cluster/role.py ------------------------------------------------------------


def make_engine(model: str, config: EngineConfig, threads: int) -> Engine:
    from longtail.engines.local import LocalEngine

    return LocalEngine(model, config, threads)


def make_trainer(
    model: str, config: TrainerConfig, num_steps: int, threads: int, seed: int, reference: bool
) -> Trainer:
    from longtail.trainers.trainer import TorchTrainer

    return TorchTrainer(model, config, num_steps=num_steps, threads=threads, seed=seed, reference=reference)


# --- a run -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_run(problem: Problem, watch: Watch) -> AsyncGenerator[Run]:
    """Start what a run is made of, and stop it at the end. Raises UserError and InfrastructureError."""
    config, clock = problem.config, SystemClock()
    directory = config.directory
    async with AsyncExitStack() as stack:
        journal = SqliteJournal.open(  # first: its lock makes the directory ours
            directory, checkpoint_every=config.trainer.checkpoint_every, keep=config.trainer.keep, wall=clock.wall
        )
        stack.push_async_callback(journal.close)
        sandboxes = open_sandbox_level(problem, directory / "sandboxes")
        stack.push_async_callback(sandboxes.close)
        past = check_directory(config)
        cluster = make_cluster(config, directory / "logs")
        stack.push_async_callback(cluster.close)
        engine, trainer = await start_roles(cluster, problem)
        # only now: a model that cannot be loaded must not make this directory refuse the corrected command
        limits = "; ".join(f"{limit}: {how}" for limit, how in enforcement(sandboxes).items())
        known = {**manifest(config), "sandbox": sandboxes.level, "sandbox limits": limits}
        await journal.append(events.run_started(manifest=known, config=config.model_dump(mode="json")))
        world = make_world(problem, engine, sandboxes, journal, watch.trace, clock)
        place = stack.enter_context(weight_directory(directory, weight_bytes(config.model.path)))
        whole = WholeSteps(trainer, journal, FileWeights(place, [engine], journal, clock), watch.report)
        try:
            yield Run(
                config=config,
                journal=whole.journal,
                trainer=whole.trainer,
                weights=whole.weights,
                rollouts=Scheduler(world, problem.tasks, make_plan(config), journal.position),
                algorithm=problem.algorithm,
                trace=watch.trace,
                evaluations=problem.evaluations,
                report=whole.report,
                report_evaluation=watch.report_evaluation,
                evaluated=set(past.evaluations),
            )
        except BaseException as error:
            with suppress(LongtailError):  # a full disk has no room for this line either
                await journal.stop(
                    f"{type(error).__name__}: {error}".removesuffix(": "),
                    save=whole.settled and isinstance(error, asyncio.CancelledError),
                )
            raise


@asynccontextmanager
async def open_evaluation(problem: Problem, model: str) -> AsyncGenerator[Rollouts]:
    """An engine with the weights of `model` and a scheduler to roll out with, without trainer and journal."""
    config, clock = problem.config, SystemClock()
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(_scratch())
        sandboxes = open_sandbox_level(problem, directory / "sandboxes")
        stack.push_async_callback(sandboxes.close)
        cluster = make_cluster(config, directory)
        stack.push_async_callback(cluster.close)
        engine = await start_sampler(cluster, config, model)
        world = make_world(problem, engine, sandboxes, MemoryJournal(), NoTrace(), clock)
        plan = replace(make_plan(config), num_steps=0)
        yield await stack.enter_async_context(Scheduler(world, problem.tasks, plan).start(0))


@contextmanager
def _scratch() -> Generator[Path]:
    """A directory that goes at the end, unless an error names the logs in it."""
    directory = Path(tempfile.mkdtemp(prefix="longtail-eval-"))
    try:
        yield directory
    except InfrastructureError:
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory, ignore_errors=True)


def make_cluster(config: Config, logs: Path) -> Cluster:
    return InlineCluster() if config.cluster == "inline" else ProcessCluster(logs)


async def start_roles(cluster: Cluster, problem: Problem) -> tuple[Engine, Trainer]:
    """The sampler and the trainer, started side by side."""
    config = problem.config
    engine, trainer = await asyncio.gather(
        start_sampler(cluster, config, config.model.path),
        cluster.start(
            "trainer",
            "longtail.build:make_trainer",
            model=config.model.path,
            config=config.trainer,
            num_steps=config.num_steps,
            threads=config.model.threads,
            seed=config.seed,
            reference=problem.algorithm.needs_reference,
        ),
    )
    return engine, cast("Trainer", trainer)


async def start_sampler(cluster: Cluster, config: Config, model: str) -> Engine:
    role = await cluster.start(
        "sampler", "longtail.build:make_engine", model=model, config=config.engine, threads=config.model.threads
    )
    return cast("Engine", role)


def make_world(
    problem: Problem, engine: Engine, sandboxes: Sandboxes, journal: Journal, trace: Tracer, clock: SystemClock
) -> World:
    return World(
        rollout=problem.rollout,
        engine=engine,
        renderer=problem.renderer,
        sandboxes=sandboxes,
        journal=journal,
        trace=trace,
        clock=clock,
        attempt_s=problem.config.rollout.attempt_s,
    )


def make_plan(config: Config) -> Plan:
    rollout = config.rollout
    return Plan(
        seed=config.seed,
        num_steps=config.num_steps,
        groups_per_step=config.groups_per_step,
        group_size=rollout.group_size,
        max_lag=config.max_lag,
        max_attempts=rollout.max_attempts,
        min_usable=rollout.min_usable,
        retries=rollout.retries,
        backoff_s=rollout.backoff_s,
        stall_s=rollout.stall_s,
        failure_limit=rollout.failure_limit,
        sampling=Sampling(**config.sampling.model_dump()),
    )


def open_sandbox_level(problem: Problem, directory: Path) -> Sandboxes:
    """Raises UserError when a sandbox may be asked for and the level does not work here."""
    if not getattr(problem.rollout, "__longtail_sandbox__", True):
        return NoSandboxes()
    sandbox = problem.config.sandbox
    return open_sandboxes(sandbox.level, directory, sandbox.max_live)


class NoSandboxes:
    """For rollouts that never ask for one: such a run starts where no sandbox works. Implements ports.Sandboxes."""

    level = "not needed"

    async def create(self, spec: SandboxSpec) -> Sandbox:
        raise UserError("a reward function has no sandbox; write an environment")

    async def close(self) -> None: ...


async def check_sandboxes(problem: Problem) -> str:
    """The level that the run would have. Raises UserError when it does not work here."""
    with tempfile.TemporaryDirectory(prefix="longtail-check-") as directory:
        sandboxes = open_sandbox_level(problem, Path(directory))
        await sandboxes.close()
    return sandboxes.level


def weight_bytes(model: str) -> int:
    """Room for two versions in float32 and some more; the files may hold them in half of that."""
    where = resolve(model)
    if isinstance(where, str):
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(where, "config.json")
        where = Path(found).parent if isinstance(found, str) else Path()
    files = list(where.glob("*.safetensors")) or list(where.glob("*.bin"))
    return 5 * sum(file.stat().st_size for file in files)
