"""Make what programs read: docs/reference.md, which whoever writes code for fedloom needs, and llms.txt.

    python scripts/make_reference.py

llms.txt (https://llmstxt.org) lists the pages of mkdocs.yml, each with its first sentence.

`scripts/reference.md` is its frame: what no declaration says, and templates that a test runs. A line `{{word ...}}` in
it stands for what is read of the sources, as text: nothing of fedloom is imported.

| line | becomes |
|---|---|
| `{{functions A B}}` | signatures and first sentences; public names, or `module:name` below `fedloom` |
| `{{class A}}` | a class with its fields, properties and methods; names behind it choose some, `-name` leaves one out |
| `{{rules}}` | the rules of docs/algorithms.md for an algorithm of one's own |
| `{{settings SECTION}}` | the keys of a section of a settings file, from the JSON schema |
| `{{algorithms}}` | all algorithms by family, with the settings of their own |
| `{{measures}}` | the numbers of a record, from docs/measures.md |
| `{{forms module Kind}}` | how the kinds of a setting are written |
| `{{commands}}` | the commands |
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src/fedloom"
FRAME, PAGE, LIST = Path(__file__).with_name("reference.md"), ROOT / "docs/reference.md", ROOT / "llms.txt"
ROOMS = ("cli", "experiments", "report", "analyses")  # whose commands are of simulations
Definition = ast.ClassDef | ast.FunctionDef
SHORTER = {
    "npt.NDArray[np.int64] | Tensor": "Ints", "npt.NDArray[np.int64]": "Ints", "npt.NDArray[np.bool_]": "Bools",
    "npt.NDArray[np.generic] | Tensor": "Array", "npt.NDArray[np.float64]": "Floats", "npt.ArrayLike | Tensor": "Ints",
    "str | os.PathLike[str]": "Path", "torch.dtype": "dtype", "npt.ArrayLike": "Array",
}  # fmt: skip


class Source:
    """A module as text, and what it defines."""

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, path.read_text(encoding="utf-8")
        self.lines, self.tree = self.text.splitlines(), ast.parse(self.text)

    def comment(self, node: ast.AST) -> str:
        """Return what stands behind a line, as of a field."""
        line = self.lines[node.end_lineno - 1][node.end_col_offset :]  # type: ignore[attr-defined]
        return line.partition("#")[2].strip() if "#" in line and "fmt:" not in line else ""


@functools.cache
def source(module: str) -> Source:
    """Return a module below fedloom, by its dotted name."""
    path = SOURCES.joinpath(*module.split(".")[1:])
    for found in (path / "__init__.pyi", path.with_suffix(".py"), path / "__init__.py"):
        if found.is_file():
            return Source(found)
    raise LookupError(f"fedloom has no module {module}")


def find(name: str, module: str = "fedloom") -> tuple[Source, Definition]:
    """Return where a name is defined, along the imports of packages."""
    if ":" in name:
        room, _, name = name.partition(":")
        module = f"fedloom.{room}"
    here = source(module)
    for node in here.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return here, node
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedloom"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find(alias.name, node.module)
    raise LookupError(f"{module} has no {name}")


def sentence(node: ast.AST) -> str:
    """Return the first sentence of a docstring."""
    doc = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())  # type: ignore[arg-type]
    return re.split(r"(?<=[a-z0-9`)\]}'\"])[.:] (?=[A-Z])", doc, maxsplit=1)[0].rstrip(".")


def clause(text: str, most: int = 12) -> str:
    """Return a sentence, or where it is long its beginning up to a comma or the like."""
    ends = [found.start() for found in re.finditer(r"[,;:] ", text)]
    fits = [
        end for end in ends if 3 < len(text[:end].split()) <= most and text[:end].count("(") == text[:end].count(")")
    ]
    return text[: fits[-1]] if len(text.split()) > most and fits else text


def short(text: str) -> str:
    """Return an annotation or a default in fewer words."""
    for long, brief in SHORTER.items():
        text = text.replace(long, brief)
    return text.replace("Callable[..., Any]", "Callable").replace(": Any", "")


def signature(node: ast.FunctionDef, name: str = "") -> str:
    """Return a call of a function, with types and defaults."""
    arguments = ast.parse(ast.unparse(node.args).join(("def f(", "): 0"))).body[0].args  # type: ignore[attr-defined]
    for place in (arguments.posonlyargs, arguments.args):
        place[:] = [a for a in place if a.arg not in ("self", "cls")]
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    for a, default in (
        *zip(arguments.args, defaults, strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=False),
    ):
        a.annotation = a.annotation if default is None else None  # the default says enough
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and ast.unparse(node.returns) != "None" else ""
    return short(f"{name or node.name}({ast.unparse(arguments)}){returns}")


def functions(*names: str) -> Iterator[str]:
    """Yield functions, or classes by what they are made of."""
    for name in names:
        where, node = find(name)
        called = name.rpartition(":")[2]
        if isinstance(node, ast.FunctionDef):
            yield f"- `{signature(node)}`: {clause(sentence(node))}."
            continue
        fields = ", ".join(short(declared(*one[:3])) for one in fields_of(where, node))
        made = next((m for m in methods_of(node) if m.name == "__init__"), None)
        yield f"- `{signature(made, called) if made else f'{called}({fields})'}`: {clause(sentence(node))}."


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """Return the methods of a class."""
    return [one for one in node.body if isinstance(one, ast.FunctionDef)]


def fields_of(where: Source, node: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """Yield the fields of a class: name, type, default, and what is said of it."""
    after = [*node.body[1:], None]
    for one, following in zip(node.body, after, strict=True):
        if not (isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)) or one.target.id.startswith("_"):
            continue
        said = where.comment(one)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            said = " ".join(str(following.value.value).split()).partition(". ")[0]
        yield one.target.id, ast.unparse(one.annotation), default_of(one.value), said.rstrip(".")


def declared(field: str, kind: str, default: str) -> str:
    """Return a field with its default, or with its type where it has none."""
    return f"{field}={default}" if default else f"{field}: {kind}"


def default_of(value: ast.expr | None) -> str:
    """Return a field's default as a call has it, without what is said of it elsewhere."""
    if value is None:
        return ""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "setting", "static", "dataclasses.field"):
        if value.args:
            return ast.unparse(value.args[0])
        given = {k.arg: k.value for k in value.keywords}
        made = given.get("default", given.get("default_factory"))
        return "" if made is None else ast.unparse(made) + "()" * ("default_factory" in given)
    return ast.unparse(value)


def members(name: str, *chosen: str) -> Iterator[str]:
    """Yield a class: what it is, then its fields, properties and methods, or some of them."""
    where, node = find(name)
    assert isinstance(node, ast.ClassDef), name
    wanted, without = {c for c in chosen if c[0] != "-"}, {c[1:] for c in chosen if c[0] == "-"}

    def shown(member: str) -> bool:
        return member not in without and (member in wanted if wanted else not member.startswith("_"))

    yield f"**`{name.rpartition(':')[2]}`**: {clause(sentence(node))}."
    yield ""
    for field, kind, default, said in fields_of(where, node):
        if shown(field):
            yield f"- `{short(declared(field, kind, default))}`" + f": {clause(said)}" * bool(said)
    for one in methods_of(node):
        if not shown(one.name):
            continue
        marks = {ast.unparse(mark) for mark in one.decorator_list}
        said = clause(sentence(one))
        if marks & {"property", "functools.cached_property", "cached_property"}:
            kind = f": {ast.unparse(one.returns)}" if one.returns else ""
            yield f"- `{short(one.name + kind)}`: {said}"
        else:
            yield f"- `{signature(one)}`" + f": {said.removeprefix('Return ')}" * bool(said)


def rules() -> Iterator[str]:
    """Yield the rules for an algorithm of one's own, without links."""
    page = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    found = re.search(r"^## Write your own\n.*?\n\n(1\. .*?)\n\n(?=A term of)", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    text = re.sub(r" ?\(\[why\]\([^)]*\)\)", "", found[1])
    text = re.sub(r",? as in \[(?:`\w+`|[^\]]*)\]\([^)]*\)", "", text)
    text = re.sub(r" \[[^\]]*\.py\]\([^)]*\)[^\n]*", "", text)
    yield re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of settings files."""
    found: dict[str, Any] = json.loads((SOURCES / "cli/settings.schema.json").read_text(encoding="utf-8"))
    return found["properties"]  # type: ignore[no-any-return]


def settings(section: str, *without: str) -> Iterator[str]:
    """Yield the keys of a section, or those at the `top`, and some of them with their defaults alone."""
    of = schema() if section == "top" else schema()[section]["properties"]
    others = []
    for key, one in of.items():
        if "description" not in one or one.get("type") == "object":
            continue
        default = json.dumps(one.get("default")).replace("null", '"none"')
        if key in without or groups().get(f"{section}.{key}") == "engine":
            others.append(f"`{key}={default}`")
            continue
        words = one.get("enum", [])
        said = re.split(r"(?<=[a-z0-9)])\. (?=[A-Z])", one["description"].rstrip("."), maxsplit=1)[0]
        listed = "" if not words or all(str(word) in said for word in words) else f" ({', '.join(map(str, words))})"
        yield f"- `{key}={default}`: {clause(said, 40 if ':' in said else 16)}{listed}."
    if others:
        yield f"- others: {', '.join(others)}."


@functools.cache
def groups() -> dict[str, str]:
    """Return the group of flags of each setting that has one."""
    found = json.loads((SOURCES / "cli/index.json").read_text(encoding="utf-8"))["settings"]
    return {key: one["group"] for key, one in found.items()}


_EVERYWHERE = ("aggregation=", "buffers=", "shared=")  # of all that average


def algorithms() -> Iterator[str]:
    """Yield a line for each family of algorithms."""
    families: dict[str, list[str]] = {}
    every = json.loads((SOURCES / "cli/index.json").read_text(encoding="utf-8"))["algorithms"]
    for name, facts in every.items():
        own = [word for word in facts["settings"].split("  ") if word and not word.startswith(_EVERYWHERE)]
        own = [word for word in own if not re.match(r"(distill|synthesis)\.(?!lr)", word)]
        kept = ",".join(own[:6]) + ",..." * (len(own) > 6)
        families.setdefault(facts["family"], []).append(f"`{name}" + f"({kept})" * bool(own) + "`")
    for family, names in families.items():
        yield f"- **{family}**: {', '.join(names)}"


def measures() -> Iterator[str]:
    """Yield the numbers of a record: those of every run in words, others by name."""
    page = (ROOT / "docs/measures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| [^|]* \| (\w*)[^|]* \| ([^|]*) \|$", page, re.MULTILINE)
    for name, _, meaning in rows[:7]:
        yield f"- `{name}`: {clause(meaning.partition('. ')[0].strip().rstrip('.'), 9)}."
    yield f"- others: {', '.join(f'`{name}`' for name, *_ in rows[7:])}."


def forms(module: str, kind: str) -> Iterator[str]:
    """Yield how the kinds of a setting are written, as they are declared: `iid`, `shards:S`."""
    text = source(module).text
    found = re.findall(rf'\b{kind}\(\s*"([^"]+)"', text)
    if not found:
        raise LookupError(f"{module} declares no {kind}")
    yield f"Written: {', '.join(f'`{form}`' for form in found)}."


def commands(*chosen: str) -> Iterator[str]:
    """Yield some commands with their lines of help, and the names of others."""
    others = []
    for room in ROOMS:
        for node in ast.walk(source(f"fedloom.{room}.commands").tree):
            if isinstance(node, ast.Dict):
                for key, call in zip(node.keys, node.values, strict=True):
                    if (
                        isinstance(key, ast.Constant)
                        and isinstance(call, ast.Call)
                        and "Command" in ast.dump(call.func)
                    ):
                        said = next((k.value for k in call.keywords if k.arg == "help"), None)
                        text = ast.literal_eval(said) if isinstance(said, ast.Constant) else ""
                        if key.value in chosen:
                            yield f"- `{key.value}`: {clause(text, 9)}"
                        else:
                            others.append(f"`{key.value}`")
    yield f"- others: {', '.join(others)}."


MADE = {
    "functions": functions, "class": members, "rules": rules, "settings": settings, "algorithms": algorithms,
    "measures": measures, "commands": commands, "forms": forms,
}  # fmt: skip


def page() -> str:
    """Return the page."""

    def made(line: re.Match[str]) -> str:
        kind, *words = line[1].split()
        return "\n".join(MADE[kind](*words))

    return re.sub(r"^\{\{(.*)\}\}$", made, FRAME.read_text(encoding="utf-8"), flags=re.MULTILINE)


# ---- the list of pages

_PLACES = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}
_FIRST = ("reference.md", "graded-tasks.md")  # which programs read
_OPTIONAL = ("Papers", "Develop", "Changes")  # sections that a reader in a hurry leaves out


def place(name: str) -> Path | None:
    """Return the file of a page of the site; None of one that is made for the site alone."""
    inside = name.replace("/index.md", "/README.md")
    found = [ROOT / _PLACES.get(name, f"{room}/{inside}") for room in ("docs", "papers/docs")]
    return next((path for path in found if path.exists()), None)


def first_sentence(path: Path) -> str:
    """Return what a page says of itself, without links and marks."""
    for paragraph in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
        if not re.match(r"#|\||<|!|```|-|    |\*\*", paragraph):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[a-z0-9)`])[.:] (?=[A-Z])", text, maxsplit=1)[0].rstrip(".:")
    return ""


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield the pages of mkdocs.yml that have a file: the section, the title and the path."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    section = ""
    for indent, title, name in re.findall(r'^( +)- (?:"?([^":\n]+)"?:)? ?([\w./-]+\.md)?$', navigation, re.MULTILINE):
        if len(indent) == 2:
            section = title
        path = place(name) if name else None
        if path is not None:
            yield section, title or section, path.relative_to(ROOT).as_posix()


def llms() -> str:
    """Return llms.txt."""
    what = re.search(r'^description = "(.*)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    how = re.search(r"^\*\*(.*)\*\*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert what is not None
    assert how is not None
    groups: dict[str, list[str]] = {"For programs": []}
    for section, title, path in pages():
        said = clause(first_sentence(ROOT / path), 24)
        first = Path(path).name in _FIRST
        later = section in _OPTIONAL or path.startswith("docs/algorithms/")
        group = "For programs" if first else "Optional" if later else section
        groups.setdefault(group, []).append(f"- [{title}]({path})" + f": {said}" * bool(said))
    lines = ["# fedloom", "", f"> {what[1].rstrip('.')}. {how[1]}", ""]
    for group in sorted(groups, key=lambda name: name == "Optional"):
        lines += [f"## {group}", "", *groups[group], ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    for made, text in ((PAGE, page()), (LIST, llms())):
        made.write_text(text, encoding="utf-8")
        print(made.relative_to(ROOT), len(text.split()), "words")
