"""A corpus of fake secrets of our own, by three generators that know nothing of the patterns under test.

`grammar`: each kind after its published format, in the places where such a thing usually stands. `mutated`: what
programs do to a text on its way into a log. `told`: what pip, git, boto, wandb, huggingface_hub and others print when
something goes wrong with a credential. A fourth draws what somebody thought of who had not seen the patterns
(`outsiders.txt`). No secret is written down here: all are put together at run time.
"""

import base64
import json
import random
import re
import string
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

LOWER, UPPER, DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
LETTERS, ALNUM = LOWER + UPPER, LOWER + UPPER + DIGITS
HEX, BASE32, URLSAFE, BASE64 = DIGITS + "abcdef", UPPER + "234567", ALNUM + "-_", ALNUM + "+/"
PRINTABLE = ALNUM + "!$%*+-./:=?@^_~"  # what password generators draw from, without quotes, commas and blanks
SHORTEST_PIECE = 8  # so many characters in a row are a piece of a secret


@dataclass(frozen=True, slots=True)
class Sample:
    """A line with a secret in it. `family`: "format" (the secret itself is known by its shape) or "name=value"."""

    kind: str
    family: str
    text: str
    secret: str
    how: str = "plain"

    def leaked_by(self, shown: str) -> bool:
        """Whether a piece of the secret can be read in what is shown, as it is or as it was escaped."""
        wanted = self.secret
        size = min(SHORTEST_PIECE, len(wanted))
        forms = {wanted, quote(wanted, safe=""), quote(quote(wanted, safe=""), safe=""), json.dumps(wanted)[1:-1]}
        read = "".join(shown.replace("│", "").split())
        return any(form[at : at + size] in read for form in forms for at in range(len(form) - size + 1))


class Dice:
    """Draws from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def some(self, alphabet: str, shortest: int, longest: int = 0) -> str:
        size = self.random.randint(shortest, max(shortest, longest))
        return "".join(self.random.choice(alphabet) for _ in range(size))

    def one(self, *choices: str) -> str:
        return self.random.choice(choices)

    def password(self) -> str:
        """A password as a generator makes it, or as a person does."""
        if self.random.random() < 0.7:
            return self.some(ALNUM, 1) + self.some(PRINTABLE, 8, 24) + self.some(ALNUM, 1)
        words = ("correct", "horse", "battery", "staple", "tulip", "Winter", "dragon", "hunter", "maple", "Orbit")
        return (
            self.one("", "My") + self.one(*words) + self.one("", "-", "_") + self.one(*words) + self.some(DIGITS, 1, 4)
        )


def pem(d: Dice) -> tuple[str, str, str]:
    """Text before, secret part and text after of a private key."""
    kind = d.one("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ")
    body = "\n".join([d.some(BASE64, 64), d.some(BASE64, 64), d.some(BASE64, 20, 60) + "=="])
    dashes = "-" * 5
    return f"{dashes}BEGIN {kind}PRIVATE KEY{dashes}\n", body, f"\n{dashes}END {kind}PRIVATE KEY{dashes}"


# Kind -> (fixed beginning, secret rest). Beginnings are split, so that no scanner takes this file for a leak.
FORMATS: dict[str, Callable[[Dice], tuple[str, str]]] = {
    "aws_akid": lambda d: ("A" + d.one("KIA", "SIA", "BIA", "CCA"), d.some(BASE32, 16)),
    "gcp_api": lambda d: ("AI" + "za", d.some(URLSAFE, 34) + d.some(ALNUM, 1)),
    "google_oauth": lambda d: ("ya" + "29.", d.some(ALNUM, 1) + d.some(URLSAFE, 60, 200)),
    "github": lambda d: ("gh" + d.one("p", "o", "u", "s", "r") + "_", d.some(ALNUM, 36)),
    "github_fine": lambda d: ("github" + "_pat_", d.some(ALNUM, 22) + "_" + d.some(ALNUM, 59)),
    "gitlab": lambda d: ("gl" + d.one("pat", "dt", "rt", "ptt", "cbt", "ft", "soat") + "-", d.some(URLSAFE, 20, 50)),
    "hf": lambda d: ("h" + "f_", d.some(LETTERS, 34)),
    "hf_org": lambda d: ("api" + "_org_", d.some(LETTERS, 34)),
    "wandb_v1": lambda d: ("wandb" + "_v1_", d.some(ALNUM + "_", 40, 86)),
    "anthropic": lambda d: ("sk" + "-ant-" + d.one("api03", "admin01", "oat01") + "-", d.some(URLSAFE, 93) + "AA"),
    "openai": lambda d: ("sk" + d.one("-proj-", "-svcacct-", "-admin-", "-"), d.some(ALNUM, 48, 156)),
    "slack_token": lambda d: (
        "xo" + "x" + d.one("b", "p", "a", "s", "r"),
        f"-{d.some(DIGITS, 12)}-{d.some(ALNUM, 24)}",
    ),
    "slack_app": lambda d: ("xa" + "pp-1-", f"A{d.some(UPPER + DIGITS, 10)}-{d.some(DIGITS, 13)}-{d.some(HEX, 64)}"),
    "telegram": lambda d: ("", d.some("123456789", 9, 10) + ":" + "AA" + d.some(URLSAFE, 32) + d.some(ALNUM, 1)),
    "sendgrid": lambda d: ("S" + "G.", d.some(URLSAFE, 22) + "." + d.some(URLSAFE, 42) + d.some(ALNUM, 1)),
    "stripe": lambda d: (d.one("s", "r") + "k" + d.one("_live_", "_test_"), d.some(ALNUM, 24, 99)),
    "twilio": lambda d: ("S" + "K", d.some(HEX, 32)),
    "npm": lambda d: ("np" + "m_", d.some(ALNUM, 36)),
    "pypi": lambda d: ("py" + "pi-AgEIcHlwaS5vcmc", d.some(URLSAFE, 60, 160) + d.some(ALNUM, 1)),
    "dockerhub": lambda d: ("dckr" + d.one("_pat_", "_oat_"), d.some(URLSAFE, 27, 32)),
    "databricks": lambda d: ("da" + "pi", d.some(HEX, 32)),
    "do": lambda d: ("do" + d.one("o", "p", "r") + "_v1_", d.some(HEX, 64)),
    "vault": lambda d: ("hv" + d.one("s", "b") + ".", d.some(ALNUM, 1) + d.some(URLSAFE, 90, 120)),
    "nvapi": lambda d: ("nv" + "api-", d.some(URLSAFE, 64)),
    "perplexity": lambda d: ("pp" + "lx-", d.some(ALNUM, 48)),
    "replicate": lambda d: ("r" + "8_", d.some(ALNUM, 37)),
    "grafana": lambda d: ("gl" + "sa_", d.some(ALNUM, 32) + "_" + d.some(HEX, 8)),
    "jwt": lambda d: (
        "ey" + "J" + d.some(ALNUM, 33),
        ".ey" + "J" + d.some(URLSAFE, 60, 300) + "." + d.some(URLSAFE, 43),
    ),
    "age": lambda d: ("AGE-" + "SECRET-KEY-1", d.some(UPPER + DIGITS, 58)),
}
# Kind -> (text before, secret, text after): the shape is that of the surroundings.
PLACES: dict[str, Callable[[Dice], tuple[str, str, str]]] = {
    "pem": pem,
    "url_userinfo": lambda d: (
        d.one("https", "postgresql", "redis", "amqp", "git+https", "s3", "mongodb+srv")
        + "://"
        + d.one("user", "ci", "")
        + ":",
        d.some(ALNUM, 8, 24),
        "@" + d.one("db-7.internal:5432/runs", "git.example.org/team/repo.git", "cache:6379/0"),
    ),
    "url_query": lambda d: (
        "https://store.example/v1/x?"
        + d.one("", "page=2&")
        + d.one(
            "access_token",
            "api_key",
            "sig",
            "token",
            "key",
            "X-Amz-Signature",
            "X-Amz-Security-Token",
            "X-Goog-Signature",
        )
        + "=",
        d.some(ALNUM, 16, 64),
        d.one("", "&expires=3600"),
    ),
    "auth_header": lambda d: (
        d.one("Authorization: ", "authorization: ", "Proxy-Authorization: ", "'Authorization': '", '"authorization": "')
        + d.one("Bearer ", "Basic ", "token ", "Token "),
        d.some(ALNUM, 20, 60),
        "",
    ),
    "bearer": lambda d: (d.one("bearer ", "Bearer ", "sent Bearer "), d.some(ALNUM, 24, 60), ""),
    "cookie": lambda d: (
        d.one("Cookie: session=", "Set-Cookie: sid=", "cookie: a=1; auth="),
        d.some(ALNUM, 20, 40),
        "",
    ),
    "aws_secret": lambda d: (
        d.one("AWS_SECRET_ACCESS_KEY=", "aws_secret_access_key = ", "aws_session_token=", "'aws_secret_access_key': '"),
        d.some(BASE64, 40),
        "",
    ),
    "azure_key": lambda d: (
        "DefaultEndpointsProtocol=https;AccountName=runs;" + d.one("AccountKey=", "SharedAccessKey="),
        d.some(BASE64, 86),
        "==;EndpointSuffix=core.windows.net",
    ),
    "azure_sas": lambda d: (
        "https://runs.blob.core.windows.net/c/f.pt?sv=2024-11-04&sig=",
        d.some(ALNUM, 40) + "%3D",
        "&se=2026-12-01T00%3A00%3A00Z",
    ),
    "slack_hook": lambda d: (
        "https://hooks.slack.com/" + d.one("services", "workflows") + "/",
        f"T{d.some(UPPER + DIGITS, 10)}/B{d.some(UPPER + DIGITS, 10)}/{d.some(ALNUM, 24)}",
        "",
    ),
    "discord_hook": lambda d: (
        f"https://{d.one('discord', 'discordapp')}.com/api/webhooks/",
        f"{d.some(DIGITS, 18)}/{d.some(URLSAFE, 68)}",
        "",
    ),
    "teams_hook": lambda d: (
        "https://contoso.webhook.office.com/webhookb2/",
        f"{d.some(HEX, 8)}-{d.some(HEX, 4)}@{d.some(HEX, 8)}/IncomingWebhook/{d.some(HEX, 32)}",
        "",
    ),
    "wandb_key": lambda d: (d.one("WANDB_API_KEY=", "wandb_key: ", "wandb_api_key='"), d.some(HEX, 40), ""),
    "hex_key_arg": lambda d: (d.one('key="', "login(key='", "key: '"), d.some(HEX, 40), d.one("'", '"')),
    "service_key": lambda d: (
        d.one(
            "COMET_API_KEY=",
            "NEPTUNE_API_TOKEN=",
            "MLFLOW_TRACKING_TOKEN=",
            "DD_API_KEY: ",
            "PAGERDUTY_ROUTING_KEY=",
            "opsgenie_api_key = ",
            "CLEARML_API_SECRET_KEY=",
        ),
        d.some(ALNUM, 25, 64),
        "",
    ),
    "email": lambda d: (
        "mail to ",
        f"{d.some(LOWER, 4, 9)}.{d.some(LOWER, 5, 9)}@{d.some(LOWER, 5, 9)}.example.org",
        "",
    ),
}
VALUES: dict[str, Callable[[Dice], tuple[str, str, str]]] = {
    "assign": lambda d: (
        d.one(
            "password=",
            "PASSWORD=",
            "db_password = ",
            "Password: ",
            "passphrase: ",
            "api_key=",
            "API_KEY=",
            "apikey: ",
            "X-Api-Key: ",
            "auth_token=",
            "access_token: ",
            "refresh_token=",
            "private_key_id_secret=",
            "client_secret=",
            "MY_SERVICE_TOKEN=",
            "token=",
            "token: ",
            "HF_TOKEN=",
            "HUGGING_FACE_HUB_TOKEN=",
            "dbPassword=",
            "accessKey: ",
            "secret_key=",
            "POSTGRES_PASSWORD=",
            "credential=",
            "svc.password=",
        ),
        d.password(),
        "",
    ),
    "quoted": lambda d: (
        d.one(
            "password='",
            "'password': '",
            '"api_key": "',
            "token = '",
            '"client_secret":"',
            "secret_key: '",
            "hf_token='",
            '"accessToken": "',
        ),
        d.password(),
        d.one("'", '"'),
    ),
    "cli_flag": lambda d: (
        d.one(
            "--password ", "--token ", "--api-key ", "--hf-token=", "--wandb-api-key ", "--secret=", "--db-password="
        ),
        d.some(ALNUM, 12, 40),
        d.one("", " --steps 100"),
    ),
}
CARRIERS = (
    "{}",
    "2026-03-05 04:16:40,123 ERROR trainer: request failed: {}",
    "[rank3]: {}",
    "{} while starting worker 3",
    '  File "train.py", line 31, in main\n    connect({})',
    "export {}",
    "(RayTrainWorker pid=4123, ip=10.0.0.3) {}",
    "| {} |",
)


def plain(d: Dice) -> Iterator[Sample]:
    """One bare sample of every kind."""
    for kind, make in FORMATS.items():
        start, secret = make(d)
        carrier = d.one("{}", "error: {} was refused", "login with {}", "X={}", "key '{}'", "url?x={}")
        yield Sample(kind, "format", carrier.format(start + secret), secret)
    for family, kinds in (("format", PLACES), ("name=value", VALUES)):
        for kind, place in kinds.items():
            before, secret, after = place(d)
            quotes = before[-1] if before[-1] in "'\"" else ""
            after = quotes + after.lstrip("'\"") if quotes else after.strip("'\"")
            yield Sample(kind, family, before + secret + after, secret)


def grammar(seed: int, rounds: int) -> Iterator[Sample]:
    """Every kind in the places where such a thing usually stands."""
    d = Dice(seed)
    for _ in range(rounds):
        for sample in plain(d):
            yield replace(sample, text=d.one(*CARRIERS).format(sample.text), how="grammar")


def _split_by_colour(d: Dice, sample: Sample) -> str:
    at = sample.text.index(sample.secret) + d.random.randint(1, len(sample.secret) - 1)
    return sample.text[:at] + d.one("\x1b[0m", "\x1b[1;31m", "\x1b[01;31m\x1b[K", "\x1b[m\x1b[K") + sample.text[at:]


def _upper_key(_: Dice, sample: Sample) -> str:
    at = sample.text.index(sample.secret)
    before = sample.text[:at]
    return (before.upper() if "=" in before[-3:] else before) + sample.text[at:]


def _wrapped(d: Dice, sample: Sample) -> str:
    """As a terminal of 80 columns shows it: the secret goes on in the next line, perhaps in a box."""
    text = "2026-03-05 04:16:40 ERROR trainer: " + sample.text
    at = text.index(sample.secret) + max(1, len(sample.secret) // d.random.randint(2, 3))
    return text[:at] + d.one("\n", "\n    ", " │\n│ ") + text[at:]


def _pair(sample: Sample) -> tuple[str, str]:
    """Name and value where the sample is an assignment; else a harmless name and all of it."""
    found = re.fullmatch(r"(?s)([A-Za-z_][\w.\-]*)\s*=\s*(.*)", sample.text)
    return (found[1], found[2].strip("'\"")) if found else ("extra", sample.text)


def _environment(d: Dice, sample: Sample) -> str:
    """A dump of variables, as `env` prints it or as a Python dict."""
    name, value = _pair(sample)
    pairs = {"PATH": "/usr/bin:/bin", "RANK": "3", name: value, "HOME": "/root"}
    if d.random.random() < 0.5:
        return "\n".join(f"{key}={item}" for key, item in pairs.items())
    return f"environ({pairs!r})"


def _namespace(_: Dice, sample: Sample) -> str:
    name, value = _pair(sample)
    return f"Namespace(lr=0.0003, {name.replace('-', '_').lower()}={value!r}, steps=1000, resume=None)"


def _locals(d: Dice, sample: Sample) -> str:
    """Local variables below the frames of a traceback, as rich and loguru print them."""
    name, value = _pair(sample)
    shown = f"{name} = {value!r}"
    rows = ["│   lr = 0.0003", f"│   {shown}", "│   steps = 1000"]
    return (
        "\n".join(["╭──── locals ────╮", *rows, "╰────────────────╯"]) if d.random.random() < 0.5 else "\n".join(rows)
    )


MUTATIONS: dict[str, Callable[[Dice, Sample], str]] = {
    "single quotes": lambda _, s: f"got '{s.text}'" if "'" not in s.text else f"got ({s.text})",
    "double quotes": lambda _, s: f'got "{s.text}"' if '"' not in s.text else f"got [{s.text}]",
    "JSON": lambda _, s: json.dumps({"level": "error", "message": s.text, "rank": 3}),
    "JSON in JSON": lambda _, s: json.dumps({"log": json.dumps({"message": s.text}), "stream": "stderr"}),
    "repr": lambda _, s: repr(f"HTTP 401\n{s.text}\nretry"),
    "URL-encoded": lambda _, s: "GET /cb?next=" + quote(s.text, safe="") + "&x=1",
    "HTML": lambda _, s: "<pre>" + s.text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;") + "</pre>",
    "split by colour": _split_by_colour,
    "wrapped": _wrapped,
    "upper-case key": _upper_key,
    "environment": _environment,
    "Namespace": _namespace,
    "locals": _locals,
}
# An e-mail address is no credential, and what stands in a URL is not broken over lines by any program that we know.
NOT_SO = {("wrapped", kind) for kind in ("email", "azure_sas", "azure_key", "cookie", "quoted", "url_userinfo")}


def mutated(seed: int, rounds: int) -> Iterator[Sample]:
    """Every kind as programs change a text on its way into a log."""
    d = Dice(seed)
    for _ in range(rounds):
        for how, change in MUTATIONS.items():
            for sample in plain(d):
                if (how, sample.kind) not in NOT_SO:
                    yield replace(sample, text=change(d, sample), how=how)


def told(seed: int, rounds: int) -> Iterator[Sample]:
    """What tools print when a credential is involved; worded after their sources, with secrets of ours."""
    d = Dice(seed)
    for _ in range(rounds):
        token, hexes = d.some(ALNUM, 20, 40), d.some(HEX, 40)
        hf, akid, aws = "h" + "f_" + d.some(LETTERS, 34), "AK" + "IA" + d.some(BASE32, 16), d.some(BASE64, 40)
        gh, password = "gh" + "p_" + d.some(ALNUM, 36), d.some(ALNUM, 10, 20)
        basic = base64.b64encode(f"user:{password}".encode()).decode()
        lines = (
            (
                "pip",
                "format",
                f"ERROR: Could not find a version of x (from https://__token__:{password}@pypi.corp.example/simple)",
                password,
            ),
            ("pip", "format", f"Looking in indexes: https://ci:{token}@nexus.example/repository/pypi/simple", token),
            (
                "git",
                "format",
                f"fatal: Authentication failed for 'https://oauth2:{token}@gitlab.example/t/r.git/'",
                token,
            ),
            (
                "git",
                "format",
                f"fatal: unable to access 'https://{gh}@github.com/o/r.git/': The requested URL returned 403",
                gh[4:],
            ),
            (
                "boto",
                "format",
                f"botocore.exceptions.ClientError: (InvalidAccessKeyId) <AWSAccessKeyId>{akid}</AWSAccessKeyId>",
                akid[4:],
            ),
            ("boto", "format", f"Credentials(access_key='{akid}', secret_key='{aws}', token=None)", akid[4:]),
            (
                "boto",
                "name=value",
                f"Credentials(access_key='{d.some(ALNUM, 16)}', secret_key='{aws}', token=None)",
                aws,
            ),
            ("boto", "format", f"DEBUG botocore.auth: AWS_SECRET_ACCESS_KEY={aws}", aws),
            (
                "wandb",
                "format",
                f"wandb: ERROR api_key not configured (no-tty), WANDB_API_KEY={hexes} has 41 characters",
                hexes,
            ),
            ("wandb", "format", f'wandb.login(key="{hexes}")', hexes),
            ("hf", "format", f"huggingface_hub.errors.HfHubHTTPError: 401 for {hf}: Invalid user token", hf[3:]),
            ("hf", "format", f"headers={{'user-agent': 'hf_hub/0.24', 'authorization': 'Bearer {hf}'}}", hf[3:]),
            ("hf", "name=value", f"snapshot_download(repo_id='m', token='{token}', revision='main')", token),
            ("curl", "format", f"> Authorization: Basic {basic}", basic),
            ("curl", "name=value", f"> X-Auth-Token: {token}", token),
            (
                "docker",
                "name=value",
                f"WARNING! Using --password via the CLI: docker login -u ci --password {password} r.io",
                password,
            ),
            ("kubectl", "format", f"curl -H 'Authorization: Bearer {token}' -k https://10.0.0.1:6443", token),
            (
                "sqlalchemy",
                "format",
                f"(psycopg2.OperationalError) postgresql+psycopg2://ml:{password}@db:5432/runs",
                password,
            ),
            (
                "redis",
                "format",
                f"ConnectionError: Error 111 connecting to rediss://:{password}@cache:6379/0",
                password,
            ),
            (
                "requests",
                "format",
                f"MaxRetryError: Max retries exceeded with url: /v1/x?api_key={token}&q=1 (Caused by ...)",
                token,
            ),
            ("mlflow", "format", f"MLFLOW_TRACKING_TOKEN={token} is set but rejected by the server", token),
            (
                "openai",
                "format",
                f"openai.AuthenticationError: Incorrect API key provided: {'sk' + '-proj-'}{token + token}",
                token,
            ),
            (
                "subprocess",
                "name=value",
                f"CalledProcessError: Command '['train', '--api-key', '{token}']' returned 1",
                token,
            ),
            ("slack", "format", f"POST https://hooks.slack.com/services/T0123ABCD/B0123ABCD/{token} -> 404", token),
            ("omegaconf", "name=value", f"  wandb:\n    project: runs\n    api_key: {token}\n", token),
            ("hydra", "name=value", f"python train.py model=7b +logger.api_key={token} lr=0.1", token),
            ("torchrun", "name=value", f"torchrun train.py --hf_token {token} --steps 5", token),
            ("dotenv", "name=value", f"OPENAI_API_KEY='{password}'", password),
        )
        for kind, family, text, secret in lines:
            yield Sample(kind, family, text, secret, "told")
            folded = "\n".join(textwrap.wrap(text, 400, break_on_hyphens=False))
            yield Sample(kind, family, f"[rank1]:   {folded}", secret, "told")


_DRAWN = {"A": ALNUM, "B": BASE64, "C": ALNUM + "./", "D": DIGITS, "H": HEX, "Q": URLSAFE + "~.", "S": URLSAFE}
_DRAWN |= {"T": BASE32, "U": UPPER + DIGITS, "a": LOWER + DIGITS, "l": LOWER, "u": UPPER}
_PART = re.compile(r"<(-?)([A-Za-z])([0-9]+)>")


def outsiders(seed: int, rounds: int) -> Iterator[Sample]:
    """One sample of each secret part of `outsiders.txt`: `<A20>` are 20 letters and digits, `<-A20>` may stay."""
    d = Dice(seed)
    for line in rounds * (Path(__file__).parent / "outsiders.txt").read_text("ascii").splitlines():
        kind, _, template = line.partition("\t")
        secrets: list[str] = []

        def drawn(part: re.Match[str], secrets: list[str] = secrets) -> str:
            text = d.some(_DRAWN[part[2]], int(part[3]))
            if not part[1]:
                secrets.append(text)
            return text

        text = _PART.sub(drawn, template.encode().decode("unicode_escape"))
        yield from (Sample(kind, "outsiders", text, secret) for secret in secrets)
