"""`denpexd bundle`: one archive about one incident, for a bug report."""

import os
from pathlib import Path

import click

from denpexd.terminal import EXISTING, columns, fail


@click.command()
@click.argument("key", required=False)
@click.option("-c", "--config", type=EXISTING, help="Configuration file (YAML).")
@click.option("--state-dir", type=EXISTING, help="Where the daemon keeps its state.")
@click.option(
    "-o", "--output", type=EXISTING, help="File to write: .tar.xz or .zip (default: denpexd-KEY.tar.xz here)."
)
@click.option("--list", "listing", is_flag=True, help="Which incidents there are.")
def bundle(key: str | None, config: Path | None, state_dir: Path | None, output: Path | None, listing: bool) -> None:
    """Write everything that is known of incident KEY (default: the newest) into one archive.

    It holds the report, what the daemon saw, stacks, quoted log lines, versions and configuration, without secrets.
    denpexd replay FILE gives the verdict again. Works beside a running daemon.
    """
    from denpexd.bundle import file_name
    from denpexd.bundles import choose, incidents, made
    from denpexd.notify.text import moment, one_line
    from denpexd.settings import load

    settings = load(config, overrides={"state_dir": str(state_dir)} if state_dir else {}, environ=os.environ)
    if listing:
        rows = [
            (moment(one.updated), one.key, one_line((one.verdict or {}).get("title")), "kept" if one.archive else "")
            for one in incidents(settings.state_dir)
        ]
        click.echo(columns(rows) if rows else f"no incident is known in {settings.state_dir}")
        return
    known = choose(settings.state_dir, key)
    path = output or Path(f"denpexd-{file_name(known.key)}.tar.xz")
    form = "zip" if path.name.endswith(".zip") else "tar.xz"
    if form == "tar.xz" and not path.name.endswith((".tar.xz", ".txz")):
        fail(f"{path}: the name of a bundle ends with .tar.xz or .zip")
    data = made(known, settings, form)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    note = "" if known.archive else " (made from verdict and journal only: nothing else was kept of it)"
    click.echo(f"{path}: {len(data) / 1024:.0f} KiB about {known.key}{note}")
    click.echo(f"Look through it before you pass it on. It is replayed with: denpexd replay {path}")
