"""The command line. Heavy imports happen inside the commands, so that --help answers at once.

Exit codes: 0 all well, 1 a failure was found (diagnose) or a check failed, 2 unusable input or settings.
"""

import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from denpexd import __version__
from denpexd.cli_alerts import render, report
from denpexd.cli_daemon import ack, history, record, silence, status, top
from denpexd.cli_encyclopedia import explain, search
from denpexd.cli_evidence import bundle, flight
from denpexd.cli_rules import rules
from denpexd.cli_setup import completion, config, discover, doctor, man
from denpexd.completion import sinks
from denpexd.errors import DenpexdError
from denpexd.terminal import (
    ACTIVE,
    CONFIG,
    EXISTING,
    PACKS,
    Progress,
    catalogue,
    color,
    fail,
    flags_of,
    form,
    say,
    say_json,
    settings_of,
    warn,
    whole,
    width,
)


class Group(click.Group):
    """Shows every DenpexdError as its message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DenpexdError as error:
            fail(str(error))


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="denpexd")
def main() -> None:
    """Explains failures and hangs of multi-GPU training jobs while they happen.

    Start with one of

    \b
      denpexd demo                        see a real hang explained (no GPU needed)
      denpexd run LOGDIR                  watch the per-rank logs of a running job
      torchrun ... 2>&1 | denpexd run -   watch a merged stream
      denpexd exec -- torchrun ...        start a job and watch it
      denpexd diagnose LOGDIR             explain a job that is over
    """


@main.command()
@click.argument("paths", nargs=-1)
@CONFIG
@click.option("--job", help="Name of the job in alerts and metrics.")
@click.option("--port", type=int, help="Port of metrics and console (default 9464, 0: any free one).")
@click.option("--state-dir", type=EXISTING, help="Where positions and unsent alerts are kept.")
@ACTIVE
@click.option("--dry-run", is_flag=True, help="Send nothing: print what would be sent, to whom and why.")
@click.option("--no-color", is_flag=True, help="Plain text on the terminal.")
def run(
    paths: tuple[str, ...],
    config: Path | None,
    job: str | None,
    port: int | None,
    state_dir: Path | None,
    active: str | None,
    dry_run: bool,
    no_color: bool,
) -> None:
    """Watch the logs in PATHS, or - for a stream.

    PATHS are folders, files, globs, or templates like /logs/{job}/rank{rank}.log. Without a configuration file reports
    go to the terminal; metrics, API and console page are on 127.0.0.1:9464.
    """
    from denpexd.watch import watch

    flags = flags_of(job=job, port=port, state_dir=state_dir, active=active)
    sys.exit(watch(list(paths), config, flags, color=color(no_color), dry_run=dry_run))


@main.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@CONFIG
@click.option("--job", help="Name of the job in alerts and metrics.")
@click.option("--port", type=int, help="Port of metrics and console (default 9464, 0: any free one).")
@click.option("--state-dir", type=EXISTING, help="Where positions and unsent alerts are kept.")
@click.option("--log-dir", "log_dirs", multiple=True, help="Folders of per-rank logs that the command writes.")
@ACTIVE
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(
    config: Path | None,
    job: str | None,
    port: int | None,
    state_dir: Path | None,
    log_dirs: tuple[str, ...],
    active: str | None,
    command: tuple[str, ...],
) -> None:
    """Start COMMAND, watch what it prints, return its exit code.

    COMMAND is torchrun, srun, mpirun, python, ... Its output is passed through unchanged and at once, signals are
    forwarded. The job never waits for denpexd.
    """
    from denpexd.execute import execute

    flags = flags_of(job=job, port=port, state_dir=state_dir, active=active)
    sys.exit(execute(list(command), config, flags, list(log_dirs)))


@main.command()
@CONFIG
@click.option("--port", type=int, help="Port of metrics and console (default 9464, 0: any free one).")
@click.option("--state-dir", type=EXISTING, help="Where unsent alerts are kept.")
@click.option("--no-color", is_flag=True, help="Plain text on the terminal.")
def hub(config: Path | None, port: int | None, state_dir: Path | None, no_color: bool) -> None:
    """Judge jobs that span nodes.

    Their denpexd run forward what they see over NATS (hub.url in the configuration). Any number of hubs share the jobs;
    when one is gone, the others go on with its.
    """
    from denpexd.watch import run_hub

    flags = flags_of(job=None, port=port, state_dir=state_dir, active=None)
    sys.exit(run_hub(config, flags, color=color(no_color)))


@main.command()
@click.argument("paths", nargs=-1, required=True)
@form("text", "json", "markdown")
@PACKS
@click.option("--no-color", is_flag=True, help="Plain text.")
def diagnose(paths: tuple[str, ...], form: str, packs: tuple[Path, ...], no_color: bool) -> None:
    """Explain finished logs: files, folders, or - for pasted text.

    - reads standard input. Much of it (32 MiB) is read with a bar on standard error, if that is a terminal.

    Exit code 0: nothing wrong found, 1: a failure found, 2: unusable input.
    """
    from denpexd.diagnose import Diagnosis
    from denpexd.notify.markdown import markdown
    from denpexd.notify.redact import redact, redact_verdict
    from denpexd.notify.render import report
    from denpexd.watch import log_to_stderr

    log_to_stderr("warning")
    progress = Progress()
    diagnosis = Diagnosis(catalogue(packs), progress=progress)
    try:
        verdicts = [redact_verdict(v)[0] for v in diagnosis.paths(list(paths), sys.stdin.buffer)]
    finally:
        progress.clear()
    nothing = f"No failure found. {redact(diagnosis.coverage.text())[0]}"
    if form == "json":
        say_json({"verdicts": verdicts})
    elif form == "markdown":
        say("\n\n".join(markdown(v) for v in verdicts) or nothing)
    else:
        pages = [report(v, color=color(no_color), width=width(), whole=whole()) for v in verdicts]
        say("\n\n".join(pages) or nothing)
    sys.exit(1 if verdicts else 0)


@main.command()
@click.argument("cases", nargs=-1, required=True, type=EXISTING)
@form("text", "jsonl")
@click.option("--without", help="Leave out evidence that the cases hold: stacks, fr, exits (comma-separated).")
@PACKS
def replay(cases: tuple[Path, ...], form: str, without: str | None, packs: tuple[Path, ...]) -> None:
    """Play recorded CASES in simulated time.

    Folders with timeline.jsonl and case.yaml, or bundles (denpexd bundle).
    """
    from denpexd.errors import CaseError
    from denpexd.notify.redact import redact_verdict
    from denpexd.notify.render import report
    from denpexd.recording import EVIDENCE, read_case
    from denpexd.replay import Replayer
    from denpexd.scan.engine import choose_engine

    left_out = set(without.split(",")) if without else set()
    if not left_out <= set(EVIDENCE):
        fail(f"--without {without}: expected some of {', '.join(EVIDENCE)}")
    replayer = Replayer(catalogue(packs), choose_engine())
    failed = False
    for case in cases:
        try:
            verdicts = [redact_verdict(v)[0] for v in replayer.run(read_case(case, left_out)).verdicts]
        except CaseError as error:
            warn(str(error))
            failed = True
            continue
        if form == "jsonl":
            say_json({"case": case.name, "verdicts": verdicts}, None)
        else:
            say(f"== {case.name}: {len(verdicts)} incident(s)")
            for verdict in verdicts:
                say(report(verdict, color=color(False), width=width(), whole=whole()) + "\n")
    sys.exit(2 if failed else 0)


main.add_command(bundle)
main.add_command(record)
main.add_command(render)
main.add_command(report)
main.add_command(explain)
main.add_command(search)
main.add_command(rules)
main.add_command(flight)
main.add_command(status)
main.add_command(top)
main.add_command(silence)
main.add_command(ack)
main.add_command(history)
main.add_command(config)
main.add_command(doctor)
main.add_command(discover)
main.add_command(completion)
main.add_command(man)


@main.group()
def notify() -> None:
    """Try the destinations of alerts."""


@notify.command(name="test")
@click.argument("sink", required=False, shell_complete=sinks)
@CONFIG
def notify_test(sink: str | None, config: Path | None) -> None:
    """Send a test message through every sink, or only SINK."""
    import asyncio

    from denpexd.notify.sinks import send_test

    results = asyncio.run(send_test(settings_of(config, {}), sink))
    for name, wrong in results:
        say(f"{name}: {'FAILED: ' + wrong if wrong else 'sent'}")
    sys.exit(1 if any(wrong for _, wrong in results) else 0)


@notify.command(name="dead")
@CONFIG
@click.option("--state-dir", type=EXISTING, help="Where the daemon keeps its state.")
@form("text", "json")
def notify_dead(config: Path | None, state_dir: Path | None, form: str) -> None:
    """List the messages that were given up, and why.

    Oldest first; also while the daemon runs.
    """
    from denpexd.state import dead_letters

    rows = dead_letters(settings_of(config, flags_of(job=None, port=None, state_dir=state_dir, active=None)).state_dir)
    if form == "json":
        say_json([{"at": r.created, "error": r.error, **asdict(r.delivery)} for r in rows])
        return
    for row in rows:
        at, what = f"{datetime.fromtimestamp(row.created, UTC):%Y-%m-%d %H:%M:%S}Z", row.delivery
        say(f"{at}  {what.sink}  {what.event}  {what.verdict.get('failure', '')}  {what.idempotency_key}  {row.error}")
    if not rows:
        say("no message was given up")


@main.command()
@click.argument("incident", required=False)
@click.option("--list", "listing", is_flag=True, help="What can be shown.")
@click.option("--speed", type=float, default=4.0, show_default=True, help="How much faster than recorded it is played.")
@click.option("--keep", is_flag=True, help="Leave metrics and console running until Ctrl-C.")
def demo(incident: str | None, listing: bool, speed: float, keep: bool) -> None:
    """Play a recorded incident live and let the daemon explain it.

    The logs are written into per-rank files of a temporary folder; no GPU is needed. INCIDENT is one of --list.
    """
    import asyncio

    from denpexd.demo import catalogue as incidents
    from denpexd.demo import play

    if listing:
        for name, title in incidents():
            say(f"{name:<28} {title}")
        return
    sys.exit(asyncio.run(play(incident, speed=speed, keep=keep, color=color(False))))
