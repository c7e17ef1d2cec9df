"""The nouns: frozen, slotted, keyword-only data that every room shares.

Nothing here does anything. Each field says its unit or shape. Shape letters: T tokens of one sequence, N tokens of a
packed micro-batch, M trained tokens of a micro-batch, G attempts of a group, P groups of a step.
Arrays are plain tuples here (the standard library is all this file knows); rooms turn them into tensors at their door.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Json = Any
Advantages = Sequence[Sequence[float]]  # (G, turns): of the usable attempts of a group, one for each model call
PolicyVersion = int  # optimizer steps taken by the run when the weights were published; 0 is the warm start


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one attempt may spend. Reaching a limit is the policy's doing: it is scored."""

    turns: int = 16  # model calls
    tokens: int = 1024  # tokens of one conversation: prompt, replies and observations together
    calls: int = 64  # tool calls
    seconds: float = 600.0  # wall clock of the attempt, without its waits for the engine's queue and for a sandbox

    def __post_init__(self) -> None:
        if min(self.turns, self.tokens) < 1 or self.calls < 0 or not self.seconds >= 0:
            raise ValueError(f"limits of a task must leave it a turn and a token, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What code in one sandbox may spend."""

    memory_mb: int = 512
    processes: int = 64
    workspace_mb: int = 64
    output_kb: int = 64  # kept of each of stdout and stderr; the rest is counted
    seconds: float = 10.0  # default deadline of one exec


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """How a sandbox starts. Equal specs share one read-only lower layer."""

    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])  # path in the workspace -> content
    limits: SandboxLimits = SandboxLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: str  # system | user | assistant | tool
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. JSON all through, so that it can be journaled and sent."""

    id: str  # unique in its data set
    prompt: tuple[Message, ...] = ()
    data: Mapping[str, Json] = field(default_factory=dict[str, Json])  # columns: what score() or a reward may read
    family: str = ""  # statistics are shown per family
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    stop_ids: tuple[int, ...] = ()  # sampling one of these ends the reply; it is part of the reply


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One model call, in token ids."""

    key: str  # idempotency key, unique in the run
    ids: tuple[int, ...]  # (T,) the whole prompt
    sampling: Sampling
    seed: int  # the sampled tokens are a function of (weights, ids, sampling, seed) alone
    seconds: float = math.inf  # of running, after the queue: then the reply ends as it is, cancelled


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"  # by Engine.cancel(), or out of time


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the engine sampled: the record that is trained."""

    ids: tuple[int, ...]  # (T,)
    logprobs: tuple[float, ...]  # (T,) nats, under the distribution really sampled from (temperature, top-p, top-k)
    log_mass: tuple[float, ...]  # (T,) log of the probability kept by top-p/top-k; 0.0 when nothing was cut
    versions: tuple[PolicyVersion, ...]  # (T,) weights each token was sampled with
    finish: Finish
    cached_tokens: int = 0  # prompt tokens answered from the prefix cache
    queue_s: float = 0.0  # seconds waited before the first forward pass
    run_s: float = 0.0  # seconds from there to the last token


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    version: PolicyVersion = 0
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0  # since start
    cached_tokens: int = 0
    output_tokens: int = 0
    busy_s: float = 0.0  # seconds spent in forward passes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    exit_code: int | None  # None: killed before it could exit
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    oom_killed: bool = False
    dropped_bytes: int = 0  # output beyond the limit, counted and thrown away
    seconds: float = 0.0


# --- the record of an attempt ---------------------------------------------------------------------------------------

Score = Mapping[str, float] | float | None  # None is unscored: it leaves the baseline, it is never 0.0


class Outcome(StrEnum):
    """The one terminal state of an attempt (failure table: errors.py)."""

    DONE = "done"
    POLICY = "policy"  # the policy's failure: scored, in the baseline
    INFRASTRUCTURE = "infrastructure"  # retried; never scored
    TASK = "task"  # the task's or the reward's fault; never scored
    CONTROL = "control"  # cancelled, superseded, surplus; never scored


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A node of the call graph: the token delta after its longest-prefix parent, and what was sampled."""

    index: int  # position in Trajectory.calls
    parent: int | None  # index of the ModelCall whose prompt + reply is a prefix of this prompt
    delta_ids: tuple[int, ...]  # prompt tokens after the parent's prompt + reply: what the environment said
    completion: Completion
    temperature: float = 1.0
    started_s: float = 0.0  # seconds on the run's clock
    ended_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    index: int
    key: str  # idempotency key: trajectory, attempt, call
    name: str
    arguments: Mapping[str, Json]
    result: str
    error: str | None = None  # a typed reason when the call was refused or failed
    progress: float | None = None  # what the attempt would be rewarded with if it ended now, where that is known
    started_s: float = 0.0
    ended_s: float = 0.0


Call = ModelCall | ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one attempt."""

    id: str  # "<group>.<member>.<attempt>"
    task_id: str
    group_id: str
    member: int  # place in the group, 0..G-1: part of the seed
    attempt: int  # 0 for the first execution, +1 for each retry
    calls: tuple[Call, ...]
    outcome: Outcome
    reason: str = ""  # why it ended, for the ends that are not plain completion: "turn limit", "engine unreachable"
    score: Score = None
    reward: float | None = None  # the scalar that is trained; None: not usable
    started_s: float = 0.0
    ended_s: float = 0.0

    @property
    def model_calls(self) -> tuple[ModelCall, ...]:
        return tuple(call for call in self.calls if isinstance(call, ModelCall))

    @property
    def usable(self) -> bool:
        return self.reward is not None and self.outcome in (Outcome.DONE, Outcome.POLICY)

    @property
    def solved(self) -> bool:
        """The part `solved` of its score, else its reward, is at least 1."""
        if not self.usable:
            return False
        value = self.score.get("solved", self.reward) if isinstance(self.score, Mapping) else self.reward
        return value is not None and value >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The attempts of one task that share a baseline."""

    id: str
    index: int  # admission number in the run, from 0
    task: Task
    epoch: int
    trajectories: tuple[Trajectory, ...]  # (G,) the last attempt of each member
    version_first: PolicyVersion  # oldest version that sampled a token of it

    @property
    def usable(self) -> tuple[Trajectory, ...]:
        return tuple(t for t in self.trajectories if t.usable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How attempts went, counted once for events, progress and results."""

    successes: int
    scored: int
    unscored: int  # infrastructure and the like: they say nothing of the policy
    reward: float | None  # mean over the scored

    @classmethod
    def of(cls, groups: Iterable[Group]) -> Tally:
        trajectories = [t for group in groups for t in group.trajectories]
        rewards = [t.reward for t in trajectories if t.usable and t.reward is not None]
        return cls(
            successes=sum(t.solved for t in trajectories),
            scored=len(rewards),
            unscored=len(trajectories) - len(rewards),
            reward=sum(rewards) / len(rewards) if rewards else None,
        )


# --- what is trained ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training row: a root-to-leaf path of a trajectory's call graph."""

    group_id: str
    trajectory_id: str
    ids: tuple[int, ...]  # (T,)
    mask: tuple[bool, ...]  # (T,) True where this row trains the token (sampled, and not trained by another row)
    logprobs: tuple[
        float, ...
    ]  # (T,) nats of the sampler over the untruncated distribution at `temperature`; 0 elsewhere
    versions: tuple[PolicyVersion, ...]  # (T,) -1 where not sampled
    advantages: tuple[float, ...]  # (T,) 0 where not trained
    temperature: float
    weight: float  # of each trained token in the loss, already normalised over the whole step


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of packed tokens that attends causally to itself and fully to the segments in `context`."""

    start: int
    end: int
    context: tuple[tuple[int, int], ...] = ()  # (start, end) of the ancestors, root first


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Packed rows without padding; shared prefixes stand once.

    Row m of the loss is the token `target_ids[m]`, predicted from the hidden state at packed position `sources[m]`.
    """

    ids: Sequence[int]  # (N,)
    positions: Sequence[int]  # (N,) position of each token in its own sequence
    segments: tuple[Segment, ...]
    sources: Sequence[int]  # (M,)
    target_ids: Sequence[int]  # (M,)
    logprobs: Sequence[float]  # (M,) nats, sampler
    advantages: Sequence[float]  # (M,)
    weights: Sequence[float]  # (M,)
    temperatures: Sequence[float]  # (M,)
    versions: Sequence[PolicyVersion]  # (M,)
    sequences: Sequence[int]  # (M,) which trajectory of the step the token belongs to, for sequence-level ratios
    rows: int = 0  # samples packed here
    row_tokens: int = 0  # tokens these samples would take without shared prefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What a loss sees beside the new logprobs: float tensors (M,) unless said otherwise (torch is not known here)."""

    logprobs_M: Any  # nats, sampler's, over the untruncated distribution at the sampling temperature
    advantages_M: Any
    weights_M: Any  # normalised over the step: a loss is sum(weights_M * per_token_M)
    staleness_M: Any  # int, consuming version minus the version the token was sampled with
    sequences_M: Any  # int64, trajectory of the step
    reference_M: Any  # nats, reference model; None when the run has none


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one optimizer step did. Metrics are means over trained tokens unless the name says otherwise."""

    metrics: Mapping[str, float]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the journal. `arrays` hold numbers beside the JSON payload, as binary."""

    kind: str  # dotted: "run.started", "group.admitted", "model.sampled", "tool.returned", "step.committed", ...
    trajectory: str = ""  # "" for events of the run
    data: Mapping[str, Json] = field(default_factory=dict[str, Json])
    arrays: Mapping[str, Sequence[int] | Sequence[float]] = field(default_factory=dict[str, Any])
    at_s: float = 0.0  # seconds since the epoch
    seq: int = -1  # given by the journal
