"""Seeded secrets in configuration, environment, command line, logs and names: nothing that leaves or stays has one."""

import base64
import io
import json
import os
import random
import re
import string
import subprocess
import sys
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from .waiting import DENPEXD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

LOG = """
import os, sys, time
rank = os.environ["RANK"]
for step in range(1, 25):
    print(f"[rank{rank}] step {step}/400 loss={3 - step * 0.01:.2f}", flush=True)
    time.sleep(0.3)
print("connecting with password=" + os.environ["SEED_PASSWORD"], flush=True)
print("> Authorization: Bearer " + os.environ["SEED_BEARER"], flush=True)
print("Cookie: session=" + os.environ["SEED_COOKIE"], flush=True)
if rank == "1":
    hf = os.environ["HF_TOKEN"]
    raise FileNotFoundError(2, f"No such file or directory, token={os.environ['SEED_VALUE']} {hf}",
        "/data/https://user:" + os.environ["SEED_URL"] + "@store/shard-7.tar")
time.sleep(600)
"""


class Echo:
    """A receiver that answers 500 and repeats what it was sent, but 204 below /good; keeps the bodies of those."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.failed = 0
        self.good, self.bad = threading.Event(), threading.Event()
        echo = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path.startswith("/good"):
                    echo.bodies.append(body)
                    self.send_response(204)
                    self.end_headers()
                    echo.good.set()
                    return
                echo.bodies.append(body)
                answer = f"{self.path}\n{self.headers}\n".encode() + body[:100]
                self.send_response(500, "Internal " + self.headers.get("X-Token", ""))
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                echo.failed += 1
                if echo.failed >= 2:
                    echo.bad.set()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self.server.server_port}"


@pytest.fixture
def echo() -> Iterator[Echo]:
    running = Echo()
    yield running
    running.server.shutdown()
    running.server.server_close()


def made(seed: int) -> dict[str, str]:
    """Secrets of no known shape, unless their place needs one; the same in every run."""
    rng = random.Random(seed)

    def some(size: int, alphabet: str = string.ascii_letters + string.digits) -> str:
        return "".join(rng.choice(alphabet) for _ in range(size))

    names = ("header", "path", "apprise_password", "apprise_header", "web_token", "env", "flag", "job")
    seeds = {name: some(28) for name in names}
    seeds |= {name: some(28) for name in ("SEED_PASSWORD", "SEED_BEARER", "SEED_COOKIE", "SEED_VALUE", "SEED_URL")}
    return seeds | {"HF_TOKEN": "h" + "f_" + some(34, string.ascii_letters)}


def forms(secret: str) -> dict[str, bytes]:
    """How a secret could stand somewhere: as it is, reversed, in hex, in base64 at any offset, for a URL."""
    raw = secret.encode()
    found = {
        "plain": raw,
        "reversed": raw[::-1],
        "hex": raw.hex().encode(),
        "for a URL": quote(secret, safe="").encode(),
    }
    for shift in range(3):
        found[f"base64+{shift}"] = base64.b64encode(b"x" * shift + raw)[4 if shift else 0 : -4]
    return found


def unpacked(path: Path) -> Iterator[tuple[str, bytes]]:
    """A file, and the files in it if it is an archive."""
    data = path.read_bytes()
    yield str(path), data
    if path.name.endswith(".tar.xz"):
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                if (content := archive.extractfile(member)) is not None:
                    yield f"{path}:{member.name}", content.read()


def answered(url: str, token: str) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return error.read()


def test_no_seeded_secret_is_in_anything_that_leaves_or_stays(place: Any, echo: Echo, tmp_path: Path) -> None:
    seeds = made(11)
    logs = tmp_path / "logs" / f"run-token={seeds['job']}"
    logs.mkdir(parents=True)
    (tmp_path / "train.py").write_text(LOG)
    (tmp_path / "web.token").write_text(seeds["web_token"])
    config = tmp_path / "denpexd.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "paths": [f"{tmp_path}/logs/{{job}}/rank{{rank}}.log"],
                "state_dir": str(tmp_path / "state"),
                "log_level": "debug",
                "web": {"port": 0, "token_file": str(tmp_path / "web.token")},
                "evidence": {"processes": "any"},
                "sinks": [
                    {"type": "webhook", "name": "good", "url": f"http://{echo.address}/good"},
                    {
                        "type": "webhook",
                        "name": "bad",
                        "url": f"http://{echo.address}/hooks/{seeds['path']}",
                        "headers": {"X-Token": seeds["header"]},
                    },
                    {
                        "type": "apprise",
                        "url": f"json://user:{seeds['apprise_password']}@{echo.address}/?+X-Token="
                        + seeds["apprise_header"],
                    },
                    {"type": "console"},
                ],
            }
        )
    )
    environ = {**os.environ, **{name: text for name, text in seeds.items() if name.isupper()}}
    environ["MY_SECRET_KEY"] = seeds["env"]
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        daemon = place.start([*DENPEXD, "run", "-c", str(config)], stdout=out, stderr=err, env=environ)
    for rank in "01":
        with (logs / f"rank{rank}.log").open("wb") as log:
            variables = {**environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}
            command = [sys.executable, str(tmp_path / "train.py"), "--api-key", seeds["flag"]]
            place.start(command, stdout=log, stderr=log, env=variables)
    assert echo.good.wait(200), (tmp_path / "err").read_text()
    assert echo.bad.wait(200), (tmp_path / "err").read_text()
    left: list[tuple[str, bytes]] = []
    (url,) = re.findall(r"console and metrics on (\S+)", (tmp_path / "err").read_text())
    incidents = answered(f"{url}api/v1/incidents", seeds["web_token"])
    key = json.loads(incidents)["incidents"][0]["key"]
    job = json.loads(answered(f"{url}api/v1/jobs", seeds["web_token"]))["jobs"][0]["job"]
    pages = ["", "metrics", "healthz", "readyz", "health", "incidents", f"incidents/{key}", f"jobs/{quote(job)}"]
    rest = ["jobs", "rules", "history", "fixes", "silences", f"incidents/{key}", f"incidents/{key}/decisions"]
    rest += [f"jobs/{quote(job)}{part}" for part in ("", "/ranks", "/ranks/1")]
    pages += [f"api/v1/{page}" for page in rest]
    left += [(f"GET /{page}", answered(url + page, seeds["web_token"])) for page in pages]
    daemon.terminate()
    assert daemon.wait(90) == 0
    for verb in (
        ["config", "show", "-c", str(config)],
        ["diagnose", str(logs)],
        ["diagnose", str(logs), "--format", "json"],
        ["discover", str(logs)],
        ["doctor", "-c", str(config)],
    ):
        done = subprocess.run([*DENPEXD, *verb], capture_output=True, env=environ, check=False)
        assert done.returncode in (0, 1), done.stderr
        left += [(f"stdout of {verb}", done.stdout), (f"stderr of {verb}", done.stderr)]
    bundle = [*DENPEXD, "bundle", "--state-dir", str(tmp_path / "state"), "-o", str(tmp_path / "b.tar.xz")]
    assert subprocess.run(bundle, capture_output=True, check=False).returncode == 0

    left += [("incidents", incidents), *((f"body {n}", body) for n, body in enumerate(echo.bodies))]
    for path in [tmp_path / "out", tmp_path / "err", tmp_path / "b.tar.xz", *(tmp_path / "state").rglob("*")]:
        left += unpacked(path) if path.is_file() else []
    assert b"FileNotFoundError" in echo.bodies[0]
    assert b"[REDACTED:" in echo.bodies[0]
    found = [
        f"{name} ({form}) in {where}: ...{data[max(0, data.index(text) - 80) :][:160]!r}"
        for where, data in left
        for name, secret in seeds.items()
        for form, text in forms(secret).items()
        # The names of watched files are how their positions are found again; the database is for its owner only.
        if text in data and not (name == "job" and "denpexd.sqlite" in where)
    ]
    assert not found, "\n".join(found[:20])
    size = sum(len(data) for _, data in left)
    print(f"\n{len(seeds)} secrets in {len(forms('x' * 9))} forms looked for in {len(left)} texts, {size} bytes")
