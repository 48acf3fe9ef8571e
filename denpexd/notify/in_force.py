"""The sinks and the policy that the settings ask for, now and after a reload."""

from collections.abc import Callable

from denpexd.notify.deliver import Sink
from denpexd.notify.desk import Alerting, Maintenance
from denpexd.notify.match import Matcher
from denpexd.notify.policy import Quiet, Route
from denpexd.settings import Settings
from denpexd.settings_sinks import HeartbeatSink


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
    return Alerting(routes, maintenance, settings.alerts.flap, tags)
