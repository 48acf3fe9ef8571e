"""`denpexd doctor`: whether a daemon with these settings could do its work here, tried rather than guessed.

Each check is one line: what was looked at, how it is, and how to mend it. Nothing is changed, and nothing is sent: the
state folder gets a file for a moment, destinations are only connected to.
"""

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from denpexd import __version__
from denpexd.bundle import PACKAGES
from denpexd.catalog.packs import load_packs
from denpexd.clock import Clock
from denpexd.doctor_machine import clock_checks, limit_checks, rights_checks, state_checks
from denpexd.doctor_reach import broker_checks, port_checks, sent_checks, sink_checks
from denpexd.errors import DenpexdError, SettingsError
from denpexd.findings import Finding, bad, ok, warn
from denpexd.ingest.discover import Discovery, Found
from denpexd.ingest.links import Links
from denpexd.ingest.remote import Mounts
from denpexd.notify.render import Page
from denpexd.notify.text import cells
from denpexd.scan.engine import choose_engine, hyperscan_unusable
from denpexd.settings import Settings

_MARKS = {"ok": ("✔", "closed"), "warn": ("▲", "medium"), "bad": ("✘", "high")}
_MOST_READ = 200  # files of which it is tried whether they can be read
_LONGEST = 30.0  # seconds for one group of checks

Group = tuple[str, Callable[[], Awaitable[Sequence[Finding]]]]


async def examine(
    read: Callable[[], Settings], clock: Clock, *, chosen_port: bool = False, send: bool = False
) -> list[Finding]:
    """Every finding, in order. `read` loads the settings; where they are wrong, the rest is checked with defaults.

    `chosen_port`: somebody set the port, so that a daemon would not just take another one. `send`: try the
    destinations with a test message instead of a connection.
    """
    found: list[Finding] = []
    try:
        settings = read()
        found.append(ok("configuration", "valid"))
    except SettingsError as error:
        settings = Settings()
        found += [
            bad("configuration", line, "denpexd config check -c FILE tries it again")
            for line in str(error).splitlines()
        ]
    discovery = Discovery(settings.paths, settings.job, links=settings.ingest.links)
    files = await asyncio.to_thread(discovery.scan)
    groups: list[Group] = [
        ("versions", lambda: asyncio.to_thread(_versions)),
        ("engine", lambda: asyncio.to_thread(_engine)),
        ("rules", lambda: asyncio.to_thread(_rules, settings.rules)),
        ("paths", lambda: asyncio.to_thread(_paths, settings, discovery, files)),
        ("limits", lambda: limit_checks(discovery.directories, len(files), clock)),
        ("state", lambda: asyncio.to_thread(state_checks, settings.state_dir, settings.keep.size, clock)),
        ("rights", lambda: rights_checks(settings, clock)),
        ("clock", lambda: asyncio.to_thread(clock_checks, [each.path for each in files], clock)),
        ("port", lambda: port_checks(settings.web, chosen=chosen_port)),
        ("broker", lambda: broker_checks(settings.hub)),
        ("sinks", lambda: sent_checks(settings) if send else sink_checks(settings)),
    ]
    for name, check in groups:
        found += await _tried(name, check)
    return found


async def _tried(name: str, check: Callable[[], Awaitable[Sequence[Finding]]]) -> Sequence[Finding]:
    """A check that fails or hangs is a finding, and the others go on."""
    try:
        async with asyncio.timeout(_LONGEST):
            return await check()
    except TimeoutError:
        return [bad(name, f"no answer within {_LONGEST:g} s: a hung mount?", "look at /proc/mounts")]
    except (OSError, DenpexdError) as error:
        return [bad(name, f"cannot be checked: {error}")]


def _versions() -> list[Finding]:
    packages = _installed(PACKAGES)
    there = ", ".join(f"{name} {number}" for name, number in packages.items() if number)
    return [
        ok("denpexd", f"{__version__} on Python {platform.python_version()}, {platform.platform(terse=True)}"),
        ok("packages", there),
    ]


def _installed(names: Sequence[str]) -> Mapping[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def _engine() -> list[Finding]:
    name = "hyperscan" if (why := hyperscan_unusable()) is None else "re2"
    engine = choose_engine()(["denpexd [0-9]+"])
    if not engine.scan(b"x\ndenpexd 17\n"):
        return [bad("engine", f"{name} finds nothing in a line that matches", "reinstall denpexd")]
    if why is not None:
        return [warn("engine", f"re2; {why}", "it works, at about a third of the speed")]
    return [ok("engine", "hyperscan, its self-test passed")]


def _rules(folders: Sequence[Path]) -> list[Finding]:
    packs = load_packs(folders)
    found = []
    for state in packs.states:
        if state.errors:
            said = f"{len(state.errors)} mistakes in pack {state.pack.name}: {state.errors[0]}"
            found.append(bad("rules", said, f"denpexd rules check {state.pack.folder}"))
        else:
            found.append(ok("rules", f"{state.rules} of pack {state.pack.name}"))
    return found


def _paths(settings: Settings, discovery: Discovery, files: Sequence[Found]) -> list[Finding]:
    if not settings.paths:
        return [warn("paths", "none is configured", "give them to denpexd run, or set paths in the configuration")]
    jobs = {each.job for each in files}
    found = [ok("paths", f"{len(files)} log files of {len(jobs)} job(s)")] if files else []
    found += [warn("paths", said, "denpexd discover shows what is found and why") for said in discovery.errors[:10]]
    found += _unreadable(files, Links([str(Path(text).absolute()) for text in settings.paths], settings.ingest.links))
    mounts = Mounts()
    kinds = sorted({f"{mount} ({mounts.kind(mount)})" for each in files if (mount := mounts.remote(each.path))})
    if kinds:
        said = f"on a network file system: {', '.join(kinds)}; read on threads of its own, polled each sweep"
        found.append(ok("file system", said))
    elif files:
        found.append(ok("file system", "local: changes wake the daemon"))
    return found


def _unreadable(files: Sequence[Found], links: Links) -> Iterator[Finding]:
    for each in files[:_MOST_READ]:
        try:
            fd, _ = links.open(each.path)
        except OSError as error:
            mend = "denpexd must run as a user that may read it, see docs/deployment.md"
            yield bad("paths", f"{each.path} cannot be read: {error.strerror}", mend)
            return
        os.close(fd)


def as_text(found: Sequence[Finding], *, color: bool, width: int) -> str:
    """One line a finding, with how to mend it below."""
    page = Page(color, width)
    widest = min(20, max(cells(one.name) for one in found))
    for one in found:
        mark, style = _MARKS[one.state]
        before = f"{mark} {one.name:<{widest}}  "
        page.text(one.says, before, " " * (widest + 4))
        first = next(n for n in range(len(page.lines) - 1, -1, -1) if page.lines[n].startswith(mark))
        page.lines[first] = page.paint(mark, style) + page.lines[first][len(mark) :]
        if one.mend and one.state != "ok":
            page.text(one.mend, " " * (widest + 4) + "→ ", " " * (widest + 6), style="command")
    bads, warns = (sum(one.state == state for one in found) for state in ("bad", "warn"))
    page.lines.append("")
    if bads:
        page.text(f"{bads} thing{'s' if bads > 1 else ''} to mend, {warns} to know of", "", style="high")
    else:
        page.text(f"all well, {warns} to know of" if warns else "all well", "", style="closed")
    return "\n".join(page.lines)
