"""The clocks of nodes on one axis, that of the broker, which stamps every message when it takes it.

A node's clock says how long ago something was, never when: `stamp - (sent - t)`. What lies between sending and the
stamp makes the difference of the two clocks look greater than it is, so the least one seen counts, and ages slowly, as
clocks drift. Pure.
"""

DRIFT = 2e-4  # seconds a second by which two clocks may part: more than any quartz


class _Apart:
    """The least difference seen between two readings of the same moment, which ages."""

    def __init__(self) -> None:
        self.least: float | None = None
        self.newest = float("-inf")

    def learn(self, later: float, earlier: float) -> None:
        """`later` by one clock was `earlier` by the other, or after that."""
        apart = later - earlier
        if self.least is None:
            self.least = apart
        else:
            self.least = min(apart, self.least + DRIFT * max(0.0, later - self.newest))
        self.newest = max(self.newest, later)


class Axis:
    """One clock seen from another. `place` never turns around what that clock has in order."""

    def __init__(self) -> None:
        self._apart = _Apart()
        self._newest, self._placed = float("-inf"), float("-inf")

    def learn(self, stamp: float, sent: float) -> None:
        """Something was sent at `sent` by the clock, and stamped on the axis."""
        self._apart.learn(stamp, sent)

    def place(self, t: float) -> float:
        """The time `t` of the clock on the axis; an event cannot be later than the newest stamp."""
        if self._apart.least is None:
            return t
        placed = min(t + self._apart.least, self._apart.newest)
        if t >= self._newest:
            placed = max(placed, self._placed)
            self._newest, self._placed = t, placed
        return placed


class Now:
    """The present on the axis, by the clock of whoever reads the messages; while there is a backlog, its end."""

    def __init__(self) -> None:
        self._apart = _Apart()
        self._now = float("-inf")

    def learn(self, stamp: float, read: float) -> None:
        """A message that was stamped then was read at `read` by our clock."""
        self._apart.learn(read, stamp)

    def at(self, now: float) -> float | None:
        """The present, when our clock says `now`; None before anything was read. Never goes back."""
        if self._apart.least is None:
            return None
        self._now = max(self._now, now - self._apart.least)
        return self._now
