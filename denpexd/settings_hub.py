"""Options of jobs that span nodes."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from denpexd.settings_values import Duration, Section, Size, as_list


def _broker_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname:
        raise ValueError("the address of a NATS server looks like nats://host:4222, or tls:// for TLS")
    if parts.username or parts.password:
        raise ValueError("no password or token in the URL: use creds_file or token_file")
    return url


class Hub(Section):
    """Jobs that span nodes without shared logs: the broker, and how node and hub deal with it."""

    url: Annotated[list[Annotated[str, AfterValidator(_broker_url)]], BeforeValidator(as_list)] = Field(
        default_factory=list, description="NATS servers; with one, this node forwards what it sees to a denpexd hub"
    )
    creds_file: Path | None = Field(default=None, description="NATS credentials (.creds) of this daemon")
    token_file: Path | None = Field(default=None, description="file with the token that the server asks for")
    ca_file: Path | None = Field(default=None, description="certificates that the server's must be signed by")
    cert_file: Path | None = Field(default=None, description="our certificate, where the server asks for one")
    key_file: Path | None = Field(default=None, description="and its key, if it is not in the same file")
    node: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="name of this node in verdicts; otherwise the host name"
    )
    alone_after: Annotated[Duration, Field(ge=45)] = Field(
        default=60.0, description="without a word of the hub for that long, a node tells of its incidents itself"
    )
    spool: Annotated[Size, Field(ge=1024**2)] = Field(
        default=64 * 1024**2, description="of what waits on a node for the broker; then the oldest goes"
    )
    keep: Annotated[Duration, Field(ge=600)] = Field(
        default=86400.0, description="hub: how long the broker keeps events"
    )
    size: Annotated[Size, Field(ge=1024**2)] = Field(default=4 * 1024**3, description="hub: and how many bytes of them")
    replicas: Annotated[int, Field(ge=1, le=5)] = Field(
        default=1, description="hub: on how many servers of a NATS cluster they are kept"
    )
    rebuild: Annotated[Duration, Field(ge=60)] = Field(
        default=600.0, description="hub: how far back it reads to know a job that another hub has watched"
    )

    @model_validator(mode="after")
    def _whole(self) -> "Hub":
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file needs cert_file")
        if self.creds_file is not None and self.token_file is not None:
            raise ValueError("only one of creds_file and token_file")
        return self
