"""What a run directory belongs to: the versions that its run depends on, and what may differ when it is resumed."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from longtail.config import Config, dotted
from longtail.errors import UserError
from longtail.history import History
from longtail.journal import FILE_NAME, standing
from longtail.models.load import resolve

_MAY_CHANGE = ("num_steps", "run_dir", "cluster", "max_lag", "engine", "sandbox", "name")
_MAY_CHANGE_WITHIN = (
    "trainer.checkpoint_every",
    "trainer.keep",
    "rollout.attempt_s",
    "rollout.backoff_s",
    "rollout.failure_limit",
    "rollout.max_attempts",
    "rollout.retries",
    "rollout.stall_s",
    "eval.every",  # the rest of it says what "before" and "after" are
    "sft.save_every",
    "sft.eval_every",
)


def check_directory(config: Config) -> History:
    """What the run directory holds. Raises UserError when it cannot be used, or belongs to another run."""
    check_place(config.directory)
    if not (config.directory / FILE_NAME).exists():
        return History()
    past = standing(config.directory).past  # as resume() will find it: what is rolled back is not there
    if past.started:
        check_same_run(past.started["config"], config)
        _check_same_model(past.started["manifest"], config)
    return past


def check_place(directory: Path) -> None:
    """Raises UserError where a run directory can be neither made nor written."""
    there = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"the run directory {directory} cannot be made: {there} is a file; choose another --run-dir")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"the run directory {directory} cannot be written: no right to write into {there}")


def check_same_run(stored: Mapping[str, Any], config: Config) -> None:
    """Raises UserError when the directory belongs to a run that another configuration describes.

    A key that did not exist when the run began had its default.
    """
    stands, wanted, usual = (
        dotted(x) for x in (stored, config.model_dump(mode="json"), Config().model_dump(mode="json"))
    )
    for key in {**wanted, **stands}:
        if key in _MAY_CHANGE_WITHIN or key.split(".")[0] in _MAY_CHANGE:
            continue
        before, value = stands.get(key, usual.get(key)), wanted.get(key)
        if before != value:
            raise UserError(
                f"{config.directory} holds a run with {key} = {before!r}, now it is {value!r}; "
                "resume it with the old value, or choose another --run-dir"
            )


def _check_same_model(stored: Mapping[str, Any], config: Config) -> None:
    """Raises UserError where the model's files are no longer those that the run started from."""
    for name, digest in _model_digests(config.model.path).items():
        if stored.get(name, digest) != digest:
            raise UserError(
                f"{config.directory} holds a run that started from another {name.removeprefix('model/')} than "
                f"model '{config.model.path}' has now; put the old file back, or choose another --run-dir"
            )


def manifest(config: Config) -> dict[str, Any]:
    """Versions of what a run depends on; of the model, digests of its files."""
    versions: dict[str, str | None] = {}
    for package in ("longtail", "torch", "transformers", "tokenizers", "numpy", "apsw"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        **versions,
        "model": config.model.path,
        **_model_digests(config.model.path),
    }


# not what else may lie there: a record of how it was made, a report
_PARTS = (
    "*config.json",
    "*token*.json",
    "vocab*.json",
    "*.jinja",
    "*.safetensors",
    "*.bin",
)
_DIGESTED = 64 << 20  # bytes; of larger files, the head and the size say enough


def _model_digests(model: str) -> dict[str, str]:
    """SHA-256 of each file that makes a local model what it is; of the head and the size where it is large."""
    where = "" if model == "new" else resolve(model)
    if isinstance(where, str):
        return {}
    digests: dict[str, str] = {}
    for file in sorted(file for pattern in _PARTS for file in where.glob(pattern)):
        with file.open("rb") as data:
            digest = hashlib.sha256(data.read(_DIGESTED))
        if (size := file.stat().st_size) > _DIGESTED:
            digest.update(str(size).encode())
        digests[f"model/{file.name}"] = digest.hexdigest()
    return digests
