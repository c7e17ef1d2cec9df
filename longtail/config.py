"""The configuration: frozen, strict, one default per knob. TOML layers, then `-o key=value`.

An unknown key, a value of the wrong type or a missing file is a UserError of one sentence that names the nearest
known key.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from longtail.errors import UserError

Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelConfig(Section):
    path: str = Field(default="tiny-repair", description="a directory, a Hugging Face id, or a registered name")
    threads: int = Field(default=0, ge=0, description="torch threads per role; 0: all cores")


class EngineConfig(Section):
    max_running: int = Field(default=64, ge=1, description="sequences decoded together")
    max_length: int = Field(default=0, ge=0, description="tokens of prompt and reply; 0: what the model can")
    prefill_tokens: int = Field(default=2048, ge=16, description="prompt tokens of one forward pass")
    cache_tokens: int = Field(default=200_000, ge=0, description="tokens kept in the prefix cache")


class SamplingConfig(Section):
    max_tokens: int = Field(default=64, ge=1, description="tokens of one reply")
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1, description="1: all tokens")
    top_k: int = Field(default=0, ge=0, description="0: all tokens")


class RolloutConfig(Section):
    group_size: int = Field(default=8, ge=1, description="attempts of one task")
    max_attempts: int = Field(default=128, ge=1, description="attempts that run at once")
    retries: int = Field(default=3, ge=0, description="further attempts after an infrastructure failure")
    backoff_s: float = Field(default=0.5, ge=0, description="first wait before a retry; doubles")
    min_usable: int = Field(default=2, ge=1, description="a group with fewer scored attempts is dropped")
    attempt_s: float = Field(
        default=600.0,
        gt=0,
        description="an attempt that has not ended after so many seconds is retried; at least 60 more than the time "
        "limit of its task, at which it is scored",
    )
    stall_s: float = Field(
        default=900.0,
        gt=0,
        description="no finished attempt for so long stops the run, as long as none in flight may take longer",
    )
    failure_limit: float = Field(
        default=0.5, gt=0, le=1, description="share of infrastructure failures in a step above which the run stops"
    )


class AlgorithmConfig(Section):
    name: str = Field(default="grpo", description="a preset: grpo, dr_grpo, rloo, gspo, reinforce")
    overrides: dict[str, Any] = Field(default_factory=dict, description="fields of the preset to change")


class TrainerConfig(Section):
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw", description="muon: for the matrices inside the network, with AdamW for the rest"
    )
    lr: float = Field(default=1e-4, gt=0, description="after the warm-up")
    scale_lr: float = Field(
        default=0.0, ge=0, description="of the log of the scale of all logits, beside the rest; 0: not on its own"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="after the warm-up; linear and cosine fall to 0 after the last step"
    )
    warmup_steps: int = Field(default=0, ge=0)
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, gt=0, description="largest norm of the gradient")
    checkpoint_every: int = Field(default=1, ge=1, description="steps")
    keep: int = Field(default=2, ge=1, description="newest checkpoints kept")


class EnvConfig(Section):
    entry: str = Field(description='"package.module:name" of a RolloutFn, an environment class or a reward function')
    params: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the environment class, or of longtail.reward()"
    )
    tasks: str = Field(description='"package.module:function" called with (split, count, seed, **task_params)')
    task_params: dict[str, Any] = Field(default_factory=dict, description="further arguments of env.tasks")
    num_tasks: int = Field(default=100_000, ge=1, description="training tasks of one epoch")


class EvalConfig(Section):
    every: int = Field(default=0, ge=0, description="steps between evaluations; 0: only before and after")
    tasks: int = Field(default=200, ge=0, description="of each split; 0: no evaluation")
    splits: tuple[str, ...] = Field(default=("test",), description="of env.tasks; the first is the headline")
    seed: int = Field(default=1_000_003, description="that the tasks are drawn with")
    temperature: float = Field(default=1.0, gt=0)


class SandboxConfig(Section):
    level: Literal["auto", "bwrap", "none"] = Field(
        default="auto", description="auto: the strongest level that works here, never none"
    )
    max_live: int = Field(default=256, ge=1, description="sandboxes at once")


class SftConfig(Section):
    examples: str = Field(
        description='"package.module:function" called with (count, seed, **params), yields that many chats (lists of '
        "messages); called again with other seeds for further parts and for those held out, which must be other chats"
    )
    params: dict[str, Any] = Field(default_factory=dict, description="further arguments of sft.examples")
    count: int = Field(default=10_000, ge=1, description="chats to learn from")
    held_out: int = Field(default=200, ge=1, description="further chats to measure on")
    epochs: int = Field(default=1, ge=1)
    batch_tokens: int = Field(default=8192, ge=64, description="of one optimizer step")
    max_length: int = Field(default=2048, ge=16, description="tokens; longer chats are left out")
    observation_weight: float = Field(
        default=0.0, ge=0, description="loss weight of tokens that the policy does not say"
    )
    eval_every: int = Field(default=100, ge=1, description="steps")
    save_every: int = Field(default=0, ge=0, description="steps; 0: only at the end and on Ctrl-C")
    vocab_size: int = Field(default=1024, ge=300, description='of the tokenizer made for model.path = "new"')
    tokenizer_chats: int = Field(default=3000, ge=1, description="chats that this tokenizer is trained on")
    shape: dict[str, Any] = Field(default_factory=dict, description="LlamaConfig fields of the new model")
    copy_steps: int = Field(
        default=0, ge=0, description="steps in which the new model learns to copy, before it sees the chats"
    )


class Config(Section):
    """One run."""

    name: str = Field(default="run", description="of the run; its directory is `runs/NAME`")
    seed: int = Field(default=0, description="of tasks and sampling")
    num_steps: int = Field(default=10, ge=0, description="optimizer steps")
    groups_per_step: int = Field(default=16, ge=1, description="tasks of one step, each tried group_size times")
    max_lag: int = Field(default=0, ge=0, description="0: on-policy; k: rollouts may run k versions behind")
    tokens_per_microbatch: int = Field(default=8192, ge=64, description="tokens of one forward and backward pass")
    run_dir: str = Field(default="", description="default: `runs/NAME`")
    cluster: Literal["processes", "inline"] = Field(default="processes", description="inline: roles in this process")
    env: EnvConfig | None = None
    sft: SftConfig | None = None
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    eval: EvalConfig = EvalConfig()
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if self.rollout.min_usable > self.rollout.group_size:
            raise ValueError(
                f"rollout.min_usable must be at most rollout.group_size, got {self.rollout.min_usable} > "
                f"{self.rollout.group_size}"
            )
        return self

    @property
    def directory(self) -> Path:
        """Where the run lies."""
        return Path(self.run_dir or f"runs/{self.name}")


def load_config(paths: Iterable[Path], overrides: Iterable[str] = ()) -> Config:
    """Merge TOML files and `key.sub=value` overrides (values in TOML syntax, else taken as text).

    Raises UserError with one sentence for whatever is wrong with them.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        try:
            layer = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: no such configuration file") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UserError(f"{path}: not a readable TOML file: {error}") from None
        merged = _merge(merged, layer)
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key.strip():
            raise UserError(f"-o {override}: expected key=value, as in -o trainer.lr=1e-4")
        layer = _parse_value(text.strip())
        for part in reversed(key.strip().split(".")):
            layer = {part: layer}
        merged = _merge(merged, cast("dict[str, Any]", layer))
    return validate_config(merged)


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Another Config; sections merge, as layers do. Raises UserError."""
    return validate_config(_merge(config.model_dump(), changes))


def validate_config(data: Mapping[str, Any]) -> Config:
    """A Config from plain data. Raises UserError."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise UserError(f"unknown configuration key '{path}'{_suggest(path)}") from None
        got = "" if first["type"] in ("missing", "value_error") else f", got {first['input']!r}"
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"configuration {('key ' + repr(path)) if path else 'error'}: {message}{got}") from None


def known_fields(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo, bool]]:
    """(dotted key, field, whether it is a section) of everything that can be configured, sections before their keys."""
    for name, info in section.model_fields.items():
        candidates = (info.annotation, *getattr(info.annotation, "__args__", ()))
        inner = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        yield prefix + name, info, bool(inner)
        for candidate in inner:
            yield from known_fields(candidate, f"{prefix}{name}.")


def dotted(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Plain data by dotted key; an empty table is a value."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= dotted(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _suggest(path: str) -> str:
    keys = [key for key, *_ in known_fields()]
    close = difflib.get_close_matches(path, keys, n=1, cutoff=0.6)
    if not close:
        leaf = path.rsplit(".", 1)[-1]
        close = [key for key in keys if key.rsplit(".", 1)[-1] == leaf][:1] or difflib.get_close_matches(
            leaf, [key.rsplit(".", 1)[-1] for key in keys], n=1, cutoff=0.6
        )
    return f"; did you mean '{close[0]}'?" if close else ""


def _merge(base: dict[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in layer.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merge(cast("dict[str, Any]", old), cast("dict[str, Any]", value)) if both else value
    return merged


def _parse_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
