"""Front doors: an environment with tools (env), a reward function (reward). Each becomes a RolloutFn."""

from longtail.envs.calls import Body, CallError, Tool, ToolRequest
from longtail.envs.env import Env, env, tool
from longtail.envs.reward import reward

__all__ = ["Body", "CallError", "Env", "Tool", "ToolRequest", "env", "reward", "tool"]
