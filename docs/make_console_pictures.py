"""Takes docs/images/console-*.webp: the pages of the console in Chromium, with verdicts on the shipped recordings.

Run by hand where the console has changed: make web; PYTHONPATH=tests/web .venv/bin/python docs/make_console_pictures.py
An argument is a folder for PNG pictures instead, to look at.
"""

import asyncio
import base64
import math
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, sync_playwright
from stand import Stand

from denpexd.catalog.packs import load_packs
from denpexd.recording import read_case
from denpexd.reference import RuleReference
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine
from denpexd.web.api import create_app
from denpexd.web.server import bind, serve
from denpexd.web.view import JobView, Pace, PackView, RankView, Stats, Told

HERE = Path(__file__).parent
RECORDINGS = HERE.parent / "denpexd" / "recordings"
NOW = 1_780_304_400.0  # 2026-06-01 09:00 UTC, when all pictures are taken
CASES = {"two-ranks-stuck": ("resnet-ablation", 190.0), "failed-forward": ("vit-large-sweep", 5400.0)}
BIG = "llama-405b-pretrain"
TRACE = """Traceback (most recent call last):
  File "/app/train.py", line 61, in main
    loss = model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 2 has a total capacity of 79.15 GiB.
"""


def verdicts() -> list[dict[str, Any]]:
    """What the shipped recordings show, as if it had happened a while ago in jobs with names."""
    replayer = Replayer(load_packs([]).catalog, choose_engine())
    found: list[dict[str, Any]] = []
    for case, (job, before) in CASES.items():
        seen = replayer.run(read_case(RECORDINGS / case)).verdicts
        found += [_moved(verdict, job, NOW - before - float(str(verdict["opened_t"]))) for verdict in seen]
    return sorted(found, key=lambda v: -v["updated_t"])


def _moved(verdict: Mapping[str, Any], job: str, by: float) -> dict[str, Any]:
    quotes = [{**q, "t": None if q["t"] is None else q["t"] + by} for q in verdict["evidence"]]
    times = {n: verdict[n] + by for n in ("opened_t", "updated_t", "stopped_t") if verdict.get(n) is not None}
    return {**verdict, **times, "job": job, "evidence": quotes, "key": f"{job}-3f2a9c"}


def big(ranks: int) -> JobView:
    """A large job in which one node is behind and one rank was lost."""
    made = []
    for rank in range(ranks):
        lost, slow = rank == 1337, 1336 <= rank < 1344
        state = (
            "failed"
            if lost
            else "silent"
            if slow
            else "waiting"
            if rank % 16 < 8 and 1024 <= rank < 1536
            else "running"
        )
        step, silent = 48_210 - (6 if slow else 0), 41.0 if slow else 1.5
        made.append(RankView(rank, state, step, "train", silent, f"gpu-{rank // 8:03}", 4000 + rank))
    return JobView(BIG, 2, 48_210, 4.1, 35.0, "train", ranks, made)


def daemon() -> Stand:
    """A morning with one hang, one crash and jobs that train."""
    found = verdicts()
    hang, crash = found[0], found[-1]
    ranks = [*hang["initiating_ranks"], *hang["collateral_ranks"]]
    stuck = [
        RankView(r, "failed" if r in hang["initiating_ranks"] else "waiting", 40, "train", 190.0 + r, "gpu-17", 900 + r)
        for r in sorted(ranks)
    ]
    fine = [RankView(r, "running", 12_000 + r % 2, "train", 0.4, f"gpu-{r // 8:03}", 70 + r) for r in range(64)]
    down = [RankView(r, "gone", 900, "train", 5400.0, "gpu-30", 50 + r) for r in range(4)]
    made = Stand(
        found,
        [
            JobView("resnet-ablation", 0, 40, 0.5, 190.0, "train", len(stuck), stuck),
            big(2048),
            JobView("mixtral-finetune", 0, 12_001, 1.2, 0.0, "train", 64, fine),
            JobView("vit-large-sweep", 1, 900, 0.3, 0.0, "train", 4, down),
        ],
        Stats(
            engine="hyperscan", lines=48_210_377, bytes=9_812_000_000, files={"reading": 2124}, redactions=3,
            notifications={("slack", "sent"): 5, ("pagerduty", "sent"): 2}, suspected_hangs=4,
            evidence_outcomes={("stacks", "ok"): 14, ("ras", "none"): 2}, evidence_pause_seconds=0.004,
            kept={"job": 4, "rank": 2124, "incident": 2, "file": 2124}, forgotten={"position": 12},
            config_taken_at=NOW - 86_400, config_reloads={"taken": 1},
        ),
    )  # fmt: skip
    crash["state"], crash["event"] = "closed", "closed"
    crash["acknowledged"] = {"t": NOW - 3000, "by": "anna", "note": "the unused head is gone", "closed": True}
    made.messages = [Told(hang["opened_t"] + 1.0, sink, "opened", "sent") for sink in ("slack", "pagerduty")]
    made.paces = {
        BIG: [
            Pace(
                NOW - 3600 + 10 * n,
                4.1 + 0.25 * math.sin(n / 9) + (1.9 if n % 97 == 40 else 0) if n % 2 else None,
                9800,
            )
            for n in range(356)
        ]
    }
    made.paces[BIG] = [p._replace(lines=9800 + 700 * math.sin(p.t / 130)) for p in made.paces[BIG]]
    return made


class Morning(Stand):
    """The same with the real encyclopedia and the real reader of pasted logs."""

    def packs(self) -> list[PackView]:
        catalog = load_packs([]).catalog
        return [PackView(name="shipped", kind="shipped", folder="(installed with denpexd)", rules=len(catalog.rules),
                         signals=len(catalog.signals))]  # fmt: skip

    def fixes(self) -> list[dict[str, Any]]:
        crash = self.verdicts[-1]
        said = {"by": "anna", "note": crash["acknowledged"]["note"], "t": NOW - 3000, "again": None, "decided_t": None}
        watched = {"state": "pending", "observed_seconds": 2700.0, "window_seconds": 86_400.0}
        return [{"key": crash["key"], "job": crash["job"], "failure": crash["failure"], **said, **watched}]


PAGES = {
    "overview": "/",
    "incident": "/incidents/resnet-ablation-3f2a9c",
    "job": f"/jobs/{BIG}",
    "incidents": "/incidents",
    "encyclopedia": "/encyclopedia",
    "entry": "/encyclopedia/cuda-out-of-memory",
    "diagnose": "/diagnose",
    "health": "/health",
}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1180, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1180, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 400, "height": 800}, "color_scheme": "light", "device_scale_factor": 1.5},
}
TALL = {"light": 1560, "dark": 1150, "phone": 1500}  # pixels that are shown of a page


def main(folder: Path | None) -> None:
    stood = daemon()
    stood.__class__ = Morning
    packs = load_packs([])
    listening: list[str] = []
    ready = threading.Event()

    def listen(url: str) -> None:
        listening.append(url.rstrip("/"))
        ready.set()

    app = create_app(stood, reference=RuleReference(lambda: packs), actions=stood)
    threading.Thread(
        target=lambda: asyncio.run(serve(app, bind("127.0.0.1", 0), listening=listen)), daemon=True
    ).start()
    ready.wait(10)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for look, options in LOOKS.items():
            context = browser.new_context(base_url=listening[0], **options)
            page = context.new_page()
            page.clock.set_fixed_time(NOW)
            for name, path in PAGES.items():
                if look != "light" and name in ("incidents", "entry", "health"):
                    continue
                page.goto(path)
                page.wait_for_timeout(700)
                if name == "job":
                    page.locator("#grid").hover(position={"x": 300, "y": 50})
                if name == "diagnose" and look == "light":
                    page.locator("#log").fill(TRACE)
                high = min(TALL[look], page.evaluate("document.documentElement.scrollHeight"))
                _take(context.new_cdp_session(page), page, options["viewport"]["width"], high, name, look, folder)
            context.close()
        browser.close()


def _take(session: CDPSession, page: Any, wide: int, high: int, name: str, look: str, folder: Path | None) -> None:
    clip = {"x": 0, "y": 0, "width": wide, "height": high}
    if folder is not None:
        page.screenshot(path=folder / f"console-{name}-{look}.png", clip=clip, full_page=True)
        return
    told = session.send(
        "Page.captureScreenshot",
        {"format": "webp", "quality": 82, "clip": {**clip, "scale": 1}, "captureBeyondViewport": True},
    )
    (HERE / "images" / f"console-{name}-{look}.webp").write_bytes(base64.b64decode(told["data"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
