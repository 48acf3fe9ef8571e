"""What secrets look like: one table of linear-time RE2 patterns, specific before general.

Of a pattern with a group, the group is kept (a name, a scheme) and the rest is hidden; of one without, all is. The
shapes are those of public token formats. There is no entropy detector on purpose: training logs are full of hashes.
Only where the words or the address before it promise a secret is a value hidden because it looks like chance.
"""

import re
from collections.abc import Sequence
from typing import Any

import re2

_NAME_END = r"""["']?\]?\s{0,4}(?:=>|:=|[:=]|, )\s{0,4}(?:[bru]?["'])?"""
_SCHEME = r"(?:basic|bearer|token|digest|api-?key|geniekey|splunk|negotiate|ntlm)"
_SERVICE = r"(?:comet|neptune|mlflow|clearml|pagerduty|opsgenie|datadog|dd|newrelic)"
_QUERY = (
    r"(?:access_token|api_?key|auth|client_secret|key|passw(?:or)?d|pwd|secret|sig|signature|token"
    r"|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|x-goog-credential)"
)
_PEM_NAME = r"[ A-Z0-9]*PRIVATE KEY[ A-Z]{0,10}-----"
# A name that holds one of these words names a secret, whatever stands before it in the same word: dbPassword.
STRONG = (
    r"passw(?:or)?d|pass_?phrase|passcode|secret(?:[_.]?key)?(?:_base)?|(?:api|access|private|secret)[_\-. ]?key"
    r"|(?:signing|encryption|fernet|hmac|licen[cs]e)[_\-]?key|credentials?|client-key-data"
    r"|(?:auth|access|refresh|session|security|id|hf|sas)[_\-]?token"
    r"|_auth|session-?id|x-jfrog-art-api|x-honeycomb-team"
)
# These name one if what follows looks drawn by chance.
WEAK = (
    r"(?:shared|routing|integration|service|account|subscription|storage|kaggle|wandb|master|user|app|auth|deploy|team|write)"
    r"[_\-]?key|cookies?|signature|encrypt"
)
_NAMES = (
    rf"(?:(?i:[0-9a-z_.\-]*?(?:{STRONG})s?(?:_?(?:b64|base64|value|str|string|[0-9]))?)"
    r"|(?:[0-9A-Za-z_.\-]*(?:[_.\-][Tt]oken|_TOKEN|Token)|[Tt]oken|TOKEN)(?:__)?"
    r"|(?i:[0-9a-z_.\-]+[_.\-](?:pwd|passwd))|[0-9A-Z_]+_(?:PASS|PAT|JWT)"
    r"|(?i:[0-9a-z_.\-]*?(?:db|user|smtp|mysql|redis|root|admin|login|ssh|sudo|become|storage|proxy|http|ftp|sasl)_?pass))"
)
MARK = "\ue000"  # what was hidden before, in a text that is read again: a value, and no secret
_VALUE = rf"""(?:{MARK}|[bru]?"[^"\r\n]{{3,}}"|[bru]?'[^'\r\n]{{3,}}'|["'][^"'\r\n]{{6,}}|[^\s"',;&)}}\]\[<>|]{{6,}})"""
# Between a name and its value: also a type, the dots of a table, the tags of XML; then what may stand before a value:
# an address that a debugger shows, an Option, a block or a tag of YAML, the first two of three quotes.
_GLUE = (
    r"""["'`]?\]?(?:\s?:\s?(?:Optional\[)?(?:str|bytes|SecretStr)\]?(?:\s?\|\s?None)?\s?=\s?"""
    r"""|\s{0,9}(?:=>|:=|[:=])[ \t]{0,3}|[ \t]\.{3,}[ \t]|</\w+>\s{0,20}<\w+>)"""
    r"""(?:[|>][\-+]?\n\s{0,20}|0x[0-9a-f]+ |(?:Some|SecretStr)\(|string\([0-9]+\) |[&!]\w+ |\[\[|''|"")?"""
)
# Between a name and what it is, in prose, shells and tables.
_SAYS = (
    rf"""(?:[^\w\n{MARK}]{{0,3}}[ \t](?-i:[a-z]{{2,8}})\b:?){{0,4}}"""
    r"""['"`]?[ \t]{0,3}[:,|│┃(\-]?(?:->)?[ \t]{0,9}["'`]?"""
)
_CHANCE = rf"(?:{MARK}|[0-9A-Za-z+/_\-]{{10,}}={{0,2}})"
# Fixed beginnings of tokens that a service chose so that they can be found.
_VENDORS = (
    r"tgp_v1_|lsv2_(?:pt|sk)_|(?:sk|pk)-lf-|pcsk_|tskey-[a-z]+-|sntry[su]_|dp\.(?:pt|st|ct|sa)\.|ops_eyJ|ATATT3x"
    r"|sq0(?:atp|csp)-|SWMTKN-1-|t1\.9eue|y[0-9]_AgA|CFPAT-|AQVN|esecret_|aph0_"
    r"|PMAK-|fm[12]_|pscale_(?:tkn|pw|oauth)_|NR(?:AK|JS|II)-|dt0[a-z]\d\d\.|ABSK|GOCSPX-|xkeysib-|xsmtpsib-|figd_|HRKU-|tvly-|CW-SECRET-|glcbt-"
)
_SHORT_VENDORS = (
    r"gsk_|xai-|rpa_|KGAT_|lin_api_|ntn_|shp(?:at|ca|pa|ss)_|sbp_|AKCp|cmVmdGtu|hcai?k_|pn[ub]_|rubygems_"
    r"|jina_|GOOG1E|napi_|csk-|bku[a-z]_|CCIPAT_|[a-z]{2,8}_(?:live|test)_|YCAJE|YCO|rdme_[a-z0-9]{50}"
    r"|lin_oauth_[0-9a-f]{40}|pul-[0-9a-f]{20}|oy2[a-z0-9]{23}"
)

FORMATS: tuple[tuple[str, str], ...] = (
    # Whole, whatever a log puts before its lines; or cut off after some of them.
    ("private_key", rf"-----BEGIN{_PEM_NAME}(?s:.)*?-----END{_PEM_NAME}"),
    (
        "private_key",
        rf"-----BEGIN{_PEM_NAME}(?:\s+[A-Za-z0-9+/=]{{16,}}|[^\r\n]{{0,6}}\s*(?:[^\r\n]{{0,80}}[^A-Za-z0-9+/=\r\n])?[A-Za-z0-9+/=]{{40,}})*",
    ),
    ("private_key", r"(Private-Lines: [0-9]+)(?:\s+[A-Za-z0-9+/=]{16,})+"),
    ("private_key", r"\bLS0tLS1CRUdJTi[A-Za-z0-9+/=]{16,}"),
    # Where a token shape is known it is named, before the general patterns below see it.
    ("aws_key_id", r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}\b"),
    ("aws_secret", rf"(?i)\b(aws_?(?:secret_?access_?key|session_?token){_NAME_END})[A-Za-z0-9/+=]{{16,}}"),
    ("gcp_key", r"\bAIza[0-9A-Za-z_\-]{35}"),
    ("google_oauth", r"\bya29\.[0-9A-Za-z_\-]{20,}"),
    ("azure_key", r"(?i)\b((?:AccountKey|SharedAccessKey)\s?=\s?)[A-Za-z0-9+/=]{20,}"),
    ("azure_sas", r"(?i)([?&]sig=)[A-Za-z0-9%+/=]{16,}"),
    ("github", r"\b(?:gh[pousr]_[0-9A-Za-z]{36,}|github_pat_[0-9A-Za-z_]{22,})"),
    ("gitlab", r"\bgl(?:pat|dt|rt|ptt|cbt|ft|soat|agent|oas)-[0-9A-Za-z_\-]{20,}"),
    ("huggingface", r"\b(?:hf|api_org)_[0-9A-Za-z]{30,}\b"),
    ("wandb", r"\bwandb_v1_[0-9A-Za-z_]{20,}"),
    ("wandb", r"\b(wandb login (?:--?[a-z]+ )*)[0-9a-f]{40}\b"),
    ("wandb", rf"(?i)\b(wandb[_.\-]?(?:api[_\-]?)?key{_NAME_END})[0-9a-f]{{40}}\b"),
    ("hex_key", r"""(?i)\b(key["']?\s{0,3}[:=]\s{0,3}["'])[0-9a-f]{32,}\b"""),
    ("anthropic", r"\bsk-ant-[a-z0-9]{3,12}-[0-9A-Za-z_\-]{20,}"),
    ("openai", r"\bsk-(?:proj-|svcacct-|admin-|or-v1-)?[0-9A-Za-z_\-]{20,}"),
    ("vendor_token", rf"\b(?:{_VENDORS})[0-9A-Za-z_.\-+/=]{{20,}}|\b(?:{_SHORT_VENDORS})[0-9A-Za-z]{{20,}}"),
    (
        "vendor_token",
        r"\b[0-9A-Za-z]{14}\.atlasv1\.[0-9A-Za-z_\-]{40,}|\b[MN][0-9A-Za-z_\-]{23,}\.[0-9A-Za-z_\-]{6}\.[0-9A-Za-z_\-]{27,}",
    ),
    (
        "vendor_token",
        r"\b(?:key-[0-9a-f]{32}|pat[0-9A-Za-z]{14}\.[0-9a-f]{64}|sk_[0-9a-f]{48}|v1\.0-[0-9a-f]{24}-[0-9a-f]{100,}|secret_[0-9a-f]{32}_[0-9a-z]{32}[0-9A-Za-z.]*)",
    ),
    (
        "vendor_token",
        r"\bS[ACNOPUX][A-Z2-7]{56}\b|\bst\.[0-9a-f]{24}\.[0-9a-f]{32}\.[0-9a-f]{32}|\b1/[0-9]{16}:[0-9a-f]{32}\b"
        r"|\blocal-[0-9a-f]{40}\b"
        r"|\b(?:sdk|mob|t/[a-z]{2}|access-(?:production|sandbox|development))-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    ),
    ("azure_secret", r"\b[0-9A-Za-z]{3}[0-9]Q~[0-9A-Za-z_~.\-]{31,}|\b[0-9A-Za-z]{76}AZDO[0-9A-Za-z]{4}\b"),
    (
        "prefixed_token",
        r"""(^|[\s"'(\[<=:,])(?:[A-Za-z][0-9A-Za-z]{1,9}[_\-.]|LTAI|AKID|EAAA|4b1d|cio)[0-9A-Za-z_\-]{20,}""",
    ),
    ("google_refresh", r"\b1//0[0-9A-Za-z_\-]{40,}"),
    ("password_hash", r"\$(?:2[abxy]|[156y]|apr1|argon2[di]{1,2}|scrypt|pbkdf2[a-z0-9\-]*)\$[^\s:\"']{20,}"),
    ("slack_token", r"\bxox[abeoprs]-[0-9A-Za-z\-]{10,}"),
    ("slack_app", r"\bxapp-[0-9]-[0-9A-Za-z\-]{20,}"),
    ("slack_hook", r"(?i)(hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/)[0-9A-Za-z/_\-]{20,}"),
    ("discord_hook", r"(?i)(discord(?:app)?\.com/api/(?:v[0-9]+/)?webhooks/)[0-9]{5,}/[0-9A-Za-z_\-]{20,}"),
    ("teams_hook", r"""(?i)([a-z0-9\-]+\.webhook\.office\.com/webhookb2/)[^\s"'<>]{20,}"""),
    ("hook", r"""(?i)((?:hooks\.zapier\.com/hooks/catch|hc-ping\.com|maker\.ifttt\.com/trigger)/)[^\s"'<>]{8,}"""),
    ("webhook", r"(?i)(://[^\s\"'<>]*/(?:hooks?|webhooks?|integration)/)[0-9A-Za-z_/\-]{16,}"),
    ("telegram", r"(?:\b|\bbot)[0-9]{8,10}:A[0-9A-Za-z_\-]{34}\b"),
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
    ("jwt", r"\beyJ[0-9A-Za-z_\-]{8,}(?:\.[0-9A-Za-z_\-]{8,}){1,4}"),
    ("age", r"\bAGE-SECRET-KEY-1[0-9A-Z]{58}\b"),
    # General shapes: what stands where a secret belongs.
    ("url_password", r"""(?i)\b([a-z][a-z0-9+.\-]+://[^\s/?#:"'<>\[\]]*:)[^\s"'<>]+@"""),
    ("url_password", r"""(?i)\b([a-z_][\w.\-]*:)[^\s:@/"'<>]{4,}@(?:tcp|unix)\("""),
    ("url_user", r"(?i)\b([a-z][a-z0-9+.\-]+://)[0-9A-Za-z_\-]{20,}@"),
    ("url_query", r"([?&]code=)[^&\s\"'<>#]{12,}"),
    ("url_query", rf"""(?i)([?&]{_QUERY}=)[^&\s"'<>#]+"""),
    ("mention", rf"(?i)([?&][\w.\-]*(?:{STRONG}|token|signature)=){_CHANCE}"),
    # Of schemes that say several things, all of it; of the others what stands after the scheme, or alone.
    (
        "authorization",
        rf"(?i)\b(authorization{_NAME_END}(?:aws4-hmac-sha256|hawk|oauth|digest)\s)[^\r\n]{{8,}}",
    ),
    (
        "authorization",
        rf"(?i)\b((?:proxy-)?authorization{_NAME_END}\[?[\"']?{_SCHEME}\s{{1,4}})"
        r"[A-Za-z0-9+/=._~\-]{4,}",
    ),
    ("authorization", r"(?i)\b(www-authenticate: (?:ntlm|negotiate) )[A-Za-z0-9+/=]{16,}"),
    ("mention", rf"(?i)\b(authorization{_NAME_END}){_CHANCE}"),
    ("bearer", r"(?i)\b(bearer\s{1,4})[A-Za-z0-9+/=._~\-]{16,}"),
    ("cookie", r"""(?i)\b((?:set-)?cookie["']?\s{0,4}(?:[:=]|, )\s{0,4}["']?)[^\r\n"']*=[^\r\n"']{3,}"""),
)
# What stands behind a name.
NAMED: tuple[tuple[str, str], ...] = (
    ("basic", r"\b(Basic )[A-Za-z0-9+/]{12,}={0,2}"),
    ("assignment", rf"\b({_NAMES}{_GLUE}){_VALUE}"),
    # Of many all, where one looks like chance.
    (
        "mention",
        rf"""(?i)\b([\w.\-]*(?:{STRONG}|token|cookie)s?{_GLUE}[\[({{]\s{{0,9}})[bru]?["'][^\])}}\r\n]{{8,}}""",
    ),
    ("mention", rf"(?i)\b([\w.\-]*(?:{STRONG}|token)s?:)(?:\r?\n[ \t]+(?:-|[\w.\-]+:) \S{{10,}})+"),
    ("assignment", r"""\b(pass=)(?:"[^"\r\n]{3,}"|'[^'\r\n]{3,}')"""),
    ("assignment", rf"""(?i)\b([0-9A-Za-z_.\-]*?(?:{STRONG}|token)\s?[!=]=\s?["'])[^"'\r\n]{{3,}}"""),
    ("assignment", r"""(?i)\b([a-z0-9_.\-]*passw(?:or)?d=)[^\s"',;&)}\]\[<>|]{3,}"""),
    ("assignment", r"""(?i)(["']pwd["']\s?:\s?["']|[;,]\s?pwd=)[^"';\r\n]{3,}"""),
    ("assignment", rf"(?i)<([\w:.\-]*(?:{STRONG})>)[^<\s]{{3,}}"),
    ("assignment", r"""(?i)\b((?:auth=|\w*BasicAuth|\.login)\(["'][^"'\r\n]+["'], ?)["'][^"'\r\n]{3,}["']"""),
    ("assignment", r"""(?i)(["']auth["']\s?:\s?["'])[0-9A-Za-z+/=]{12,}"""),
    ("mention", rf"""(?i)(\.(?:login|auth)\(["']){_CHANCE}"""),
    ("key", rf"""(?i)((?:^|[\s"'=\[,(])--?[\w\-]*[_\-]key(?:\s{{1,2}}|["'], )["']?){_CHANCE}"""),
    # A file of logins; programs that take a password after a short flag.
    ("netrc", r"\b(login\s+\S+\s+password\s+)\S+"),
    (
        "flag",
        r"""\b((?:curl|wget|https?)\b[^\r\n]*?[\s"'](?:-[ua]|--(?:proxy-)?user)(?:[ =]|["'], )?["']?[^\s:/"']+:)"""
        r"""(?:[^\s"'/]|/[^\s"'/])[^\s"']{2,}""",
    ),
    ("mention", rf"""(\s--?(?:user|u|auth)[\s=]["']?[\w.@\-]+:){_CHANCE}"""),
    (
        "flag",
        r"""\b((?:sshpass|mysql|mysqldump|redis-cli|mongosh|unzip|7z|(?:docker|podman|registry|swanlab|az) login)\b"""
        r"""[^\r\n]*?\s-[paPk]\s?)[^\s"'\-][^\s"']{3,}""",
    ),
    ("flag", r"""(\bmc (?:alias set|config host add) \S+ \S+ \S+ )\S{8,}"""),
    ("flag", r"""\b(echo ["']?)[^\s"'|]{8,}["']? \|[^\r\n|]*(?:--password-stdin|sudo -S)"""),
    (
        "flag",
        r"""(?i)((?:^|[\s"'=\[,(])--?(?:[a-z0-9_\-]*[_\-])?(?:password|passwd|token|secret|(?:api|access)[_\-]?key)"""
        r"""(?:=-?|\s{1,2}|["'], )["']?)[^\s"'\-][^\s"']{3,}""",
    ),
    ("pgpass", r"""((?:^|[\s"'])[\w.*\-]+:(?:543[0-9]|6432|\*):[\w.*\-]+:[\w.*@\-]+:)[^\s:"']{4,}"""),
    (
        "one_time_code",
        r"(?i)\b((?:(?:one[ \-]time|verification|authenticator|2fa|mfa|token)[ _\-](?:pass)?code|otp"
        r"|enter (?:the |this )?code)\b"
        r"[^0-9A-Z\r\n]{1,3}(?:(?:is|was|code)\b[^0-9A-Z\r\n]{1,3})?)(?:[0-9]{6,10}|(?-i:[A-Z0-9]{4,5}-[A-Z0-9]{4,5}))\b",
    ),
    # Where name and value are two things of the same record.
    (
        "mention",
        rf"(?i)\b((?:name|key|k)[\"']?\s?[:=]\s?[\"']?[\w.\-]*(?:{STRONG}|token|_pass)[\"']?,?\s{{0,20}}[\"']?v(?:alue)?[\"']?\s?[:=]\s?[\"']?){_CHANCE}",
    ),
    ("mention", rf"(?i)\b([\w.]*(?:{STRONG}|token)\n\s+input [^\n]*input_value=[\"']?){_CHANCE}"),
    # What looks like chance, where the words before it promise a secret.
    ("mention", rf"(?i)\b([0-9a-z_.\-]*?(?:{STRONG}|token|[_.\-](?:pass|pat)|\bpass){_SAYS}){_CHANCE}"),
    ("key", rf"(?i)\b([\w.\-]*?(?:{WEAK}|[_.\-]key|\bkey|tokens){_GLUE}[\"']?){_CHANCE}"),
    ("email", r"\b[0-9A-Za-z._%+\-]+@[0-9A-Za-z][0-9A-Za-z.\-]*\.[A-Za-z]{2,}\b"),
)

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_ANY_OPTIONS = re2.Options()
_ANY_OPTIONS.log_errors = False
_ANY_OPTIONS.never_capture = True
_ANY_OPTIONS.max_mem = 20 * 1024 * 1024
# Long repeats count only to 6 where one looks for all patterns at once, for counting takes more states than an
# automaton may keep, and then a look takes milliseconds instead of 1 us; the patterns themselves count anew.
_REPEAT = re.compile(r"(?<!\\)\{(\d+)(?:,\d*)?\}")


def _at_once(shapes: Sequence[tuple[str, str]]) -> Any:
    """One automaton for all patterns of a table. It finds what they find, and more."""
    every = re2.Set.SearchSet(_ANY_OPTIONS)
    for _, pattern in shapes:
        every.Add(_REPEAT.sub(lambda repeat: f"{{{min(6, int(repeat[1]))},}}", pattern))
    every.Compile()
    return every


_TABLES = tuple(
    (_at_once(shapes), [(kind, re2.compile(pattern, _OPTIONS)) for kind, pattern in shapes])
    for shapes in (FORMATS, NAMED)
)


def candidates(text: str) -> list[tuple[str, Any]]:
    """Kinds and patterns that may find something in a text, specific before general; the others cannot."""
    return [patterns[n] for every, patterns in _TABLES for n in sorted(every.Match(text) or ())]
