"""What drr shows to the world: every public name is listed, described and typed, and errors are one family."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from importlib.metadata import entry_points
from types import ModuleType

import pytest

import drr
import drr.errors
import drr_backends


def _walk(package: ModuleType) -> Iterator[str]:
    yield package.__name__
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if info.name.split(".")[-1] != "__main__":  # importing that one would run it
            yield info.name


NAMES = sorted({*_walk(drr), *_walk(drr_backends)})
PUBLIC = [name for name in NAMES if not any(part.startswith("_") for part in name.split("."))]


def own(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yield public classes and functions that ``module`` itself defines."""
    for name, value in vars(module).items():
        mine = (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__
        if mine and not name.startswith("_"):
            yield name, value


def members(kind: type) -> Iterator[tuple[str, object]]:
    """Yield public methods and properties that a class itself defines."""
    for name, value in vars(kind).items():
        bare = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and (inspect.isfunction(bare) or isinstance(bare, property)):
            yield name, bare


@pytest.mark.parametrize("name", NAMES)
def test_module_says_what_it_is_for(name: str) -> None:
    text = importlib.import_module(name).__doc__ or ""
    assert len(text.split()) >= 4, f"{name} needs a docstring that says what it is for"


@pytest.mark.parametrize("name", NAMES)
def test_all_is_true(name: str) -> None:
    """What ``__all__`` lists exists, once, and is public; and it leaves out nothing that its module defines."""
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", None)
    if listed is None:
        return
    assert len(set(listed)) == len(listed), "a name is listed twice"
    missing = [entry for entry in listed if not hasattr(module, entry)]
    assert not missing, f"{name}.__all__ lists {missing}, which are not there"
    assert not [entry for entry in listed if entry.startswith("_") and entry != "__version__"]
    unlisted = [entry for entry, _ in own(module) if entry not in listed]
    assert not unlisted, f"{name} defines {unlisted}, which its __all__ leaves out"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_things_are_described(name: str) -> None:
    for thing, value in own(importlib.import_module(name)):
        text = value.__doc__ or ""
        assert text, f"{name}.{thing} needs a docstring"
        assert not text.startswith(f"{thing}("), (
            f"{name}.{thing} has only the signature that a dataclass gets by itself"
        )
        if inspect.isclass(value):
            for member, bare in members(value):
                described = bare.__doc__ or any(
                    getattr(getattr(base, member, 0), "__doc__", 0) for base in value.__mro__
                )
                assert described, f"{name}.{thing}.{member} needs a docstring"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_things_are_typed(name: str) -> None:
    for thing, value in own(importlib.import_module(name)):
        functions = [(thing, value)]
        if inspect.isclass(value):
            functions = [(f"{thing}.{member}", bare) for member, bare in members(value)]
        for label, function in functions:
            if inspect.isfunction(function):
                signature = inspect.signature(function)
                assert signature.return_annotation is not signature.empty, f"{name}.{label} returns what?"


def _errors() -> list[type[BaseException]]:
    found = []
    for name in NAMES:
        for _, value in own(importlib.import_module(name)):
            if inspect.isclass(value) and issubclass(value, BaseException):
                found.append(value)
    return found


def test_errors_are_one_family() -> None:
    found = _errors()
    assert found
    strangers = [error for error in found if not issubclass(error, drr.errors.DrrError)]
    assert not strangers, f"{strangers} must derive from DrrError"


def test_errors_say_when_they_are_raised() -> None:
    for error in _errors():
        words = (error.__doc__ or "").split()
        assert words[:2] in (["Base", "of"], ["Raised", "when"], ["Raised", "by"]), f"{error}: 'Raised when ...'"


def test_public_errors_live_in_one_module() -> None:
    elsewhere = [e for e in _errors() if e.__module__ != "drr.errors" and not e.__name__.startswith("_")]
    assert not elsewhere, f"{elsewhere} belong in drr.errors"


def test_the_package_lists_its_names() -> None:
    listed = getattr(drr, "__all__", None)
    assert listed is not None, "drr/__init__.py needs an __all__"
    for name in listed:
        value = getattr(drr, name)
        assert not isinstance(value, ModuleType) or name == "errors", f"drr.{name} is a module"


def test_adapters_are_registered() -> None:
    schemes = {entry.name: entry for entry in entry_points(group="drr.backends")}
    assert {"memory", "redis", "rediss", "unix"} <= set(schemes)
    for entry in schemes.values():
        assert callable(entry.load()), entry
