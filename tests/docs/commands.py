"""Checks command lines of the documentation without running them: would they be understood?"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.docs.markdown import ROOT, Block

UNCHECKED: Final = frozenset({"cat", "cd", "curl", "docker", "export", "git", "kill", "redis-cli", "redis-server"})
"""Programs of others that documents may call; their arguments are not looked into."""

_SEPARATORS: Final = frozenset({"&&", "||", ";", "|", "&"})


class Wrong(AssertionError):
    """A block that a reader could not use as it stands."""


def _lines(block: Block) -> Iterator[str]:
    """Yield the command lines of a block, with continued ones joined. In ``console`` only those after a prompt."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.language != "console":
            yield line
        elif line.startswith("$ "):
            yield line[2:]


def _commands(line: str) -> Iterator[list[str]]:
    """Yield the simple commands of a line, without assignments in front and redirections behind."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter([*lexer, ";"])
    for word in tokens:
        if set(word) <= set("<>&") and set(word) & set("<>"):
            next(tokens, None)  # its file
            if words and words[-1].isdigit():
                words.pop()  # its descriptor
        elif word in _SEPARATORS:
            while words and re.match(r"[A-Za-z_]\w*=", words[0]):
                words.pop(0)
            if words:
                yield words
            words = []
        else:
            words.append(word)


def check_shell(block: Block) -> None:
    """Raise `Wrong` if a command of a shell block cannot be right."""
    for line in _lines(block):
        for program, *arguments in _commands(line):
            if program not in UNCHECKED:
                check = _CHECKS.get(program)
                if check is None:
                    raise Wrong(f"{block.place}: nobody has said how to check {program!r} (in {__name__})")
                try:
                    check(arguments)
                except Wrong as wrong:
                    raise Wrong(f"{block.place}: {line.strip()}: {wrong}") from None


def check_drr(arguments: list[str]) -> None:
    """Raise `Wrong` if ``drr`` would not understand these arguments."""
    from typer.main import get_command

    command: Any = get_command(importlib.import_module("drr.cli").app)
    _disarm(command)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            command.main(args=arguments, prog_name="drr", standalone_mode=False)
    except SystemExit as ended:
        if ended.code not in (0, None):
            raise Wrong(f"ends with status {ended.code}") from None
    except Exception as error:  # the classes belong to whichever click typer stands on
        explain = getattr(error, "format_message", error.__repr__)
        raise Wrong(explain() or repr(error)) from None


def _disarm(command: Any) -> None:
    """Let a command line be parsed by every command, and do nothing."""
    command.callback = None
    for child in getattr(command, "commands", {}).values():
        _disarm(child)


def _check_make(arguments: list[str]) -> None:
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for target in arguments:
        if "=" not in target and target not in targets:
            raise Wrong(f"the Makefile has no target {target!r}")


def _check_pip(arguments: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if not arguments or arguments[0] != "install":
        raise Wrong("only `pip install` is understood")
    for argument in arguments[1:]:
        found = re.fullmatch(r"(drr[\w.-]*|\.)(?:\[([\w,-]+)\])?.*", argument)
        if found is None:
            continue
        name, extras = found.groups()
        if name not in (project["name"], "."):
            raise Wrong(f"the distribution is called {project['name']}, not {name}")
        for extra in (extras or "").split(","):
            if extra and extra not in project["optional-dependencies"]:
                raise Wrong(f"there is no extra {extra!r}")


def _check_python(arguments: list[str]) -> None:
    match arguments:
        case ["-m", "venv", *_]:
            return
        case ["-m", "pip", *rest]:
            _check_pip(rest)
        case ["-m", module, *_]:
            with contextlib.suppress(ModuleNotFoundError):
                if importlib.util.find_spec(module) is not None:
                    return
            raise Wrong(f"there is no module {module!r}")
        case [script, *_] if script.endswith(".py"):
            return  # a block with file=... of the same document, checked where it stands
        case _:
            raise Wrong("only `python -m MODULE` and `python FILE.py` are understood")


def _check_venv_bin(arguments: list[str]) -> None:
    del arguments  # tools of the development environment, which the tests run in themselves


_CHECKS: Final[dict[str, Callable[[list[str]], None]]] = {
    "drr": check_drr,
    "make": _check_make,
    "pip": _check_pip,
    "python": _check_python,
    "python3": _check_python,
    ".ci/run": _check_venv_bin,
    ".venv/bin/drr": check_drr,
    ".venv/bin/pytest": _check_venv_bin,
    ".venv/bin/ruff": _check_venv_bin,
    ".venv/bin/mypy": _check_venv_bin,
}
