"""Make the pages of errors from the codes in the source: `docs/errors/*.md`, and `fedloom/cli/errors.json`.

    python scripts/make_errors.py

A message ends with a code, `[FL-DATA-014]`, where it is written. This script finds each in the source, with the message
around it and the function that says it, and joins it with its entry in `tests/mistakes`: why there is the rule, how to
mend what broke it, and examples, which `tests/test_mistakes.py` runs. `given.py` and `given.toml` there have what
examples begin with. Nothing of fedloom is imported. Run it where a message with a code, or an entry, has changed;
`tests/scripts/test_make_errors.py` says when.
"""

from __future__ import annotations

import ast
import functools
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src", "papers/src")
ENTRIES, PAGES = ROOT / "tests/mistakes", ROOT / "docs/errors"
SHIPPED = ROOT / "src/fedloom/cli/errors.json"
AREAS = {
    "DATA": "Data and partitions",
    "TABLE": "Tables and sites",
    "MODEL": "Networks",
    "TASK": "Tasks and measures",
    "METHOD": "Algorithms and local training",
    "RUN": "Runs",
    "CLI": "The command line",
}
GONE: frozenset[str] = frozenset()
"""Codes that no message has any more. They are not given to another one."""
CODE = re.compile(r"\[(FL-[A-Z]+-\d{3})\]")
_SHOWN = 8  # lines of a file that an example reads, above which its first ones stand for it


@dataclass(frozen=True)
class Said:
    """A message with a code, as it stands in the source, and the function that says it."""

    message: str
    file: str
    function: str


# ---- the source


def said() -> dict[str, Said]:
    """Return the message of each code in the source.

    Raises:
        LookupError: two messages have one code.
    """
    found: dict[str, Said] = {}
    for root in SOURCES:
        for path in sorted((ROOT / root).rglob("*.py")):
            if "[FL-" not in (text := path.read_text(encoding="utf-8")):
                continue
            for code, one in messages(text, path.relative_to(ROOT).as_posix()):
                if code in found:
                    both = f"{found[code].file} ({found[code].function}) and {one.file} ({one.function})"
                    raise LookupError(f"{code} stands in {both}: declare the message once, or give one another code")
                found[code] = one
    return found


def messages(text: str, file: str) -> Iterator[tuple[str, Said]]:
    """Yield the codes in a file, each with its message."""

    def visit(node: ast.AST, above: tuple[ast.AST, ...]) -> Iterator[tuple[str, Said]]:
        if isinstance(node, ast.Constant | ast.JoinedStr) and (codes := CODE.findall(template(node))):
            names = [one.name for one in above if isinstance(one, ast.ClassDef | ast.FunctionDef)]
            yield from ((code, Said(whole(node, above), file, ".".join(names))) for code in codes)
            return
        for child in ast.iter_child_nodes(node):
            yield from visit(child, (*above, node))

    yield from visit(ast.parse(text), ())


Texts = Mapping[str, ast.expr]
"""Values of the names of a function, of those that are given once."""


def template(node: ast.expr, known: Texts = MappingProxyType({})) -> str:
    """Return a text with `…` in the place of what is not known before it is said."""
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("{}", "…")
        case ast.JoinedStr(values=values):
            return "".join(template(value, known) for value in values)
        case ast.FormattedValue(value=value, conversion=-1):
            return template(value, known)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return template(left, known) + template(right, known)
        case ast.Name() | ast.Attribute() if (name := ast.unparse(node)) in known:
            return template(known[name], {key: value for key, value in known.items() if key != name})
    return "…"


def whole(node: ast.expr, above: tuple[ast.AST, ...]) -> str:
    """Return the message that a text is a part of: a sum of texts, or what `refuse` of tables makes of its parts.

    A text that has a name of its own and is handed to `refuse` is a part, too.
    """
    function = next((one for one in reversed(above) if isinstance(one, ast.FunctionDef)), ast.Module([], []))
    known = named(function)
    name = next((n for n, value in known.items() if value is node), "")
    for one in reversed(above):
        if isinstance(one, ast.BinOp):
            node = one
    calls = [one for one in ast.walk(function) if name and isinstance(one, ast.Call)]
    for one in (*reversed(above), *calls):
        match one:
            case ast.Call(func=ast.Name(id="refuse"), args=[place, rule, value, remedy]):
                if one in above or (isinstance(remedy, ast.Name) and remedy.id == name):
                    texts = [template(part, known) for part in (place, rule, value, remedy)]
                    return "{}: {}, got {}: {}".format(*texts)
    return re.sub("…+", "…", template(node, known))


def named(function: ast.AST) -> Texts:
    """Return what names of a function stand for, of those that it gives once."""
    given = [(ast.unparse(one.targets[0]), one.value) for one in ast.walk(function) if isinstance(one, ast.Assign)]
    names = [name for name, _ in given]
    return {name: value for name, value in given if names.count(name) == 1}


# ---- the entries


def entries() -> dict[str, dict[str, Any]]:
    """Return what is declared of each code, in the order of the codes.

    Raises:
        LookupError: a code is declared twice, lacks a part, or a number is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for area in AREAS:
        path = ENTRIES / f"{area.lower()}.toml"
        declared = tomllib.loads(path.read_text(encoding="utf-8"))
        for code, entry in declared.items():
            parts = {"title", "why", "mend", "examples"}
            if missing := parts - entry.keys():
                raise LookupError(f"{code} in {path.name} lacks {', '.join(sorted(missing))}")
        numbers = sorted({*declared, *(code for code in GONE if code.startswith(f"FL-{area}-"))})
        if numbers != [f"FL-{area}-{number:03}" for number in range(1, len(numbers) + 1)]:
            raise LookupError(f"codes of {path.name} count from FL-{area}-001 on, and those that went are in GONE")
        found |= dict(sorted(declared.items()))
    return found


@functools.cache
def places() -> dict[str, dict[str, str]]:
    """Return files and folders that commands of examples read: the `text` of each, or `python` or `sh` to make it."""
    return tomllib.loads((ENTRIES / "given.toml").read_text(encoding="utf-8"))


def is_command(example: str) -> bool:
    """Return whether an example is typed at the command line."""
    return example.startswith("fedloom ")


def beginning(entry: Mapping[str, Any]) -> str:
    """Return what the examples of a code in Python begin with: the statements of `given.py` whose names they use."""
    text = (ENTRIES / "given.py").read_text(encoding="utf-8")
    sides = [one[side] for one in entry["examples"] for side in ("fails", "passes")]
    used = _loaded(ast.parse("\n".join(side for side in sides if not is_command(side))))
    imports, others = list[str](), list[str]()
    for statement in reversed(ast.parse(text).body[1:]):  # without its docstring
        if used & {name for node in ast.walk(statement) for name in _made(node)}:
            used |= _loaded(statement)
            segment = ast.get_source_segment(text, statement) or ""
            if isinstance(statement, ast.Import | ast.ImportFrom):
                names = [ast.unparse(one) for one in statement.names if (one.asname or one.name).split(".")[0] in used]
                imports.insert(0, segment.partition("import ")[0] + f"import {', '.join(names)}")
            else:
                others.insert(0, f"\n\n{segment}\n\n" if isinstance(statement, ast.ClassDef) else segment)
    return "\n".join([*imports, *([""] * bool(imports and others)), *others]).strip()


def _loaded(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _made(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(alias.asname or alias.name).partition(".")[0] for alias in names]
    return []


def needed(*texts: str, maker: str = "") -> list[str]:
    """Return the files and folders that some texts name, after those that these need; `maker`: what the texts make."""
    found: dict[str, None] = {}
    for text in texts:
        for name, how in places().items():
            module = rf"|{name[:-3]}:\w" * name.endswith(".py")  # as in --model sized:of_two
            if name != maker and re.search(rf"(?<![\w.-])({re.escape(name)}(?![\w-]|\.\w){module})", text):
                its = [how[key] for key in how if key != "python"]
                found |= dict.fromkeys([*needed(*its, maker=name), name])
    return list(found)


# ---- the pages

Block = tuple[str, str, str]
"""Words above a piece of code, its language, and the code."""


def blocks(entry: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the examples of a code, after what they begin with."""
    shown = set[str]()
    if before := beginning(entry):
        yield "Given:", "python", before
    for example in entry["examples"]:
        fails, passes = example["fails"].strip(), example["passes"].strip()
        if is_command(fails):
            for name in needed(fails, passes):
                if name not in shown:
                    shown.add(name)
                    (how, content), kind = next(iter(places()[name].items())), Path(name).suffix.removeprefix(".")
                    language = {"py": "python", "csv": "text"}.get(kind, kind) if how == "text" else how
                    what = f"The {'file' if kind else 'folder'} `{name}`"
                    yield f"{what}{', made by' * (how != 'text')}:", language, beginning_of(content, how)
        language = "sh" if is_command(fails) else "python"
        fails_as = "Warned of" if entry.get("warns") else "Fails"
        yield f"{fails_as}, {example['mistake']}:", language, fails
        yield "Passes:", language, passes


def beginning_of(content: str, how: str) -> str:
    """Return what makes a file, or what stands in it: of a long table the first lines."""
    lines = content.strip().splitlines()
    is_table = how == "text" and len(lines) > _SHOWN and "," in lines[0]
    return "\n".join([*lines[:4], f"... ({len(lines)} lines)"] if is_table else lines)


def section(code: str, entry: Mapping[str, Any], one: Said) -> str:
    """Return the section of a code on the page of its area."""
    link = f"[{one.file.partition('/fedloom')[2].lstrip('/')}](../../{one.file})"
    where = f"`{one.function}` in {link}" if one.function else link
    parts = [f"## {code}", f"{entry['title']}.", f"```text\n{one.message}\n```", f"**Why.** {entry['why']}",
             f"**Mend.** {entry['mend']}", f"Said by {where}."]  # fmt: skip
    parts += [f"{above}\n\n```{language}\n{text}\n```" for above, language, text in blocks(entry)]
    return "\n\n".join(parts)


def explained(code: str, entry: Mapping[str, Any], one: Said) -> str:
    """Return the same as a terminal shows it."""
    parts = [f"{code}: {entry['title']}", _indented(one.message), f"Why: {entry['why']}", f"Mend: {entry['mend']}"]
    parts += [f"{above}\n\n{_indented(text)}" for above, _, text in blocks(entry)]
    return "\n\n".join(parts).replace("`", "")


def _indented(text: str) -> str:
    return re.sub(r"(?m)^(?=.)", "    ", text)


_MADE = "<!-- made by scripts/make_errors.py, all of it -->\n"
_INDEX = f"""\
{_MADE}# Errors

A message of fedloom ends with a code, such as `[FL-DATA-001]`. The code is the address of its explanation:

    fedloom explain FL-DATA-001

prints what the message means, why there is the rule, how to mend what broke it, and an example that fails beside one
that passes. `fedloom explain` alone lists all codes. The same stands on these pages; search for the code. A test runs
all examples. A code keeps its meaning from version to version, and its number is never given to another message.

"""


def made() -> dict[Path, str]:
    """Return the files that are made, with their texts.

    Raises:
        LookupError: a code in the source has no entry, or an entry no code.
    """
    spoken, declared = said(), entries()
    if lost := sorted(spoken.keys() - declared.keys()):
        raise LookupError(f"codes in the source without an entry in tests/mistakes: {', '.join(lost)}")
    if lost := sorted(declared.keys() - spoken.keys()):
        raise LookupError(f"codes in tests/mistakes that no message has: {', '.join(lost)}; list them in GONE")
    out: dict[Path, str] = {}
    lists = []
    for area, title in AREAS.items():
        page = f"{area.lower()}.md"
        its = {code: entry for code, entry in declared.items() if code.startswith(f"FL-{area}-")}
        sections = [section(code, entry, spoken[code]) for code, entry in its.items()]
        head = f"{_MADE}# Errors: {title[0].lower()}{title[1:]}\n\n[All codes](README.md)."
        out[PAGES / page] = "\n\n".join([head, *sections]) + "\n"
        rows = "".join(f"| [{code}]({page}#{code.lower()}) | {entry['title']} |\n" for code, entry in its.items())
        lists.append(f"## {title}\n\n| code | what is refused |\n|---|---|\n{rows}")
    out[PAGES / "README.md"] = _INDEX + "\n".join(lists)
    texts = {code: explained(code, entry, spoken[code]) for code, entry in declared.items()}
    out[SHIPPED] = json.dumps(texts, indent=1, ensure_ascii=False) + "\n"
    return out


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text, encoding="utf-8")
        print(path)
