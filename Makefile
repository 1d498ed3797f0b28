# make demo    two real networks: exported, compiled, checked against the reference, timed beside onnxruntime
# make test    lint and types beside every test
# make check   lint and types only
# make suite   tests only
# Each makes its own virtual environment; all they need is Python 3.11 or newer with pip.

PYTHON ?= python3
WORKERS ?= 2
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test check suite clean

demo: .venv-demo/ready
	.venv-demo/bin/python -m examples.demo

test: .venv/ready
	$(MAKE) --jobs 2 check suite

suite: .venv/ready
	.venv/bin/python -m pytest -n $(WORKERS) --dist worksteal

check: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/mypy

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP_INSTALL) torch
	.venv/bin/python $(PIP_INSTALL) --editable '.[cuda,demo,dev]'
	touch $@

.venv-demo/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python $(PIP_INSTALL) torch
	.venv-demo/bin/python $(PIP_INSTALL) --editable '.[demo]'
	touch $@

clean:
	rm -rf .venv .venv-demo
