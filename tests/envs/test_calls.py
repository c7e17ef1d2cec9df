"""How replies name tool calls, and what malformed ones become."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.envs import Body, CallError, ToolRequest, env, tool
from longtail.envs.calls import Tool, describe, parse, tool_from
from longtail.envs.env import Env
from longtail.errors import UserError


def read(file: str) -> str:
    """show a file"""
    return file


def edit(file: str, start: int, end: int, text: Body = "") -> str:
    """replace lines"""
    return text


def search(text: str) -> str:
    return text


def wait(seconds: float, loud: bool = False) -> str:
    return ""


def submit() -> str:
    """end"""
    return ""


TOOLS: dict[str, Tool] = {f.__name__: tool_from(f) for f in (read, edit, search, wait, submit)}


def one(reply: str, form: str = "command") -> ToolRequest | CallError:
    (call,) = parse(reply, TOOLS, form)
    return call


def request(name: str, **arguments: object) -> ToolRequest:
    return ToolRequest(name=name, arguments=arguments)


def wrap(value: object) -> str:
    return f"<tool_call>{value if isinstance(value, str) else json.dumps(value)}</tool_call>"


def test_a_command_is_split_in_the_order_of_the_signature():
    assert one("read a.py") == request("read", file="a.py")
    assert one("wait 2.5 true") == request("wait", seconds=2.5, loud=True)
    assert one("  submit  \n") == request("submit")


def test_the_last_text_parameter_keeps_its_spaces():
    assert one("search def total(a, b):") == request("search", text="def total(a, b):")


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_a_body_is_taken_verbatim(body: str):
    assert one(f"edit a.py 3 4\n{body}") == request("edit", file="a.py", start=3, end=4, text=body)


def test_a_missing_body_takes_the_default():
    assert one("edit a.py 3 4") == request("edit", file="a.py", start=3, end=4)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("", "empty command"),
        ("\nread a.py", "empty command"),
        ("open a.py", "no command open"),
        ("read", "usage: read FILE"),
        ("edit a.py 3", "usage: edit FILE START END + lines below"),
        ("edit a.py 3 4 5", "usage: edit FILE START END + lines below"),
        ("edit a.py three 4\nx", "start must be int"),
        ("wait 1 maybe", "loud must be bool"),
        ("submit now", "usage: submit"),
        ("read a.py\nand more", "read takes one line"),
    ],
)
def test_a_malformed_command_is_one_short_sentence(reply: str, message: str):
    assert one(reply) == CallError(message=message)


def test_json_calls_are_typed():
    call = wrap({"name": "edit", "arguments": {"file": "a", "start": 1, "end": 2, "text": "x\n"}})
    assert one(f"I will edit.\n{call}", "json") == request("edit", file="a", start=1, end=2, text="x\n")
    assert one(wrap({"name": "submit"}), "json") == request("submit")
    assert one(wrap({"name": "wait", "arguments": {"seconds": 2}}), "json") == request("wait", seconds=2.0)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("just text", "no <tool_call> in the reply"),
        ('<tool_call>{"name": "read", "argum', "<tool_call> is not closed"),
        (wrap('{"name": "read", '), "the call is not valid JSON"),
        (wrap("[" * 100_000), "the call is not valid JSON"),
        (wrap(None), "the call must be a JSON object"),
        (wrap([1]), "the call must be a JSON object"),
        (wrap(7), "the call must be a JSON object"),
        (wrap(json.dumps('{"name": "read"}')), "the call must be a JSON object"),
        (wrap({"arguments": {"file": "a"}}), "the call needs a name"),
        (wrap({"name": ["read"]}), "the call needs a name"),
        (wrap({"name": "rm", "arguments": {}}), "no function rm"),
        (wrap({"name": "read", "arguments": "a"}), "arguments must be an object"),
        (wrap({"name": "read", "arguments": {}}), "read needs file"),
        (wrap({"name": "read"}), "read needs file"),
        (wrap({"name": "read", "arguments": {"file": "a", "mode": "r"}}), "read has no argument mode"),
        (wrap({"name": "read", "arguments": {"file": None}}), "file must be str"),
        (wrap({"name": "edit", "arguments": {"file": "a", "start": "1", "end": 2}}), "start must be int"),
        (wrap({"name": "edit", "arguments": {"file": "a", "start": True, "end": 2}}), "start must be int"),
    ],
)
def test_a_malformed_json_call_is_one_short_sentence(reply: str, message: str):
    assert one(reply, "json") == CallError(message=message)


def test_each_of_several_json_calls_has_its_own_answer():
    reply = wrap({"name": "submit"}) + wrap("{") + wrap({"name": "read", "arguments": {"file": "a"}})
    calls = parse(reply, TOOLS, "json")
    assert calls == (request("submit"), CallError(message="the call is not valid JSON"), request("read", file="a"))


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_a_number_too_large_for_its_parameter_is_a_malformed_call(number: int):
    call = one(wrap({"name": "wait", "arguments": {"seconds": number}}), "json")
    assert call == CallError(message="seconds must be float")


VALUES = st.sampled_from([None, True, 1, -(10**400), 10**400, 2.5, float("inf"), float("nan"), "1", "", [1], {"a": 1}])


@given(st.dictionaries(st.sampled_from(["file", "start", "end", "text", "seconds", "loud"]), VALUES))
def test_arguments_of_any_type_and_size_are_taken_as_hinted_or_refused(arguments: dict[str, object]):
    for name, tool_ in TOOLS.items():
        call = one(wrap({"name": name, "arguments": arguments}), "json")
        kinds = {parameter.name: parameter.kind for parameter in tool_.parameters}
        assert isinstance(call, CallError) or all(type(value) is kinds[key] for key, value in call.arguments.items())


@given(st.text(), st.sampled_from(["command", "json"]))
def test_no_reply_breaks_the_parser(reply: str, form: str):
    calls = parse(reply, TOOLS, form)
    assert calls
    assert all(isinstance(call, ToolRequest) or len(call.message) < 80 for call in calls)


def test_descriptions_name_every_tool_and_parameter():
    command, schema = describe(list(TOOLS.values())), describe(list(TOOLS.values()), "json")
    assert "edit FILE START END + lines below: replace lines" in command
    assert "wait SECONDS [LOUD]" in command
    first = json.loads(schema.split("<tools>\n")[1].splitlines()[0])["function"]
    assert first["parameters"] == {
        "type": "object",
        "properties": {"file": {"type": "string"}},
        "required": ["file"],
    }


def test_a_tool_that_a_model_cannot_call_is_refused():
    with pytest.raises(UserError, match="parameter 'items' must be hinted"):

        @tool
        def total(self: object, items: list[int]) -> str:
            return ""

    with pytest.raises(UserError, match="must be the last one"):

        @tool
        def write(self: object, text: Body, file: str) -> str:
            return ""


def test_an_environment_without_tools_is_refused():
    with pytest.raises(UserError, match="Env has no @tool method"):
        env(Env)
