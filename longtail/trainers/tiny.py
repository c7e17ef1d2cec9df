"""A fresh Llama-shaped model of a few million parameters, and a tokenizer trained for it.

The tokenizer is byte-level BPE: every text comes back exactly. Newlines with their indentation are one piece, digits
stand alone, words take the space before them. A turn costs two control tokens: its opening with the role, and its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from longtail.errors import UserError

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
ROLES = ("system", "user", "assistant", "tool")

# Newlines and the indentation after them; a word with its space; one digit; signs with their space; other blanks.
PIECES = r"\n+ *| ?[^\W\d]+|\d| ?[^\s\w]+| +|\s"

# ChatML, with nothing between the end of a turn and the opening of the next.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def new_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """Train a tokenizer on texts (plain, without control tokens); `save_pretrained` writes it for AutoTokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [PAD, START, END, *(f"{START}{role}\n" for role in ROLES)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in control],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def new_model(tokenizer: Any, *, seed: int = 0, **changes: Any) -> Any:
    """A model with random weights for that tokenizer; `changes` are fields of LlamaConfig."""
    ids = {
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    cast("Any", torch).manual_seed(seed)
    return LlamaForCausalLM(config_of({**ids, **changes})).eval()


def config_of(changes: Mapping[str, Any]) -> LlamaConfig:
    """The usual shape with some fields changed. Raises UserError for one that LlamaConfig does not have."""
    known = LlamaConfig().to_dict()
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise UserError(f"sft.shape: LlamaConfig has no field '{unknown[0]}'")
    shape: dict[str, Any] = {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "tie_word_embeddings": True,
    }
    return LlamaConfig(**{**shape, **changes})
