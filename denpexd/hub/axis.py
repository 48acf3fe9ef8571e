"""The clocks of nodes on one axis, that of the broker, which stamps every message when it takes it.

A node's clock says how long ago something was, never when: `stamp - (sent - t)`. What lies between sending and the
stamp makes the difference of the two clocks look greater than it is, so the least one seen counts, and ages slowly, as
clocks drift. Pure.
"""

DRIFT = 2e-4  # seconds a second by which two clocks may part: more than any quartz


class Axis:
    """One clock seen from another. `place` never turns around what that clock has in order."""

    def __init__(self) -> None:
        self._least: float | None = None
        self._at = float("-inf")
        self._newest, self._placed = float("-inf"), float("-inf")

    def learn(self, stamp: float, sent: float) -> None:
        """Something was sent at `sent` by the clock, and stamped on the axis."""
        apart = stamp - sent
        if self._least is None:
            self._least = apart
        else:
            self._least = min(apart, self._least + DRIFT * max(0.0, stamp - self._at))
        self._at = max(self._at, stamp)

    def place(self, t: float) -> float:
        """The time `t` of the clock on the axis; an event cannot be later than the newest stamp."""
        if self._least is None:
            return t
        placed = min(t + self._least, self._at)
        if t >= self._newest:
            placed = max(placed, self._placed)
            self._newest, self._placed = t, placed
        return placed


class Now:
    """The present on the axis, by the clock of whoever reads the messages; while there is a backlog, its end."""

    def __init__(self) -> None:
        self._apart: float | None = None
        self._read, self._now = 0.0, float("-inf")

    def learn(self, stamp: float, read: float) -> None:
        """A message that was stamped then was read at `read` by our clock."""
        apart = read - stamp
        if self._apart is None:
            self._apart = apart
        else:
            self._apart = min(apart, self._apart + DRIFT * max(0.0, read - self._read))
        self._read = max(self._read, read)

    def at(self, now: float) -> float | None:
        """The present, when our clock says `now`; None before anything was read. Never goes back."""
        if self._apart is None:
            return None
        self._now = max(self._now, now - self._apart)
        return self._now
