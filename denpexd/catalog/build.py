"""From written rules to the core's frozen objects: patterns compiled, names of signals resolved."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from denpexd.catalog import schema
from denpexd.catalog.document import Document, Trail
from denpexd.catalog.fact_signals import FactSignal
from denpexd.catalog.patterns import compile_pattern, full_match
from denpexd.catalog.schema import SHARED_KEYS, FrameSignal, LogSignal, UseSignal
from denpexd.catalog.schema import Signal as Written
from denpexd.catalog.validation import nearest
from denpexd.core.rule import Correlation, Entry, Example, Matcher, Role, Rule, Signal, Step
from denpexd.errors import RuleError

BUILT_IN_ROLES = ("initiating", "collateral", "unheard")
"""Names that texts may always use in braces, so no role may have them."""


def build_signal(full_id: str, written: LogSignal | FrameSignal | FactSignal, *, lasting: bool = False) -> Signal:
    """One compiled signal. Patterns were checked by the schema, so nothing is raised."""
    if isinstance(written, FactSignal):
        return _fact(full_id, written, lasting)
    pattern = written.log if isinstance(written, LogSignal) else written.frame
    return Signal(
        id=full_id,
        kind="log" if isinstance(written, LogSignal) else "frame",
        means=written.means,
        role=written.role,
        pattern=pattern,
        matcher=compile_pattern(pattern),
        exclude=compile_pattern(written.except_) if written.except_ else None,
        count=written.count,
        about=written.about if isinstance(written, LogSignal) else None,
        phase=written.phase,
        quantity=written.quantity,
        event=written.event,
        lasting=lasting,
        params={"of": written.of} if isinstance(written, LogSignal) and written.of else {},
        param_matchers=_outside(written),
    )


def _fact(full_id: str, written: FactSignal, lasting: bool) -> Signal:
    given = written.parameters()
    patterns = {key: str(value) for key, value in given.items() if key in written.re2_keys}
    exclude = patterns.pop("except", None)
    return Signal(
        id=full_id,
        kind="fact",
        means=written.means,
        role=written.role,
        exclude=compile_pattern(exclude) if exclude else None,
        count=written.count,
        phase=written.phase,
        event=written.event,
        fact=written.fact,
        lasting=lasting,
        params={key: value for key, value in given.items() if key not in written.re2_keys},
        param_matchers={
            key: full_match(pattern) if key == "type" else compile_pattern(pattern) for key, pattern in patterns.items()
        },
    )


def _outside(written: LogSignal | FrameSignal) -> dict[str, Matcher]:
    given = written.outside if isinstance(written, FrameSignal) else None
    return {"outside": compile_pattern(given)} if given else {}


class RuleBuilder:
    """Builds one rule; every name that does not resolve becomes an error at its place."""

    def __init__(self, document: Document, file: schema.RuleFile, shared: Mapping[str, Signal]) -> None:
        self._document, self._file, self._shared = document, file, shared
        self._errors: list[RuleError] = []
        self._signals: dict[str, Signal] = {}

    def build(self) -> tuple[Rule | None, list[RuleError]]:
        """The rule, or what is wrong with its names."""
        file = self._file
        for name, written in file.signals.items():
            if signal := self._own(name, written):
                self._signals[name] = signal
        correlation = self._correlation(file.correlation) if file.correlation else None
        if not correlation and not file.signals:
            self._wrong(("id",), "the rule has neither signals nor a correlation", "say what a rank must show")
        if self._errors:
            return None, self._errors
        rule = Rule(
            id=file.id,
            entry=_entry(file),
            signals=self._signals,
            correlation=correlation,
            precision=file.precision,
            stops=file.stops,
            supersedes=file.supersedes,
            examples=tuple(_example(one) for one in file.examples),
        )
        return rule, []

    def _wrong(self, trail: Trail, why: str, hint: str = "") -> None:
        self._errors.append(self._document.error(trail, why, hint, at_value=isinstance(trail[-1], int)))

    def _own(self, name: str, written: Written) -> Signal | None:
        trail = ("signals", name)
        if isinstance(written, UseSignal):
            if written.use not in self._shared:
                hint = nearest(written.use, self._shared)
                self._wrong((*trail, "use"), f"there is no shared signal '{written.use}'", hint)
            shared = self._shared.get(written.use)
            own = f"{self._file.id}.{name}"
            return replace(shared, id=own, lasting=True) if shared and not self._file.stops else shared
        for key in SHARED_KEYS:
            if key in written.model_fields_set:
                self._wrong((*trail, key), f"'{key}' is for shared signals", "move the signal to rules/signals/")
        return build_signal(f"{self._file.id}.{name}", written, lasting=not self._file.stops)

    def _correlation(self, written: schema.Correlation) -> Correlation:
        roles = {name: self._role(name, role, "roles") for name, role in written.roles.items()}
        confirm = [self._role(name, role, "confirm") for name, role in written.confirm.items()]
        for key in ("order", "initiating", "collateral"):
            self._role_names(key, getattr(written, key), roles)
        if len(written.order) == 1:
            self._wrong(("correlation", "order"), "an order needs two roles", "name the earlier role first")
        return Correlation(
            roles=tuple(roles.values()),
            window=written.window,
            hold=written.hold,
            order=written.order,
            confirm=tuple(confirm),
            initiating=written.initiating,
            collateral=written.collateral,
        )

    def _role_names(self, key: str, names: Sequence[str], roles: Mapping[str, Role]) -> None:
        for number, name in enumerate(names):
            if name not in roles:
                self._wrong(("correlation", key, number), f"there is no role '{name}'", nearest(name, roles))

    def _role(self, name: str, written: schema.Role, where: str) -> Role:
        trail = ("correlation", where, name)
        if name in BUILT_IN_ROLES:
            self._wrong(trail, f"a role cannot be called '{name}'", "name it after what its ranks do")
        if written.ranks != "rest" and not (written.any_of or written.all_of or written.none_of):
            self._wrong(trail, f"role '{name}' has no condition", "give any_of, all_of or none_of")
        return Role(
            name=name,
            ranks=written.ranks,
            any_of=tuple(self._ids((*trail, "any_of", n), group) for n, group in enumerate(written.any_of)),
            all_of=self._ids((*trail, "all_of"), written.all_of),
            none_of=self._ids((*trail, "none_of"), written.none_of),
        )

    def _ids(self, trail: Trail, names: Sequence[str]) -> tuple[str, ...]:
        """Full ids of the signals: the rule's own names first, then shared ones."""
        ids = []
        for number, name in enumerate(names):
            if name in self._signals:
                ids.append(self._signals[name].id)
            elif name in self._shared:
                ids.append(name)
            elif name not in self._file.signals:
                hint = nearest(name, [*self._file.signals, *self._shared])
                self._wrong((*trail, number), f"there is no signal '{name}'", hint)
        return tuple(ids)


def _entry(file: schema.RuleFile) -> Entry:
    return Entry(
        title=file.title,
        category=file.category,
        severity=file.severity,
        status=file.status,
        domain=file.domain,
        quick_answer=file.quick_answer,
        root_cause=file.root_cause,
        mechanism=file.mechanism,
        remediation=tuple(Step(one.do, one.risk, one.command) for one in file.remediation),
        verification=file.verification,
        prevention=file.prevention,
        fallback=file.fallback,
        mitigation=file.mitigation,
        resume_safe=file.resume_safe or "unknown",
        aliases=file.aliases,
        tags=file.tags,
        affects=file.affects,
        scope=file.scope,
        symptoms=tuple((one.see, one.because) for one in file.symptoms),
        confirm=file.confirm,
        missing=tuple((one.fact, one.how) for one in file.missing),
        false_positives=file.false_positives,
        references=file.references,
        related=file.related,
        code=tuple((one.stack, one.snippet) for one in file.code),
        audience=file.audience.model_dump(exclude_none=True),
    )


def _example(written: schema.Example) -> Example:
    expect = written.expect
    return Example(
        name=written.name,
        world_size=written.world_size,
        observe_until=written.observe_until,
        timeline=written.timeline,
        fires=expect is not None,
        initiating=expect.initiating if expect else (),
        collateral=expect.collateral if expect else None,
        by=expect.by if expect else None,
    )
