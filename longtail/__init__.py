"""RL infrastructure for LLM agents: one loop for single-turn batches and for long tool-using episodes."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longtail.config import Config as Config
    from longtail.config import load_config as load_config
    from longtail.drive import train as train
    from longtail.envs import Body as Body
    from longtail.envs import Env as Env
    from longtail.envs import env as env
    from longtail.envs import reward as reward
    from longtail.envs import tool as tool
    from longtail.errors import LongtailError as LongtailError
    from longtail.errors import PolicyFailure as PolicyFailure
    from longtail.errors import SandboxLost as SandboxLost
    from longtail.errors import UserError as UserError
    from longtail.ports import Ctx as Ctx
    from longtail.ports import Files as Files
    from longtail.ports import Model as Model
    from longtail.ports import Reply as Reply
    from longtail.ports import Sandbox as Sandbox
    from longtail.types import Completion as Completion
    from longtail.types import ExecResult as ExecResult
    from longtail.types import Limits as Limits
    from longtail.types import Message as Message
    from longtail.types import Sampling as Sampling
    from longtail.types import SandboxLimits as SandboxLimits
    from longtail.types import SandboxSpec as SandboxSpec
    from longtail.types import Score as Score
    from longtail.types import Task as Task
    from longtail.types import ToolCall as ToolCall

# Sampler and trainer share cores. OpenMP threads that spin while they wait make both several times slower; torch reads
# this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_HOME = {
    "Body": "envs",
    "Completion": "types",
    "Config": "config",
    "Ctx": "ports",
    "Env": "envs",
    "ExecResult": "types",
    "Files": "ports",
    "Limits": "types",
    "LongtailError": "errors",
    "Message": "types",
    "Model": "ports",
    "PolicyFailure": "errors",
    "Reply": "ports",
    "Sampling": "types",
    "Sandbox": "ports",
    "SandboxLimits": "types",
    "SandboxLost": "errors",
    "SandboxSpec": "types",
    "Score": "types",
    "Task": "types",
    "ToolCall": "types",
    "UserError": "errors",
    "env": "envs",
    "load_config": "config",
    "reward": "envs",
    "tool": "envs",
    "train": "drive",
}
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Public names load where they live when they are first used, so that `import longtail` stays light."""
    if name not in _HOME:
        raise AttributeError(f"module 'longtail' has no attribute {name!r}")
    return getattr(import_module(f"longtail.{_HOME[name]}"), name)
