"""`denpexd render` and `denpexd report`: what receivers get of an incident, and the page for the review after it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from denpexd.completion import incidents_and_files, sinks
from denpexd.terminal import CONFIG, EXISTING, fail, flags_of, form, say, say_json, settings_of, warn, width

if TYPE_CHECKING:
    from denpexd.settings import Settings

_WHAT = click.argument("what", metavar="[KEY|CASE|BUNDLE]", required=False, shell_complete=incidents_and_files)
_STATE = click.option("--state-dir", type=EXISTING, help="Where the daemon keeps its state.")
# What stands for each kind of sink under --all, where none is configured; nothing is sent.
_EVERY: dict[str, dict[str, object]] = {
    "console": {},
    "slack": {"bot_token": "xoxb-...", "channel": "#oncall"},
    "pagerduty": {"routing_key": "..."},
    "alertmanager": {"url": "http://alertmanager:9093"},
    "webhook": {"url": "http://receiver.example"},
    "file": {"path": "/var/log/denpexd/alerts.jsonl"},
    "apprise": {"url": "json://receiver.example"},
}


@click.command()
@_WHAT
@CONFIG
@_STATE
@click.option("--sink", "only", help="This sink only.", shell_complete=sinks)
@click.option("--all", "everything", is_flag=True, help="Also the kinds of sinks that are not configured.")
@click.option(
    "--event",
    type=click.Choice(["opened", "updated", "closed"]),
    default="opened",
    show_default=True,
    help="Which message about it.",
)
@form("text", "json")
def render(
    what: str | None,
    config: Path | None,
    state_dir: Path | None,
    only: str | None,
    everything: bool,
    event: str,
    form: str,
) -> None:
    """Show what every sink would get of an incident.

    Nothing is sent. The incident is one that a daemon has kept (default: the newest), a case folder, or a bundle.
    Secrets are left out.
    """
    from denpexd.bundles import verdicts
    from denpexd.notify.sinks import previews, sinks_to_look_at

    settings = settings_of(config, flags_of(job=None, port=None, state_dir=state_dir, active=None))
    found = [verdict for verdict, _ in verdicts(what, settings)]
    if not found:
        fail(f"{what}: no incident in it, so nothing would be sent")
    shown_to = sinks_to_look_at(_with_every_kind(settings) if everything else settings, only, sys.stdout, width())
    rows = [
        {"incident": verdict["key"], "sink": name, "message": shown}
        for verdict in found
        for name, shown in previews(shown_to, verdict, event)
    ]
    if form == "json":
        say_json(rows)
        return
    for row in rows:
        say(f"== {row['sink']}: {row['incident']}")
        shown = row["message"]
        if isinstance(shown, dict) and shown.keys() >= {"title", "body"}:
            shown = f"{shown['title']}\n\n{shown['body']}"
        if isinstance(shown, str):
            say(shown)
        else:
            say_json(shown)
        say("")


def _with_every_kind(settings: "Settings") -> "Settings":
    from denpexd.settings import Settings

    there = {sink.type for _, sink in settings.named_sinks()} if settings.sinks else set()
    more = [{"type": kind, **options} for kind, options in _EVERY.items() if kind not in there]
    return settings.model_copy(update={"sinks": [*settings.sinks, *Settings.model_validate({"sinks": more}).sinks]})


@click.command()
@_WHAT
@CONFIG
@_STATE
@click.option("-o", "--output", type=EXISTING, help="File to write (default: standard output).")
def report(what: str | None, config: Path | None, state_dir: Path | None, output: Path | None) -> None:
    """Write a post-mortem of an incident as Markdown.

    Impact, timeline, cause, fix, and what was not known. The incident is one that a daemon has kept (default: the
    newest), a case folder, or a bundle.
    """
    from denpexd.bundles import messages, verdicts
    from denpexd.notify.postmortem import postmortem

    settings = settings_of(config, flags_of(job=None, port=None, state_dir=state_dir, active=None))
    found = verdicts(what, settings)
    if not found:
        fail(f"{what}: no incident in it")
    page = "\n\n".join(postmortem(verdict, messages(known) if known else ()) for verdict, known in found)
    if output is None:
        say(page, nl=False)
        return
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        fail(f"{output} cannot be written: {error.strerror}")
    warn(f"{output}: written")
