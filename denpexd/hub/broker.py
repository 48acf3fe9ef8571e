"""NATS JetStream behind the few calls that nodes and hubs need, so that tests can put another broker in its place."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from denpexd.errors import BrokerError, SettingsError
from denpexd.hub.wire import SUBJECTS, events_of
from denpexd.settings_hub import Hub
from denpexd.settings_values import read_secret, secret_file

log = logging.getLogger(__name__)

STREAM = "DENPEXD"
LEASES, BOARD = "denpexd_leases", "denpexd_incidents"
REPEATS = 120.0  # seconds in which the broker knows a repeated message by its id
BOARD_AGE = 7 * 86400.0
MOST_READ = 256  # messages at a time
_ANSWER = 5.0  # seconds to wait for the broker
_UNUSED = 120.0  # seconds after which the broker forgets a reader that does not read

Heard = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of the stream: its number in it, when the broker took it (Unix seconds by its clock), its content."""

    number: int
    stamp: float
    data: bytes


class Broker(Protocol):
    """Every call raises BrokerError where the broker does not answer, or refuses."""

    async def publish(self, subject: str, data: bytes, message_id: str) -> None:
        """Return when the stream has it; the same id again within REPEATS is no second message."""
        ...

    async def read(self, part: int, after: int, since: float, wait: float) -> list[Stored]:
        """Messages of a partition behind number `after` and not older than `since`, at most MOST_READ.

        At once if there are any, else the first within `wait` seconds.
        """
        ...

    async def forget(self, part: int) -> None:
        """The partition is not read any more."""
        ...

    async def create(self, bucket: str, key: str, value: bytes) -> int | None:
        """The revision, None if the key is there."""
        ...

    async def update(self, bucket: str, key: str, value: bytes, revision: int) -> int | None:
        """The new revision, None if the present one is not `revision`."""
        ...

    async def put(self, bucket: str, key: str, value: bytes) -> None: ...

    async def get(self, bucket: str, key: str) -> tuple[bytes, int] | None: ...

    async def delete(self, bucket: str, key: str) -> None: ...

    async def keys(self, bucket: str) -> list[str]: ...

    async def say(self, subject: str, data: bytes) -> None:
        """Tell whoever listens now."""
        ...

    async def listen(self, subject: str, heard: Heard) -> None: ...

    async def close(self) -> None: ...


class Nats:
    """A Broker: one connection, made when it is first needed and again when it breaks."""

    def __init__(self, settings: Hub, name: str, *, lease: float) -> None:
        library()
        self._settings, self._name, self._lease = settings, name, lease
        self._nats: Any = None
        self._stream: Any = None
        self._buckets: dict[str, Any] = {}
        self._readers: dict[int, tuple[int, Any]] = {}
        self._one_at_a_time = asyncio.Lock()

    async def _connected(self) -> Any:
        if self._nats is not None and self._nats.is_connected:
            return self._nats
        async with self._one_at_a_time:
            if self._nats is None:
                self._nats = await self._connect()
                self._stream = self._nats.jetstream(timeout=_ANSWER)
            if not self._nats.is_connected:
                raise BrokerError(f"no connection to {self._shown}")
            return self._nats

    @property
    def _shown(self) -> str:
        return ", ".join(url.rpartition("@")[2] for url in self._settings.url)

    async def _connect(self) -> Any:
        nats = library()
        options: dict[str, Any] = {
            "servers": self._settings.url,
            "name": self._name,
            "connect_timeout": 5,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 2,
            "ping_interval": 10,
            "max_outstanding_pings": 2,
            "error_cb": _error,
            **_secrets(self._settings),
        }
        client = nats.NATS()
        try:
            # A server that refuses us does so again: the library would leave a socket open each time.
            await asyncio.wait_for(client.connect(**options, allow_reconnect=False), 10)
        except (TimeoutError, OSError, ValueError, nats.errors.Error) as error:
            await _closed(client)
            why = client.last_error or error
            raise BrokerError(f"no connection to {self._shown}: {why or type(why).__name__}") from None
        client.options["allow_reconnect"] = True  # for ever, from now on
        return client

    async def _ask(self, question: Callable[[], Awaitable[Any]]) -> Any:
        nats = library()
        await self._connected()
        try:
            return await question()
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise BrokerError(f"{self._shown}: {error or type(error).__name__}") from error

    async def prepare(self) -> None:
        """Make stream and buckets, or have the stream as the settings say; for hubs."""
        from nats.js.api import KeyValueConfig, StreamConfig
        from nats.js.errors import BadRequestError

        settings = self._settings
        config = StreamConfig(
            name=STREAM,
            subjects=[SUBJECTS],
            max_age=settings.keep,
            max_bytes=settings.size,
            duplicate_window=min(REPEATS, settings.keep),
            num_replicas=settings.replicas,
        )

        async def stream() -> None:
            try:
                await self._stream.add_stream(config)
            except BadRequestError:  # it is there, by other settings
                await self._stream.update_stream(config)

        await self._ask(stream)
        for bucket, age in ((LEASES, self._lease), (BOARD, BOARD_AGE)):
            made = KeyValueConfig(bucket=bucket, ttl=age, replicas=settings.replicas)
            self._buckets[bucket] = await self._ask(partial(self._stream.create_key_value, made))

    async def publish(self, subject: str, data: bytes, message_id: str) -> None:
        await self._ask(lambda: self._stream.publish(subject, data, headers={"Nats-Msg-Id": message_id}))

    async def read(self, part: int, after: int, since: float, wait: float) -> list[Stored]:
        try:
            reader = await self._reader(part, after, since)
            found = await self._ask(lambda: reader.fetch(MOST_READ, timeout=wait))
        except BrokerError as error:
            if isinstance(error.__cause__, TimeoutError):
                return []
            self._readers.pop(part, None)
            raise
        stored = [Stored(m.metadata.sequence.stream, m.metadata.timestamp.timestamp(), m.data) for m in found]
        if stored:
            self._readers[part] = (stored[-1].number, reader)
        return [one for one in stored if one.number > after]

    async def _reader(self, part: int, after: int, since: float) -> Any:
        known = self._readers.get(part)
        if known is not None and known[0] == after:
            return known[1]
        from datetime import UTC, datetime

        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=_UNUSED)
        if after:
            config.deliver_policy, config.opt_start_seq = DeliverPolicy.BY_START_SEQUENCE, after + 1
        else:
            config.deliver_policy = DeliverPolicy.BY_START_TIME
            config.opt_start_time = datetime.fromtimestamp(since, UTC)
        await self.forget(part)
        reader = await self._ask(lambda: self._stream.pull_subscribe(events_of(part), stream=STREAM, config=config))
        self._readers[part] = (after, reader)
        return reader

    async def forget(self, part: int) -> None:
        known = self._readers.pop(part, None)
        if known is not None:
            try:
                await self._ask(known[1].unsubscribe)
            except BrokerError:
                log.debug("partition %d: the broker forgets its reader by itself", part)

    async def create(self, bucket: str, key: str, value: bytes) -> int | None:
        return await self._revision(lambda: self._buckets[bucket].create(key, value))

    async def update(self, bucket: str, key: str, value: bytes, revision: int) -> int | None:
        return await self._revision(lambda: self._buckets[bucket].update(key, value, last=revision))

    async def _revision(self, change: Callable[[], Awaitable[int]]) -> int | None:
        from nats.js.errors import KeyWrongLastSequenceError

        async def changed() -> int | None:
            try:
                return await change()
            except KeyWrongLastSequenceError:
                return None

        found: int | None = await self._ask(changed)
        return found

    async def put(self, bucket: str, key: str, value: bytes) -> None:
        await self._ask(lambda: self._buckets[bucket].put(key, value))

    async def get(self, bucket: str, key: str) -> tuple[bytes, int] | None:
        from nats.js.errors import KeyNotFoundError

        async def found() -> tuple[bytes, int] | None:
            try:
                entry = await self._buckets[bucket].get(key)
            except KeyNotFoundError:
                return None
            return entry.value or b"", entry.revision

        answer: tuple[bytes, int] | None = await self._ask(found)
        return answer

    async def delete(self, bucket: str, key: str) -> None:
        await self._ask(lambda: self._buckets[bucket].delete(key))

    async def keys(self, bucket: str) -> list[str]:
        from nats.js.errors import NoKeysError

        async def found() -> Iterable[str]:
            try:
                return list(await self._buckets[bucket].keys())
            except NoKeysError:
                return []

        return sorted(await self._ask(found))

    async def say(self, subject: str, data: bytes) -> None:
        nats = await self._connected()
        await self._ask(lambda: nats.publish(subject, data))

    async def listen(self, subject: str, heard: Heard) -> None:
        nats = await self._connected()

        async def take(message: Any) -> None:
            heard(message.data)

        await self._ask(lambda: nats.subscribe(subject, cb=take))

    async def close(self) -> None:
        if self._nats is not None:
            await _closed(self._nats)


async def _closed(client: Any) -> None:
    try:
        await asyncio.wait_for(client.close(), 2)
    except Exception as error:
        log.debug("the connection to the broker did not close in order: %r", error)


def library() -> Any:
    """nats-py; SettingsError where it is not installed."""
    try:
        import nats
        import nats.errors
    except ImportError:
        raise SettingsError("hub.url needs nats-py: pip install 'denpexd[hub]'") from None
    return nats


def _secrets(settings: Hub) -> dict[str, Any]:
    """What the server knows us by, read at every connection that is made anew."""
    told: dict[str, Any] = {}
    if settings.creds_file is not None:
        told["user_credentials"] = str(secret_file(settings.creds_file))
    if settings.token_file is not None:
        told["token"] = read_secret(None, settings.token_file)
    if settings.ca_file is not None or settings.cert_file is not None:
        trusted = None if settings.ca_file is None else str(secret_file(settings.ca_file))
        context = ssl.create_default_context(cafile=trusted)
        if settings.cert_file is not None:
            key = None if settings.key_file is None else secret_file(settings.key_file)
            context.load_cert_chain(secret_file(settings.cert_file), key)
        told["tls"] = context
    return told


async def _error(error: Exception) -> None:
    log.warning("the broker: %s", error or type(error).__name__)
