"""Finding the object that ``module:name`` says."""

from __future__ import annotations

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from drr.errors import DrrError, InvalidConfiguration
from drr.worker import Tasks, Worker

RULE = "it is written module:name, for instance jobs:worker for `worker = Worker(...)` in jobs.py"


def load_worker(where: str) -> Worker | Tasks:
    """Import the `Worker` or `Tasks` that ``where`` names; modules of the current directory are found too.

    Raises `InvalidConfiguration` saying what is missing, or what the module's own code raised and where; a
    `DrrError` of that code is raised as it is.
    """
    module_name, colon, attribute = where.partition(":")
    if not colon or not module_name or not attribute:
        raise InvalidConfiguration("worker", where, RULE)
    found: Any = _import(module_name, where)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidConfiguration(
                "worker", where, f"{module_name} has no {attribute!r}; {_candidates(module_name)}"
            )
        found = getattr(found, part)
    if not isinstance(found, Worker | Tasks):
        raise InvalidConfiguration(
            "worker", where, f"it must be a Worker or a Tasks, not {_kind(found)}; {_candidates(module_name)}"
        )
    return found


def _import(name: str, where: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except DrrError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            rule = f"there is no module {error.name!r} here ({here}) or among the installed ones; {RULE}"
            raise InvalidConfiguration("worker", where, rule) from error
        raise _broken(where, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(where, error) from error


def _broken(where: str, error: BaseException) -> InvalidConfiguration:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return InvalidConfiguration("worker", where, f"importing it failed: {type(error).__name__}: {error}{place}")


def _candidates(module_name: str) -> str:
    members = vars(sys.modules[module_name])
    names = [name for name, value in members.items() if isinstance(value, Worker | Tasks)]
    return f"it has: {', '.join(names)}" if names else "it has no Worker and no Tasks"


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
