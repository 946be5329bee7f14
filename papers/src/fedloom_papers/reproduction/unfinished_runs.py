"""Archives of unfinished runs, `TABLE/COLUMN/ROW/seed-S.tar.gz`: what goes on elsewhere, beside kept results.

An archive holds the newest checkpoint of a run, its documents and its logs up to there, and nothing else. Whoever made
it is not trusted: names that a run does not give, links and what is too large are refused, and then what the run's own
verification finds wrong.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from fedloom.coordinator import History, run_documents as reading
from fedloom.coordinator.checkpoint import Checkpoints, identity
from fedloom.coordinator.verification import verify
from fedloom.core.errors import DamageError, SettingWarning, StorageError, StorageWarning, warn
from fedloom.storage import files
from fedloom.storage.output import path_below, publish
from fedloom.storage.strict_json import document, parse
from fedloom_papers.reproduction.copies import without_folders
from fedloom_papers.reproduction.recipe import Recipe
from fedloom_papers.reproduction.results import runs

MOST = 20_000_000
"""Bytes that the archives below a folder of results have together at most."""
_UNPACKED = 4 * MOST  # of one
_NAMES = re.compile(
    r"(manifest|settings|federation)\.json|initial-[0-9]+\.safetensors|(metrics|timing|clients)\.jsonl"
    r"|checkpoints/[0-9]{8,}(\.json|-server\.safetensors)|checkpoints/clients/[0-9]{8,}-[0-9]{8,}\.safetensors"
)
_SETTINGS = "settings.json"


def export_unfinished(recipes: Sequence[Recipe], out: Path, to: Path, rounds: int | None = None) -> list[Path]:
    """Write an archive of each run that can go on and is not finished; that of one that is, or has failed, is deleted.

    What is too large or damaged is left out with a warning. The arguments are those of `copies.export`.

    Raises:
        StorageError: a file cannot be written.
    """
    written: list[Path] = []
    longest = {r.place: r for r in sorted(recipes, key=lambda r: r.wanted(rounds))}  # some share a run
    for recipe in longest.values():
        copies = runs(recipe, [to])
        for seed, run in runs(recipe, [out]).items():
            place, wanted = _place(recipe, seed), recipe.wanted(rounds)
            copied = seed in copies and copies[seed].rounds >= wanted
            if copied or run.failed is not None or run.rounds >= wanted:
                files.remove(path_below(to, place))
            elif run.rounds and run.resumable:
                try:
                    data = packed(run.folder)
                except DamageError as error:
                    warn(f"{run.folder} is not exported to go on elsewhere: {error}", StorageWarning)
                    continue
                others = sum(p.stat().st_size for p in to.rglob("seed-*.tar.gz") if p != to / place)
                if data is not None and others + len(data) <= MOST:
                    written.append(publish(to, place, data))
                    continue
                warn(
                    f"{run.folder} is not exported to go on elsewhere, because the archives in {to} would have more "
                    f"than {MOST:,} bytes: copy the directory itself",
                    SettingWarning,
                )
    return written


def import_unfinished(recipe: Recipe, seed: int, out: Path, known: Sequence[Path]) -> bool:
    """Make the directory of a run in `out` from an archive with the settings that are asked for, if there is one.

    Raises:
        DamageError: an archive is not what a run would write.
        StorageError: a file cannot be read or written.
    """
    folder = recipe.folder(out, seed)
    if files.exists(folder):
        return False
    for archive in (path for one in known if (path := one / _place(recipe, seed)).is_file()):
        part = path_below(out, f"{folder.relative_to(out)}.part")
        try:
            shutil.rmtree(part, ignore_errors=True)
            for name, data in unpacked(archive).items():
                publish(part, name, data)
            if problems := verify(part).problems:
                raise DamageError(f"{archive} is no run that can go on: {problems[0]}; delete it to begin anew")
            if reading.manifest(part)["run"]["seed"] == seed and not recipe.unasked(History.read(part).settings):
                files.rename(part, folder)
                return True
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return False


def packed(folder: Path) -> bytes | None:
    """Return the archive of a run, the same bytes for the same run; None where it would be too large.

    Raises:
        DamageError: the run is not what was written.
        StorageError: a file cannot be read.
    """
    kept, manifest = Checkpoints(folder / "checkpoints"), reading.manifest(folder)
    kept.identity = identity(manifest)
    newest = kept.read(kept.rounds()[-1])
    states = kept.states(newest)
    if sum(path.stat().st_size for path in states if path.is_file()) > _UNPACKED // 2:  # weights hardly shrink
        return None
    kept.verify(newest)
    contents = {name: files.load(folder / name) for name in manifest["documents"] if files.exists(folder / name)}
    contents[_SETTINGS] = document(without_folders(parse(contents[_SETTINGS])))
    documents = {**manifest["documents"], _SETTINGS: [files.digest(contents[_SETTINGS])]}
    contents["manifest.json"] = reading.sealed({**manifest, "documents": documents}, indent=2)
    contents |= {name: files.load(folder / name)[: start.size] for name, start in newest.logs.items()}
    for path in (kept.index(newest.round), *states):
        contents[path.relative_to(folder).as_posix()] = files.load(path)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(contents.items()):
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return gzip.compress(out.getvalue(), compresslevel=9, mtime=0)


def unpacked(archive: Path) -> dict[str, bytes]:
    """Return the files in an archive by their names, of which all are those of a run.

    Raises:
        DamageError: it is no such archive, or too large.
        StorageError: it cannot be read.
    """
    out = dict[str, bytes]()
    try:
        if archive.stat().st_size > MOST:
            raise ValueError(f"it has more than {MOST:,} bytes")
        with gzip.GzipFile(fileobj=io.BytesIO(files.load(archive))) as file:
            data = file.read(_UNPACKED + 1)
        if len(data) > _UNPACKED:
            raise ValueError(f"it unpacks to more than {_UNPACKED:,} bytes")
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as members:
            for member in members:
                content = members.extractfile(member) if member.type == tarfile.REGTYPE else None
                if content is None or not _NAMES.fullmatch(member.name) or member.name in out or member.issparse():
                    raise ValueError(f"{member.name!r} is no file that a run writes, or there twice")
                out[member.name] = content.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError) as error:
        if isinstance(error, StorageError):
            raise
        raise DamageError(f"{archive} is no run that can go on: {error}; delete it to begin anew") from None
    return out


def _place(recipe: Recipe, seed: int) -> str:
    return f"{recipe.place}/seed-{seed}.tar.gz"
