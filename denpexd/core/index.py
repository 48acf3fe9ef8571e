"""What a rule looks at: which rules to judge again when a signal is seen or a fact may have changed."""

from denpexd.core.rule import Catalog, Rule

TIMED = frozenset({"stalled", "silent"})


def index(catalog: Catalog) -> tuple[dict[str, set[str]], dict[str, set[str]], set[str]]:
    """Which rules depend on a signal id, on a fact name ("frame" for stacks), and on time."""
    by_signal: dict[str, set[str]] = {}
    by_fact: dict[str, set[str]] = {}
    timed: set[str] = set()
    for rule in catalog.rules.values():
        for signal_id in used_signals(rule):
            signal = catalog.signals[signal_id]
            by_signal.setdefault(signal_id, set()).add(rule.id)
            if signal.kind != "log":
                by_fact.setdefault(signal.fact or "frame", set()).add(rule.id)
            if signal.fact in TIMED:
                timed.add(rule.id)
    return by_signal, by_fact, timed


def used_signals(rule: Rule) -> set[str]:
    """Ids of all signals a rule looks at, shared ones included."""
    used = {s.id for s in rule.signals.values()}
    if rule.correlation:
        for role in (*rule.correlation.roles, *rule.correlation.confirm):
            used |= {*role.all_of, *role.none_of, *(name for group in role.any_of for name in group)}
    return used
