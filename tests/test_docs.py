"""The code blocks of README.md and docs/*.md run, in the order of the page.

How a block is marked:

- ```` ```python ````: all of a page's blocks run top to bottom in one namespace, in a temporary folder. A comment
  directly beneath a line that starts with ``print(`` is what that line prints: the words must agree, numbers within
  2 % or 0.02.
- ```` ```console ````: lines that begin with ``$ `` run in the same folder and must exit with 0 (a trailing backslash
  continues a line). A plain `viewspan` or `python -m viewspan…` command, perhaps with ``; test $? -eq N`` behind it, runs
  in this process, which spares an import of torch each; anything else runs in bash, with this environment's `viewspan`
  and `python` first on the path. Other lines are shown output and are not compared.
- Any other language (``text``, ``bash``, ``yaml``, …) is only shown.
- ``<!-- not run: reason -->`` on the line before a block leaves it out; the reason is required.
- ``<!-- slow -->`` on the line before a block runs it only under the ``slow`` marker; what builds on it is slow too.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import viewspan
from viewspan import testing
from viewspan.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"(?:^[ \t]*<!--\s*(?P<mark>[^\n]*?)\s*-->[ \t]*\n)?^(?P<ticks>```+)(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=ticks)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass
class Block:
    """A fenced block of a page."""

    language: str
    code: str
    line: int
    slow: bool


def blocks(text: str) -> list[Block]:
    """The blocks of a page that are to run."""
    found = []
    for match in FENCE.finditer(text):
        mark = match["mark"] or ""
        line = text.count("\n", 0, match.start("code")) + 1
        if mark.startswith("not run"):
            assert re.fullmatch(r"not run: \S.*", mark), f"line {line}: say why: <!-- not run: reason -->"
            continue
        assert mark in ("", "slow") or match["language"] not in ("python", "console"), (
            f"line {line}: unknown mark {mark!r}"
        )
        if match["language"] in ("python", "console"):
            found.append(Block(match["language"], match["code"], line, mark == "slow"))
    return found


def commands(code: str) -> list[str]:
    """The commands of a console block, continued lines joined."""
    lines = iter(code.splitlines())
    found = []
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines).removeprefix(">").strip()
            found.append(command)
    return found


def promised(code: str) -> list[str]:
    """What a python block says that its prints print."""
    lines = code.splitlines()
    found = []
    for i, line in enumerate(lines):
        if line.startswith("print(") and i + 1 < len(lines) and lines[i + 1].startswith("# "):
            found.append(lines[i + 1][2:].strip())
    return found


def agree(said: str, printed: str) -> bool:
    """Equal words, and numbers within 2 % or 0.02."""
    if NUMBER.sub("#", said).split() != NUMBER.sub("#", printed).split():
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True)
    values = [(float(a.replace("−", "-")), float(b.replace("−", "-"))) for a, b in pairs]
    return all(abs(a - b) <= max(0.02, 0.02 * abs(a)) for a, b in values)


PLAIN = re.compile(r"(?:python -m )?(viewspan(?:\.testing)?) ([^|&;<>$*`]+?)(?:; test \$\? -eq (\d+))?")


def run(command: str, folder: Path) -> str:
    """What a command prints; it must end as the page says."""
    plain = PLAIN.fullmatch(command)
    if plain is None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        ended = subprocess.run(
            ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )  # fmt: skip
        assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout
    program = testing.main if plain[1] == "viewspan.testing" else main
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("default")  # as a command of its own would
        try:
            program(shlex.split(plain[2]))
        except SystemExit as stopped:
            code = stopped.code or 0
    assert code == int(plain[3] or 0), f"{command}: exit code {code}\n{out.getvalue()}\n{err.getvalue()}"
    return out.getvalue()


def check(page: Path, folder: Path, *, slow: bool) -> None:
    """Run a page in a folder, without its slow blocks unless `slow`."""
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.slow and not slow:
            continue
        where = f"{page.name}, line {block.line}"
        if block.language == "console":
            for command in commands(block.code):
                try:
                    run(command, folder)
                except AssertionError as error:
                    raise AssertionError(f"{where}: {error}") from None
            continue
        printed = io.StringIO()
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        lines = iter(printed.getvalue().splitlines())
        for said in promised(block.code):
            assert any(agree(said, line) for line in lines), (
                f"{where}: not printed: {said}\n{printed.getvalue()}"
            )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; modules that a page writes there are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page: Path, folder: Path) -> None:
    check(page, folder, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_slow_blocks_of_a_page_run(page: Path, folder: Path) -> None:
    if not any(block.slow for block in blocks(page.read_text(encoding="utf-8"))):
        pytest.skip("no slow block")
    check(page, folder, slow=True)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def references(text: str) -> set[str]:
    """Numbered things of a page, ranges and lists written out: "Tables 1 and 3 to 5" is four of them."""
    found = set()
    for word, numbers in re.findall(
        r"(Theorem|Table|Algorithm)s? (\d[\d.]*(?:(?:, | and | to )\d[\d.]*)*)", text
    ):
        for part in re.split(r", | and ", numbers):
            first, _, last = (end.rstrip(".") for end in part.partition(" to "))
            ends = range(int(first), int(last) + 1) if last else (first,)
            found |= {f"{word} {number}" for number in ends}
    return found | set(re.findall(r"Eq\. \(\d+\)", text))


def test_references_are_written_out() -> None:
    text = "Tables 1 and 3 to 5, Theorem 4.4, Theorems 4.5 and 4.6. See Eq. (6)."
    assert sorted(references(text)) == [
        "Eq. (6)", "Table 1", "Table 3", "Table 4", "Table 5", "Theorem 4.4", "Theorem 4.5", "Theorem 4.6",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["theory.md", "reproduce.md"])
def test_what_a_page_refers_to_is_found_in_the_source(name: str) -> None:
    named = references((ROOT / "docs" / name).read_text(encoding="utf-8"))
    assert len(named) > 3
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    missing = [
        reference for reference in sorted(named) if not re.search(rf"{re.escape(reference)}(?!\d)", source)
    ]
    assert not missing, f"{name}: no line of the source says {', '.join(missing)}"


def test_every_equation_of_the_theory_page_is_found_at_its_function_and_its_test() -> None:
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    tests = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("test_*.py")}
    for number, functions, proofs in rows:
        at = re.findall(rf"def (\w+)\(.*# .*theory\.md \({number}\)", source)
        assert at, f"equation {number}: no function is marked `# theory.md ({number})`"
        for name in re.findall(r"`(?:[\w.]+\.)?(\w+)`", functions):
            assert re.search(rf"^\s*def {name}\(", source, re.MULTILINE), (
                f"equation {number}: no function {name}"
            )
        for name in re.findall(r"`(\w+(?:\.py)?)`", proofs):
            assert name in tests or any(f"def {name}(" in text for text in tests.values()), (
                f"equation {number}: {name}"
            )


def test_plain_commands_are_told_from_those_that_need_a_shell() -> None:
    assert PLAIN.fullmatch("viewspan audit v.csv --lag 3; test $? -eq 3").groups() == (
        "viewspan",
        "audit v.csv --lag 3",
        "3",
    )
    assert PLAIN.fullmatch("python -m viewspan.testing shapes s")[1] == "viewspan.testing"
    for shell in ("viewspan diff $(ls a)", "viewspan theory | head", "viewspan theory > f", "pip install ."):
        assert PLAIN.fullmatch(shell) is None


def test_the_marks_are_understood() -> None:
    text = (
        "```python\nx = 1\nprint(x)\n# 1\n```\n\n<!-- slow -->\n```console\n$ a \\\n  b\nshown\n$ c\n```\n"
        "<!-- not run: no network -->\n```console\n$ false\n```\n```yaml\n- a\n```\n"
    )
    first, second = blocks(text)
    assert (first.language, first.line, first.slow, promised(first.code)) == ("python", 2, False, ["1"])
    assert (second.slow, commands(second.code)) == (True, ["a b", "c"])
    with pytest.raises(AssertionError, match="say why"):
        blocks("<!-- not run -->\n```python\n```\n")
    assert agree("loss −1.355 of isometry", "loss -1.36 of  isometry")
    assert not agree("loss 1.3", "loss 1.4")
    assert not agree("loss 1.3", "gain 1.3")


def test_the_site_has_a_page_for_every_public_module() -> None:
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in viewspan._MODULES:
        page = ROOT / "docs" / "api" / f"{name}.md"
        assert f"::: viewspan.{name}\n" in page.read_text(encoding="utf-8")
        assert f"api/{name}.md" in site
