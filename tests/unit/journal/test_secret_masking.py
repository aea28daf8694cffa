"""Secrets in what is written down: masked, and still seen to be alike or not."""

import itertools
import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distdoctor.catalogue import every_check, manuals
from distdoctor.journal.environment import FOLDER_VARIABLE, MASK_KEY_VARIABLE
from distdoctor.journal.secret_masking import (
    MASK_KEY,
    is_secret_name,
    mask_of,
    masked_arguments,
    masked_text,
    masked_tokens,
    masked_value,
    share_key,
)
from distdoctor.journal.trimming import trim_record

KEY = b"of this job"
NAMES = st.sampled_from(
    [
        *("api-key", "api_key", "apiKey", "token", "hf_token", "password", "secret"),
        *("wandb-api-key", "auth-token", "db_password", "client-secret", "access_key"),
        *("openai.api_key", "trainer.logger.token", "AWS_SECRET_ACCESS_KEY", "apikey"),
    ]
)
# As long as a secret has to be to be found in what surrounds it by chance.
SECRETS = st.text(string.ascii_letters + string.digits + "._~+/", min_size=8).filter(
    lambda text: not text.isdigit() and not set(text) <= set("._~+/-")
)
PLAIN = st.text(string.ascii_lowercase, min_size=1, max_size=8).filter(
    lambda word: not is_secret_name(word)
)
ENTROPIC = st.text(string.ascii_letters + string.digits, min_size=36, max_size=36)
KNOWN = st.sampled_from(["hf_", "ghp_", "sk-", "glpat-", "xoxb-"])


@given(st.lists(PLAIN), NAMES, SECRETS, st.sampled_from(["--", "-", ""]), st.booleans())
def test_no_secret_stays_in_a_command(
    others: list[str], name: str, secret: str, dashes: str, apart: bool
) -> None:
    given_so = [f"--{name}", secret] if apart else [f"{dashes}{name}={secret}"]
    words = [*others, *given_so, *others]
    masked = masked_arguments(words, KEY)
    assert len(masked) == len(words)
    assert masked[: len(others)] == others
    assert masked[len(others) + len(given_so) :] == others
    assert not any(secret in word for word in masked[len(others) :][: len(given_so)])
    assert masked_arguments(masked, b"") == masked


@given(NAMES, SECRETS, st.sampled_from(["{}={}", "{}: {}", "--{} {}", "'{}': '{}'"]))
def test_no_secret_stays_in_a_text(name: str, secret: str, form: str) -> None:
    text = f"started with {form.format(name, secret)}, and failed"
    masked = masked_text(text, KEY)
    assert secret not in masked
    assert masked.startswith("started with ")
    assert masked_text(masked) == masked


@given(PLAIN, SECRETS.filter(lambda text: "/" not in text), PLAIN)
def test_no_password_stays_in_an_address(user: str, secret: str, host: str) -> None:
    masked = masked_text(f"cannot read https://{user}:{secret}@{host}/a?b=c", KEY)
    mask = mask_of(secret, KEY)
    assert masked == f"cannot read https://{user}:{mask}@{host}/a?b=c"
    assert masked_text(masked) == masked


@given(KNOWN, ENTROPIC, st.sampled_from(["{}", "x = '{}'", "--data {}", "git+{}@h"]))
def test_tokens_are_known_by_their_beginning(
    begin: str, secret: str, form: str
) -> None:
    text = form.format(begin + secret)
    for masked in (masked_text(text, KEY), masked_tokens(text, KEY)):
        assert secret not in masked
        assert masked_tokens(masked) == masked


@given(NAMES, SECRETS, SECRETS)
def test_alike_or_not_is_still_seen(name: str, one: str, other: str) -> None:
    first = masked_arguments([f"--{name}", one], KEY)
    assert first == masked_arguments([f"--{name}", one], KEY)
    assert (first == masked_arguments([f"--{name}", other], KEY)) is (one == other)
    assert first != masked_arguments([f"--{name}", one], b"of another job")


@given(st.text())
def test_what_is_masked_stays_as_it_is(text: str) -> None:
    masked = masked_text(text, KEY)
    assert masked_text(masked, b"another") == masked
    assert masked_tokens(text, KEY).count("\n") == text.count("\n")


@given(st.lists(st.text()))
def test_a_command_keeps_its_words(words: list[str]) -> None:
    assert len(masked_arguments(words, KEY)) == len(words)


@pytest.mark.parametrize(
    "words",
    [
        ["python", "train.py", "--lr", "0.1", "--tokenizer", "gpt2", "--tokens=512"],
        ["--pad-token", "<pad>", "--eos_token=</s>", "--num-tokens", "9", "--key", "a"],
        ["--use-auth-token", "True", "--token=", "--auth=none", "--monkey", "x"],
        ["--token-path", "/a/b", "--password-file=f", "--placeholder_token", "<toy>"],
        ["--key-dim", "64", "--num_key_value_heads=8", "--author", "me", "PWD=/a"],
        ["s3://bucket/a@b", "ssh://git@host/x", "https://host/a?page=2", "a:b@c"],
        ["--token", "--verbose"],
    ],
)
def test_what_is_no_secret_stays(words: list[str]) -> None:
    assert masked_arguments(words, KEY) == words


@pytest.mark.parametrize(
    "text",
    [
        *("loss per token: 3.5123", "tokens/s: 91234", "pad_token='<pad>'", "a: b"),
        *("KeyError: 'model.weight'", "unexpected token: )", "basic training started"),
        *("key: value", "torch.manual_seed(1)", "max_tokens=2048", "secret=None"),
    ],
)
def test_words_that_tell_no_secret_stay(text: str) -> None:
    assert masked_text(text, KEY) == text


def test_the_words_of_checks_stay_as_they_are() -> None:
    every_check()
    for manual in manuals().values():
        for text in (manual.summary, *manual.sections.values()):
            assert masked_text(text, KEY) == text


@pytest.mark.parametrize("name", ["dbPass", "SMTP_PASS", "user-pwd", "ACCESS_KEY_ID"])
def test_short_names_of_passwords_are_known(name: str) -> None:
    assert masked_text(f"{name}=abc", b"") == f"{name}=<masked>"


def test_a_header_of_http_loses_its_secret_alone() -> None:
    for scheme in ("Bearer", "Basic", "token"):
        masked = masked_text(f"Authorization: {scheme} dXNlcjpwYXNz, retry", KEY)
        assert re.fullmatch(rf"Authorization: {scheme} <masked:\w+>, retry", masked)


def test_a_private_key_keeps_its_lines() -> None:
    text = "a\n-----BEGIN PRIVATE KEY-----\nMIIE\nxyz\n-----END PRIVATE KEY-----\nb"
    masked = masked_tokens(text, KEY)
    assert "MIIE" not in masked
    assert masked.count("\n") == text.count("\n")
    assert masked_tokens(masked) == masked


def test_the_key_is_that_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MASK_KEY_VARIABLE, "abc")
    assert mask_of("secret") == mask_of("secret", b"abc")
    monkeypatch.delenv(MASK_KEY_VARIABLE)
    assert mask_of("secret") == "<masked>"


def test_the_key_is_found_in_the_record_where_the_environment_was_not_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_key(tmp_path)
    monkeypatch.delenv(MASK_KEY_VARIABLE, raising=False)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert mask_of("secret") == mask_of("secret", MASK_KEY.encode())
    trim_record(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_value_goes_by_its_name_or_its_form() -> None:
    assert masked_value("api_key", "'abc'", KEY) == mask_of("'abc'", KEY)
    assert masked_value("lr", "0.1", KEY) == "0.1"
    assert masked_value("api_key", "None", KEY) == "None"
    assert masked_value("url", "'http://a:b@c'", KEY).startswith("'http://a:<masked:")


def test_a_long_text_takes_no_long_time() -> None:
    pieces = ("a" * 50_000, "--token " * 5000, "token=" * 5000, "://" * 20_000)
    for piece in itertools.chain(pieces, ("a.-" * 20_000, "'\"" * 20_000, "= " * 9999)):
        masked_text(f"key {piece}", KEY)
