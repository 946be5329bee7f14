"""The documentation: its code runs, its links lead somewhere, it forgets no algorithm and no public name."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

import fedloom
from fedloom.cli.main import main
from fedloom.cli.parser import parser
from fedloom.experiments import catalogue
from fedloom.experiments.experiment import Experiment
from fedloom.wording import install

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("papers/**/*.md")])
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "papers/src").rglob("*.py")])
_RUNNABLE = re.compile(r"<!-- runnable -->\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
_SHOWN = re.compile(
    r"^(?:    |# +)(?:cd \S+ && )?(fedloom .*)$", re.MULTILINE
)  # a command line in a block or a comment
_CODE = re.compile(r"^```.*?^```$|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[pytest.param]:
    """The runnable blocks of all pages, named by page and number."""
    return [
        pytest.param(code, id=f"{page.name}-{number}")
        for page in PAGES
        for number, (kind, code) in enumerate(_RUNNABLE.findall(page.read_text(encoding="utf-8")))
        if kind == language
    ]


def commands() -> list[str]:
    """Every command line of the runnable shell blocks, continued lines joined."""
    lines = [line for block in blocks("bash") for line in block.values[0].replace("\\\n", " ").splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip()]


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks("python"))
def test_code_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "documentation", "exec", dont_inherit=True), {"__name__": "documentation"})


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_run(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *arguments = shlex.split(command)
    assert program == "fedloom"
    if arguments[0] in ("run", "compare"):  # the last of two equal options counts
        arguments += ["--rounds", "1", "--epochs", "1", "--eval-every", "1"]
    assert main(arguments) == 0, capsys.readouterr().err


def words_of(line: str) -> list[str]:
    """What follows `fedloom` on a line, up to where the shell writes the output to a file."""
    words = shlex.split(line, comments=True)[1:]
    return words[: words.index(">")] if ">" in words else words


def understood(line: str) -> bool:
    """Whether there is such a command, with such flags."""
    try:
        parser().parse_args(words_of(line))
    except SystemExit as end:
        return not end.code
    return True


@pytest.mark.slow
def test_command_lines_that_pages_show_are_understood() -> None:
    lines = [
        (page.name, line)
        for page in [*PAGES, *ROOT.glob("examples/*.toml")]
        for line in _SHOWN.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
    ]
    assert len(lines) > 80
    assert [(page, line) for page, line in lines if not understood(line)] == []


class _DataAskedFor(BaseException):
    """Raised where a command, with all its settings, would read data."""


@pytest.mark.slow
def test_settings_of_command_lines_that_pages_show_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as `--over lr=...`, which the parser understands, and no algorithm."""

    def ask(_: Experiment) -> None:
        raise _DataAskedFor

    monkeypatch.setattr(Experiment, "dataset", ask)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    refused, lines = [], 0
    for page in [*PAGES, *ROOT.glob("examples/**/*.toml")]:
        for line in _SHOWN.findall(page.read_text(encoding="utf-8").replace("\\\n", " ")):
            command, *flags = words_of(line)
            if command not in ("run", "compare", "sweep"):
                continue
            lines += 1
            monkeypatch.chdir(tmp_path / "examples" if "own.toml" in flags else tmp_path)
            try:
                main([command, *flags])
                refused.append((page.name, line, capsys.readouterr().err))
            except _DataAskedFor:
                pass
    assert lines > 40
    assert refused == []


def test_every_extra_is_named_where_installing_is_explained() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    install = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Install")[2].partition("\n## ")[0]
    assert [name for name in extras if name not in ("dev", "tested") and f"`{name}`" not in install] == []


def test_there_is_something_to_run() -> None:
    assert len(blocks("python")) >= 3
    assert len(commands()) >= 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        assert file.is_relative_to(ROOT), f"{page.name} links to {target}, which is outside the repository"
        if anchor:
            known = sorted(anchors(file))
            assert anchor in known, f"{page.name} links to {target}, but the page has only {known}"


def test_paths_that_pages_name_exist() -> None:
    pattern = re.compile(r"`((?:src|tests|docs|papers|scripts|benchmarks)/[\w./-]+\.\w+)`")
    for page in PAGES:
        for path in pattern.findall(page.read_text(encoding="utf-8")):
            assert (ROOT / path).exists(), f"{page.name} names {path}, which does not exist"


_SETTING = re.compile(r"^- `(\w+)=([^`]+)`: .+\.$", re.MULTILINE)
_REFERENCE = re.compile(
    r"^- (`\w+`(?:, `\w+`)*): as in \[\w+\]\((?:\.\./algorithms\.md#|)(\w+)(?:\.md#settings)?\)\.$", re.MULTILINE
)


def algorithm_section(name: str) -> str:
    """Return the page of an algorithm, or the section of docs/algorithms.md that has this heading."""
    if name in fedloom.ALGORITHMS:
        return (ROOT / f"docs/algorithms/{name}.md").read_text(encoding="utf-8")
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {name}\n(.*?)^## ", page, re.MULTILINE | re.DOTALL | re.IGNORECASE)
    assert found, f"docs/algorithms.md has no section {name}"
    return found[1]


def test_each_algorithm_has_a_page_and_nothing_else_has() -> None:
    """The page of a method that is gone would stay, since scripts/make_index.py writes and deletes nothing."""
    assert {page.stem for page in (ROOT / "docs/algorithms").iterdir()} == {*fedloom.ALGORITHMS}
    assert len((ROOT / "docs/algorithms.md").read_text(encoding="utf-8").split()) < 5000  # what stands on those pages


@pytest.mark.parametrize("name", fedloom.ALGORITHMS)
def test_each_setting_of_an_algorithm_stands_in_its_section_or_in_the_one_that_it_names(name: str) -> None:
    section = algorithm_section(name)
    listed = dict(_SETTING.findall(section))
    for keys, other in _REFERENCE.findall(section):
        explained = algorithm_section(other)
        for key in re.findall(r"\w+", keys):
            (listed[key],) = re.findall(rf"^- `{key}=([^`]+)`", explained, re.MULTILINE)
    made = {key: eval(value, {"fl": fedloom}) for key, value in listed.items()}
    assert made == catalogue.hyper_parameters(name)


def test_a_setting_that_several_algorithms_have_is_explained_once() -> None:
    assert "- `num_public`, `tau`: as in [kt_pfl](kt_pfl.md#settings).\n" in algorithm_section("topk_pfl").replace(
        "`distill`, ", ""
    )
    assert "- `aggregation`, `buffers`, `shared`: as in [averages](../algorithms.md#averages).\n" in algorithm_section(
        "fedavg"
    )
    assert '- `aggregation="uniform"`: Weight of a client' in algorithm_section("pfedme")


def test_defaults_of_local_training_are_those_that_the_page_says() -> None:
    said = re.findall(r"`(\w+)=([^`]+)`", algorithm_section("Local training"))
    said = {name: eval(value, {"fl": fedloom}) for name, value in said}
    assert set(said) == {f.name for f in dataclasses.fields(fedloom.Local)} - {"steps"}
    assert fedloom.Local(**said) == fedloom.Local()


@pytest.mark.some(65)
@pytest.mark.parametrize("name", fedloom.__all__)
def test_public_names_have_docstrings(name: str) -> None:
    value = getattr(fedloom, name)
    own = getattr(value, "__module__", "").startswith("fedloom")  # bounds are those of annotated_types
    if own and (inspect.isclass(value) or inspect.isroutine(value)):
        made_up = f"{value.__name__}("  # what dataclass writes where there is none
        assert not (value.__doc__ or made_up).startswith(made_up), f"fedloom.{name} has no docstring of its own"


def test_private_parts_of_pytorch_are_listed() -> None:
    private = re.compile(r"\b(?:torch|nn)(?:\.\w+)*?\.(_[a-zA-Z]\w*)|from torch[.\w]* import (_\w+)|, (_[a-z_]+)=")
    used = {
        next(filter(None, found)) for path in SOURCES for found in private.findall(path.read_text(encoding="utf-8"))
    }
    assert {"_pytree", "_ConvNd", "_internal"} <= used
    listed = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("**Private parts of PyTorch**")[2]
    assert {name for name in used if name not in listed} == set()


def test_pages_stand_on_their_own() -> None:
    """No page names a place outside the repository on somebody's machine."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        above = re.escape("../" * max(2, len(page.relative_to(ROOT).parts)))
        found = re.search(rf"(?<![\w.])(?:/work|/home|/tmp|/root)/|{above}|\.\./shared", text)
        assert found is None, f"{page.name} names {found and found.group()}"


def test_fedloom_is_installed_in_one_form_everywhere() -> None:
    """On PyPI the name is not ours: `pip install fedloom` installs a stranger's, and `.` is no wheel file.

    Wrong edits: `pip install .` on a page, with or without an extra; `pip install ./papers` in the newest changes.
    """
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    texts = [p.read_text(encoding="utf-8") for p in (*pages, *SOURCES, *ROOT.glob("examples/*.ipynb"))]
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in (*texts, newest):
        assert re.findall(r"pip install [\"'\\]*fedloom\b|fedloom\[\w+\]", text) == []
        assert re.findall(r"pip install (?:[^`\n#]* )?[\"'\\]*(?:\.|/|~|[\w./-]+\.whl)[^`\n]*", text) == []
        written = re.findall(r"pip install [\"']([^\"'\[]*)\[([\w,]+)\]", text)
        assert {place for place, _ in written} <= {"<PATH>"}
        named = {*re.findall(r"install\('(\w+)'\)", text), *(name for _, names in written for name in names.split(","))}
        assert named - {"{extra}"} <= project["optional-dependencies"].keys()
    assert install("nats") == "pip install '<PATH>[nats]', where <PATH> is fedloom's folder or wheel file"


def test_the_readme_is_one_page_and_links_to_few_places() -> None:
    """A link that one more reader might follow belongs to docs/where.md."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    targets = set(re.findall(r"\]\(([^)\s]+)\)", readme))
    assert "docs/where.md" in targets
    assert len(targets) <= 25, sorted(targets)


def test_the_readme_begins_with_a_sentence_a_picture_two_commands_and_the_paths() -> None:
    """It is the site's home, whose first screen a second sentence or a third command would push down."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first, paths, *_ = readme.split("\n## ")
    _, sentence, picture, commands, *_ = first.split("\n\n")
    assert (sentence[:2], picture[:2], len(commands.splitlines())) == ("**", "![", 2)
    headings = anchors(ROOT / "docs/paths.md") - {"paths"}
    assert set(re.findall(r"docs/paths\.md#([\w-]+)", paths)) == headings
