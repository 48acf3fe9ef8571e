"""Options of who is told what and when: matches, hours, maintenance. What they mean is in notify/policy.py."""

from datetime import datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from denpexd.notify.match import FIELDS, Matcher, matcher, ranks_of
from denpexd.notify.windows import Window, minutes, weekdays
from denpexd.settings_values import Duration, Section, as_list

Severity = Literal["critical", "high", "medium", "low"]
Tags = Annotated[
    dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,39}$")], Annotated[str, Field(max_length=200)]],
    Field(max_length=20),
]
ALL_DAYS = ("mon-sun",)


def _texts(value: object) -> object:
    """One value or many, numbers as their text."""
    values = value if isinstance(value, list) else [value]
    return [str(one) if isinstance(one, int) and not isinstance(one, bool) else one for one in values]


_Glob = Annotated[str, Field(min_length=1, max_length=200)]
Globs = Annotated[list[_Glob], BeforeValidator(_texts), Field(min_length=1, max_length=100)]


def _ranks(values: list[str]) -> list[str]:
    for value in values:
        ranks_of(value)
    return values


class Match(Section):
    """Which incidents are meant; all fields that are given must fit."""

    key: Globs | None = None
    job: Globs | None = None
    failure: Globs | None = None
    category: Globs | None = None
    severity: Annotated[list[Severity], BeforeValidator(as_list), Field(min_length=1)] | None = None
    domain: Globs | None = None
    rank: Annotated[Globs, AfterValidator(_ranks)] | None = None
    node: Globs | None = None
    tags: dict[str, Globs] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _some(self) -> "Match":
        if not self.tags and not any(getattr(self, field) for field in FIELDS):
            raise ValueError(f"it names nothing; give at least one of {', '.join(FIELDS)}, tags (job: '*' is all)")
        return self

    def matcher(self) -> Matcher:
        """As the policy uses it."""
        return matcher({field: getattr(self, field) for field in FIELDS}, self.tags)


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"no time zone is named {name!r} here; give one such as Europe/Berlin or UTC") from None
    return name


def _hours(text: str) -> str:
    minutes(text)
    return text


def _days(texts: list[str]) -> list[str]:
    weekdays(texts)
    return texts


class Hours(Section):
    """Hours of some days, such as 22:00-08:00; where they go beyond midnight, the day is the one they begin on."""

    hours: Annotated[str, AfterValidator(_hours)] | None = None
    days: Annotated[list[str], BeforeValidator(as_list), AfterValidator(_days)] = Field(default=list(ALL_DAYS))
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"

    def window(self) -> Window:
        """As the policy uses it."""
        hours = minutes(self.hours) if self.hours else None
        return Window(hours, weekdays(self.days), ZoneInfo(self.timezone))


class Quiet(Hours):
    """Hours in which incidents of these severities wait."""

    severity: Annotated[list[Severity], BeforeValidator(as_list), Field(min_length=1)] = Field(
        default=["medium", "low"]
    )


def _moment(text: object) -> object:
    """A time as people write it; without a zone it is of the option `timezone`."""
    if isinstance(text, datetime):
        return text
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        raise ValueError(f"{text!r} is no time: write it as 2026-12-01T22:00") from None


Moment = Annotated[datetime, BeforeValidator(_moment)]


class Maintenance(Hours):
    """A time in which trouble is expected: on some days, or once `from` ... `to`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)

    name: Annotated[str, Field(min_length=1, max_length=80)] = "maintenance"
    begin: Moment | None = Field(default=None, alias="from")
    end: Moment | None = Field(default=None, alias="to")
    match: Match | None = None

    @model_validator(mode="after")
    def _when(self) -> "Maintenance":
        if (self.begin is None) != (self.end is None):
            raise ValueError("`from` and `to` belong together")
        if self.begin is None and self.hours is None and self.days == list(ALL_DAYS):
            raise ValueError("it has no time; give `from` and `to`, or `hours`, or `days`")
        if self.begin is not None and (self.hours is not None or self.days != list(ALL_DAYS)):
            raise ValueError("either `from` and `to`, once, or `hours` and `days`, again and again")
        window = self.window()
        if window.once is not None and window.once[1] <= window.once[0]:
            raise ValueError("`to` is not after `from`")
        return self

    def window(self) -> Window:
        """As the policy uses it."""
        if self.begin is None or self.end is None:
            return super().window()
        zone = ZoneInfo(self.timezone)
        begin, end = (t if t.tzinfo else t.replace(tzinfo=zone) for t in (self.begin, self.end))
        return Window(once=(begin.timestamp(), end.timestamp()))


class Alerts(Section):
    """What holds for all sinks."""

    flap: Annotated[Duration, Field(ge=0, le=86400)] = Field(
        default=600.0, description="a failure that comes back to its job so soon after its end is the same incident"
    )
    fix_window: Annotated[Duration, Field(ge=60, le=90 * 86400)] = Field(
        default=86400.0, description="training time without the failure after which a fix has held"
    )
    maintenance: Annotated[list[Maintenance], Field(max_length=200)] = Field(
        default_factory=list, description="times in which all waits but the ends of what was told"
    )


def many(value: Any) -> Any:
    """One mapping or a list of them."""
    return [value] if isinstance(value, dict) else value
