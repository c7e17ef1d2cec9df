"""How a reply names tool calls, and what tools look like. Pure: text in, requests or short errors out.

Two formats:

    command   the first line is `name arg arg`, in the order of the tool's parameters; the last `str` parameter takes
              the rest of that line; a `Body` parameter takes every line below it, verbatim. One call per reply.
    json      Hermes style: <tool_call>{"name": "...", "arguments": {...}}</tool_call>, once or more.

A call that does not fit its tool is a CallError of one short sentence, for the model to read; it is never run.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast, get_type_hints

from longtail.errors import UserError
from longtail.types import Json

Format = Literal["command", "json"]

_BODY = "body"
Body = Annotated[str, _BODY]  # a tool's last parameter: all lines below the command line

_SCHEMA_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    name: str
    kind: type  # str, int, float or bool
    required: bool
    body: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    description: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    message: str  # one short sentence, shown to the model


def tool_from(function: Callable[..., Any]) -> Tool:
    """The Tool of a function or method. Raises UserError when its signature cannot be called by a model."""
    name = function.__name__
    hints = get_type_hints(function, include_extras=True)
    parameters: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        hint = hints.get(parameter.name)
        body = getattr(hint, "__metadata__", ()) == (_BODY,)
        kind = str if body else hint
        if kind not in _SCHEMA_TYPES or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            raise UserError(f"tool {name}: parameter '{parameter.name}' must be hinted str, int, float, bool or Body")
        required = parameter.default is parameter.empty
        parameters.append(Parameter(name=parameter.name, kind=cast("type", kind), required=required, body=body))
    if any(p.body for p in parameters[:-1]):
        raise UserError(f"tool {name}: a Body parameter must be the last one")
    return Tool(name=name, description=inspect.getdoc(function) or "", parameters=tuple(parameters))


def parse(reply: str, tools: Mapping[str, Tool], form: Format = "command") -> tuple[ToolRequest | CallError, ...]:
    """The calls a reply makes: at least one entry, in order."""
    return (_parse_command(reply, tools),) if form == "command" else _parse_json(reply, tools)


def describe(tools: Sequence[Tool], form: Format = "command") -> str:
    """The tools as a model is told about them in a system prompt."""
    if form == "command":
        lines = [f"{_usage(tool)}: {tool.description}" if tool.description else _usage(tool) for tool in tools]
        return "\n".join(["Reply with one command. Commands:", *lines])
    schemas = "\n".join(json.dumps({"type": "function", "function": _schema(tool)}) for tool in tools)
    return (
        f"You may call functions. Signatures:\n<tools>\n{schemas}\n</tools>\nFor each call, reply with\n"
        '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>'
    )


def _usage(tool: Tool) -> str:
    words = [p.name.upper() if p.required else f"[{p.name.upper()}]" for p in tool.parameters if not p.body]
    body = " + lines below" if tool.parameters and tool.parameters[-1].body else ""
    return " ".join([tool.name, *words]) + body


def _schema(tool: Tool) -> dict[str, Json]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": {
            "type": "object",
            "properties": {p.name: {"type": _SCHEMA_TYPES[p.kind]} for p in tool.parameters},
            "required": [p.name for p in tool.parameters if p.required],
        },
    }


def _parse_command(reply: str, tools: Mapping[str, Tool]) -> ToolRequest | CallError:
    line, newline, body = reply.partition("\n")
    name, _, rest = line.strip().partition(" ")
    if not name:
        return CallError(message="empty command")
    tool = tools.get(name)
    if tool is None:
        return CallError(message=f"no command {name[:20]}")
    takes_body = bool(tool.parameters) and tool.parameters[-1].body
    if body.strip() and not takes_body:
        return CallError(message=f"{name} takes one line")
    words = [p for p in tool.parameters if not p.body]
    arguments = _words(rest, words)
    if len(arguments) > len(words) or len(arguments) < sum(p.required for p in words):
        return CallError(message=f"usage: {_usage(tool)}")
    given: dict[str, Json] = {p.name: text for p, text in zip(words, arguments, strict=False)}
    if takes_body and newline:
        given[tool.parameters[-1].name] = body
    return _bind(tool, given, text=True)


def _words(rest: str, parameters: Sequence[Parameter]) -> list[str]:
    """Split at spaces; the last str parameter keeps its own."""
    rest = rest.strip()
    keeps_spaces = bool(parameters) and parameters[-1].kind is str
    return rest.split(None, len(parameters) - 1) if keeps_spaces else rest.split()


def _parse_json(reply: str, tools: Mapping[str, Tool]) -> tuple[ToolRequest | CallError, ...]:
    calls = [(match[1], bool(match[2])) for match in _CALL.finditer(reply)]
    if not calls:
        return (CallError(message="no <tool_call> in the reply"),)
    return tuple(
        _parse_object(text, tools) if closed else CallError(message="<tool_call> is not closed")
        for text, closed in calls
    )


def _parse_object(text: str, tools: Mapping[str, Tool]) -> ToolRequest | CallError:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return CallError(message="the call is not valid JSON")
    if not isinstance(call, dict):
        return CallError(message="the call must be a JSON object")
    fields = cast("dict[str, Json]", call)
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str):
        return CallError(message="the call needs a name")
    if name not in tools:
        return CallError(message=f"no function {name[:20]}")
    if not isinstance(arguments, dict):
        return CallError(message="arguments must be an object")
    return _bind(tools[name], cast("dict[str, Json]", arguments), text=False)


def _bind(tool: Tool, given: Mapping[str, Json], *, text: bool) -> ToolRequest | CallError:
    """Check names and types; `text` says that the values are still words."""
    known = {p.name: p for p in tool.parameters}
    for name in given:
        if name not in known:
            return CallError(message=f"{tool.name} has no argument {name[:20]}")
    arguments: dict[str, Json] = {}
    for parameter in tool.parameters:
        if parameter.name not in given:
            if parameter.required:
                return CallError(message=f"{tool.name} needs {parameter.name}")
            continue
        value = _convert(given[parameter.name], parameter.kind, text=text)
        if value is None:
            return CallError(message=f"{parameter.name} must be {parameter.kind.__name__}")
        arguments[parameter.name] = value
    return ToolRequest(name=tool.name, arguments=arguments)


def _convert(value: Json, kind: type, *, text: bool) -> Json:
    """The value as `kind`, or None."""
    try:
        if text:
            value = _from_word(cast("str", value), kind)
        elif kind is float and type(value) is int:
            value = float(value)
    except (ValueError, OverflowError):
        return None
    return value if type(value) is kind else None


def _from_word(word: str, kind: type) -> Json:
    """Raises ValueError for a word that is no `kind`."""
    return {"true": True, "false": False}.get(word.lower()) if kind is bool else kind(word)
