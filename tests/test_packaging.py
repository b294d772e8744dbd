"""What is shipped: the wheel and the sdist contain every file of the packages, and nothing that is not theirs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Built:
    """A wheel, an sdist, and every file of the two packages by the name it has in a wheel."""

    wheel: Path
    sdist: Path
    files: set[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build a copy of the working tree."""
    source = tmp_path_factory.mktemp("source") / "drr"
    ignore = shutil.ignore_patterns(".venv*", ".git", "__pycache__", ".*_cache", ".hypothesis", "dist", "build")
    shutil.copytree(ROOT, source, ignore=ignore)
    files = set()
    for top in (source, source / "backends"):
        for package in ("drr", "drr_backends"):
            files |= {str(path.relative_to(top)) for path in (top / package).rglob("*") if path.is_file()}
    (source / "backends/drr_backends/left-over.pyc").touch()
    place = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(place)], cwd=source, check=True)
    (wheel,) = place.glob("drr_dispatcher-*.whl")
    (sdist,) = place.glob("drr_dispatcher-*.tar.gz")
    return Built(wheel, sdist, files)


def test_the_wheel_has_every_file_of_the_packages(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        entries = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        assert "drr = drr.cli:main" in wheel.read(entries).decode()
    assert names == built.files
    assert {"drr/py.typed", "drr_backends/py.typed"} <= names


def test_the_sdist_has_what_it_takes_to_test_it(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    packages = {name if name.startswith("drr/") else f"backends/{name}" for name in built.files}
    assert packages <= names
    assert {"pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "LICENSE", "tests/conftest.py"} <= names
    tops = {name.partition("/")[0] for name in names}
    expected = {
        "drr",
        "backends",
        "tests",
        "bench",
        "chaos",
        "hatch_build.py",
        "docs",
        ".ci",
        ".gitignore",
        "PKG-INFO",
        "pyproject.toml",
    }
    assert tops <= expected | {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile"}
