"""A device's half of secure aggregation: its uploads leave it under masks, and nothing else of them does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, TypeVar

import torch

from fedloom.coordinator.settings import RunSettings
from fedloom.core.errors import RefusedError
from fedloom.deploy.registration import INVITATION, MASKED
from fedloom.engines.accounting import PayloadSize, sent_tensors
from fedloom.engines.message import EVALUATING, GIVEN
from fedloom.engines.non_finite import finite
from fedloom.engines.runtime import Runtime
from fedloom.engines.service import integer
from fedloom.privacy import masked_client
from fedloom.privacy.fixed_point import OutOfRange
from fedloom.privacy.masked_client import Advertised, Masked, Shared
from fedloom.privacy.masked_terms import LEAST, Terms
from fedloom.privacy.secure_sums import SecureAggregation, has_noise
from fedloom.privacy.weighted_parts import weighted_of

_Kept = TypeVar("_Kept", Advertised, Shared, Masked)
_Answer = tuple[dict[str, Any], dict[str, Any]]


class DeviceMasks:
    """Answers of a device to the four messages of a masked sum.

    Secrets are kept in memory alone, each for the one message that needs it: whoever starts again within a sum is lost
    to it, and no secret is used twice. `asked`: the run's secure aggregation, whose range holds here too. `sent`: what
    the request at hand has sent to all devices alike.
    """

    def __init__(self, asked: SecureAggregation, runtime: Runtime) -> None:
        self.asked, self.runtime = asked, runtime
        self.client, self.sent = runtime.population.first, tuple[Any, ...]()
        self._kept: Advertised | Shared | Masked | None = None

    @classmethod
    def of(cls, run: RunSettings, runtime: Runtime) -> Self:
        """Return them for a run's settings."""
        if not has_noise(run.privacy):
            return cls(SecureAggregation.read(run.secure_aggregation), runtime)
        from fedloom.privacy.distributed import aggregation  # most runs have no noise of devices

        return cls(aggregation(run), runtime)

    def check(self, head: Mapping[str, Any]) -> None:
        """Raise RefusedError where a request would show an upload or a model of this device."""
        method, exchange = head.get("method"), head.get("exchange")
        shown = exchange == EVALUATING and method in ("personal", GIVEN) and head.get("split") is not None
        if not (
            shown
            or head.get("final") is not None
            or (exchange == EVALUATING and method in (INVITATION, MASKED))
            or (exchange != EVALUATING and isinstance(head.get("masked"), dict))
        ):
            raise RefusedError(
                f"this run has secure aggregation, and the answer to {method!r:.80} would show what this device has "
                "learnt: nothing is sent"
            )

    def answer(self, said: Any) -> _Answer:
        """Return the answer to a message of the protocol that no training comes with."""
        message = _bytes_of(said)
        stage = said.get("stage")
        if stage == "advertise":
            terms = Terms(
                bytes.fromhex(str(said.get("session"))),
                *(integer(said, name) for name in ("words", "bits", "neighbours", "threshold")),  # type: ignore[arg-type]
            )
            self._kept = None
            kept, up = masked_client.advertise(terms, self.client)
            self._kept = kept
        elif stage == "share":
            self._kept, up = masked_client.share(self._take(Advertised), message)
        elif stage == "unmask":
            up = masked_client.unmask(self._take(Masked), message)
        else:
            raise RefusedError(f"a masked sum has no message {stage!r:.80}")
        return {"problem": None, "steps": [], "masked": up.hex()}, {}

    def masked(self, head: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of an answer with masked words in the place of the upload.

        Raises:
            RefusedError: numbers are not finite or beyond the range, or the server's message does not fit.
        """
        said = head["masked"]
        kept, message = self._take(Shared), _bytes_of(said)
        whole, clients, most = (integer(said, name) for name in ("whole", "clients", "most"))
        (own,) = self.asked.weights(self.runtime, integer(head, "round"), [0])
        bill = PayloadSize(self.runtime.method(str(head["method"])))
        moved = self.asked.moved(parts["upload"], lambda uploads: sent_tensors(bill, self.sent, uploads))
        nodes = weighted_of(moved)[0]
        if not finite(parts["losses"]):
            raise RefusedError("a loss is not finite")
        if not all(bool((node.weight > 0).all() and (node.weight <= own).all()) for node in nodes):
            raise RefusedError(f"an upload weighs more than 0 and at most {own:g}: weigh clients by examples, or alike")
        if not (clients >= LEAST and 0 < most <= whole):
            raise RefusedError(
                f"a masked sum is of {LEAST} devices or more whose weights fit into it, got {clients}, {most} and "
                f"{whole}"
            )
        self.asked.check(kept.first.terms, clients)
        fixed = self.asked.fixed(float(whole), clients)
        try:
            words = fixed.words(nodes, 0, float(most))
        except OutOfRange:  # whose words tell the number
            raise RefusedError(
                f"its upload leaves the range={self.asked.most:g} of secure_aggregation: raise the range if it is sound"
            ) from None
        self._kept, up = masked_client.mask(kept, message, words)
        return {**parts, "upload": torch.frombuffer(bytearray(up), dtype=fixed.dtype)[None]}

    def _take(self, kind: type[_Kept]) -> _Kept:
        """Return what was kept for this message, once."""
        kept, self._kept = self._kept, None
        if not isinstance(kept, kind):
            raise RefusedError("this device has no secrets of this sum, or has used them: it was started again")
        return kept


def _bytes_of(said: Any) -> bytes:
    """Return the bytes of a message of the protocol, which travels as hexadecimal digits."""
    message = said.get("message", "") if isinstance(said, dict) else None
    try:
        return bytes.fromhex(message)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise RefusedError(f"a message of a masked sum is hexadecimal digits, got {message!r:.40}") from None
