"""Masks secrets in what is written down: keys, tokens and passwords.

They are known by the name that they are given by (`--api-key X`, `WANDB_API_KEY=X`), by
their place (`https://user:X@host`, `Bearer X`), or by how they begin (`hf_…`). A mask
may tell whether two secrets are alike, and nothing else of them: it holds a hash under
a key that the ranks of a job share, and that is forgotten when the job is over.

Only the standard library is used, for this runs inside the job as well.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from distdoctor.journal.environment import FOLDER_VARIABLE, MASK_KEY_VARIABLE
from distdoctor.journal.layout import MASK_KEY_FILE
from distdoctor.journal.private_files import open_private, replace_private

MASK_KEY = os.urandom(16).hex()
"""The key of jobs that this process starts."""

_MASK = re.compile(r"<masked(?::[0-9a-f]{8})?>")

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_LAST_WORDS = frozenset(
    {
        *("token", "password", "passwd", "passphrase", "passcode", "secret", "secrets"),
        *("credential", "credentials", "apikey", "authkey", "auth", "authorization"),
        "bearer",
    }
)
"""Last words of names that secrets go by."""

_OF_KEYS = frozenset(
    {
        *(
            "api",
            "access",
            "secret",
            "private",
            "auth",
            "account",
            "license",
            "licence",
        ),
        *("encryption", "signing", "ssh", "aws", "storage", "subscription", "client"),
        *("wandb", "comet", "neptune", "openai", "anthropic", "hf", "huggingface"),
    }
)
"""Words before "key" in such names; other keys are names of entries."""

_OF_PASS = frozenset({"db", "user", "smtp", "proxy", "admin", "root", "ftp", "ssh"})

_OF_TEXTS = frozenset(
    {
        *("pad", "eos", "bos", "mask", "unk", "sep", "cls", "stop", "start", "end"),
        *("special", "per", "class", "num", "n", "max", "min", "new", "begin", "first"),
        *("last", "next", "prev", "previous", "separator", "system", "assistant"),
        *("image", "img", "video", "audio", "vision", "speech", "patch", "text"),
        *("query", "trigger", "placeholder", "instance", "initializer", "prompt"),
        *("register", "sink", "distillation", "memory", "fill", "blank", "bot", "eot"),
        *("eod", "eom", "sot", "suffix", "prefix", "middle", "fim", "target", "source"),
        *("label", "word", "byte", "char", "total", "input", "output", "decoder"),
        "forced",
    }
)
"""Words before "token" that make it a piece of text, which is no secret."""

_NO_SECRETS = frozenset({"", "0", "1", "true", "false", "none", "null", "yes", "no"})

_KNOWN = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}|\bsk-[\w-]{20,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bxox[abeprs]-[\w-]{10,}|\bAIza[\w-]{30,}|\beyJ[\w-]{8,}\.eyJ[\w-]+\.[\w-]*"
    r"|\bdckr_pat_[\w-]{20,}|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[\w-]{40,}"
)
"""Tokens that tell by their beginning what they are."""

_PRIVATE_KEY = re.compile(
    r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)(.*?)(?=-----END|\Z)", re.DOTALL
)

_IN_ADDRESS = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)([^\s/@:'\"]*:)?([^\s/'\"]+)@"
)
_LONG = 20  # characters of a user's name that can only be a token

_BEARER = re.compile(r"\b((?i:bearer)[ \t]+)(?=[\w.+/=~-]*\d)([\w.+/=~-]{8,})")

_SCHEMES = frozenset({"bearer", "basic", "digest", "token"})
"""What stands before the secret in a header of HTTP."""

_NAMED = re.compile(
    r"(?<![\w.-])(-{0,2}[A-Za-z_][\w.-]{0,63})"
    r"(?P<between>[\"']?[ \t]{0,3}(?:=|:(?!//))[ \t]{0,3}|(?<=[\w])[ \t]{1,3}(?=\S))"
)
_VALUE = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'|([^\s'\",;&)}\]]+)")
_UNQUOTED = 3  # group of it
_NUMBER = re.compile(r"[-+]?[\d.,]+(?:e[-+]?\d+)?")
_SHORTEST_TOLD = 6  # characters of what a text tells behind a colon

_SIGNS = (
    *("token", "pass", "pwd", "secret", "credential", "key", "auth", "bearer", "://"),
    *("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat", "glpat", "sk-"),
    *("akia", "asia", "xox", "aiza", "eyj", "dckr", "npm_", "pypi-"),
)
"""In a text, in small letters, that may hold a secret; most hold none of these."""


def mask_of(secret: str, key: bytes | None = None) -> str:
    """What stands for a secret; the same for the same secret, under one key.

    Args:
        secret: The secret.
        key: The job's; by default that of the environment. Without one, all secrets
            look alike.
    """
    if _MASK.fullmatch(secret):
        return secret
    key = _key_here() if key is None else key
    if not key:
        return "<masked>"
    import hashlib  # here, because most processes never see a secret

    data = secret.encode(errors="surrogatepass")
    return f"<masked:{hashlib.blake2b(data, digest_size=4, key=key).hexdigest()}>"


def share_key(folder: Path) -> None:
    """Tell the key of this process to all who write a record.

    Not every launcher hands on each variable to ranks on other machines.

    Args:
        folder: The record folder.

    Raises:
        OSError: It cannot be written.
    """
    replace_private(folder / MASK_KEY_FILE, MASK_KEY.encode())


def _key_here() -> bytes:
    given = os.environ.get(MASK_KEY_VARIABLE, "").encode()
    return (given or _key_in(os.environ.get(FOLDER_VARIABLE, "")))[:64]


@functools.cache
def _key_in(folder: str) -> bytes:
    with suppress(OSError):
        if folder:
            number = open_private(Path(folder, MASK_KEY_FILE), os.O_RDONLY)
            try:
                return os.read(number, 64)
            finally:
                os.close(number)
    return b""


def is_secret_name(name: str) -> bool:
    """Whether what goes by a name is a secret.

    >>> [is_secret_name(name) for name in ("--api-key", "hfToken", "pad_token")]
    [True, True, False]

    Args:
        name: Of an option, a variable or a field.
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if not words:
        return False
    *before, last = words
    word_before = before[-1] if before else ""
    if words[-3:] == ["access", "key", "id"]:
        return True
    if last == "key":
        return word_before in _OF_KEYS
    if last in {"pass", "pwd"}:  # PWD is a folder
        return word_before in _OF_PASS
    if last == "token":
        return word_before not in _OF_TEXTS
    return last in _LAST_WORDS


def masked_value(name: str, value: str, key: bytes | None = None) -> str:
    """A value, masked if its name or its form says that it is a secret.

    Args:
        name: What it goes by.
        value: The value, as text.
        key: As for `mask_of`.
    """
    if is_secret_name(name) and not _is_no_secret(value):
        return mask_of(value, key)
    return masked_text(value, key)


def masked_arguments(words: Sequence[str], key: bytes | None = None) -> list[str]:
    """The words of a command, with the secrets among them masked.

    Args:
        words: Program, options and values.
        key: As for `mask_of`.

    Returns:
        As many words.
    """
    masked = []
    follows = False  # the last word was an option that takes a secret
    for word in words:
        if follows and not word.startswith("--"):
            masked.append(word if _is_no_secret(word) else mask_of(word, key))
            follows = False
            continue
        name, is_given, value = word.partition("=")
        follows = not is_given and name.startswith("-") and is_secret_name(name)
        if is_given and is_secret_name(name) and " " not in name:
            value = value if _is_no_secret(value) else mask_of(value, key)
            masked.append(f"{name}={value}")
        else:
            masked.append(masked_text(word, key))
    return masked


def masked_text(text: str, key: bytes | None = None) -> str:
    """A text, with the secrets masked that it can be seen to hold.

    Args:
        text: Any text, such as a line that was printed.
        key: As for `mask_of`.
    """
    if not _may_hold_one(text):
        return text
    text = masked_tokens(text, key)
    text = _BEARER.sub(lambda found: found[1] + mask_of(found[2], key), text)
    return "".join(_without_named(text, key))


def masked_tokens(text: str, key: bytes | None = None) -> str:
    """A text, with what is a secret by its own form masked: tokens, keys, addresses.

    Args:
        text: Any text, such as a source file; it keeps its lines.
        key: As for `mask_of`.
    """
    if not _may_hold_one(text):
        return text
    text = _PRIVATE_KEY.sub(lambda found: _private_key(found, key), text)
    text = _IN_ADDRESS.sub(lambda found: _address(found, key), text)
    return _KNOWN.sub(lambda found: mask_of(found[0], key), text)


def _may_hold_one(text: str) -> bool:
    small = text.lower()
    return any(sign in small for sign in _SIGNS)


def _private_key(found: re.Match[str], key: bytes | None) -> str:
    return found[1] + mask_of(found[2].strip(), key) + "\n" * found[2].count("\n")


def _address(found: re.Match[str], key: bytes | None) -> str:
    scheme, user, rest = found[1], found[2], found[3]
    if user is None and len(rest) < _LONG:  # a user's name without a password
        return found[0]
    if _MASK.fullmatch((user or "") + rest):
        return found[0]
    return f"{scheme}{user or ''}{mask_of(rest, key)}@"


def _without_named(text: str, key: bytes | None) -> Iterator[str]:
    """The pieces of a text, those masked that follow the name of a secret."""
    at = begin = 0
    while (named := _NAMED.search(text, at)) is not None:
        at = named.end()
        name, between = named[1], named["between"]
        is_option = name.startswith("--")
        if not is_secret_name(name) or (not between.strip() and not is_option):
            continue
        value = _VALUE.match(text, at)
        if value is not None and value[0].lower() in _SCHEMES:
            value = _VALUE.match(text, value.end() + 1)
        if value is None:
            continue
        group = value.lastindex or 0
        secret = value[group]
        # "12 ms per token: 3.5" and "the token: )" tell none.
        in_words = group == _UNQUOTED and ":" in between and not is_option
        if in_words and (len(secret) < _SHORTEST_TOLD or _NUMBER.fullmatch(secret)):
            continue
        if _is_no_secret(secret) or _MASK.match(secret):
            continue
        yield text[begin : value.start(group)]
        yield mask_of(secret, key)
        begin = at = value.end(group)
    yield text[begin:]


def _is_no_secret(value: str) -> bool:
    """Whether a value only says yes, no or nothing, as Python writes it or without."""
    return value.strip("'\"").lower() in _NO_SECRETS
