"""Text to ids and back, with the tokenizer and the chat template of a model. Loads no torch.

Only what the template itself says can become a control token. Contents of messages are placed as marks into the
template; after rendering, each mark is replaced by its text, encoded as plain text together with the plain text around
it. A control token spelled out in a content is encoded in pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from longtail.errors import UserError
from longtail.models.load import resolve
from longtail.types import Message

T = TypeVar("T")
_MARK = re.compile("\ue000(\\d+)\ue001")  # private-use characters: no template writes them
_GENERATION_TAGS = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")  # for training masks; no output


class HFRenderer:
    """ports.Renderer for a Hugging Face model directory or id."""

    def __init__(self, model: str) -> None:
        self._name = model
        where = resolve(model)
        self._tokenizer = _read(_file(model, where, "tokenizer.json"), lambda path: Tokenizer.from_file(str(path)))
        settings: dict[str, Any] = _read(
            _file(model, where, "tokenizer_config.json"), lambda path: json.loads(path.read_text(encoding="utf-8"))
        )
        self._variables = {
            name: _text(settings.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        self._template = _compile(model, _template(model, where, settings))
        self._control = _control_tokens(self._tokenizer)
        self._control_ids = frozenset(self._control.values())
        self._split = re.compile("|".join(map(re.escape, sorted(self._control, key=len, reverse=True))) or r"(?!)")
        self._render = lru_cache(maxsize=1024)(self._render_roles)
        self._turn_end = self._find_turn_end()
        ends = (self._turn_end, self._control.get(self._variables["eos_token"], -1))
        self._stop_ids = tuple(dict.fromkeys(end for end in ends if end >= 0))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        rendered = self._render(tuple(message.role for message in messages), open_turn=True)
        return self._encode(rendered, [message.content for message in messages])

    def more(self, messages: Sequence[Message], *, ended: bool) -> tuple[int, ...]:
        rendered = self._behind_reply(tuple(message.role for message in messages))
        ids = self._encode(rendered, ["", "", *(message.content for message in messages)])
        return ids[1:] if ended and ids[0] == self._turn_end else ids

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of plain text; a control token spelled out in it stays text."""
        return tuple(self._plain("\ue0000\ue001", [text]))

    def text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([i for i in ids if i not in self._control_ids], skip_special_tokens=False)

    def transcript(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _behind_reply(self, roles: tuple[str, ...]) -> str:
        """What the template writes after an assistant's content when messages of these roles follow."""
        rendered = self._render(("user", "assistant", *roles), open_turn=bool(roles))
        return rendered.partition(_mark(1))[2]

    def _find_turn_end(self) -> int:
        """The control token that ends an assistant's turn; -1 when the template has none."""
        ids = self._encode(self._behind_reply(()), [])
        return next((i for i in ids if i in self._control_ids), -1)

    def _render_roles(self, roles: tuple[str, ...], *, open_turn: bool) -> str:
        """The template's text, with marks for contents."""
        messages = [{"role": role, "content": _mark(index)} for index, role in enumerate(roles)]
        try:
            text: str = self._template.render(messages=messages, add_generation_prompt=open_turn, **self._variables)
        except TemplateError as error:
            raise UserError(
                f"model '{self._name}': its chat template refuses the roles {', '.join(roles)}: {error}"
            ) from error
        left_out = [role for index, role in enumerate(roles) if _mark(index) not in text]
        if left_out:  # else the policy would answer what it was never shown
            raise UserError(
                f"model '{self._name}': its chat template leaves out what {', '.join(sorted(set(left_out)))} says; "
                "it must show every message"
            )
        return text

    def _encode(self, rendered: str, contents: Sequence[str]) -> tuple[int, ...]:
        """Ids of rendered text: control tokens where the template wrote them, plain text everywhere else."""
        ids: list[int] = []
        start = 0
        for found in self._split.finditer(rendered):
            ids += self._plain(rendered[start : found.start()], contents)
            ids.append(self._control[found.group()])
            start = found.end()
        return (*ids, *self._plain(rendered[start:], contents))

    def _plain(self, rendered: str, contents: Sequence[str]) -> list[int]:
        text = _MARK.sub(lambda mark: contents[int(mark.group(1))], rendered)
        text = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates cannot be encoded
        ids: list[int] = []
        start = 0
        for found in self._split.finditer(text):  # cut inside what would become a control token
            ids += self._ids(text[start : found.start() + 1])
            start = found.start() + 1
        ids += self._ids(text[start:])
        if self._control_ids.isdisjoint(ids):
            return ids
        return [i for character in text for i in self._ids(character) if i not in self._control_ids]

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids if text else []


def _mark(index: int) -> str:
    return f"\ue000{index}\ue001"


def _control_tokens(tokenizer: Tokenizer) -> dict[str, int]:
    """Added tokens that are no plain text: the special ones and whatever looks like a tag."""
    added = cast("Mapping[int, Any]", tokenizer.get_added_tokens_decoder())
    return {
        token.content: index
        for index, token in added.items()
        if token.special or (token.content.startswith("<") and token.content.endswith(">"))
    }


def _read(path: Path, load: Callable[[Path], T]) -> T:
    try:
        return load(path)
    except Exception as error:  # the tokenizers library raises nothing more precise
        raise UserError(f"{path}: not a readable tokenizer file: {error}") from None


def _file(model: str, where: Path | str, name: str) -> Path:
    """A file of a model directory or of a model on the hub. Raises UserError."""
    if isinstance(where, Path):
        file = where / name
        if not file.is_file():
            raise UserError(f"model '{model}': {where} holds no {name}")
        return file
    from huggingface_hub import hf_hub_download  # pyright: ignore[reportUnknownVariableType]

    download = cast("Callable[[str, str], str]", hf_hub_download)
    try:
        return Path(download(where, name))
    except OSError as error:
        raise UserError(f"model '{model}': its {name} is not here and cannot be fetched: {error}") from error


def _template(model: str, where: Path | str, settings: Mapping[str, Any]) -> str:
    """Source of the chat template: in the settings, alone or as the one named "default", or in its own file."""
    source = settings.get("chat_template")
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in cast("list[dict[str, str]]", source)}
        source = named.get("default")
    if isinstance(source, str):
        return source
    try:
        return _file(model, where, "chat_template.jinja").read_text(encoding="utf-8")
    except UserError:
        raise UserError(
            f"model '{model}' has no chat template; add chat_template to its tokenizer_config.json"
        ) from None


def _compile(model: str, source: str) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    loose: Any = environment  # its stubs leave types open
    loose.filters["tojson"] = _to_json
    loose.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    try:
        return environment.from_string(_GENERATION_TAGS.sub("", source))
    except TemplateError as error:
        raise UserError(f"model '{model}': its chat template cannot be read: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _text(token: Any) -> str:
    """A special token of the settings: a string, or an object with its content."""
    return str(cast("dict[str, Any]", token)["content"]) if isinstance(token, dict) else str(token or "")
