"""What a fenced block of each language has to stand, and how Python blocks are run.

``python``            executed, all blocks of a document in one namespace, with the document's directory of
                      files and a server of its own in place of ``redis://localhost:6379/0``
``python fragment``   not executed: compiled, and its imports must exist
``python file=x.py``  written to ``x.py``, which later blocks may import, and imported once itself
``sh``, ``console``   commands are parsed, not run (see `tests.docs.commands`)
``toml``, ``json``, ``ini``   parsed; ``json`` may be one object per line
``yaml``              parsed; a list that begins with ``drr`` is checked as a command line
``text``              output, keys, diagrams: nothing to check
Any other language, and a block without one, is an error.
"""

from __future__ import annotations

import ast
import configparser
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import yaml

from drr.embedded import EmbeddedServer
from tests.docs.commands import Wrong, check_drr, check_shell
from tests.docs.markdown import ROOT, Block

PLACEHOLDER: Final = re.compile(r"redis://(?:localhost|127\.0\.0\.1)(?::6379)?(?:/0)?(?![\w:/])")
"""How a document names the reader's server."""

_TIME_LIMIT: Final = 120  # seconds for all Python blocks of one document


def _check_toml(block: Block) -> None:
    tomllib.loads(block.text)


def _check_json(block: Block) -> None:
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line)


def _check_ini(block: Block) -> None:
    configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text)


def _check_yaml(block: Block) -> None:
    found: list[object] = list(yaml.safe_load_all(block.text))
    while found:
        part = found.pop()
        if isinstance(part, dict):
            found.extend(part.values())
        elif isinstance(part, list):
            if part[:1] == ["drr"]:
                check_drr([str(word) for word in part[1:]])
            found.extend(part)


def _check_python(block: Block) -> None:
    """Compile it and, if it is not going to run, see that what it imports exists."""
    source = "\n" * (block.line - 1) + block.text
    tree = compile(source, str(block.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    if "fragment" not in block.marks:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                importlib.import_module(name.name)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name):
                    raise Wrong(f"{node.module} has no {name.name!r}")


def _check_nothing(block: Block) -> None:
    del block


_CHECKS: Final[dict[str, Callable[[Block], None]]] = {
    "console": check_shell,
    "ini": _check_ini,
    "json": _check_json,
    "python": _check_python,
    "sh": check_shell,
    "text": _check_nothing,
    "toml": _check_toml,
    "yaml": _check_yaml,
}


def check(block: Block) -> None:
    """Raise `Wrong` if the block could not serve a reader."""
    checker = _CHECKS.get(block.language)
    if checker is None:
        raise Wrong(f"{block.place}: language {block.language!r} is none of {', '.join(_CHECKS)}")
    try:
        checker(block)
    except Wrong as wrong:
        raise Wrong(f"{block.place}: {wrong}") from None
    except Exception as error:
        raise Wrong(f"{block.place}: {error!r}") from error


def runnable(blocks: Sequence[Block]) -> list[Block]:
    """Return the Python blocks that are to be executed."""
    return [block for block in blocks if block.language == "python" and "fragment" not in block.marks]


def run_python(blocks: Sequence[Block], place: Path) -> str:
    """Execute the blocks of one document in ``place``; return what they print. Raise `Wrong` if one fails."""
    with EmbeddedServer(place / "server", port=0) as server:
        steps = []
        for block in runnable(blocks):
            text = PLACEHOLDER.sub(server.url, block.text)
            if (name := block.mark("file")) is not None:
                (place / name).write_text(text)
                text = f"import {Path(name).stem}"
            steps.append((str(block.path), block.line, text))
        done = subprocess.run(
            [sys.executable, "-W", "error", str(Path(__file__).with_name("runner.py"))],
            input=json.dumps(steps),
            cwd=place,
            env={**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIME_LIMIT,
            check=False,
        )
    if done.returncode != 0:
        raise Wrong(done.stdout)
    return done.stdout
