"""What a rule looks at: which rules to judge again when a signal is seen or a fact may have changed."""

from denpexd.core.rule import Catalog, Rule

TIMED = frozenset({"stalled", "silent", "worked_on", "dump"})


class Index:
    """The rules of a catalogue by the signals, facts and stacks they depend on."""

    def __init__(self, catalog: Catalog) -> None:
        self.timed: set[str] = set()  # rules about silence: judged at every tick
        self.kernel: set[str] = set()  # rules about lines of the kernel
        self._by_signal: dict[str, set[str]] = {}
        self._by_fact: dict[str, set[str]] = {}
        for rule in catalog.rules.values():
            for signal_id in used_signals(rule):
                signal = catalog.signals[signal_id]
                self._by_signal.setdefault(signal_id, set()).add(rule.id)
                if signal.kind != "log":
                    self._by_fact.setdefault(signal.fact or "frame", set()).add(rule.id)
                if signal.role == "kernel" or signal.fact == "xid":
                    self.kernel.add(rule.id)
                if signal.fact in TIMED or (signal.fact == "told_to_stop" and "for" in signal.params):
                    self.timed.add(rule.id)

    def signal(self, signal_id: str) -> set[str]:
        """Rules that look at this signal."""
        return self._by_signal.get(signal_id, set())

    def facts(self, *names: str) -> set[str]:
        """Rules that look at one of these facts ("frame": at a stack)."""
        return {rule for name in names for rule in self._by_fact.get(name, ())}


def used_signals(rule: Rule) -> set[str]:
    """Ids of all signals a rule looks at, shared ones included."""
    used = {s.id for s in rule.signals.values()}
    if rule.correlation:
        for role in (*rule.correlation.roles, *rule.correlation.confirm):
            used |= {*role.all_of, *role.none_of, *(name for group in role.any_of for name in group)}
    return used
