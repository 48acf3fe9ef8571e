"""The webhook over real sockets: what arrives, and what every kind of failure means."""

import asyncio
import hashlib
import hmac
import logging
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from denpexd.clock import ManualClock
from denpexd.errors import DeliveryError
from denpexd.notify.policy import Delivery
from denpexd.notify.post import new_client, retry_after
from denpexd.notify.rows import Row
from denpexd.notify.sinks_webhook import WebhookSink
from denpexd.settings_sinks import WebhookSink as Options

VERDICT = {"key": "run/1/a", "revision": 3, "event": "updated", "failure": "hang", "evidence": []}


def row(key: str = "run/1/a") -> Row:
    return Row(1, Delivery("webhook", key, 3, "updated", f"{key}:3", "updated", VERDICT), "pending", 0, 0.0, 0.0)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with new_client() as shared:
        yield shared


def sink(client: httpx.AsyncClient, timeout: float = 60.0, **options: Any) -> WebhookSink:
    return WebhookSink("webhook", Options(type="webhook", **options), client, ManualClock(), timeout)


async def failure(client: httpx.AsyncClient, timeout: float = 60.0, **options: Any) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        await sink(client, timeout, **options).send(row())
    return caught.value


async def test_posts_the_verdict_with_its_key_and_the_configured_headers(receiver: Any, client: Any) -> None:
    headers = {"X-Token": SecretStr("t0ken")}
    await sink(client, url=receiver.url + "/hook?a=b", headers=headers).send(row())
    [got] = receiver.requests
    assert (got.method, got.path) == ("POST", "/hook?a=b")
    assert got.json == VERDICT
    assert got.headers["idempotency-key"] == "run/1/a:3"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-token"] == "t0ken"
    assert got.headers["user-agent"].startswith("denpexd/")


async def test_a_body_is_signed_with_the_time(receiver: Any, client: Any, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s3cret\n")
    await sink(client, url=receiver.url, secret_file=file).send(row())
    [got] = receiver.requests
    at = got.headers["x-denpexd-timestamp"]
    wanted = hmac.new(b"s3cret", at.encode() + b"." + got.body, hashlib.sha256).hexdigest()
    assert got.headers["x-denpexd-signature"] == f"sha256={wanted}"
    assert at == f"{ManualClock().wall():.0f}"
    file.unlink()
    error = await failure(client, url=receiver.url, secret_file=file)
    assert error.retryable
    assert "no usable secret" in error.reason


async def test_a_key_in_any_script_travels_in_the_header(receiver: Any, client: Any) -> None:
    await sink(client, url=receiver.url).send(row("прогон\n1"))
    assert receiver.requests[0].headers["idempotency-key"].isascii()


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_answers_that_may_change_are_tried_again(receiver: Any, client: Any, status: int) -> None:
    receiver.script = [(status, {"Retry-After": "7"})]
    error = await failure(client, url=receiver.url)
    assert error.retryable
    assert error.after == 7
    assert f"HTTP {status}" in error.reason
    assert "answer" in error.reason


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 413, 422])
async def test_answers_that_will_not_change_are_final(receiver: Any, client: Any, status: int) -> None:
    receiver.script = [status]
    error = await failure(client, url=receiver.url)
    assert not error.retryable
    assert f"HTTP {status}" in error.reason


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(receiver: Any, client: Any, status: int) -> None:
    receiver.script = [(status, {"Location": receiver.url + "/elsewhere?token=s3cret"})]
    error = await failure(client, url=receiver.url)
    assert not error.retryable
    assert "http://127.0.0.1" in error.reason
    assert "s3cret" not in error.reason
    assert len(receiver.requests) == 1


async def test_a_dead_port_is_tried_again(client: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    error = await failure(client, url=f"http://127.0.0.1:{port}/secret-path")
    assert error.retryable
    assert "secret-path" not in error.reason
    assert "ConnectError" in error.reason


@pytest.mark.parametrize("fault", ["silent", "drip", "garbage"])
async def test_an_unknown_outcome_is_tried_again_in_bounded_time(receiver: Any, client: Any, fault: str) -> None:
    for limit in (0.3, 3.0, 30.0):  # where even the request does not arrive in time, more
        receiver.script = [fault]
        error = await failure(client, limit, url=receiver.url)
        assert error.retryable
        if receiver.requests:
            break
    assert receiver.requests[0].headers["idempotency-key"] == "run/1/a:3"


async def test_the_url_is_read_from_its_file_at_every_use(receiver: Any, client: Any, tmp_path: Path) -> None:
    file = tmp_path / "url"
    error = await failure(client, url_file=file)
    assert error.retryable
    assert str(file) in error.reason
    file.write_text(receiver.url + "/late\n")
    await sink(client, url_file=file).send(row())
    assert receiver.requests[0].path == "/late"


async def test_nothing_is_logged_that_holds_the_url(receiver: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with new_client() as shared:
        await sink(shared, url=receiver.url + "/hidden-path", headers={"X-Token": SecretStr("hidden-token")}).send(
            row()
        )
    assert "hidden" not in caplog.text


@pytest.mark.parametrize(
    ("kind", "said"),
    [("good", ""), ("unknown issuer", "self-signed"), ("expired", "expired"), ("other name", "match")],
)
async def test_certificates_are_checked_and_the_fault_is_named(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, said: str
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    name = "elsewhere" if kind == "other name" else "localhost"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-keyout", str(key), "-out", str(certificate), "-subj", f"/CN={name}"]
    made += ["-addext", f"subjectAltName=DNS:{name}", "-days", "1"]
    subprocess.run(made, check=True, capture_output=True)
    if kind == "expired":
        again = ["openssl", "x509", "-in", str(certificate), "-signkey", str(key), "-days", "-1"]
        certificate.write_bytes(subprocess.run(again, check=True, capture_output=True).stdout)
    if kind != "unknown issuer":
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server, new_client() as trusting:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}/"
        if kind == "good":
            await sink(trusting, url=url).send(row())
            return
        error = await failure(trusting, url=url)
    assert error.retryable
    assert "certificate" in error.reason.lower()
    assert said in error.reason


async def test_a_name_that_does_not_resolve_is_tried_again(client: Any) -> None:
    error = await failure(client, url="http://no-such-host.invalid/hook")
    assert error.retryable
    assert error.reason.startswith("ConnectError")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("86400", 600.0),
        ("Wed, 15 Nov 2023 00:00:30 GMT", 30.0),
        ("Wed, 15 Nov 2023 00:00:30 -0000", 30.0),
        ("Tue, 14 Nov 2023 00:00:00 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        (None, None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, wall=1_700_006_400.0) == seconds
