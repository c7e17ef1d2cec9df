"""A fresh Llama-shaped model of a few million parameters, and a tokenizer trained for it.

The tokenizer is byte-level BPE: every text comes back exactly. Newlines with their indentation are one piece, digits
stand alone, words take the space before them. A turn costs two control tokens: its opening with the role, and its end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
ROLES = ("system", "user", "assistant", "tool")

# Newlines and the indentation behind them; a word with its space; one digit; signs with their space; other blanks.
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
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    cast("Any", torch).manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**shape, **changes})).eval()


def start_with_induction(model: Any) -> Any:
    """Set weights of the first two layers so that copying from the context is there to be refined, not to be found.

    A network learns to copy only once two heads of different layers have found each other (induction heads: Olsson et
    al. 2022), a plateau of millions of tokens for a model of this size. Here the query heads of the first group of
    layer 0 look 1, 2, 3, ... tokens back: a constant coordinate of the embedding gives every token the same key and, by
    way of the rotary phases, each head a query that is largest at its distance. Heads of layer 1 compare a token with
    what stood before each position. All of it is trained further. (Structured initialisation of attention: Trockman
    and Kolter 2023, "Mimetic initialization".) Needs two layers, no attention bias, hidden_size >= head_dim.
    """
    config = model.config
    head, hidden = config.head_dim, config.hidden_size
    heads, half = config.num_attention_heads // config.num_key_value_heads, config.head_dim // 2
    frequencies = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)

    def projection() -> torch.Tensor:  # (head, hidden), orthonormal rows
        return torch.linalg.qr(torch.randn(hidden, head))[0].T

    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding[:, 0] = 3 * embedding.std()
        rms = embedding.pow(2).mean(-1).sqrt().mean()
        constant = embedding[0, 0] / rms  # as layer 0 sees it

        back = model.model.layers[0].self_attn
        sharpness = 6 * math.sqrt(head) * torch.exp(-0.15 * torch.arange(half))
        key = sharpness.sqrt() / constant
        back.k_proj.weight[:head] = 0
        back.k_proj.weight[:half, 0] = key
        back.q_proj.weight[: heads * head] = 0
        for index in range(heads):
            phase, row = frequencies * (index + 1), index * head
            back.q_proj.weight[row : row + half, 0] = key * torch.cos(phase)
            back.q_proj.weight[row + half : row + head, 0] = -key * torch.sin(phase)
        read = projection()
        read[:, 0] = 0
        back.v_proj.weight[:head] = read
        written = [projection() for _ in range(heads)]
        back.o_proj.weight[:, : heads * head] = torch.cat(written).T * rms

        match = model.model.layers[1].self_attn
        slow = torch.zeros(half)
        slow[frequencies < 0.03] = 2.0  # coordinates that turn little between a token and its repetition
        mixed = torch.cat([slow, slow])[:, None] * torch.linalg.qr(torch.randn(head, head))[0]
        match.k_proj.weight[:head] = mixed @ written[0]
        match.q_proj.weight[: heads * head] = (mixed @ read).repeat(heads, 1)
        copied = projection()
        match.v_proj.weight[:head] = copied
        match.o_proj.weight[:, :head] = copied.T * rms
    return model
