"""Every fenced block of the documentation runs or parses, and every link leads somewhere.

`tests.docs.checks` says what each language has to stand. The checks are tested here as well: each must refuse
what it is there to refuse.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.checks import check, run_python, runnable
from tests.docs.commands import Wrong
from tests.docs.markdown import ROOT, Block, anchors, blocks, documents, links

DOCUMENTS = documents()
BLOCKS = [block for path in DOCUMENTS for block in blocks(path)]
RUNNABLE = [path for path in DOCUMENTS if runnable(blocks(path))]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_are_documents() -> None:
    assert ROOT / "README.md" in DOCUMENTS


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{_name(block.path)}:{block.line}")
def test_block(block: Block) -> None:
    check(block)


@pytest.mark.redis
@pytest.mark.parametrize("path", RUNNABLE, ids=_name)
def test_python_blocks_run(path: Path, tmp_path: Path) -> None:
    run_python(blocks(path), tmp_path)


@pytest.mark.parametrize("path", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(path: Path) -> None:
    """Links inside the repository; those to the rest of the world are not followed."""
    for link in links(path):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / parts.path).resolve() if parts.path else path
        assert target.exists(), f"{_name(path)} links to {link}, which is not there"
        if parts.fragment:
            assert parts.fragment in anchors(target), f"{_name(path)} links to {link}: no such heading"


# --- the checks themselves --------------------------------------------------------------------------------


def parse(tmp_path: Path, text: str) -> list[Block]:
    (tmp_path / "page.md").write_text(text)
    return blocks(tmp_path / "page.md")


def fence(info: str, text: str) -> str:
    return f"```{info}\n{text}\n```\n"


def test_blocks_are_found_wherever_they_stand(tmp_path: Path) -> None:
    page = "# Title\n\n" + fence("sh", "make test") + "\n1. step\n\n   ```python file=jobs.py\n   x = 1\n   ```\n"
    first, second = parse(tmp_path, page)
    assert (first.language, first.line, first.text) == ("sh", 4, "make test\n")
    assert (second.language, second.line, second.mark("file")) == ("python", 10, "jobs.py")
    assert second.text == "x = 1\n", "the list's indentation is not part of it"


@pytest.mark.parametrize(
    ("info", "text", "reason"),
    [
        ("", "anything", "language '' is none of"),
        ("perl", "1", "language 'perl' is none of"),
        ("toml", "a = ", "TOMLDecodeError"),
        ("json", "{'a': 1}", "JSONDecodeError"),
        ("ini", "no section", "no section headers"),
        ("yaml", "a: [1", "ParserError"),
        ("yaml", "a:\n  - command: [drr, serve, --no-such-option]", "(?i)no such option"),
        ("python", "def", "SyntaxError"),
        ("python fragment", "from drr.errors import NoSuchError", "no 'NoSuchError'"),
        ("python fragment", "import drr.nothing", "ModuleNotFoundError"),
        ("sh", "make no-such-target", "no target 'no-such-target'"),
        ("sh", "cd x && make test && make nonsense", "no target 'nonsense'"),
        ("console", "$ make nonsense\nmake: done", "no target 'nonsense'"),
        ("sh", "rm -rf /", "how to check 'rm'"),
        ("sh", "pip install drr", "called drr-dispatcher, not drr"),
        ("sh", "pip install 'drr-dispatcher[nothing]'", "no extra 'nothing'"),
        ("sh", "python -m bench.nothing", "no module 'bench.nothing'"),
    ],
)
def test_a_wrong_block_is_refused(tmp_path: Path, info: str, text: str, reason: str) -> None:
    (block,) = parse(tmp_path, fence(info, text))
    with pytest.raises(Wrong, match=reason) as caught:
        check(block)
    assert f"page.md:{block.line}" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    ["drr no-such-command", "drr serve --no-such-option", "X=1 drr serve \\\n  --no-such-option 2", "drr worker"],
)
def test_a_wrong_drr_command_is_refused(tmp_path: Path, line: str) -> None:
    pytest.importorskip("drr.cli")
    (block,) = parse(tmp_path, fence("sh", line))
    with pytest.raises(Wrong):
        check(block)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ("text", "┌──┐"),
        ("toml", "a = 1"),
        ("json", '{"a": 1}\n{"b": 2}'),
        ("ini", "[Service]\nExecStart=/bin/a\nExecStart=/bin/b %i"),
        ("yaml", "a:\n  - command: [drr, serve, --probe, '0.0.0.0:8080']\n    args: [other, --option]"),
        ("python", "x = await y"),
        ("python fragment", "from drr.errors import DrrError\n\nasync with x: ..."),
        ("sh", "# first\nCOLUMNS=80 make test PYTEST_ARGS='-k lease' \\\n  lint | cat && git status &"),
        ("sh", "make test >log 2>&1; make lint 2>/dev/null"),
        ("console", "$ make test\n12 passed in 1 s | not a command"),
        ("sh", "pip install 'drr-dispatcher[embedded]' other"),
        ("sh", "python -m bench"),
    ],
)
def test_a_right_block_passes(tmp_path: Path, info: str, text: str) -> None:
    (block,) = parse(tmp_path, fence(info, text))
    check(block)


@pytest.mark.redis
def test_python_blocks_share_a_namespace_a_loop_and_a_server(tmp_path: Path) -> None:
    page = [
        fence("python file=mine.py", "VALUE = 40"),
        fence(
            "python",
            'import redis.asyncio\nfrom mine import VALUE\nclient = redis.asyncio.Redis.from_url("redis://localhost:6379/0")',
        ),
        fence("python fragment", "raise SystemExit"),
        fence("python", 'await client.set("x", VALUE)'),
        fence("python", 'x = int(await client.get("x")) + 2\nawait client.aclose()'),
        fence("python", "import asyncio\n\nasync def main() -> None:\n    print(x)\n\nasyncio.run(main())"),
    ]
    assert run_python(parse(tmp_path, "".join(page)), tmp_path) == "42\n"


@pytest.mark.redis
@pytest.mark.parametrize("text", ["assert 1 == 2", "import warnings\nwarnings.warn('old')", "await nothing()"])
def test_a_failing_python_block_shows_its_line(tmp_path: Path, text: str) -> None:
    found = parse(tmp_path, fence("python", "import os") + fence("python", text))
    last = found[-1].line + text.count("\n")
    with pytest.raises(Wrong, match=f'page.md", line {last}, in <module>'):
        run_python(found, tmp_path)
