"""Every error denpexd raises on purpose, in one tree.

DenpexdError
├── RuleError             a rule or signal file is wrong: path, line, column, why, hint
├── RuleErrors            all RuleError of one load, together
├── SettingsError         the configuration file, environment or a flag is wrong
├── SourceError           a log file, folder or stream cannot be used
├── CaseError             a recorded case or journal cannot be read
├── EvidenceUnavailable   a witness cannot be asked (why, and how to mend it)
├── DeliveryError         a sink refused or failed (retryable or not, and after how long)
├── StateError            the state database cannot be used
├── RequestError          a request to the API asks for something that is wrong or not there
└── DaemonError           the running daemon does not answer, or refuses

Each message says what is wrong, where, and how to mend it.
"""

from collections.abc import Sequence


class DenpexdError(Exception):
    """Base of every error that is meant for the person who runs denpexd."""


class RuleError(DenpexdError):
    """One mistake in one rule or signal file."""

    def __init__(self, path: str, line: int, column: int, why: str, hint: str = "") -> None:
        self.path, self.line, self.column, self.why, self.hint = path, line, column, why, hint
        super().__init__(f"{path}:{line}:{column}: {_short(why)}" + (f" ({_short(hint)})" if hint else ""))


def _short(text: str) -> str:
    """A message quotes what is wrong, which may be a whole page."""
    return text if len(text) <= 2_000 else f"{text[:1_500]} ... {text[-400:]}"


class RuleErrors(DenpexdError):
    """All mistakes of one load; a caller may go on with the rules that were good."""

    def __init__(self, errors: Sequence[RuleError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))


class SettingsError(DenpexdError):
    """A setting is unknown, missing or out of range."""


class SourceError(DenpexdError):
    """A path or stream that was asked for cannot be read."""


class CaseError(DenpexdError):
    """A recorded case, journal or bundle cannot be replayed."""


class EvidenceUnavailable(DenpexdError):
    """A witness cannot be asked; `how` is the change that closes the gap."""

    def __init__(self, why: str, how: str = "") -> None:
        self.why, self.how = why, how
        super().__init__(why + (f"; {how}" if how else ""))


class DeliveryError(DenpexdError):
    """A message did not arrive; `after` is the receiver's wish in seconds before the next try."""

    def __init__(self, reason: str, *, retryable: bool, after: float | None = None) -> None:
        self.reason, self.retryable, self.after = reason, retryable, after
        super().__init__(reason)


class Withdrawn(DenpexdError):
    """A message is for another daemon to send."""


class StateError(DenpexdError):
    """The state database is missing rights, corrupted, or of a newer schema."""


class RequestError(DenpexdError):
    """A request to the API is wrong; `status` is the HTTP status of the answer."""

    def __init__(self, status: int, why: str) -> None:
        self.status = status
        super().__init__(why)


class DaemonError(DenpexdError):
    """A running daemon was asked for something and did not answer, or said no (with that HTTP `status`)."""

    def __init__(self, why: str, *, status: int = 0) -> None:
        self.status = status
        super().__init__(why)


class WireError(DenpexdError):
    """What came over the network between nodes and hubs is not what this version understands."""


class BrokerError(DenpexdError):
    """The broker cannot be reached, or refuses what is asked of it."""
