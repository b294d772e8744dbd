"""Runs the Python blocks of one document. A script: it reads ``[[place, line, text], ...]`` from standard input.

The blocks share one namespace, top to bottom, as a reader would type them. A block may ``await`` at its top
level; such blocks share one event loop. A traceback shows the document's own lines.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
import types


def run(blocks: list[tuple[str, int, str]]) -> None:
    """Execute the blocks in order; the first that fails ends it."""
    module = types.ModuleType("document")
    sys.modules["document"] = module
    with asyncio.Runner() as loop:
        for path, line, text in blocks:
            source = "\n" * (line - 1) + text
            code = compile(source, path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if code.co_flags & inspect.CO_COROUTINE:
                loop.run(types.FunctionType(code, vars(module))())
            else:
                exec(code, vars(module))  # noqa: S102 - the project's own documentation


if __name__ == "__main__":
    run(json.load(sys.stdin))
