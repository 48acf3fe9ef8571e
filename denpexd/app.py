"""The daemon: `run` makes every long-lived object, in an order in which each has what it needs, and keeps them going.

Each resource registers its clean-up at once and the stack undoes them in reverse.
"""

import asyncio
import gc
import logging
import os
import random
import shutil
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO, cast

import httpx
from starlette.applications import Starlette

from denpexd.bundle import versions_of
from denpexd.clock import Clock, SteadyClock
from denpexd.core.rule import Catalog
from denpexd.daemon import Daemon, Loop
from denpexd.evidence.witness import CollectorLike
from denpexd.handling import Handling
from denpexd.hub.broker import Nats
from denpexd.hub.fence import Nobody, fenced
from denpexd.hub.leases import TTL
from denpexd.hub.owner import HubDaemon
from denpexd.hub.uplink import NodeUplink
from denpexd.ingest.discover import Discovery
from denpexd.ingest.wake import Waker
from denpexd.keeper import FOLDER, Keeper
from denpexd.launches import Launches
from denpexd.node_feed import Node, this_node
from denpexd.notify.deliver import Deliverer
from denpexd.notify.in_force import OnlyPrints, Sinks, alerting
from denpexd.notify.outbox import Store
from denpexd.notify.post import new_client
from denpexd.notify.sink import Sink
from denpexd.notify.sinks import make_sinks
from denpexd.pipeline import Pipeline
from denpexd.reader import Reader
from denpexd.reference import RuleReference
from denpexd.reload import Prepare, Rules, at_a_restart, load_rules, make_scanner
from denpexd.scan.scanner import Scanner
from denpexd.series import Series
from denpexd.settings import Settings, show
from denpexd.settings_values import read_secret
from denpexd.shelf import Shelf
from denpexd.snapshot import DaemonView
from denpexd.state import of_daemon
from denpexd.supervise import on_signals, settle_in, tell_systemd, tell_where_it_is_stuck
from denpexd.web.api import create_app
from denpexd.web.server import bind, serve

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """What the daemon is run for, beside its settings: files, one command, the demo, or as a hub."""

    stream: TextIO  # where the console sink prints
    color: bool
    clock: Clock = field(default_factory=SteadyClock)
    root_pid: int | None = None  # the job is this process and what descends from it
    pipe: int | None = None  # inode of the pipe the job's output comes through
    any_port: bool = False  # if another daemon has the port, take a free one
    state: Callable[[Path, Clock], Store] = of_daemon  # opens the state in the folder of the settings
    fresh: bool = False  # of it only unsent alerts are taken over, nothing about files and jobs
    keep: Path | None = None  # where bundles go, if not into the state folder
    collector: CollectorLike | None = None  # who answers for the processes, if not those of this node
    hub: bool = False  # events come from other daemons, over the broker of the settings, instead of from files
    dry_run: bool = False  # what would be sent is printed
    until: Callable[[Daemon], bool] | None = None  # whether the daemon is to end, if not at a signal
    listening: Callable[[str], None] | None = None  # is told the address
    reread: Callable[[], Settings] | None = None  # the settings at a reload


async def run(settings: Settings, mode: Mode) -> int:
    """Run until SIGTERM or SIGINT (or until `mode.until` says so); the exit code."""
    clock = mode.clock
    gc.disable()  # until settle_in: to look for garbage in what is being loaded takes half a second and finds none
    async with AsyncExitStack() as cleanup:
        cleanup.callback(gc.enable)
        rules = Rules(load_rules(settings), clock, mode.reread)
        scanner = make_scanner(rules.packs.catalog)
        sock = await asyncio.to_thread(bind, settings.web.host, settings.web.port, any_port=mode.any_port)
        cleanup.callback(sock.close)
        store = await asyncio.to_thread(mode.state, settings.state_dir, clock)
        cleanup.push_async_callback(asyncio.to_thread, store.close)
        pipeline = _pipeline(settings, mode, rules.packs.catalog, scanner, store)
        positions = {} if mode.fresh else store.positions()
        reader = Reader(_discovery(settings, mode), clock, Waker(clock), positions, settings.ingest.sweep)
        cleanup.callback(reader.close)
        here = not mode.hub and mode.collector is None
        node = this_node(settings, clock, cleanup, mode.root_pid, mode.pipe) if here else None
        client = await cleanup.enter_async_context(new_client())
        sinks = _sinks(settings, mode, client, store, lambda: daemon, lambda *who: handling.note(*who))
        uplink = await _uplink(settings, store, clock) if settings.hub.url and not mode.hub else None
        jitter = random.Random()  # noqa: S311 - not a secret
        deliverer = Deliverer(store, sinks.all, clock, jitter, alive=lambda: daemon.healthy()[0])
        launches = _launches(settings, mode, node, cleanup)
        keeper = _keeper(settings, mode, pipeline, reader, rules, launches)
        prepare = _prepare(settings, mode, sinks, lambda: daemon)
        collector = node.collector if node is not None else mode.collector or Nobody()
        parts = (pipeline, reader, store, deliverer, collector, clock, rules, keeper, launches, prepare, uplink)
        daemon = _hub(settings, HubDaemon(settings, *parts)) if mode.hub else Daemon(settings, *parts)
        handling, series = Handling(daemon), Series(pipeline, clock)
        app = _web(settings, daemon, series, handling)
        on_signals(daemon.stopping, daemon.reload)
        await asyncio.to_thread(scanner.wait)
        settle_in()
        web = serve(app, sock, listening=partial(_ready, settings, mode, pipeline))
        await _work(daemon, web, _loops(daemon, series, node), mode.until, app.state.live.close)
    return 0


# --- what is watched and known ------------------------------------------------------------------------------------


def _pipeline(settings: Settings, mode: Mode, catalog: Catalog, scanner: Scanner, store: Store) -> Pipeline:
    now, keep = mode.clock.now(), settings.keep
    pipeline = Pipeline(
        catalog,
        scanner,
        start_t=now,
        limits=settings.hang.limits(),
        max_line=settings.ingest.max_line,
        record=(keep.memory if keep.bundles == "on" else 0, keep.before),
    )
    pipeline.journals = not mode.hub
    if not (mode.fresh or mode.hub):  # what a hub knows is with the broker
        pipeline.restore(store.journal(), store.incidents("open"), mode.clock.now())
    return pipeline


def _discovery(settings: Settings, mode: Mode) -> Discovery:
    return Discovery([] if mode.hub else settings.paths, settings.job, links=settings.ingest.links)


# --- who is told --------------------------------------------------------------------------------------------------


def _sinks(
    settings: Settings,
    mode: Mode,
    client: httpx.AsyncClient,
    store: Store,
    daemon: Callable[[], Daemon],
    acknowledged: Callable[[str, str], None],
) -> Sinks:
    width = max(40, min(120, shutil.get_terminal_size((100, 24)).columns))

    def make(new: Settings) -> list[Sink]:
        stream, color = mode.stream, mode.color
        sinks = make_sinks(new, client, mode.clock, stream, store, color=color, width=width, acknowledged=acknowledged)
        if mode.dry_run:
            sinks = [OnlyPrints(sink, stream) for sink in sinks]
        return fenced(sinks, lambda: cast(HubDaemon, daemon())) if mode.hub else sinks

    return Sinks(make, settings)


async def _uplink(settings: Settings, store: Store, clock: Clock) -> NodeUplink:
    name = settings.hub.node or os.uname().nodename
    broker = Nats(settings.hub, f"denpexd on {name}", lease=TTL)
    return await asyncio.to_thread(NodeUplink(settings.hub, name, broker, store, clock).open)


def _hub(settings: Settings, daemon: HubDaemon) -> HubDaemon:
    broker = Nats(settings.hub, "denpexd hub", lease=TTL)
    return daemon.span(settings.hub, broker, broker.prepare)


# --- what is kept -------------------------------------------------------------------------------------------------


def _launches(settings: Settings, mode: Mode, node: Node | None, cleanup: AsyncExitStack) -> Launches | None:
    """Who keeps how jobs were started."""
    if mode.hub or settings.keep.launches == "off":
        return None
    ranks = (lambda: node.collector.ranks) if node is not None else dict
    launches = Launches(mode.keep or settings.state_dir, mode.clock, ranks, root=mode.root_pid)
    cleanup.callback(launches.close)
    return launches


def _keeper(
    settings: Settings, mode: Mode, pipeline: Pipeline, reader: Reader, rules: Rules, launches: Launches | None
) -> Keeper | None:
    """Who keeps the evidence of incidents."""
    keep, engine = settings.keep, pipeline.scanner.engine_name
    if keep.bundles == "off":
        return None

    def more(job: str) -> dict[str, object]:
        return {} if launches is None else {"launch.json": launches.about(pipeline.job(job).core.job)}

    return Keeper(
        Shelf((mode.keep or settings.state_dir) / FOLDER, keep.size, keep.age),
        pipeline,
        mode.clock,
        about=lambda: (show(settings), versions_of(engine, rules.packs)),
        sources=lambda: list(reader.found),
        more=more,
        opened=reader.open,
    )


# --- at work ------------------------------------------------------------------------------------------------------


def _prepare(settings: Settings, mode: Mode, sinks: Sinks, running: Callable[[], Daemon]) -> Prepare:
    """How a reload takes other settings than those that the daemon was started with."""

    def prepare(new: Settings) -> Callable[[], list[str]]:
        files, destinations, policy = _discovery(new, mode), sinks.build(new), alerting(new)

        def use() -> list[str]:
            daemon = running()
            daemon.pipeline.judge_by(new.hang.limits())
            daemon.reader.use(files)
            daemon.ledger.use(policy)
            daemon.deliverer.use(sinks.use(new, destinations))
            logging.getLogger().setLevel(new.log_level.upper())
            return at_a_restart(settings, new)

        return use

    return prepare


def _web(settings: Settings, daemon: Daemon, series: Series, handling: Handling) -> Starlette:
    return create_app(
        DaemonView(daemon, series),
        token=read_secret(None, settings.web.token_file) if settings.web.token_file else None,
        host=settings.web.host,
        reload=daemon.reload,
        reference=RuleReference(lambda: daemon.rules.packs),
        clock=daemon.clock,
        actions=handling,
    )


def _loops(daemon: Daemon, series: Series, node: Node | None) -> dict[str, Loop]:
    loops = daemon.loops(lambda: tell_systemd("WATCHDOG=1"))
    loops |= {"series": series.keep, "stuck": lambda: tell_where_it_is_stuck(daemon.clock)}
    if node is not None:
        loops["node"] = node.feed(daemon).forever
    return loops


def _ready(settings: Settings, mode: Mode, pipeline: Pipeline, url: str) -> None:
    tell_systemd("READY=1")
    what = f"jobs through {', '.join(settings.hub.url)}" if mode.hub else f"{len(settings.paths)} paths"
    log.info("watching %s, %d rules, engine %s", what, len(pipeline.catalog.rules), pipeline.scanner.engine_name)
    if mode.listening is not None:
        mode.listening(url)


async def _work(
    daemon: Daemon,
    serving: Coroutine[object, object, None],
    loops: dict[str, Loop],
    until: Callable[[Daemon], bool] | None,
    end_streams: Callable[[], None],
) -> None:
    """Keep all going until a stop or a fault that is too many; answers and messages until the last word is said."""

    def keep(name: str, loop: Loop) -> asyncio.Task[None]:
        return asyncio.create_task(daemon.supervisor.keep(name, loop), name=name)

    last = [asyncio.create_task(serving, name="web"), keep("deliver", daemon.deliverer.run)]
    working = [keep(*one) for one in loops.items()]
    stop = asyncio.create_task(daemon.wait_for_stop(until), name="stop")
    try:
        done, _ = await asyncio.wait([*last, *working, stop], return_when=asyncio.FIRST_COMPLETED)
    finally:
        tell_systemd("STOPPING=1")
        await _cancel(*working, stop)
        await daemon.finish()
        end_streams()
        await _cancel(*last)
    for task in done:
        if task is not stop and (error := task.exception()) is not None:
            raise error


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
