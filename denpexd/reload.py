"""The rules of a daemon; others, and other settings, for one at work: all or nothing, by SIGHUP or POST /-/reload.

What was seen, learned and opened stays. A few settings (state, web, evidence) are taken at a restart only; those that
have changed are named.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator

from pydantic import BaseModel

from denpexd.catalog.load import shipped_rules
from denpexd.catalog.packs import Packs, load_packs
from denpexd.clock import Clock
from denpexd.core.rule import Catalog
from denpexd.errors import DenpexdError, RuleErrors, SettingsError
from denpexd.pipeline import Pipeline
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.settings import Settings
from denpexd.settings_sources import is_open_to_all

log = logging.getLogger(__name__)

TAKEN, REFUSED = "taken", "refused"

Prepare = Callable[[Settings], Callable[[], list[str]]]
"""Makes what settings ask for, DenpexdError if that fails; what puts it into force names what is not taken."""

_AT_ONCE = ("job", "paths", "rules", "tags", "sinks", "alerts", "hang", "links", "log_level", "runbook_base_url")


def at_a_restart(running: Settings, new: Settings) -> list[str]:
    """The options that differ and that a running daemon does not take, such as `web.port`."""
    return [name for name in _differences("", running, new) if name not in ("ingest.links", "web.public_url")]


def _differences(at: str, one: BaseModel, other: BaseModel) -> Iterator[str]:
    for name in type(one).model_fields:
        was, now = getattr(one, name), getattr(other, name)
        if was == now or (not at and name in _AT_ONCE):
            continue
        if isinstance(was, BaseModel) and isinstance(now, BaseModel):
            yield from _differences(f"{at}{name}.", was, now)
        else:
            yield f"{at}{name}"


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


def make_scanner(catalog: Catalog) -> Scanner:
    """All log signals compiled into one scanner, with the fastest engine that works here."""
    return Scanner([s for s in catalog.signals.values() if s.kind == "log"], choose_engine())


class Rules:
    """The rules in force, and how reloading them went. `counts`: reloads by outcome, TAKEN or REFUSED.

    `taken_at`: Unix time when those in force were taken; `ok`: whether the last reload was.
    """

    def __init__(self, packs: Packs, clock: Clock, reread: Callable[[], Settings] | None = None) -> None:
        self.packs, self._clock, self._reread = packs, clock, reread
        self.ok = True
        self.counts: Counter[str] = Counter({TAKEN: 0, REFUSED: 0})
        self.taken_at = clock.wall()
        self._one_at_a_time = asyncio.Lock()

    async def reload(self, pipeline: Pipeline, prepare: Prepare) -> tuple[bool, str]:
        """Whether all files were good, so that what they say is in force now; else why not, a mistake on each line.

        `prepare` makes what the settings ask for, if they can be read again, and gives what puts it into force.
        """
        async with self._one_at_a_time:
            try:
                settings, packs, scanner = await asyncio.to_thread(self._read)
                use = prepare(settings) if settings is not None else None
            except DenpexdError as error:
                self.ok = False
                self.counts[REFUSED] += 1
                log.error("reload refused, the former rules and settings stay in force: %s", error)
                return False, f"reload refused, the former rules and settings stay in force:\n{error}"
            pipeline.use(packs.catalog, scanner)
            late = use() if use is not None else []
            self.packs, self.ok, self.taken_at = packs, True, self._clock.wall()
            self.counts[TAKEN] += 1
        said = f"{len(packs.catalog.rules)} rules and the settings are in force"
        if late:
            said += f"; these have changed and are taken at a restart: {', '.join(late)}"
        log.info("%s", said)
        return True, said

    def _read(self) -> tuple[Settings | None, Packs, Scanner]:
        settings = self._reread() if self._reread is not None else None
        packs = load_packs(settings.rules if settings is not None else [])
        if packs.errors:
            raise RuleErrors(packs.errors)
        scanner = make_scanner(packs.catalog)
        scanner.wait()
        return settings, packs, scanner
