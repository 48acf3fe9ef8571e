"""Secrets are hidden, ordinary log lines are not touched. Every fake secret is put together at run time."""

import json
import random
import string
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from denpexd.core.evidence import beginning
from denpexd.notify.redact import redact, redact_value, redact_verdict
from denpexd.scan.lines import shorten

RNG = random.Random(7)
ALNUM = string.ascii_letters + string.digits
LOWER_HEX = "0123456789abcdef"


def some(alphabet: str, length: int) -> str:
    return "".join(RNG.choice(alphabet) for _ in range(length))


def alnum(length: int) -> str:
    return some(ALNUM, length - 2) + "z7"


def pem() -> str:
    line = "-" * 5
    return f"{line}BEGIN RSA PRIVATE KEY{line}\n{alnum(64)}\n{alnum(30)}==\n{line}END RSA PRIVATE KEY{line}"


TOKENS: dict[str, Callable[[], str]] = {
    "aws_key_id": lambda: "AK" + "IA" + some(string.ascii_uppercase + "234567", 16),
    "gcp_key": lambda: "AI" + "za" + alnum(35),
    "google_oauth": lambda: "ya" + "29." + alnum(60),
    "github": lambda: "gh" + "p_" + alnum(36),
    "github fine": lambda: "github" + "_pat_" + alnum(60),
    "gitlab": lambda: "gl" + "pat-" + alnum(20),
    "huggingface": lambda: "h" + "f_" + some(string.ascii_letters, 34),
    "wandb": lambda: "wandb" + "_v1_" + alnum(40),
    "anthropic": lambda: "sk" + "-ant-api03-" + alnum(80),
    "openai": lambda: "sk" + "-proj-" + alnum(48),
    "slack": lambda: "xo" + "xb-" + some(string.digits, 12) + "-" + alnum(24),
    "slack app": lambda: "xa" + "pp-1-" + alnum(40),
    "telegram": lambda: some("123456789", 9) + ":A" + alnum(34),
    "sendgrid": lambda: "S" + "G." + alnum(22) + "." + alnum(43),
    "stripe": lambda: "sk" + "_live_" + alnum(24),
    "twilio": lambda: "S" + "K" + some(LOWER_HEX, 32),
    "npm": lambda: "np" + "m_" + alnum(36),
    "pypi": lambda: "py" + "pi-" + alnum(100),
    "dockerhub": lambda: "dckr" + "_pat_" + alnum(27),
    "databricks": lambda: "da" + "pi" + some(LOWER_HEX, 32),
    "digitalocean": lambda: "do" + "p_v1_" + some(LOWER_HEX, 64),
    "vault": lambda: "hv" + "s." + alnum(90),
    "nvidia": lambda: "nv" + "api-" + alnum(64),
    "perplexity": lambda: "pp" + "lx-" + alnum(48),
    "replicate": lambda: "r" + "8_" + alnum(37),
    "grafana": lambda: "gl" + "sa_" + alnum(32) + "_" + some(LOWER_HEX, 8),
    "jwt": lambda: "ey" + "J" + alnum(30) + ".ey" + "J" + alnum(60) + "." + alnum(43),
    "age": lambda: "AGE-" + "SECRET-KEY-1" + some(string.ascii_uppercase + string.digits, 58),
}
SHELLS = [
    "{}",
    "error: token {} was refused",
    "'{}',",
    'headers={{"X": "{}"}}',
    "Namespace(key='{}')",
    "env X={}",
    "\x1b[31m{}\x1b[0m",
]
# (text before the secret, alphabet, length, text after it)
PLACES = [
    ("password=", ALNUM, 12, " next"),
    ("Password: '", ALNUM, 10, "'"),
    ('{"db_password": "', ALNUM, 10, '"}'),
    ("HF_TOKEN=", ALNUM, 20, ""),
    ("MY_SERVICE_API_KEY = ", ALNUM, 20, ""),
    ("client_secret: ", ALNUM, 20, ""),
    ("AWS_SECRET_ACCESS_KEY=", ALNUM, 40, ""),
    ("aws_session_token = ", ALNUM, 200, ""),
    ("WANDB_API_KEY=", LOWER_HEX, 40, ""),
    ("COMET_API_KEY: ", ALNUM, 25, ""),
    ("PAGERDUTY_ROUTING_KEY=", ALNUM, 32, ""),
    ("AccountKey=", ALNUM, 60, "=="),
    ("https://store.blob.core.windows.net/c?sv=1&sig=", ALNUM, 43, "&se=2"),
    ("GET https://h.example/x?access_token=", ALNUM, 20, "&page=2"),
    ("git clone https://user:", ALNUM, 20, "@git.example/x.git"),
    ("redis://:", ALNUM, 12, "@cache:6379/0"),
    ("Authorization: Basic ", ALNUM, 24, ""),
    ('"authorization": "Bearer ', ALNUM, 24, '"'),
    ("bearer ", ALNUM, 40, ""),
    ("Cookie: session=", ALNUM, 20, ""),
    ("https://hooks.slack.com/services/T0/B0/", ALNUM, 24, ""),
    ("https://discord.com/api/webhooks/123456789/", ALNUM, 60, ""),
    ("https://x.webhook.office.com/webhookb2/", ALNUM, 60, ""),
    ("run.py --api-key ", ALNUM, 20, " --steps 3"),
    ("run.py --password=", ALNUM, 9, ""),
    ('key = "', LOWER_HEX, 40, '"'),
]

BENIGN = [
    "[rank3]:[E1130 04:56:01.123 ProcessGroupNCCL.cpp:616] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)",
    "commit 3f2a9c1b0d4e5f60718293a4b5c6d7e8f9012345",
    "checkpoint sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "run 550e8400-e29b-41d4-a716-446655440000 started",
    "step 100 | loss 2.31 | tokens: 1,048,576 | tokens/s 51234",
    "token: 128256, max_tokens=4096, num_tokens = 2048",
    "pad_token='<pad>', eos_token=\"</s>\", unk_token=None",
    "tokenizer=LlamaTokenizerFast(name_or_path='meta-llama/Llama-3-8B', vocab_size=128000)",
    "KeyError: 'model.layers.0.self_attn.q_proj.weight'",
    "key = torch.zeros(4, 8), query=tensor([1.0, 2.0]), secret=<hidden>",
    "store->get('default_pg/0//cuda//0', key=rank0)",
    "export HF_TOKEN=$HF_TOKEN; login with token=${WANDB_API_KEY}",
    "login --password <your password> --token ****",
    "ssh://git@host.example.com/repo and git@github.com:owner/repo.git",
    "torchrun --nproc-per-node 8 --rdzv-endpoint node-0.example.com:29500 train.py",
    'File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/_functions.py", line 117, in forward',
    "tcp://10.0.0.1:29500 connected, http://[::1]:8080/metrics",
    "NCCL WARN Call to connect returned Connection refused, retrying",
    "loading s3://bucket/prefix/shard-00001-of-00042.tar",
]


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize("shell", SHELLS)
def test_tokens_are_hidden_wherever_they_stand(kind: str, shell: str) -> None:
    secret = TOKENS[kind]()
    clean, found = redact(shell.format(secret))
    assert secret not in clean
    assert secret[8:] not in clean
    assert "[REDACTED:" in clean
    assert found >= 1


@pytest.mark.parametrize(("before", "alphabet", "length", "after"), PLACES)
def test_what_stands_in_a_secret_place_is_hidden_and_its_surroundings_stay(
    before: str, alphabet: str, length: int, after: str
) -> None:
    secret = some(alphabet, length - 2) + "a7"
    clean, found = redact(f"x {before}{secret}{after}")
    assert secret not in clean
    assert found == 1
    assert clean.startswith("x " + before[:4])
    assert clean.endswith(after.lstrip("'\"=@"))


def test_private_keys_are_hidden_whole_and_cut() -> None:
    key = pem()
    assert redact(f"key is {key} end") == ("key is [REDACTED:private_key] end", 1)
    cut = key[:80]
    assert redact(cut)[0] == "[REDACTED:private_key]" + redact(cut)[0].removeprefix("[REDACTED:private_key]")
    assert key[40:70] not in redact(cut)[0]
    escaped = json.dumps({"private_key": key})
    assert key[40:70] not in redact(escaped)[0]


def test_people_are_hidden_and_git_users_are_not() -> None:
    assert redact("mail someone@example.com")[0] == "mail [REDACTED:email]"


@pytest.mark.parametrize("line", BENIGN)
def test_ordinary_lines_are_untouched(line: str) -> None:
    assert redact(line) == (line, 0)


@given(st.text(max_size=200))
def test_any_text_is_survived_and_a_second_pass_changes_nothing(text: str) -> None:
    clean, _ = redact(text)
    assert redact(clean) == (clean, 0)


@pytest.mark.parametrize("kind", TOKENS)
def test_a_second_pass_over_a_redacted_text_changes_nothing(kind: str) -> None:
    clean, _ = redact(f"Cookie: a={TOKENS[kind]()}; password={TOKENS[kind]()}")
    assert redact(clean) == (clean, 0)


def test_bytes_that_were_not_utf8_are_survived() -> None:
    assert redact("\udcff password=hunter2hunter2") == ("? password=[REDACTED:assignment]", 1)


PIECES = ["password", "token=", "a.b-", "x@", "-----BEGIN PRIVATE KEY-----", "eyJaaaaaaaaa.", "%70", '\\"', "&quot;"]
PIECES += ["a@b.cc ", "token=abcdef12 ", "a@b.cc token=abcdef12 ", "token=abc1\n", "a\nb", "\x1b[31m", "\x1b]"]


@pytest.mark.parametrize("piece", [*PIECES, "[REDACTED:x]", "https://u:", "cookie="])
@pytest.mark.timeout(60)
def test_a_long_hostile_line_costs_little(piece: str) -> None:
    redact(piece * (200_000 // len(piece)))


def test_a_secret_behind_a_long_hostile_mixture_is_found() -> None:
    mixture = "".join(RNG.choice([*PIECES, some(ALNUM, 9), some(LOWER_HEX, 7)]) for _ in range(5_000))
    clean, found = redact(mixture + "\n next password=hunter2hunter2")
    assert found
    assert clean.endswith("password=[REDACTED:assignment]")


def test_a_verdict_is_redacted_in_every_text_and_keeps_its_identifiers() -> None:
    secret = TOKENS["github"]()
    verdict = {
        "key": "run:token=abcdefgh",
        "failure": "f",
        "initiating_ranks": [0],
        "step": None,
        "nodes": {"0": secret},
        "evidence": [{"rank": 0, "offset": 3, "text": f"a {secret}", "means": "m"}],
        "against": (secret,),
    }
    clean, found = redact_verdict(verdict)
    assert found == 3
    assert secret not in json.dumps(clean)
    assert clean["key"] == "run:token=abcdefgh"
    assert clean["initiating_ranks"] == [0]
    assert redact_value(3.5) == (3.5, 0)


def test_what_stands_under_the_name_of_a_secret_is_hidden_whole() -> None:
    value = {"db_password": "tulips", "token": "abc def", "access_key": "None", "tokens": "12 a step", "key": "rank0"}
    shown = {**value, "db_password": "[REDACTED:assignment]", "token": "[REDACTED:assignment]"}
    assert redact_value({"config": [value]}) == ({"config": [shown]}, 2)
    assert redact_value(shown) == (shown, 0)


def test_a_text_is_cut_between_words_so_that_no_half_secret_is_left() -> None:
    token = TOKENS["github"]()
    line = b"x" * 400 + b" " + token.encode() + b" " + b"y" * 400
    for limit in range(380, 460):
        assert token[4:12] not in redact(beginning(line.decode(), limit))[0]
    for limit in range(820, 890, 2):
        assert token[4:12] not in redact(shorten(line, limit).decode())[0]
        assert token[-8:] not in redact(shorten(line, limit).decode())[0]


def test_the_texts_of_the_shipped_rules_pass_unchanged() -> None:
    for file in (Path(__file__).parents[2] / "rules").rglob("*.yaml"):
        for token in yaml.scan(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader):
            if isinstance(token, yaml.ScalarToken):
                assert redact(token.value)[1] == 0, f"{file}: {token.value}"
