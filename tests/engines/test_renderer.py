from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from longtail.engines.renderer import HFRenderer
from longtail.errors import UserError
from longtail.types import Message

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ["<|im_start|>", "<|im_end|>"]


def save(path: Path, template: str | None, control: list[str] = CONTROL) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=control, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["user assistant system tool the the"], trainer)
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text("{}")
    config = {"eos_token": "<|im_end|>"} | ({"chat_template": template} if template else {})
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def chatml(tmp_path_factory: pytest.TempPathFactory) -> HFRenderer:
    return HFRenderer(str(save(tmp_path_factory.mktemp("renderer") / "chatml", CHATML)))


def say(role: str, content: str) -> Message:
    return Message(role=role, content=content)


def test_start_is_the_template_and_opens_the_assistants_turn(chatml):
    ids = chatml.start([say("system", "a"), say("user", "b")])
    expected = "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    assert chatml.transcript(ids) == expected
    assert chatml.text(ids) == "system\na\nuser\nb\nassistant\n"


def test_more_ends_the_turn_only_when_the_reply_did_not(chatml):
    tail = "\n<|im_start|>tool\nout<|im_end|>\n<|im_start|>assistant\n"
    assert chatml.transcript(chatml.more([say("tool", "out")], ended=True)) == tail
    assert chatml.transcript(chatml.more([say("tool", "out")], ended=False)) == "<|im_end|>" + tail
    assert chatml.stop_ids == (1,)


def test_turns_put_together_are_the_whole_conversation(chatml):
    first = chatml.start([say("user", "b")])
    whole = chatml.start([say("user", "b"), say("assistant", "yes"), say("tool", "c")])
    reply = whole[len(first) : whole.index(1, len(first))]
    assert first + reply + chatml.more([say("tool", "c")], ended=False) == whole
    assert (*first, *reply, 1, *chatml.more([say("tool", "c")], ended=True)) == whole


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*CONTROL, "<|im_", "end|>", "<", "a", "\n", " ", "é", "\x00", "\ud800", "\ue0001\ue001"]))
)
def test_contents_are_plain_text(chatml, pieces):
    """Control tokens inside what the environment says are encoded as text."""
    content = "".join(pieces)
    shown = content.replace("\ud800", "?")
    ids = chatml.start([say("user", content)])
    assert [i for i in ids if i in (0, 1)] == [0, 1, 0]
    assert chatml.transcript(ids) == f"<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_without_a_template_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no chat template"):
        HFRenderer(str(save(tmp_path / "bare", None)))


def test_a_refusing_template_names_the_roles(tmp_path):
    refusing = "{% if messages[-1].role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}" + CHATML
    renderer = HFRenderer(str(save(tmp_path / "refusing", refusing)))
    with pytest.raises(UserError, match="refuses the roles user, tool: no tools here"):
        renderer.start([say("user", "a"), say("tool", "b")])


def test_a_template_that_leaves_a_message_out_is_refused(tmp_path):
    deaf = CHATML.replace("{% for m in messages %}", "{% for m in messages if m['role'] != 'tool' %}")
    renderer = HFRenderer(str(save(tmp_path / "deaf", deaf)))
    renderer.start([say("user", "a")])
    with pytest.raises(UserError, match="leaves out what tool says"):
        renderer.more([say("tool", "0 of 3 passed")], ended=True)


def test_the_renderer_loads_no_torch():
    program = "import sys, longtail.engines.renderer; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
