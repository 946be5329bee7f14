"""The way of an upload from its client to the mean: links, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from torch import Tensor

from fedloom.core import tree
from fedloom.core.client import Client
from fedloom.core.cohort import Total
from fedloom.core.errors import SettingWarning, warn
from fedloom.core.types import Params, Tree
from fedloom.engines.accounting import PayloadSize, sent_tensors
from fedloom.engines.message import Answer, Call, Request

Asked = tuple[Request, Any, Answer]  # (what some clients were asked, their new states, their answer)
Ask = Callable[[Sequence[int]], Iterator[Asked]]  # of some clients: their answers, in order


@dataclass(frozen=True)
class Question:
    """An exchange with clients of one architecture, as links see it.

    `kind`: names uploads that are alike: method, exchange, architecture. `bill`: what the method's messages cost, and
    what kind of value each is. `architecture`: the one of all that are asked, where the algorithm asks each by itself.
    """

    engine: Any  # `ServerSide`, which imports links
    call: Call
    clients: Sequence[int]
    kind: str
    bill: PayloadSize
    architecture: str | None = None

    def references(self, uploads: Tree) -> list[Tensor | None]:
        """Return what was sent in the place of each leaf of stacked uploads, where that is known."""
        return sent_tensors(self.bill, self.call.broadcast, uploads)


class Encoder:
    """Client half of a link: what each client makes of its upload before it travels, and how it is read (abstract).

    A link brings one (`Link.encoder`). It is a frozen dataclass of settings, so that runs are described and compared by
    it. It is given each set of named tensors in an upload: the `params` of a `Weights`, less what was sent in their
    place where that is known, and a `Params`. All else travels as it is: weights of means, statistics of BatchNorm,
    single tensors. Of several encoders each is given what the one before it sends.
    """

    of_differences: ClassVar[bool] = True
    """Refuse a model in whose place nothing was sent, or one of several."""
    of_downloads: ClassVar[bool] = False
    """Encode what the server sends to all clients, whole, in the place of uploads; nothing is kept of it."""

    def init(self, params: Params) -> Tree:
        """Return what a client keeps for one such set, at first: a pytree of tensors.

        Args:
            params: of the client's model, of which an upload may have a part.
        """
        return ()

    def encode(self, client: Client[Any], values: Params, kept: Any) -> tuple[Tree, Tree]:
        """Return what travels, and what the client keeps until its next one; called on the client, as any method of it.

        Args:
            client: who sends; `client.key` is of this set alone.
            values: named tensors.
            kept: as `init` made it, or as it was returned last.
        """
        return values, kept

    def decode(self, sent: Any, like: Params) -> Params:
        """Return the values of one client's upload, from what has travelled.

        Args:
            sent: what `encode` made of them; from a device whatever has its shapes and types.
            like: the names, shapes and types of the values, without storage.
        """
        return sent  # type: ignore[no-any-return]


class Link:
    """A step on the way of uploads to their mean. Every method may be left out; several links are asked in their order.

    A part brings links of its own (`Part.links`), which come after those of fedloom: clients are lost, what encoders
    have sent is read, liars lie, states are counted, norms are bounded, what is not finite is refused, and a rule makes
    the mean. Of a link from outside, `take` is given what was accepted and `total` what the rule adds up; both see each
    upload once, stacked.
    """

    encoder: Encoder | None = None
    """Client half of the link, on an upload before it travels. Links see uploads as the server has read them."""
    least = 0  # uploads, below which there is no mean
    always = False  # whether there is a mean in each round of each architecture, whoever answers: nobody, too
    sums_only = ""  # the setting by which nothing but means is seen of uploads, where the link stands for one
    state: Any = ()
    """State of the link between rounds: a pytree of tensors, of the same shapes at every moment."""
    rows: Mapping[str, Callable[[], Tree]] = MappingProxyType({})
    """Trees that the link keeps of clients among their states (`Keys.row`): what makes one like it, by name."""

    def lost(self, question: Question) -> dict[int, str]:
        """Return clients that will not answer, and why: they are not asked."""
        return {}

    def ask(self, question: Question, ask: Ask, clients: Sequence[int]) -> Iterator[Asked]:
        """Yield the answers of some clients in their order, as `ask` does; or ask others, and keep what they say."""
        return ask(clients)

    def answers(self, question: Question, answers: Iterator[Asked]) -> Iterator[Asked]:
        """Yield the answers as they are to be looked at, in their order."""
        return answers

    def refuse(self, question: Question, asked: Asked) -> dict[int, str]:
        """Return the clients of an answer whose uploads are not taken, and why."""
        return {}

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Answer:
        """Return the answer whose uploads are added up. `good`: places of the clients that are taken."""
        return asked[2]

    def total(self, question: Question, total: Total) -> Total:
        """Return the place where uploads become a mean; another one in that of `total`, or itself."""
        return total

    def end_round(self, clients: Collection[int]) -> None:
        """Let what was seen of a round count. `clients`: who was asked in it."""


class OfUploads(Link):
    """Link that is asked for by `said`, and changes nothing where clients upload nothing: the first round tells."""

    said: str
    _uploaded: bool | None = None  # nobody was asked yet

    def saw(self, upload: Tree) -> None:
        """Take note of an upload."""
        self._uploaded = bool(self._uploaded or tree.leaves(upload))

    def end_round(self, clients: Collection[int]) -> None:
        if self._uploaded is False:
            warn(f"clients upload nothing, so {self.said} changes nothing: leave it out", SettingWarning)
            self._uploaded = True


class Chain:
    """Links, asked together."""

    def __init__(self, links: Sequence[Link]) -> None:
        self.links = tuple(links)

    @property
    def least(self) -> int:
        return max((link.least for link in self.links), default=0)

    @property
    def always(self) -> bool:
        return any(link.always for link in self.links)

    @property
    def sums_only(self) -> str:
        return next((link.sums_only for link in self.links if link.sums_only), "")

    @property
    def rows(self) -> dict[str, Callable[[], Tree]]:
        return {name: make for link in self.links for name, make in link.rows.items()}

    def lost(self, question: Question) -> dict[int, str]:
        found: dict[int, str] = {}
        for link in self.links:
            found |= link.lost(question)
        return found

    def answers(self, question: Question, ask: Ask) -> Iterator[Asked]:
        """Yield the answers of those who are asked, as all links make them."""
        for link in self.links:
            ask = partial(link.ask, question, ask)
        coming = ask(question.clients)
        for link in self.links:
            coming = link.answers(question, coming)
        return coming

    def refuse(self, question: Question, asked: Asked) -> dict[int, str]:
        """Return whose uploads are not taken, and why: of several reasons the last link's."""
        found: dict[int, str] = {}
        for link in self.links:
            found |= link.refuse(question, asked)
        return found

    def take(self, question: Question, asked: Asked, good: Sequence[int]) -> Answer:
        request, states, answer = asked
        for link in self.links:
            answer = link.take(question, (request, states, answer), good)
        return answer

    def total(self, question: Question, plain: Callable[[], Total]) -> Total:
        total = plain()
        for link in self.links:
            total = link.total(question, total)
        return total

    def end_round(self, clients: Collection[int]) -> None:
        for link in self.links:
            link.end_round(clients)
