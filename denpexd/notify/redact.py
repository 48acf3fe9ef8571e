"""Secrets are taken out of every text before it leaves the process or is written to disk.

One table of token shapes, specific before general, in linear-time RE2. Group 1 of a pattern is kept (the name, the
scheme), what follows becomes `[REDACTED:<kind>]`. There is no entropy detector on purpose: training logs are full of
hashes and commit ids. Redacting a text twice gives the same text as redacting it once.
"""

import json
from collections.abc import Mapping
from typing import Any

import re2

_NAME_END = r"""["']?\s{0,4}[:=]\s{0,4}"""
_ASSIGNED = (
    r"(?:passw(?:or)?d|passwd|passphrase|secret|api_?key|apikey|access_?key|auth_?token|access_?token|refresh_?token"
    r"|private_?key|client_?secret|credential|hf_?token|token)"
)
_SERVICE = r"(?:comet|neptune|mlflow|clearml|pagerduty|opsgenie|datadog|dd|newrelic)"
_QUERY = (
    r"(?:access_token|api_?key|auth|client_secret|code|key|passw(?:or)?d|pwd|secret|sig|signature|token"
    r"|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature)"
)
_PEM_NAME = r"[ A-Z0-9]{0,40}PRIVATE KEY[ A-Z]{0,10}-----"

PATTERNS: tuple[tuple[str, str], ...] = (
    # Whole, or cut off after some lines of it.
    ("private_key", rf"-----BEGIN{_PEM_NAME}[A-Za-z0-9+/=\s,:\\-]*?-----END{_PEM_NAME}"),
    ("private_key", rf"-----BEGIN{_PEM_NAME}(?:(?:\s|\\n)+[A-Za-z0-9+/=]{{16,}})*"),
    # Where a token shape is known it is named, before the general patterns below see it.
    ("aws_key_id", r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"),
    ("aws_secret", rf"(?i)\b(aws_?(?:secret_?access_?key|session_?token){_NAME_END}[\"']?)[A-Za-z0-9/+=]{{16,}}"),
    ("gcp_key", r"\bAIza[0-9A-Za-z_\-]{35}"),
    ("google_oauth", r"\bya29\.[0-9A-Za-z_\-]{20,512}"),
    ("azure_key", r"(?i)\b((?:AccountKey|SharedAccessKey)=)[A-Za-z0-9+/=]{20,200}"),
    ("azure_sas", r"(?i)([?&]sig=)[A-Za-z0-9%+/=]{16,200}"),
    ("github", r"\b(?:gh[pousr]_[0-9A-Za-z]{36,255}|github_pat_[0-9A-Za-z_]{22,255})"),
    ("gitlab", r"\bgl(?:pat|dt|rt|ptt|cbt|ft|soat|agent|oas)-[0-9A-Za-z_\-]{20,300}"),
    ("huggingface", r"\b(?:hf|api_org)_[A-Za-z]{30,64}\b"),
    ("wandb", r"\bwandb_v1_[0-9A-Za-z_]{20,200}"),
    ("wandb", rf"(?i)\b(wandb[_\-]?(?:api[_\-]?)?key{_NAME_END}[\"']?)[0-9a-f]{{40}}\b"),
    ("hex_key", r"""(?i)\b(key["']?\s{0,3}[:=]\s{0,3}["'])[0-9a-f]{32,64}\b"""),
    ("anthropic", r"\bsk-ant-[a-z0-9]{3,12}-[0-9A-Za-z_\-]{20,200}"),
    ("openai", r"\bsk-(?:proj-|svcacct-|admin-)?[0-9A-Za-z_\-]{20,220}"),
    ("slack_token", r"\bxox[abeoprs]-[0-9A-Za-z\-]{10,250}"),
    ("slack_app", r"\bxapp-[0-9]-[0-9A-Za-z\-]{20,200}"),
    ("slack_hook", r"(?i)(hooks\.slack\.com/(?:services|workflows|triggers)/)[0-9A-Za-z/_\-]{20,200}"),
    ("discord_hook", r"(?i)(discord(?:app)?\.com/api/webhooks/)[0-9]{5,25}/[0-9A-Za-z_\-]{20,120}"),
    ("teams_hook", r"""(?i)([a-z0-9\-]{1,60}\.webhook\.office\.com/webhookb2/)[^\s"'<>]{20,400}"""),
    ("telegram", r"\b[0-9]{8,10}:[0-9A-Za-z_\-]{35}\b"),
    ("sendgrid", r"\bSG\.[0-9A-Za-z_\-]{16,32}\.[0-9A-Za-z_\-]{32,64}"),
    ("stripe", r"\b(?:sk|rk)_(?:live|test|prod)_[0-9A-Za-z]{10,99}"),
    ("twilio", r"\bSK[0-9a-f]{32}\b"),
    ("npm", r"\bnpm_[0-9A-Za-z]{36}\b"),
    ("pypi", r"\bpypi-[0-9A-Za-z_\-]{50,}"),
    ("dockerhub", r"\bdckr_(?:pat|oat)_[0-9A-Za-z_\-]{20,80}"),
    ("databricks", r"\bdapi[0-9a-f]{32}(?:-[0-9])?\b"),
    ("digitalocean", r"\bdo[opr]_v1_[0-9a-f]{64}\b"),
    ("vault", r"\bhv[sb]\.[0-9A-Za-z_\-]{24,300}"),
    ("nvidia", r"\bnvapi-[0-9A-Za-z_\-]{40,100}"),
    ("perplexity", r"\bpplx-[0-9A-Za-z]{40,64}\b"),
    ("replicate", r"\br8_[0-9A-Za-z]{37,40}\b"),
    ("grafana", r"\bgl(?:sa|c)_[0-9A-Za-z+/=_]{32,400}"),
    (
        "service_key",
        rf"(?i)\b({_SERVICE}[a-z_\-]{{0,30}}(?:key|token|secret){_NAME_END}[\"']?)[0-9A-Za-z+/=_.\-]{{16,400}}",
    ),
    ("jwt", r"\beyJ[0-9A-Za-z_\-]{8,}\.eyJ[0-9A-Za-z_\-]{8,}\.[0-9A-Za-z_\-]*"),
    ("age", r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}\b"),
    # General shapes: what stands where a secret belongs.
    ("url_password", r"""(?i)\b([a-z][a-z0-9+.\-]{1,20}://)[^\s/?#@:"'<>\[\]]{0,128}:[^\s/?#@"'<>]{1,256}@"""),
    ("url_query", rf"""(?i)([?&]{_QUERY}=)[^&\s"'<>#]+"""),
    (
        "authorization",
        rf"(?i)\b((?:proxy-)?authorization{_NAME_END}[\"']?(?:basic|bearer|token|digest|apikey)\s{{1,4}})"
        r"[A-Za-z0-9+/=._~\-]{4,}",
    ),
    ("bearer", r"(?i)\b(bearer\s{1,4})[A-Za-z0-9+/=._~\-]{16,}"),
    ("cookie", r"""(?i)\b((?:set-)?cookie["']?\s{0,4}:\s{0,4})[^\r\n"']{4,}"""),
    (
        "assignment",
        rf"(?i)\b((?:[0-9A-Za-z_.\-]{{0,40}}[_.\-])?{_ASSIGNED}[\"']?\s{{0,3}}[:=]\s{{0,3}})"
        r"""(?:"[^"\r\n]{3,512}"|'[^'\r\n]{3,512}'|[^\s"',;&)}\]]{6,512})""",
    ),
    (
        "flag",
        r"(?i)(--?(?:[a-z0-9\-]{0,30}-)?(?:password|passwd|token|secret|api-?key|access-?key)(?:=|\s{1,2}))"
        r"""[^\s"']{4,512}""",
    ),
    ("email", r"(://|)\b[0-9A-Za-z._%+\-]{1,64}@[0-9A-Za-z][0-9A-Za-z.\-]{0,200}\.[A-Za-z]{2,24}\b"),
)

# Values that stand where a secret could stand and are none: placeholders, references, types, counts, stars.
_HARMLESS = re2.compile(
    r"""(?i)^(?:none|null|nil|true|false|unset|missing|invalid|required|expired|[0-9][0-9,._]{0,11}|tokens?|str|int"""
    r"""|<.*|\*+.*|\.{3}.*|\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|\{.*|\[.*|\(.*|torch\..*|tensor.*|os\.environ.*|/[a-z]+/.*|redacted.*)$"""
)
_COLOUR = re2.compile(r"\x1b\[[0-9;:?]*[A-Za-z]")
_CHECKED = frozenset({"assignment", "flag"})
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_COMPILED = tuple((kind, re2.compile(pattern, _OPTIONS)) for kind, pattern in PATTERNS)
# One look with all patterns at once: 2 us for a line without secrets instead of 120.
_ANY_OPTIONS = re2.Options()
_ANY_OPTIONS.log_errors = False
_ANY_OPTIONS.never_capture = True
_ANY_OPTIONS.max_mem = 64 * 1024 * 1024
_ANY = re2.compile("|".join(f"(?:{pattern})" for _, pattern in PATTERNS), _ANY_OPTIONS)

# Identifiers that other programs match on; none of them can hold text of a job.
_IDENTIFIERS = frozenset({"key", "failure", "category", "severity", "certainty", "state", "event", "domain"})


def redact(text: str) -> tuple[str, int]:
    """The text with secrets replaced by `[REDACTED:<kind>]`, and how many were replaced.

    Bytes that were not UTF-8 (lone surrogates) come back as `?`; colours, which could split a secret, are dropped.
    """
    clean = _COLOUR.sub("", text.encode("utf-8", "replace").decode("utf-8"))
    found = 0
    if _ANY.search(clean) is None:
        return clean, 0
    for kind, pattern in _COMPILED:

        def hide(match: Any, kind: str = kind) -> str:
            nonlocal found
            whole: str = match.group(0)
            kept: str = match.group(1) if match.re.groups else ""
            secret = whole.removeprefix(kept).lstrip("\"'")
            if secret.startswith("[REDACTED:") or (kind in _CHECKED and _HARMLESS.search(secret.rstrip("\"'"))):
                return whole
            if kind == "email" and (kept or secret.startswith("git@")):
                return whole  # the user of an ssh or git URL, not a person
            found += 1
            return f"{kept}[REDACTED:{kind}]"

        clean = pattern.sub(hide, clean)
    return clean, found


def redact_value(value: object) -> tuple[object, int]:
    """Any JSON-ready value with every string inside redacted; keys of mappings stay."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        pairs = {key: redact_value(item) for key, item in value.items()}
        return {key: item for key, (item, _) in pairs.items()}, sum(count for _, count in pairs.values())
    if isinstance(value, list | tuple):
        items = [redact_value(item) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    return value, 0


def redact_verdict(verdict: Mapping[str, object]) -> tuple[dict[str, object], int]:
    """A copy of a verdict fit to leave the process, and how many secrets were hidden in it."""
    clean: dict[str, object] = {}
    found = 0
    for name, value in verdict.items():
        clean[name], count = (value, 0) if name in _IDENTIFIERS else redact_value(value)
        found += count
    return clean, found


def redact_json(line: str) -> tuple[str, int]:
    """A line of JSON with every string inside redacted, as it was where there is none; another text as `redact`."""
    try:
        value, found = redact_value(json.loads(line))
    except ValueError:
        return redact(line)
    return json.dumps(value, separators=(",", ":")) if found else line, found
