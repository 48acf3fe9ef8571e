"""`denpexd status`, `top`, `record`, `silence`, `ack`: what a running daemon knows and is told, over its HTTP API."""

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from denpexd.completion import incidents
from denpexd.terminal import EXISTING, color, fail, form, save_archive, say, say_json, settings_of, table, width

if TYPE_CHECKING:
    from denpexd.client import Client

F = TypeVar("F", bound=Callable[..., object])


def asks_daemon(command: F) -> F:
    """The options that say which daemon is asked; `client` makes a client of them."""
    for option in (
        click.option("--token-file", type=EXISTING, help="File with its token (web.token_file)."),
        click.option("--url", help="Where it listens, if the configuration does not tell: http://HOST:PORT."),
        click.option("-c", "--config", type=EXISTING, help="Configuration file (YAML) of the daemon."),
    ):
        command = option(command)
    return command


def client(config: Path | None, url: str | None, token_file: Path | None) -> "Client":
    """The client for the daemon that these options name."""
    from denpexd.client import client_of

    return client_of(settings_of(config, {}), url, token_file)


@click.command()
@asks_daemon
@form("text", "json")
@click.option("--no-color", is_flag=True, help="Plain text.")
def status(config: Path | None, url: str | None, token_file: Path | None, form: str, no_color: bool) -> None:
    """Show what the running daemon knows, on one screen.

    Open incidents, jobs and their ranks, destinations of alerts, its own health.

    Exit code 0: nothing is open and all is well, 1: an incident is open or something is wrong with the daemon,
    2: no daemon answers.
    """
    from denpexd.clock import SystemClock
    from denpexd.status import as_json, as_text, ask

    with client(config, url, token_file) as daemon:
        standing = ask(daemon, SystemClock().wall())
    if form == "json":
        say_json(as_json(standing))
    else:
        say(as_text(standing, color=color(no_color), width=width()))
    sys.exit(0 if standing.well else 1)


@click.command()
@asks_daemon
@click.option("--every", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Seconds between looks.")
def top(config: Path | None, url: str | None, token_file: Path | None, every: float) -> None:
    """Show jobs, ranks and incidents of the running daemon, live.

    Arrows and Tab move, Enter explains an incident, a takes it on, Space pauses, r looks at once, q quits. Needs the
    extra `top`.
    """
    import importlib.util

    if importlib.util.find_spec("textual") is None:
        fail("denpexd top needs textual: pip install 'denpexd[top]'; denpexd status shows the same once")
    from denpexd.clock import SystemClock
    from denpexd.status import Asked
    from denpexd.top import Top

    with client(config, url, token_file) as daemon:
        source = Asked(daemon, SystemClock())
        source.look()  # nobody there: say so before the screen changes
        Top(source, every=every).run()


@click.command()
@click.argument("job", required=False)
@asks_daemon
@click.option("-o", "--output", type=EXISTING, help="File to write (default: denpexd-JOB.tar.xz here).")
def record(job: str | None, config: Path | None, url: str | None, token_file: Path | None, output: Path | None) -> None:
    """Write what the running daemon saw of JOB to an archive.

    Also if it told nobody anything: for a report about an alert that did not come. JOB may be left out where only one
    is watched. Secrets are left out; denpexd replay FILE judges it again.
    """
    from urllib.parse import quote

    from denpexd.bundle import file_name

    with client(config, url, token_file) as daemon:
        jobs = [str(one["job"]) for one in daemon.every("jobs", "jobs", ranks="none")]
        if job not in jobs and (job is not None or len(jobs) != 1):
            named = f"no job {job!r} is watched" if job is not None else "say of which job"
            fail(f"{named}; there {'is' if len(jobs) == 1 else 'are'}: {', '.join(jobs) or 'none yet'}")
        name = job or jobs[0]
        data = daemon.file(f"jobs/{quote(name)}/recording")
    path = output or Path(f"denpexd-{file_name(name)}.tar.xz")
    if not path.name.endswith((".tar.xz", ".txz")):
        fail(f"{path}: the name of a recording ends with .tar.xz")
    save_archive(path, data, f"job {name}")


@click.group()
def silence() -> None:
    """Keep expected incidents quiet for a while.

    They are seen, shown and closed as always.
    """


@silence.command(name="add")
@click.argument("matchers", nargs=-1, required=True)
@click.option("--for", "duration", required=True, help="How long, such as 30m, 2h, 1d.")
@click.option("--by", default=lambda: os.environ.get("USER", ""), help="Who asks for it (default: $USER).")
@click.option("--comment", default="", help="Why.")
@asks_daemon
def silence_add(
    matchers: tuple[str, ...],
    duration: str,
    by: str,
    comment: str,
    config: Path | None,
    url: str | None,
    token_file: Path | None,
) -> None:
    """Silence incidents that fit all MATCHERS.

    A matcher is FIELD=VALUE[,VALUE...], with * and ?, ranks also as 0-7. Fields are job, failure, category, severity,
    domain, rank, node, key and tags.NAME, as in: denpexd silence add node=gpu-17 failure=gpu-* --for 2h
    """
    body = {"match": match_of(matchers), "for": duration, "by": by, "comment": comment}
    with client(config, url, token_file) as daemon:
        say(_silence_line(daemon.post("silences", body)))


@silence.command(name="list")
@click.option("--all", "everything", is_flag=True, help="Also those that have expired.")
@asks_daemon
@form("text", "json")
def silence_list(everything: bool, config: Path | None, url: str | None, token_file: Path | None, form: str) -> None:
    """List the silences, newest first."""
    with client(config, url, token_file) as daemon:
        found = [one for one in daemon.get("silences")["silences"] if everything or one["state"] != "expired"]
    if form == "json":
        say_json({"silences": found})
        return
    say("\n".join(map(_silence_line, found)) or "nothing is silenced")


@silence.command(name="expire")
@click.argument("ids", nargs=-1, required=True)
@asks_daemon
def silence_expire(ids: tuple[str, ...], config: Path | None, url: str | None, token_file: Path | None) -> None:
    """End silences now.

    What is open still and was kept quiet is told. IDS as denpexd silence list shows them; the beginning of one is
    enough.
    """
    from urllib.parse import quote

    with client(config, url, token_file) as daemon:
        for id_ in ids:
            say(_silence_line(daemon.delete(f"silences/{quote(id_, safe='')}")))


@click.command()
@click.argument("key", shell_complete=incidents)
@click.option("--by", default=lambda: os.environ.get("USER", ""), help="Who takes it on (default: $USER).")
@click.option("--note", default="", help="What was found or done; with --close it is kept as the fix.")
@click.option("--close", is_flag=True, help="It is over: close the incident.")
@asks_daemon
def ack(
    key: str, by: str, note: str, close: bool, config: Path | None, url: str | None, token_file: Path | None
) -> None:
    """Take the incident KEY on, so that reminders stop.

    Whoever was told of it is told so. KEY as denpexd status shows it; a beginning that no other has is enough. Of an
    incident that is over only the note is kept.
    """
    from urllib.parse import quote

    with client(config, url, token_file) as daemon:
        verdict = daemon.post(f"incidents/{quote(key, safe='')}/ack", {"by": by, "note": note, "close": close})
    said = verdict["acknowledged"]
    text = f"{verdict['key']} is {verdict['state']}, acknowledged" + (f" by {said['by']}" if said["by"] else "")
    say(text + (f": {said['note']}" if said["note"] else ""))


@click.command()
@click.argument("text", required=False, default="")
@click.option("--job", default="", help="Of this job.")
@click.option("--failure", default="", help="With this id of a failure.")
@click.option("--node", default="", help="With a rank on this node.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="At most so many.")
@click.option("--fixes", is_flag=True, help="What was done about failures, and whether they stayed away.")
@asks_daemon
@form("text", "json")
def history(
    text: str,
    job: str,
    failure: str,
    node: str,
    limit: int,
    fixes: bool,
    config: Path | None,
    url: str | None,
    token_file: Path | None,
    form: str,
) -> None:
    """List the incidents that the daemon remembers.

    Those with TEXT anywhere in them, or all; last changed first.
    """
    asked: dict[str, str | int] = {"q": text, "job": job, "failure": failure, "node": node, "limit": limit}
    with client(config, url, token_file) as daemon:
        found = daemon.get("fixes") if fixes else daemon.get("history", **{k: v for k, v in asked.items() if v})
    if form == "json":
        say_json(found)
        return
    head = ("fixed", "state", "failure", "job", "what") if fixes else ("opened", "state", "failure", "job", "key")
    rows = [_fix_row(one) for one in found["fixes"]] if fixes else [_past_row(one) for one in found["incidents"]]
    say("\n".join(table(head, rows, width())) if rows else "nothing is known")


def _past_row(one: dict[str, Any]) -> tuple[str, ...]:
    return _when(one["opened_t"]), one["state"], one["failure"], one["job"], one["key"]


def _fix_row(one: dict[str, Any]) -> tuple[str, ...]:
    what = ": ".join(filter(None, (one["by"], one["note"])))
    return _when(one["t"]), one["state"].replace("_", " "), one["failure"], one["job"], what


def _when(t: float) -> str:
    return f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M}Z"


def match_of(matchers: tuple[str, ...]) -> dict[str, Any]:
    """`job=a,b tags.team=nlp` as the API and the configuration write it."""
    found: dict[str, Any] = {}
    for one in matchers:
        field, equals, values = one.partition("=")
        if not equals or not values:
            fail(f"{one}: write FIELD=VALUE, such as job=llama-* or node=gpu-17")
        at, dot, tag = field.partition(".")
        (found.setdefault("tags", {}) if dot and at == "tags" else found)[tag if dot else field] = values.split(",")
    return found


def _silence_line(one: dict[str, Any]) -> str:
    wants = {name: values for name, values in one["match"].items() if name != "tags"}
    wants |= {f"tags.{name}": values for name, values in one["match"].get("tags", {}).items()}
    match = " ".join(f"{name}={','.join(values)}" for name, values in wants.items())
    until = _when(one["ends_t"])
    why = "  ".join(filter(None, (one["by"], one["comment"])))
    return f"{one['id']}  {one['state']:<7}  until {until}  {match}  {why}".rstrip()
