"""The sinks and the policy that the settings ask for, now and after a reload."""

import asyncio
import json
from collections.abc import Callable
from typing import TextIO

from denpexd.core.rule import Catalog
from denpexd.notify.desk import Alerting, Maintenance, under_maintenance
from denpexd.notify.match import Matcher, Verdict, fits
from denpexd.notify.policy import Moment, Quiet, Route, decide
from denpexd.notify.rows import Row
from denpexd.notify.sink import Sink
from denpexd.settings import Settings
from denpexd.settings_alerts import Match
from denpexd.settings_sinks import HeartbeatSink
from denpexd.settings_sources import nearest


class Sinks:
    """The sinks in force; one whose options did not change stays the same object over a reload."""

    def __init__(self, make: Callable[[Settings], list[Sink]], settings: Settings) -> None:
        self._make, self._settings = make, settings
        self.all = make(settings)

    def build(self, settings: Settings) -> list[Sink]:
        """The sinks of other settings; SettingsError if one cannot be made."""
        former = dict(self._settings.named_sinks())
        if _beside(settings) != _beside(self._settings):
            former = {}
        kept, options = {sink.name: sink for sink in self.all}, dict(settings.named_sinks())
        return [
            kept[made.name] if former.get(made.name) == options[made.name] else made for made in self._make(settings)
        ]

    def use(self, settings: Settings, built: list[Sink]) -> list[Sink]:
        """What was built for these settings is in force now."""
        self._settings, self.all = settings, built
        return built


def _beside(settings: Settings) -> object:
    """What sinks use beside their own options."""
    return settings.web.public_url, settings.runbook_base_url, settings.links


def alerting(settings: Settings) -> Alerting:
    """The settings as the policy wants them."""
    tags = dict(settings.tags)
    routes = [
        Route(
            name,
            severity=None if options.severity is None else frozenset(options.severity),
            match=options.match.matcher() if options.match else Matcher(),
            unless=options.unless.matcher() if options.unless else None,
            remind=options.remind,
            quiet=tuple(Quiet(quiet.window(), frozenset(quiet.severity)) for quiet in options.quiet),
            tags=tags,
        )
        for name, options in settings.named_sinks()
        if not isinstance(options, HeartbeatSink)
    ]
    maintenance = [
        Maintenance(one.name, one.window(), one.match.matcher() if one.match else Matcher())
        for one in settings.alerts.maintenance
    ]
    return Alerting(routes, maintenance, settings.alerts.flap, settings.alerts.fix_window, tags)


def reached(settings: Settings, verdict: Verdict, now: float) -> list[tuple[str, str, str]]:
    """(sink, what happens, why) if an incident like this one opened now."""
    policy = alerting(settings)
    moment = Moment(now, maintenance=under_maintenance(policy, verdict, now))
    found = []
    for route in policy.routes:
        decision = decide(verdict, route, None, moment)
        what = {"send": "is told", "hold": "is told later", "drop": "is not told"}[decision.action]
        found.append((route.name, what, decision.detail or "it fits"))
    return found


def unknown_values(settings: Settings, catalog: Catalog) -> list[str]:
    """What routes and maintenance ask for that no rule has, such as a misspelt category; a sentence each."""
    return [f"{where}: {wrong}" for where, match in _matches(settings) for wrong in unknown_in(match, catalog)]


def unknown_in(match: Match, catalog: Catalog) -> list[str]:
    """What it asks for that no rule has; a sentence each."""
    rules = catalog.rules.values()
    known = {
        "failure": {name for rule in rules for name in (rule.id, *rule.entry.aliases)},
        "category": {rule.entry.category for rule in rules},
        "domain": {rule.entry.domain for rule in rules},
    }
    return [
        f"no rule has {field} {glob}{nearest(glob, sorted(names))}"
        for field, names in known.items()
        for glob in getattr(match, field) or ()
        if not any(fits(name, [glob]) for name in names)
    ]


def asks_of_rules(settings: Settings) -> bool:
    """Whether some route or maintenance asks for something that rules say."""
    return any(match.failure or match.category or match.domain for _, match in _matches(settings))


def _matches(settings: Settings) -> list[tuple[str, Match]]:
    """(where it stands, what it asks for)."""
    found = [
        (f"sink {name}, {part}", getattr(options, part, None))
        for name, options in settings.named_sinks()
        for part in ("match", "unless")
    ]
    found += [(f"maintenance {one.name}", one.match) for one in settings.alerts.maintenance]
    return [(where, match) for where, match in found if match is not None]


class OnlyPrints:
    """Stands for a sink of which nothing may be sent: prints what it would get."""

    max_attempts: int | None = 1

    def __init__(self, sink: Sink, stream: TextIO) -> None:
        self.name, self._sink, self._stream = sink.name, sink, stream

    async def send(self, row: Row) -> None:
        """Print it."""
        shown = self.preview(row)
        text = shown if isinstance(shown, str) else json.dumps(shown, indent=2, ensure_ascii=False)
        head = f"--- would be sent to {self.name}: {row.delivery.event}, {row.delivery.reason}"
        await asyncio.to_thread(print, f"{head}\n{text.rstrip()}\n", file=self._stream, flush=True)

    def preview(self, row: Row) -> object:
        """What it would get."""
        return self._sink.preview(row)
