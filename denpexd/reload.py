"""Other rules, paths and limits for a daemon at work: all or nothing, asked for by SIGHUP or POST /-/reload.

What was seen, learned and opened stays. Other settings (sinks, state, web) are checked, but taken at a restart only.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from denpexd.catalog.packs import Packs, load_packs
from denpexd.clock import Clock
from denpexd.core.rule import Catalog
from denpexd.errors import DenpexdError, RuleErrors
from denpexd.pipeline import Pipeline
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.settings import Settings

log = logging.getLogger(__name__)

TAKEN, REFUSED = "taken", "refused"


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

    async def reload(self, pipeline: Pipeline, use: Callable[[Settings], None]) -> tuple[bool, str]:
        """Whether all files were good, so that what they say is in force now; else why not, a mistake on each line.

        `use` takes the settings over, if they can be read again.
        """
        async with self._one_at_a_time:
            try:
                settings, packs, scanner = await asyncio.to_thread(self._read)
            except DenpexdError as error:
                self.ok = False
                self.counts[REFUSED] += 1
                log.error("reload refused, the former rules stay in force: %s", error)
                return False, f"reload refused, the former rules stay in force:\n{error}"
            pipeline.use(packs.catalog, scanner)
            if settings is not None:
                use(settings)
            self.packs, self.ok, self.taken_at = packs, True, self._clock.wall()
            self.counts[TAKEN] += 1
        said = f"{len(packs.catalog.rules)} rules, paths and limits in force; other settings are taken at a restart"
        log.info("%s", said)
        return True, said

    def _read(self) -> tuple[Settings | None, Packs, Scanner]:
        settings = self._reread() if self._reread is not None else None
        packs = load_packs(settings.rules if settings is not None else [])
        if packs.errors:
            raise RuleErrors(packs.errors)
        return settings, packs, make_scanner(packs.catalog)
