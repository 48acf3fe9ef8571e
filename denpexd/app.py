"""The daemon: builds every long-lived object in one straight line and runs them until it is told to stop.

The order matters (each step needs what the earlier ones made), so `run` is not split where it wires; each resource
registers its clean-up at once and the stack undoes them in reverse.
"""

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import os
import random
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TextIO, cast

from denpexd.bundle import versions_of
from denpexd.catalog.load import shipped_rules
from denpexd.catalog.packs import Packs, load_packs
from denpexd.clock import Clock, SteadyClock
from denpexd.core.cadence import Limits
from denpexd.daemon import CollectorLike, Daemon
from denpexd.errors import SettingsError
from denpexd.evidence.collect import Collector, Source
from denpexd.evidence.flight_watch import FlightRecorder
from denpexd.evidence.kernel import open_kernel
from denpexd.evidence.nvml import Nvml
from denpexd.evidence.places import Places
from denpexd.evidence.procs import Processes
from denpexd.evidence.ras import Ras
from denpexd.evidence.resources import Resources
from denpexd.handling import Handling
from denpexd.hub.broker import Nats
from denpexd.hub.fence import Nobody, fenced
from denpexd.hub.leases import TTL
from denpexd.hub.owner import HubDaemon, loops
from denpexd.hub.uplink import NodeUplink
from denpexd.ingest.discover import Discovery
from denpexd.ingest.wake import Waker
from denpexd.keeper import FOLDER, Keeper
from denpexd.launches import Launches
from denpexd.node_feed import NodeFeed
from denpexd.notify.deliver import Deliverer, Sink
from denpexd.notify.in_force import OnlyPrints, Sinks, alerting
from denpexd.notify.outbox import Store
from denpexd.notify.post import new_client
from denpexd.notify.sinks import make_sinks
from denpexd.pipeline import Pipeline
from denpexd.reader import Reader
from denpexd.reference import RuleReference
from denpexd.reload import Rules, at_a_restart, make_scanner
from denpexd.series import Series
from denpexd.settings import Settings, show
from denpexd.settings_sources import is_open_to_all, read_secret
from denpexd.shelf import Shelf
from denpexd.snapshot import DaemonView
from denpexd.state import of_daemon
from denpexd.supervise import tell_where_it_is_stuck
from denpexd.web.api import create_app
from denpexd.web.server import bind, serve

log = logging.getLogger(__name__)

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h; setting it also keeps it from moving
DEADLINE = 15.0  # seconds from SIGTERM to the end whatever hangs; systemd waits for 20


def limits_of(settings: Settings) -> Limits:
    """The hang settings as the core wants them."""
    return Limits(min_silence=settings.hang.min_silence, budgets=dict(settings.hang.budgets.model_dump()))


def load_rules(settings: Settings) -> Packs:
    """Shipped rules and packs; a mistake in one file is said and leaves out that file only."""
    packs = load_packs(settings.rules)
    for error in packs.errors:
        log.error("rule left out: %s", error)
    for folder in settings.rules:
        exposed = [file for file in (folder, *folder.rglob("*.yaml")) if file.exists() and is_open_to_all(file)]
        if exposed:
            log.warning("%d rules such as %s can be changed by every user: chmod -R o-w", len(exposed), exposed[0])
    if not packs.catalog.rules:
        raise SettingsError(f"no usable rule in {shipped_rules()}; reinstall denpexd or mend the rules named above")
    return packs


def _keeper(
    folder: Path,
    settings: Settings,
    pipeline: Pipeline,
    reader: Reader,
    rules: Rules,
    clock: Clock,
    launches: Launches | None,
) -> Keeper | None:
    """Who keeps the evidence of incidents in this folder."""
    keep, engine = settings.keep, pipeline.scanner.engine_name
    if keep.bundles == "off":
        return None

    def more(job: str) -> dict[str, object]:
        return {} if launches is None else {"launch.json": launches.about(pipeline.job(job).core.job)}

    return Keeper(
        Shelf(folder / FOLDER, keep.size, keep.age),
        pipeline,
        clock,
        about=lambda: (show(settings), versions_of(engine, rules.packs)),
        sources=lambda: list(reader.found),
        more=more,
        opened=reader.open,
    )


def _launches(
    folder: Path, settings: Settings, clock: Clock, collector: CollectorLike, root: int | None
) -> Launches | None:
    """Who keeps in this folder how jobs were started."""
    if settings.keep.launches == "off":
        return None
    return Launches(folder, clock, lambda: collector.ranks if isinstance(collector, Collector) else {}, root=root)


async def run(
    settings: Settings,
    *,
    stream: TextIO,
    color: bool,
    clock: Clock | None = None,
    root_pid: int | None = None,
    pipe: int | None = None,
    any_port: bool = False,
    state: Callable[[Path, Clock], Store] = of_daemon,
    fresh: bool = False,
    collector: CollectorLike | None = None,
    until: Callable[["Daemon"], bool] | None = None,
    listening: Callable[[str], None] | None = None,
    reread: Callable[[], Settings] | None = None,
    keep: Path | None = None,
    hub: bool = False,
    dry_run: bool = False,
) -> int:
    """Run until SIGTERM or SIGINT (or until `until` says so). `stream`: where the console sink prints.

    `root_pid`: the job is this process and what descends from it. `pipe`: inode of the pipe its output comes through.
    `any_port`: if another daemon has the port, take a free one. `state` opens the state in the folder of the settings;
    `fresh`: of it only unsent alerts are taken over, nothing about files and jobs. `collector`: who answers for the
    processes, those of this node if nobody is given. `keep`: where bundles go, if not into the state folder.
    `hub`: the events come from other daemons, over the broker of the settings, instead of from files.
    `dry_run`: what would be sent is printed.
    """
    clock = clock or SteadyClock()
    async with AsyncExitStack() as cleanup:
        rules = Rules(load_rules(settings), clock, reread)
        catalog = rules.packs.catalog
        scanner = make_scanner(catalog)
        sock = await asyncio.to_thread(_listen, settings.web.host, settings.web.port, any_port=any_port)
        cleanup.callback(sock.close)
        store = await asyncio.to_thread(state, settings.state_dir, clock)
        cleanup.push_async_callback(asyncio.to_thread, store.close)
        pipeline = Pipeline(
            catalog,
            scanner,
            start_t=clock.now(),
            limits=limits_of(settings),
            max_line=settings.ingest.max_line,
            record=(settings.keep.memory if settings.keep.bundles == "on" else 0, settings.keep.before),
        )
        pipeline.journals = not hub
        if not (fresh or hub):  # what a hub knows is with the broker
            pipeline.restore(store.journal(), store.incidents("open"), clock.now())
        positions = {} if fresh else store.positions()
        waker = Waker(clock)
        ingest = settings.ingest
        found = Discovery([] if hub else settings.paths, settings.job, links=ingest.links)
        reader = Reader(found, clock, waker, positions, ingest.sweep)
        cleanup.callback(reader.close)
        processes = Processes(root_pid=root_pid, pipe=pipe)
        ras = Ras(processes, clock, daring=settings.evidence.ras == "on")
        cleanup.callback(ras.close)
        recorder = settings.evidence.flight_recorder
        flight = FlightRecorder(processes, clock, folder=recorder.dir, trigger=recorder.trigger == "auto")
        cleanup.callback(flight.close)
        sources: dict[str, Source] = {"ras": ras, "gpu": Nvml(processes, clock)}
        local = Collector(
            processes,
            clock,
            stacks="off" if settings.evidence.stacks == "off" else "auto",
            active=settings.evidence.active,
            lone=settings.evidence.processes == "any" or root_pid is not None,
            sources={name: one for name, one in sources.items() if getattr(settings.evidence, name) != "off"},
            flight=flight,
        )
        kernel = None
        collector = Nobody() if hub else collector
        if collector is None and (kernel := open_kernel(settings.evidence.kernel, os.uname().nodename, clock)):
            cleanup.callback(kernel.close)
        collector = collector or local
        client = await cleanup.enter_async_context(new_client())
        width = max(40, min(120, shutil.get_terminal_size((100, 24)).columns))
        daemon: Daemon
        handling: Handling
        printed = partial(make_sinks, stream=stream, color=color, width=width)
        make = partial(
            printed, client=client, clock=clock, receipts=store, acknowledged=lambda *who: handling.note(*who)
        )
        shown = partial(_printed, make, stream) if dry_run else make
        sinks = Sinks((lambda new: fenced(shown(new), lambda: cast(HubDaemon, daemon))) if hub else shown, settings)
        uplink = None
        if settings.hub.url and not hub:
            node = settings.hub.node or os.uname().nodename
            broker = Nats(settings.hub, f"denpexd on {node}", lease=TTL)
            uplink = await asyncio.to_thread(NodeUplink(settings.hub, node, broker, store, clock).open)
        jitter = random.Random()  # noqa: S311 - not a secret
        deliverer = Deliverer(store, sinks.all, clock, jitter, alive=lambda: daemon.healthy()[0])
        kept = keep or settings.state_dir
        launches = None if hub else _launches(kept, settings, clock, collector, root_pid)
        cleanup.callback(launches.close if launches else lambda: None)
        keeper = _keeper(kept, settings, pipeline, reader, rules, clock, launches)

        def prepare(new: Settings) -> Callable[[], list[str]]:
            files = Discovery([] if hub else new.paths, new.job, links=new.ingest.links)
            destinations, policy = sinks.build(new), alerting(new)

            def use() -> list[str]:
                pipeline.judge_by(limits_of(new))
                reader.use(files)
                daemon.ledger.use(policy)
                deliverer.use(sinks.use(new, destinations))
                logging.getLogger().setLevel(new.log_level.upper())
                return at_a_restart(settings, new)

            return use

        made = HubDaemon if hub else Daemon
        parts = (pipeline, reader, store, deliverer, collector, clock, rules, keeper, launches, prepare)
        daemon = made(settings, *parts, uplink)
        handling = Handling(daemon)
        token = read_secret(None, settings.web.token_file) if settings.web.token_file else None
        series = Series(pipeline, clock)
        app = create_app(
            DaemonView(daemon, series),
            token=token,
            host=settings.web.host,
            reload=daemon.reload,
            reference=RuleReference(lambda: rules.packs),
            clock=clock,
            actions=handling,
        )
        _signals(daemon)
        notify = os.environ.get("NOTIFY_SOCKET")

        def ready(url: str) -> None:
            sd_notify("READY=1", notify)
            what = f"jobs through {', '.join(settings.hub.url)}" if hub else f"{len(settings.paths)} paths"
            log.info("watching %s, %d rules, engine %s", what, len(catalog.rules), scanner.engine_name)
            if listening is not None:
                listening(url)

        kept_going: dict[str, Callable[[], Coroutine[object, object, None]]] = {
            "deliver": deliverer.run,
            "read": daemon.read_forever,
            "tick": lambda: daemon.tick_forever(lambda: sd_notify("WATCHDOG=1", notify)),
            "discover": daemon.discover_forever,
            "series": series.keep,
            "stuck": lambda: tell_where_it_is_stuck(clock),
        }
        if isinstance(daemon, HubDaemon):
            broker = Nats(settings.hub, "denpexd hub", lease=TTL)
            kept_going |= loops(daemon.span(settings.hub, broker, broker.prepare))
        if uplink is not None:
            uplink.bind(daemon)
            kept_going["uplink"] = uplink.forever
        if collector is local:
            feed = NodeFeed(kernel, Places(processes), Resources(), daemon, lambda: local.ranks)
            kept_going["node"] = feed.forever
        await asyncio.to_thread(scanner.wait)
        _settle_in()
        tasks = [
            asyncio.create_task(serve(app, sock, listening=ready), name="web"),
            *(asyncio.create_task(daemon.supervisor.keep(*one), name=one[0]) for one in kept_going.items()),
        ]
        stop = asyncio.create_task(daemon.wait_for_stop(until), name="stop")
        try:
            done, _ = await asyncio.wait([*tasks, stop], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sd_notify("STOPPING=1", notify)
            for task in (*tasks[2:], stop):
                task.cancel()
            await asyncio.gather(*tasks[2:], stop, return_exceptions=True)
            await daemon.finish()
            if uplink is not None:
                await uplink.leave()
            app.state.live.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            if task is not stop and (error := task.exception()) is not None:
                raise error
    return 0


def _settle_in() -> None:
    """Set the interpreter and the allocator up for one event loop, a few threads and weeks of running.

    Whoever reads files lets others run at every system call, and waits for the interpreter's lock after each: with
    the usual interval (5 ms) a round over 64 files took seconds while a thread wrote a bundle. Rules and modules are
    100,000 objects that never become garbage. glibc gives large buffers back to the system only below a threshold that
    it raises by itself: threads that pack bundles then keep 35 MB.
    """
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError):
        if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
            mallopt(_MMAP_THRESHOLD, 256 << 10)


def _printed(make: Callable[[Settings], list[Sink]], stream: TextIO, settings: Settings) -> list[Sink]:
    return [OnlyPrints(sink, stream) for sink in make(settings)]


def _listen(host: str, port: int, *, any_port: bool) -> socket.socket:
    """A listening socket; see `bind`. With `any_port` a port in use is no error: a job must not go unwatched for it."""
    try:
        return bind(host, port)
    except SettingsError as error:
        if not (any_port and isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE):
            raise
    sock = bind(host, 0)
    log.warning(
        "port %d on %s is in use (another denpexd?): metrics and console are on port %d",
        port,
        host,
        sock.getsockname()[1],
    )
    return sock


def sd_notify(state: str, address: str | None) -> bool:
    """Tell systemd how the daemon is; never blocks or raises.

    `state`: "READY=1", "WATCHDOG=1", "STOPPING=1", "STATUS=...", joined by newlines. `address`: the value of
    $NOTIFY_SOCKET, a path, or a name that begins with "@" (abstract). Returns whether systemd was there to take it.
    """
    if not address or address[0] not in "/@":
        return False
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.connect(name)
            sock.send(state.encode())
    except OSError as error:
        log.warning("systemd at %s did not take %r: %s", address, state, error)
        return False
    return True


def _give_up() -> None:
    log.critical("not ended within %.0f s: ending now; what was not sent yet is sent after the next start", DEADLINE)
    os._exit(1)


def _signals(daemon: Daemon) -> None:
    """SIGTERM and SIGINT stop in order, a second one at once; SIGHUP takes new rules."""
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[tuple[bool, str]]] = set()

    def stop() -> None:
        if daemon.stopping.is_set():
            os._exit(130)
        daemon.stopping.set()
        # A hung mount can hold a thread, and Python waits for threads. What is committed is safe.
        deadline = threading.Timer(DEADLINE, _give_up)
        deadline.daemon = True
        deadline.start()

    def reload() -> None:
        task = loop.create_task(daemon.reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, reload)
    except (RuntimeError, ValueError):
        log.debug("not in the main thread: signals are not handled here")
