"""Data by the names that people type."""

from __future__ import annotations

from glob import glob
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

from fedloom.core.errors import SettingError
from fedloom.core.grammar import arguments
from fedloom.core.naming import by_python_name, is_python_name
from fedloom.data import Dataset, Examples
from fedloom.sources import from_huggingface, load, texts_of_huggingface
from fedloom.sources.folders import is_several
from fedloom.sources.sources_by_name import SOURCES
from fedloom.tables import read_csv, read_npy, read_npz, read_parquet, read_sites
from fedloom.tables.columns import NoColumnError
from fedloom.tables.file_checks import FormatError, refuse_other_kinds
from fedloom.tables.parquet import is_parquet
from fedloom.tables.sites import TABLES, is_pattern
from fedloom.tables.table_words import example, kinds_of_words
from fedloom.wording import did_you_mean, local_path, pairs


def data(source: str, *, whole: bool = False) -> Dataset:
    """Return the data set that a source names.

    `whole`: no random test rows are drawn from a table without `split`.

    | written | is |
    |---|---|
    | `NAME:FOLDER` | original files (`fedloom.sources.load`), for example `cifar10:data` |
    | `NAME` | the same where no files are needed: `fashion_mnist_small` |
    | `FILE.npz`, `FILE.npy` | `fedloom.tables.read_npz`, `fedloom.tables.read_npy` |
    | `FILE.csv`, `FILE.tsv`, `FILE.csv?label=y&prepare=standard` | `fedloom.tables.read_csv`, arguments by name |
    | `FILE.parquet?label=y` | `fedloom.tables.read_parquet`, likewise |
    | `FOLDER/*.csv?label=y`, `A.csv,B.csv?target=y` | `fedloom.tables.read_sites`, likewise: a client for each file |
    | `huggingface:NAME` | `fedloom.sources.from_huggingface` |
    | `module:name` | a `Dataset`, or a function that returns one |
    """
    name, colon, rest = source.partition(":")
    if name == "huggingface" and "?" in rest:
        return _of_huggingface(rest)
    if name in SOURCES and (colon or not SOURCES[name].files):
        return _published(name, rest)
    if name == "huggingface" and rest:
        return from_huggingface(rest)
    path, question, arguments = source.partition("?")
    folder = local_path(path)
    if is_table(source):
        return _table(path, arguments if question else None, whole)
    if source.endswith(".npz"):
        return read_npz(source, every_class=not whole)
    if source.endswith(".npy"):
        return read_npy(source, test_fraction=0.0 if whole else 0.2)
    if is_own_data(source) and not (did_you_mean(name, SOURCES) and _unknown_module(name)):
        found = by_python_name(source, "data")
        found = found() if callable(found) else found
        if isinstance(found, Dataset):
            return found
        if isinstance(found, tuple) and len(found) == 2 and all(isinstance(part, Examples) for part in found):
            return Dataset(*found)
        raise SettingError(
            f"data {source!r} must give a fedloom.data.Dataset, or (train, test), got {type(found).__name__}"
        )
    if source in SOURCES:
        raise SettingError(f"data {source!r} needs the folder with its files: {source}:FOLDER [FL-DATA-022]")
    for file in [path for path in map(Path, sorted(glob(str(folder)))) if path.is_file()][:1]:
        refuse_other_kinds(file, f"tables and arrays end in {', '.join(_ENDS)}")
        raise SettingError(
            f"tables and arrays end in {', '.join(_ENDS)}, got {source!r}: rename a table as text to {file.stem}.csv, "
            "or read it in Python and pass its arrays"
        )
    if folder.is_dir() and (kind := next((k for k in TABLES if any(folder.glob(f"*{k}"))), None)):
        raise SettingError(
            f"tables of a folder are read by a pattern, a client for each file, got {source!r}: write "
            f"'{source.rstrip('/')}/*{kind}?label=NAME' [FL-DATA-030]"
        )
    if folder.is_dir():
        raise SettingError(
            f"a folder is read as NAME:FOLDER, where NAME says what is in it, got {source!r}: write images:{source} "
            "for {train,test}/<class>/*.png, or 'images:FOLDER/*' for a folder of each client; `fedloom data sources` "
            "lists the others; of clients that another library has written: docs/coming-from.md [FL-DATA-023]"
        )
    raise SettingError(
        f"unknown data {source!r}{did_you_mean(name, SOURCES)}; there are {_named(folder=False)}, original files as "
        f"NAME:FOLDER with one of {_named(folder=True)}, FILE.npz, FILE.npy, FILE.csv, FILE.parquet, sites/*.csv, "
        "huggingface:NAME, and your own as module:name [FL-DATA-020]"
    )


def _named(folder: bool) -> str:
    return ", ".join(name for name, source in SOURCES.items() if bool(source.files) == folder)


_ENDS = (*TABLES, ".npz", ".npy")


def is_own_data(source: str) -> bool:
    """Return whether a source is somebody's own module:name, and not a data set of a registry."""
    return is_python_name(source) and source.partition(":")[0] not in (*SOURCES, "huggingface")


def own_tokeniser(source: str) -> str:
    """Return the tokeniser that a table's texts are read by, module:name; "" where it is none of somebody's own."""
    said = pairs(source.partition("?")[2])
    return next((value for key, value in said if key == "tokens" and ":" in value), "")


def is_table(source: str) -> bool:
    """Return whether a source is a table in a file, or several of them."""
    return source.partition("?")[0].endswith(TABLES)


def is_sites(source: str) -> bool:
    """Return whether a source names the tables of several sites, each of them a natural client."""
    return is_table(source) and is_pattern(source.partition("?")[0])


def names_clients(source: str) -> bool:
    """Return whether a source says who its clients are: tables or folders of images of several sites, or a column."""
    name, _, folder = source.partition(":")
    several = name == "images" and is_several(local_path(folder.partition("?")[0]))
    return several or is_sites(source) or any(key == "client" for key, _ in pairs(source.partition("?")[2]))


def _published(name: str, folder: str) -> Dataset:
    said, says = dict[str, Any](), SOURCES[name].says
    if says and not local_path(folder).exists():
        folder, _, written = folder.partition("?")
        form = "&".join(f"{known}={'words' if kind is str else 10}" for known, kind in says.items())
        said = arguments(name, written, says, f"{name}:FOLDER?{form}") if written else {}
    if ":" in said.get("tokens", ""):
        said["tokens"] = _tokeniser(said["tokens"])
    try:
        return load(name, folder, **said)
    except FormatError:
        raise
    except ValueError as error:
        if SOURCES[name].download is None:
            raise
        raise ValueError(f"{error}; fedloom data download {name} {folder or 'FOLDER'} fetches them") from error


def _unknown_module(name: str) -> bool:
    """Return whether no module here has this name, which is then the misspelt name of a data set."""
    return not Path(f"{name.partition('.')[0]}.py").exists() and find_spec(name.partition(".")[0]) is None


def _tokeniser(text: str) -> Any:
    """Return a tokeniser by its name; a class or a function without arguments makes one."""
    found = by_python_name(text, "tokeniser")
    makes = isinstance(found, type) or (
        callable(found) and not hasattr(found, "size") and not signature(found).parameters
    )
    return found() if makes else found


_SAID = ("text", "label", "client", "tokens", "length", "most", "least", "least_clients", "config")


def _of_huggingface(rest: str) -> Dataset:
    """Return a data set of Hugging Face with texts, with what follows its name."""
    source, _, written = rest.partition("?")
    kinds = {"config": str, **kinds_of_words()}
    form = f"huggingface:NAME?{'=..&'.join(_SAID)}=.."
    given = arguments("texts of Hugging Face", written, {name: kinds[name] for name in _SAID}, form)
    if ":" in (tokens := given.get("tokens", "")):
        given["tokens"] = _tokeniser(tokens)
    return texts_of_huggingface(source, **given) if "text" in given else from_huggingface(source, **given)


def _table(path: str, written: str | None, whole: bool) -> Dataset:
    """Read a table, with the arguments that follow its path."""
    several = is_pattern(path)
    read = read_sites if several else read_parquet if is_parquet(path) else read_csv
    shown = example((*["client"] * several, *["gaps"] * is_parquet(path)))
    form = (
        f"{path}?{shown}, or target=y in the place of label, or text=t for a column of texts (tokens=words, "
        "length=128, most=10000)"
    )
    given = {} if written is None else arguments("a table", written, kinds_of_words(), form)
    if ":" in (tokens := given.get("tokens", "")):
        given["tokens"] = _tokeniser(tokens)
    if whole and "split" not in given:
        given["test_fraction"] = 0.0
    try:
        return read(path, **given)
    except NoColumnError as error:
        if not {"label", "target"}.isdisjoint(given) or "label" not in error.columns:
            raise
        raise SettingError(
            f"{error.rule}: say which column is the label: {path}?label=NAME; what else columns may be is said as "
            f"{form} [FL-TABLE-009]"
        ) from error
    except ValueError as error:
        if written is not None or not local_path(path).exists():
            raise
        raise SettingError(f"{error}; what columns are is said as {form}") from error
