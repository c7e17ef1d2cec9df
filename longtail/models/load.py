"""Finds and loads causal LMs and their tokenizers: a directory, a registered name or a Hugging Face id.

A registered name is an entry point of the group `longtail.models`: a function without arguments that returns a path.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from longtail.errors import UserError

REGISTRY = "longtail.models"


def resolve(name: str) -> Path | str:
    """Path of a local model, or the Hugging Face id unchanged. Raises UserError for what cannot be a model."""
    local = Path(name).expanduser()
    if local.exists():
        if not (local / "config.json").exists():
            raise UserError(f"model '{name}': {local} holds no config.json; expected a Hugging Face model directory")
        return local
    registered = {point.name: point for point in entry_points(group=REGISTRY)}
    if name in registered:
        path = Path(registered[name].load()())
        if not path.exists():
            raise UserError(f"model '{name}': its file {path} is missing; reinstall the package that ships it")
        return path
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        known = ", ".join(sorted(registered))
        raise UserError(f"model '{name}': no such directory, and not one of the registered models ({known})")
    return name


def load_model(name: str, *, dtype: str = "float32") -> Any:
    """The model in evaluation mode with the attention of models/attention.py. Raises UserError when there is none."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from longtail.models.attention import NAME

    auto: Any = AutoModelForCausalLM
    logging.disable_progress_bar()
    try:
        model = auto.from_pretrained(str(resolve(name)), dtype=getattr(torch, dtype), attn_implementation=NAME)
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"model '{name}' cannot be loaded: {_first_line(error)}") from error
    return model.eval()


def load_tokenizer(name: str) -> Any:
    """The model's tokenizer. Raises UserError when there is none."""
    from transformers import AutoTokenizer

    auto: Any = AutoTokenizer
    try:
        return auto.from_pretrained(str(resolve(name)))
    except (OSError, ValueError, ImportError) as error:
        raise UserError(f"tokenizer of model '{name}' cannot be loaded: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
