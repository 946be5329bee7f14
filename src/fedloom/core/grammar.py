"""Read what people write as NAME:VALUE:VALUE and as KEY=VALUE&KEY=VALUE, and refuse the rest in one form of words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fedloom.core.errors import SettingError
from fedloom.wording import arguments as said, did_you_mean, kind_of, value_of


class HasForm(Protocol):
    """Thing that people name."""

    @property
    def form(self) -> str:
        """Its name and what stands behind it."""


N = TypeVar("N", bound=HasForm)


@dataclass(frozen=True)
class Named:
    """A name with values behind it, and what is made of them.

    Args:
        forms: what may be written, such as `alie` and `alie:Z`, the longest last.
        make: takes the values, in their order.
        reads: kinds of the values, as of `fedloom.wording.value_of`.
        fewer: True if any number of the last values may be missing.
    """

    forms: tuple[str, ...]
    make: Callable[..., Any]
    reads: tuple[Any, ...] = ()
    fewer: bool = False

    @property
    def form(self) -> str:
        """Form in which it is written."""
        return " or ".join(self.forms)

    def values(self, noun: str, written: str, text: str = "") -> list[Any]:
        """Return the values behind the name; the last one may have colons.

        Args:
            noun: what is named, such as "attack".
            written: the name and what follows it.
            text: the whole text, where there is more of it.

        Raises:
            SettingError: there are more, fewer or others than the forms say.
        """
        _, colon, rest = written.partition(":")
        given = rest.split(":", max(0, len(self.reads) - 1)) if colon else []
        counts = range(len(self.reads) + 1) if self.fewer else [form.count(":") for form in self.forms]
        if len(given) not in counts:
            raise self.refusal(noun, text or written)
        try:
            return [value_of(value, kind) for value, kind in zip(given, self.reads, strict=False)]
        except ValueError:
            raise self.refusal(noun, text or written) from None

    def refusal(self, noun: str, text: str) -> SettingError:
        """Return the error that says how the name is written."""
        kinds = [(name, kind_of(kind)) for name, kind in zip(self.forms[-1].split(":")[1:], self.reads, strict=False)]
        told = ", ".join(f"{name} is {kind}" for name, kind in kinds if kind) or "write it so"
        return SettingError(f"this {noun} is written {self.form}, got {text!r}: {told}")

    def made(self, noun: str, text: str, *values: Any, **more: Any) -> Any:
        """Return what is made of the values.

        Raises:
            SettingError: they are out of range.
        """
        try:
            return self.make(*values, **more)
        except ValueError as error:
            raise SettingError(f"{noun} = {text!r}: {error}") from None


def by_name(several: Iterable[N]) -> dict[str, N]:
    """Return what people name by its name, which stands before the first colon of its form."""
    return {one.form.partition(" ")[0].partition(":")[0]: one for one in several}


def find(noun: str, text: str, known: Mapping[str, N], before: str = "", behind: str = "") -> N:
    """Return what a text names.

    Args:
        noun: what is named, such as "attack".
        text: a name, with what follows it behind a colon or a question mark.
        known: what there is, by name.
        before: a word besides, which stands for nothing, such as "none".
        behind: what may be named besides, such as "module:name".

    Raises:
        SettingError: there is nothing of this name.
    """
    name = text.partition("?")[0].partition(":")[0]
    if name in known:
        return known[name]
    forms = ", ".join(filter(None, [before, *(one.form for one in known.values()), behind]))
    words = [*filter(None, [before]), *known]
    raise SettingError(f"unknown {noun} {text!r}{did_you_mean(name, words)}; there are {forms} [FL-RUN-005]")


def make_named(noun: str, text: str, known: Mapping[str, Named], before: str = "", **more: Any) -> Any:
    """Return what a text of NAME:VALUE makes.

    Args:
        noun: what is named, as of `find`, like all that follows.
        text: the name, with its values.
        known: what there is, by name.
        before: a word besides.
        more: other arguments of what makes it.

    Raises:
        SettingError: there is nothing of this name, or a value is missing, of another kind or out of range.
    """
    found = find(noun, text, known, before)
    return found.made(noun, text, *found.values(noun, text), **more)


def arguments(noun: str, written: str, kinds: Mapping[str, Any], form: str, remedy: str = "") -> dict[str, Any]:
    """Return the values in KEY=VALUE&KEY=VALUE, each said once.

    Args:
        noun: of what they are said, as of `fedloom.wording.arguments`, like all that follows.
        written: what follows the question mark.
        kinds: of the values, by key.
        form: how such a text is written.
        remedy: what else helps.

    Raises:
        SettingError: a key is unknown, or there twice, or a value is missing or of another kind.
    """
    try:
        return said(noun, written, kinds, form, remedy)
    except ValueError as error:
        raise SettingError(str(error)) from None
