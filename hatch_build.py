"""Compiles the scheduler core and the simulator's inner loop into the wheel, if asked to.

Off unless ``HATCH_BUILD_HOOK_ENABLE_CUSTOM=1`` is in the environment: then mypyc (of the mypy project) turns the
modules named below into one extension, from the same source, and the wheel is for one platform and interpreter. It
needs a C compiler. Sources go along, for tracebacks and type checkers.

The work is done in a temporary copy. An extension beside its source would win over it at import, and whoever edits
the source later would wonder for a day. For the same reason an editable install is never compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# One group: a class of compiled code can have no subclass, and gives up its fast paths to whatever is outside.
COMPILED: Final = (
    "drr/core/estimates.py",
    "drr/core/jobs.py",
    "drr/core/limits.py",
    "drr/core/lines.py",
    "drr/core/node.py",
    "drr/core/registry.py",
    "drr/core/ring.py",
    "drr/core/scheduler.py",
    "drr/core/shared.py",
    "drr/core/tree.py",
    "drr/core/turns.py",
    "drr/core/view.py",
    "drr/simulate/books.py",
    "drr/simulate/engine.py",
    "drr/simulate/policies.py",
    "drr/simulate/results.py",
    "drr/simulate/windows.py",
)
# Types are checked elsewhere (`make types`), with the libraries at hand. Here they only have to be known.
SETTINGS: Final = """[mypy]
strict = True
python_version = 3.11
follow_imports = silent
ignore_missing_imports = True
"""
TIME_LIMIT: Final = 600.0  # seconds, for the compiler


class CompiledCore(BuildHookInterface[Any]):
    """The build hook; see the top of this module."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the extensions to what goes into the wheel."""
        if version == "editable":
            self.app.display_warning("an editable install is not compiled: the source in it is meant to change")
            return
        self._place = tempfile.mkdtemp(prefix="drr-compiled-")
        place = Path(self._place)
        shutil.copytree(Path(self.root, "drr"), place / "drr", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        try:
            _compile(place)
        except BaseException:
            shutil.rmtree(place)
            raise
        build_data["infer_tag"] = True
        build_data["pure_python"] = False
        found = [path for path in place.rglob("*") if path.suffix in {".so", ".pyd"} and "build" not in path.parts]
        build_data["force_include"].update({str(path): str(path.relative_to(place)) for path in found})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy."""
        if version != "editable":
            shutil.rmtree(self._place)


def _compile(place: Path) -> None:
    (place / "mypy.ini").write_text(SETTINGS)
    found = subprocess.run(
        [sys.executable, "-m", "mypyc", *COMPILED],
        cwd=place,
        env={**os.environ, "MYPYC_OPT_LEVEL": "3", "MYPYC_DEBUG_LEVEL": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    if found.returncode:
        raise RuntimeError(f"drr could not be compiled (is there a C compiler?):\n{found.stdout[-4000:]}")
