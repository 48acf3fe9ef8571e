"""What secrets look like: one table of linear-time RE2 patterns, specific before general.

Of a pattern with a group, the group is kept (a name, a scheme) and the rest is hidden; of one without, all is. The
shapes are those of public token formats. There is no entropy detector on purpose: training logs are full of hashes.
"""

import re2

_NAME_END = r"""["']?\]?\s{0,4}(?:=>|:=|[:=]|, )\s{0,4}(?:[bru]?["'])?"""
_SERVICE = r"(?:comet|neptune|mlflow|clearml|pagerduty|opsgenie|datadog|dd|newrelic)"
_QUERY = (
    r"(?:access_token|api_?key|auth|client_secret|code|key|passw(?:or)?d|pwd|secret|sig|signature|token"
    r"|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|x-goog-credential)"
)
_PEM_NAME = r"[ A-Z0-9]*PRIVATE KEY[ A-Z]{0,10}-----"
# A name that holds one of these words names a secret, whatever stands before it in the same word: dbPassword.
_STRONG = (
    r"passw(?:or)?d|passphrase|secret(?:_?key)?|api[_\-]?key|access[_\-]?key|private[_\-]?key|credentials?"
    r"|auth[_\-]?token|access[_\-]?token|refresh[_\-]?token|session[_\-]?token|hf[_\-]?token"
)
_VALUE = r"""(?:[bru]?"[^"\r\n]{3,}"|[bru]?'[^'\r\n]{3,}'|["'][^"'\r\n]{6,}|[^\s"',;&)}\]\[<>|]{6,})"""
_GLUE = r"""["']?\]?\s{0,3}(?:=>|:=|[:=])\s{0,3}"""

SHAPES: tuple[tuple[str, str], ...] = (
    # Whole, or cut off after some lines of it.
    ("private_key", rf"-----BEGIN{_PEM_NAME}[A-Za-z0-9+/=\s,:\\-]*?-----END{_PEM_NAME}"),
    ("private_key", rf"-----BEGIN{_PEM_NAME}(?:\s+[A-Za-z0-9+/=]{{16,}})*"),
    # Where a token shape is known it is named, before the general patterns below see it.
    ("aws_key_id", r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"),
    ("aws_secret", rf"(?i)\b(aws_?(?:secret_?access_?key|session_?token){_NAME_END})[A-Za-z0-9/+=]{{16,}}"),
    ("gcp_key", r"\bAIza[0-9A-Za-z_\-]{35}"),
    ("google_oauth", r"\bya29\.[0-9A-Za-z_\-]{20,}"),
    ("azure_key", r"(?i)\b((?:AccountKey|SharedAccessKey)\s?=\s?)[A-Za-z0-9+/=]{20,}"),
    ("azure_sas", r"(?i)([?&]sig=)[A-Za-z0-9%+/=]{16,}"),
    ("github", r"\b(?:gh[pousr]_[0-9A-Za-z]{36,}|github_pat_[0-9A-Za-z_]{22,})"),
    ("gitlab", r"\bgl(?:pat|dt|rt|ptt|cbt|ft|soat|agent|oas)-[0-9A-Za-z_\-]{20,}"),
    ("huggingface", r"\b(?:hf|api_org)_[A-Za-z]{30,}\b"),
    ("wandb", r"\bwandb_v1_[0-9A-Za-z_]{20,}"),
    ("wandb", rf"(?i)\b(wandb[_\-]?(?:api[_\-]?)?key{_NAME_END})[0-9a-f]{{40}}\b"),
    ("hex_key", r"""(?i)\b(key["']?\s{0,3}[:=]\s{0,3}["'])[0-9a-f]{32,}\b"""),
    ("anthropic", r"\bsk-ant-[a-z0-9]{3,12}-[0-9A-Za-z_\-]{20,}"),
    ("openai", r"\bsk-(?:proj-|svcacct-|admin-)?[0-9A-Za-z_\-]{20,}"),
    ("slack_token", r"\bxox[abeoprs]-[0-9A-Za-z\-]{10,}"),
    ("slack_app", r"\bxapp-[0-9]-[0-9A-Za-z\-]{20,}"),
    ("slack_hook", r"(?i)(hooks\.slack\.com/(?:services|workflows|triggers)/)[0-9A-Za-z/_\-]{20,}"),
    ("discord_hook", r"(?i)(discord(?:app)?\.com/api/webhooks/)[0-9]{5,}/[0-9A-Za-z_\-]{20,}"),
    ("teams_hook", r"""(?i)([a-z0-9\-]+\.webhook\.office\.com/webhookb2/)[^\s"'<>]{20,}"""),
    ("telegram", r"\b[0-9]{8,10}:A[0-9A-Za-z_\-]{34}\b"),
    ("sendgrid", r"\bSG\.[0-9A-Za-z_\-]{16,}\.[0-9A-Za-z_\-]{32,}"),
    ("stripe", r"\b(?:sk|rk)_(?:live|test|prod)_[0-9A-Za-z]{10,}"),
    ("twilio", r"\bSK[0-9a-f]{32}\b"),
    ("npm", r"\bnpm_[0-9A-Za-z]{36}\b"),
    ("pypi", r"\bpypi-[0-9A-Za-z_\-]{50,}"),
    ("dockerhub", r"\bdckr_(?:pat|oat)_[0-9A-Za-z_\-]{20,}"),
    ("databricks", r"\bdapi[0-9a-f]{32}(?:-[0-9])?\b"),
    ("digitalocean", r"\bdo[opr]_v1_[0-9a-f]{64}\b"),
    ("vault", r"\bhv[sb]\.[0-9A-Za-z_\-]{24,}"),
    ("nvidia", r"\bnvapi-[0-9A-Za-z_\-]{40,}"),
    ("perplexity", r"\bpplx-[0-9A-Za-z]{40,}\b"),
    ("replicate", r"\br8_[0-9A-Za-z]{37,}\b"),
    ("grafana", r"\bgl(?:sa|c)_[0-9A-Za-z+/=_]{32,}"),
    (
        "service_key",
        rf"(?i)\b({_SERVICE}[a-z_\-]*(?:key|token|secret){_NAME_END})[0-9A-Za-z+/=_.\-]{{16,}}",
    ),
    ("jwt", r"\beyJ[0-9A-Za-z_\-]{8,}\.eyJ[0-9A-Za-z_\-]{8,}\.[0-9A-Za-z_\-]*"),
    ("age", r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}\b"),
    # General shapes: what stands where a secret belongs.
    ("url_password", r"""(?i)\b([a-z][a-z0-9+.\-]+://[^\s/?#@:"'<>\[\]]*:)[^\s/?#"'<>]+@"""),
    ("url_query", rf"""(?i)([?&]{_QUERY}=)[^&\s"'<>#]+"""),
    (
        "authorization",
        rf"(?i)\b((?:proxy-)?authorization{_NAME_END}(?:basic|bearer|token|digest|apikey)\s{{1,4}})"
        r"[A-Za-z0-9+/=._~\-]{4,}",
    ),
    ("bearer", r"(?i)\b(bearer\s{1,4})[A-Za-z0-9+/=._~\-]{16,}"),
    ("cookie", r"""(?i)\b((?:set-)?cookie["']?\s{0,4}(?:[:=]|, )\s{0,4}["']?)[^\r\n"']*=[^\r\n"']{3,}"""),
    ("assignment", rf"(?i)\b([0-9A-Za-z_.\-]*?(?:{_STRONG})s?{_GLUE}){_VALUE}"),
    ("assignment", rf"\b((?:[0-9A-Za-z_.\-]*(?:[_.\-][Tt]oken|_TOKEN|Token)|[Tt]oken|TOKEN){_GLUE}){_VALUE}"),
    ("assignment", rf"(?i)\b([0-9a-z_.\-]+[_.\-](?:pwd|pass|passwd|pat){_GLUE}){_VALUE}"),
    (
        "flag",
        r"(?i)(--?(?:[a-z0-9_\-]*[_\-])?(?:password|passwd|token|secret|api[_\-]?key|access[_\-]?key)(?:=|\s{1,2})[\"']?)"
        r"""[^\s"']{4,}""",
    ),
    ("flag", r"""(?i)(--?[a-z0-9_\-]*(?:password|token|secret|api[_\-]?key)["'], ["'])[^\s"']{4,}"""),
    ("email", r"\b[0-9A-Za-z._%+\-]+@[0-9A-Za-z][0-9A-Za-z.\-]*\.[A-Za-z]{2,}\b"),
)

# Kinds whose value may be something else: a placeholder, a reference, prose.
DOUBTFUL = frozenset({"assignment", "flag"})
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
COMPILED = tuple((kind, re2.compile(pattern, _OPTIONS)) for kind, pattern in SHAPES)

# One look with all patterns at once: 2 us for a line without secrets instead of 120.
_ANY_OPTIONS = re2.Options()
_ANY_OPTIONS.log_errors = False
_ANY_OPTIONS.never_capture = True
_ANY_OPTIONS.max_mem = 64 * 1024 * 1024
ANY = re2.compile("|".join(f"(?:{pattern})" for _, pattern in SHAPES), _ANY_OPTIONS)

_WORDS = (
    r"none|null|nil|true|false|unset|undefined|missing|invalid|required|optional|expired|revoked|refused|rejected"
    r"|denied|incorrect|unauthorized|forbidden|unknown|absent|empty|provided|found|disabled|enabled|default|tokens?"
    r"|str|int|bool|bytes|object|string|redacted|hidden|masked|changeme|placeholder|ignored|file|not|is|has|was|from"
)
_HARMLESS = re2.compile(
    rf"(?i)^(?:(?:{_WORDS})[.:]?|[0-9][0-9,._]{{0,11}}[kmb]?|<.*|\|.*|(?:\*|x)+|\*+.*|\.{{3}}.*|.?…+|…"
    r"|\$\{?[A-Za-z_][A-Za-z0-9_]*\}?|\$\(.*|\{.*|\[.*|\(.*|torch\..*|tensor.*|/[a-z]+/.*|\./.*|~/.*|file:.*|env:.*"
    r"|redacted.*|your[_\-].*|[a-z_]+_here)$"
)
# A reference of source code: an attribute, a call, a subscript; or a name in snake case.
_CODE = re2.compile(r"^(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*[(\[].*|[a-z_]+(?:\.[A-Za-z_]+)+|[a-z]+(?:_[a-z]+)+)$")
# A part of the vocabulary of a language model and no secret.
_VOCABULARY = re2.compile(
    r"(?i)(?:^|[_.\-])(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|vision|special|stop|start|end|next|last|first"
    r"|prev|prompt|max|min|num|per|new|total|added|fim|bot|eot|eom|boi|eoi|tool|think|user|system|assistant|suffix"
    r"|prefix|middle|input|output|decoded|sampled|generated|split|word|sub|special|image|control|label|target|n"
    r"|time|cost|throughput|loss|by|each|single|this|the|a)[_.\-]?tokens?\W*$"
)


def is_harmless(name: str, secret: str, after: str) -> bool:
    """Whether what stands where a secret could stand is none. `name` and `after` are the text around it."""
    quoted = secret[:1] in "\"'" or secret[1:2] in "\"'"
    value = secret.lstrip("bru").strip("\"'") if quoted else secret
    if _HARMLESS.search(value) or _VOCABULARY.search(name):
        return True
    if quoted:
        return False
    prose = name.endswith(": ") and value.isalpha() and value.islower() and after[:1] == " " and after[1:2].isalpha()
    return prose or _CODE.search(value) is not None
