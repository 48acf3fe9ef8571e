"""Every option, its default and its unit: one YAML file, then DENPEXD_* variables, then flags; the last one wins.

Nothing is ignored silently: unknown keys and unknown DENPEXD_* variables are errors with their place and the nearest
valid name, and all mistakes are reported at once. Values of secrets appear neither in an error nor in `show`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from denpexd.core.cadence import Limits
from denpexd.errors import SettingsError
from denpexd.settings_alerts import Alerts, Tags
from denpexd.settings_hub import Hub
from denpexd.settings_sinks import ConsoleSink, Sink
from denpexd.settings_sources import (
    Source,
    complaints,
    default_state_dir,
    from_flags,
    merge,
    read_environ,
    read_file,
)
from denpexd.settings_values import Duration, Section, Size, as_list, check_http_url, lower

Switch = Literal["auto", "on", "off"]

MOST_MISTAKES = 50
ENCYCLOPEDIA = "https://github.com/denpexd/denpexd/blob/main/docs/encyclopedia/{failure}.md"
"""Where every shipped failure has a page."""


class Web(Section):
    """Metrics, API and console page."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=9464, description="port to listen on; 0 takes a free one"
    )
    token_file: Path | None = Field(default=None, description="file with the bearer token; needed beyond loopback")
    public_url: str | None = Field(default=None, description="where people reach the console, for links in alerts")


class FlightRecorder(Section):
    """PyTorch Flight Recorder dumps."""

    dir: Path | None = Field(
        default=None,
        description="folder of the job's dumps, beside those that the environment of the ranks tells",
    )
    trigger: Literal["auto", "off"] = Field(
        default="auto", description="let ranks that listen at a pipe write their dump, once a standstill"
    )


def _file_or_word(value: str | Path) -> str | Path:
    if isinstance(value, Path) and not value.is_absolute():
        raise ValueError("must be auto, off or the absolute path of a file")
    return value


class Evidence(Section):
    """What may be asked of the running job."""

    active: Literal["on", "dry-run", "off"] = Field(
        default="on",
        description="all that asks processes, drivers or NCCL (stacks, dumps on request, RAS, GPUs): on, off, or "
        "dry-run = only say in log and verdict what would have been asked",
    )
    stacks: Switch = Field(
        default="auto", description="stacks by py-spy: auto uses it where it is installed and allowed"
    )
    processes: Literal["linked", "any"] = Field(
        default="linked",
        description="which ranks' processes are the job's: linked = they hold a watched file open, write into our pipe "
        "or descend from exec; any = also those of a lone job without such a link, where nothing else runs",
    )
    flight_recorder: FlightRecorder = Field(default_factory=FlightRecorder)
    gpu: Literal["auto", "off"] = Field(
        default="auto", description="the state of the GPUs by NVIDIA's library, at an incident; needs the extra gpu"
    )
    kernel: Annotated[Literal["auto", "off"] | Path, AfterValidator(_file_or_word)] = Field(
        default="auto",
        description="the kernel's messages: auto = /dev/kmsg or the journal, off, or a file that receives them",
    )
    ras: Switch = Field(
        default="auto",
        description="NCCL RAS: auto asks releases of NCCL without a known flaw, on also those that a query may crash",
    )


_Budget = Annotated[Duration, Field(ge=1)]


class Budgets(Section):
    """How long silence is normal before anything is learned, by phase."""

    start: _Budget = Field(default=1200.0, description="until the first step")
    init: _Budget = Field(default=1200.0, description="process groups, rendezvous")
    load: _Budget = Field(default=1200.0, description="model and data")
    compile: _Budget = Field(default=1200.0, description="torch.compile, kernels")
    train: _Budget = Field(default=1200.0, description="between two steps")
    eval: _Budget = Field(default=900.0, description="validation")
    checkpoint: _Budget = Field(default=900.0, description="saving")
    end: _Budget = Field(default=900.0, description="after the last step")


class Hang(Section):
    """When silence becomes a hang."""

    min_silence: Annotated[Duration, Field(ge=1)] = Field(
        default=30.0, description="no message before that much silence"
    )
    budgets: Budgets = Field(default_factory=Budgets)

    def limits(self) -> Limits:
        """As the core wants them."""
        return Limits(min_silence=self.min_silence, budgets=dict(self.budgets.model_dump()))


class Ingest(Section):
    """How files are read."""

    sweep: Annotated[Duration, Field(ge=0.1, le=600)] = Field(default=2.0, description="longest time between two looks")
    max_line: Annotated[Size, Field(ge=1024, le=16 * 1024**2)] = Field(
        default=64 * 1024, description="longer lines keep head and tail"
    )
    links: Annotated[list[Path], BeforeValidator(as_list)] = Field(
        default_factory=list,
        description="folders that links below the watched paths may lead into, whoever made them; beside these, a link "
        "out of the watched folders is followed only if root, denpexd's user or the owner of the file made it",
    )


class Keep(Section):
    """What is kept of an incident for bug reports (`denpexd bundle`)."""

    bundles: Literal["on", "off"] = Field(default="on", description="keep the evidence of every incident")
    size: Annotated[Size, Field(ge=1024**2)] = Field(default=256 * 1024**2, description="of all bundles together")
    age: Annotated[Duration, Field(ge=60)] = Field(
        default=30 * 86400.0, description="bundles older than this are removed"
    )
    launches: Literal["on", "off"] = Field(
        default="on", description="keep how each job was started, to say what changed"
    )
    memory: Annotated[Size, Field(ge=64 * 1024)] = Field(
        default=16 * 1024**2, description="for what a job showed lately, in memory"
    )
    before: Annotated[Duration, Field(ge=60)] = Field(
        default=3600.0, description="how far back that goes; of older things only what is still known of them"
    )


class Settings(BaseSettings):
    """All options; see docs/configuration.md."""

    model_config = SettingsConfigDict(
        env_prefix="DENPEXD_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        coerce_numbers_to_str=True,
        hide_input_in_errors=True,
    )

    job: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="name of the job; otherwise from the path template, environment or scheduler"
    )
    paths: Annotated[list[str], BeforeValidator(as_list)] = Field(
        default_factory=list, description="log files to watch: globs, with {job} and {rank} where they tell it"
    )
    state_dir: Path = Field(default=Path(), description="where positions, incidents and unsent alerts are kept")
    rules: Annotated[list[Path], BeforeValidator(as_list)] = Field(
        default_factory=list, description="folders of rules beside the shipped ones"
    )
    tags: Tags = Field(
        default_factory=dict,
        description="of all jobs of this daemon, such as a team; routes and silences can ask for them",
    )
    sinks: list[Sink] = Field(default_factory=list, description="destinations of alerts; none means console")
    alerts: Alerts = Field(default_factory=Alerts)
    web: Web = Field(default_factory=Web)
    evidence: Evidence = Field(default_factory=Evidence)
    hang: Hang = Field(default_factory=Hang)
    ingest: Ingest = Field(default_factory=Ingest)
    keep: Keep = Field(default_factory=Keep)
    hub: Hub = Field(default_factory=Hub)
    links: dict[str, str] = Field(
        default_factory=dict,
        description="further links of alerts by name, such as a dashboard: {job}, {failure} and {key} are filled in",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower)] = Field(
        default="info", description="of the daemon's own log"
    )
    runbook_base_url: str | None = Field(
        default=ENCYCLOPEDIA, description="links to runbooks: {failure} stands for the id, which is appended without it"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load` hands over: it merges the sources itself, to know where each value came from."""
        return (init_settings,)

    @model_validator(mode="after")
    def _whole(self) -> "Settings":
        names = [name for name, _ in self.named_sinks()]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two sinks are named {twice[0]!r}; give each its own name")
        for url in (self.runbook_base_url, self.web.public_url, *self.links.values()):
            if url is not None:
                check_http_url(url)
        return self

    def named_sinks(self) -> list[tuple[str, Sink]]:
        """The sinks with the names they have in metrics and state; the console where none is configured."""
        named: list[tuple[str, Sink]] = []
        of_type: dict[str, int] = {}
        for sink in self.sinks or [ConsoleSink()]:
            nth = of_type[sink.type] = of_type.get(sink.type, 0) + 1
            named.append((sink.name or (sink.type if nth == 1 else f"{sink.type}-{nth}"), sink))
        return named


def show(settings: Settings) -> str:
    """The settings in force as YAML, secrets masked."""
    data: dict[str, Any] = settings.model_dump(mode="json")
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def sources_of(path: Path | None, overrides: Mapping[str, Any], environ: Mapping[str, str]) -> list[Source]:
    """Where values come from, the strongest last."""
    return [
        Source({"state_dir": str(default_state_dir(environ))}),
        read_file(path) if path else Source(),
        read_environ(environ, Settings),
        from_flags(overrides),
    ]


def load(path: Path | None, *, overrides: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Settings of the file (None: no file), DENPEXD_* variables and overrides (nested like the file), in that order.

    Raises SettingsError with each mistake on a line of its own, with its place; MOST_MISTAKES of them.
    """
    sources = sources_of(path, overrides, environ)
    errors = [error for source in sources for error in source.errors]
    try:
        settings = Settings(**merge(sources))
    except ValidationError as error:
        errors += complaints(error, sources, Settings)
        settings = None
    if errors or settings is None:
        more = [f"and {len(errors) - MOST_MISTAKES} more mistakes"] if len(errors) > MOST_MISTAKES else []
        raise SettingsError("\n".join([*errors[:MOST_MISTAKES], *more]))
    return settings
