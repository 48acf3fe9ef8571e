"""Times in which something holds: every day or on some days, between two hours of a time zone; or once."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@dataclass(frozen=True, slots=True)
class Window:
    """`hours`: minutes of the day from and to (beyond midnight where `to` is not later), None: all day.

    `days`: on which it begins, 0 is Monday. `once`: from and to in Unix seconds, instead of hours and days.
    """

    hours: tuple[int, int] | None = None
    days: frozenset[int] = frozenset(range(7))
    zone: tzinfo = UTC
    once: tuple[float, float] | None = None

    def holds(self, wall: float) -> bool:
        """Whether this moment, in Unix seconds, is inside."""
        if self.once is not None:
            return self.once[0] <= wall < self.once[1]
        there = datetime.fromtimestamp(wall, self.zone)
        if self.hours is None:
            return there.weekday() in self.days
        begin, end = self.hours
        minute, today = there.hour * 60 + there.minute, there.weekday() in self.days
        if begin < end:
            return today and begin <= minute < end
        yesterday = (there.weekday() - 1) % 7 in self.days
        return (today and minute >= begin) or (yesterday and minute < end)


def minutes(text: str) -> tuple[int, int]:
    """`22:00-08:00` in minutes of the day; ValueError otherwise."""
    try:
        begin, end = (_minute(part) for part in text.split("-"))
    except ValueError:
        raise ValueError(f"{text!r} are no hours: write them as 22:00-08:00") from None
    return begin, end


def _minute(text: str) -> int:
    hour, _, minute = text.strip().partition(":")
    if not (hour.isdigit() and minute.isdigit() and len(minute) == 2):
        raise ValueError
    if (found := int(hour) * 60 + int(minute)) > 24 * 60 or int(minute) > 59:
        raise ValueError
    return found


def weekdays(texts: Sequence[str]) -> frozenset[int]:
    """`mon`, `sat-sun`, `fri-mon` as numbers, 0 is Monday; ValueError otherwise."""
    found: set[int] = set()
    for text in texts:
        first, dash, last = text.strip().lower().partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"{text!r} is no day: write mon, tue, wed, thu, fri, sat, sun, or a span such as mon-fri")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        found |= {(begin + n) % 7 for n in range((end - begin) % 7 + 1)}
    return frozenset(found)
