"""Record folders that nobody wrote: those of real runs, changed by chance.

A case is a folder as a dict, as in `hostile_inputs`; in the place of a file's content
there may be a `Special`, which `place` makes something of that is no plain file. The
changes know what lies in a record folder: a field of a journal's header or of one of
its records, one of its strings, a value in a note, a value in a file of JSON.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import struct
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import hostile_inputs
from hostile_inputs import NUMBERS, TEXTS, Case

from distdoctor.journal.folder import MANIFEST
from distdoctor.journal.format import (
    HEADER,
    HEADER_BYTES,
    HEADER_FIELDS,
    RECORD,
    RECORD_BYTES,
    RECORD_FIELDS,
    RecordKind,
)

RECORDS = Path(__file__).parent.parent / "tests" / "records"

_KIND, _CALL, _GROUP, _SITE, _SPEC = (
    [name for name, _ in RECORD_FIELDS].index(name)
    for name in ("kind", "call", "group", "site", "spec")
)
_SIZE, _BEGIN = (
    [name for name, _ in RECORD_FIELDS].index(name) for name in ("ordinal", "signature")
)
_HEADER_NAMES = [name for name, _ in HEADER_FIELDS]
_WIDTH = {"Q": 64, "I": 32, "i": 32, "B": 8}


class Special(bytes):
    """Instead of a file's content: what stands there that is no plain file."""


SPECIALS = tuple(
    Special(kind)
    for kind in (
        *(b"fifo", b"socket", b"folder", b"device", b"sparse", b"secret"),
        *(b"link /dev/zero", b"link /dev/stdin", b"link .", b"link nowhere"),
        *(b"link run.json", b"link rank-0.0.journal", b"link ../outside"),
    )
)


def place(path: Path, content: bytes) -> None:
    """Make a file, or what a `Special` stands for.

    Raises:
        OSError: The name is none of a file, or this user may not make such a thing.
        ValueError: Likewise.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, Special):
        path.write_bytes(content)
        return
    kind, _, rest = content.decode().partition(" ")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))  # zeros without end
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == "secret":
        path.write_bytes(b"x")
        path.chmod(0)
    else:
        path.symlink_to(rest)


def remove(path: Path) -> None:
    """Remove what `place` made."""
    with suppress(OSError, ValueError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


# --- journals, taken apart ---


@dataclass
class Box:
    """A journal, taken apart.

    Attributes:
        header: Its fields, in the order of the format.
        strings: In the order of their numbers, from 1.
        records: In their order, each with its fields.
    """

    header: list[int]
    strings: list[bytes]
    records: list[list[int]]

    @classmethod
    def of(cls, data: bytes) -> Box:
        """Take a journal apart.

        Raises:
            ValueError: It is none.
        """
        try:
            header = dict(
                zip(_HEADER_NAMES, HEADER.unpack_from(data), strict=True),
            )
            strings, at = [], HEADER_BYTES
            while at < HEADER_BYTES + header["strings_tail"]:
                (size,) = struct.unpack_from("<H", data, at)
                strings.append(data[at + 2 : at + 2 + size])
                at += 2 + size
            ring = HEADER_BYTES + header["strings_bytes"]
            count = min(header["head"], header["capacity"], len(data) // RECORD_BYTES)
            records = [
                list(RECORD.unpack_from(data, ring + n * RECORD_BYTES))
                for n in range(count)
            ]
        except (struct.error, OverflowError) as error:
            raise ValueError(str(error)) from error
        return cls([*header.values()], strings, records)

    def whole(self) -> bytes:
        """As small as it can be."""
        text = b"".join(struct.pack("<H", len(s)) + s for s in self.strings)
        self.set("strings_tail", len(text))
        self.set("strings_bytes", len(text))
        self.set("head", len(self.records))
        self.set("capacity", max(1, len(self.records)))
        for number, record in enumerate(self.records):
            record[0] = number + 1
        ring = b"".join(RECORD.pack(*record) for record in self.records)
        head = HEADER.pack(*self.header).ljust(HEADER_BYTES, b"\0")
        return head + text + (ring or bytes(RECORD_BYTES))

    def set(self, field: str, value: int) -> None:
        """Set a field of the header."""
        self.header[_HEADER_NAMES.index(field)] = value

    def notes(self) -> list[list[int]]:
        """The records of notes."""
        return [one for one in self.records if one[_KIND] == RecordKind.NOTE]


def _shortened(case: Case, alike: int, parts: int = 1, part: int = 0) -> Case:
    """A case whose journals have no more records than so many of each sort.

    Of several parts, each has two ranks at most, and the notes of some kinds.
    """
    made = dict(case)
    if parts > 1:
        for name in [name for name in made if name > "rank-2" and name < "rank-:"]:
            del made[name]
    case = dict(made)
    for name, data in case.items():
        if not name.endswith(".journal"):
            continue
        box, notes = Box.of(data), case.get(name.replace(".journal", ".notes"), b"")
        seen: Counter[object] = Counter()
        kept: list[list[int]] = []
        text = b""
        for record in box.records:
            sort: object = tuple(record[n] for n in (_KIND, _GROUP, _SITE, _SPEC))
            if record[_KIND] == RecordKind.NOTE:
                note = notes[record[_BEGIN] : record[_BEGIN] + record[_SIZE]]
                sort = kind = note.split(b",", 1)[0]
                if sum(kind) % parts != part:
                    continue
            seen[sort] += 1
            if seen[sort] > alike:
                continue
            if record[_KIND] == RecordKind.NOTE:
                record[_BEGIN], record[_SIZE] = len(text), len(note)
                text += note
            kept.append(record)
        box.records = kept
        made[name] = box.whole()
        if text:
            made[name.replace(".journal", ".notes")] = text
    return made


def seeds(alike: int = 1 << 30, parts: int = 1) -> list[Case]:
    """Records of real runs, without the room that their journals did not use.

    Args:
        alike: How many records of one sort each journal keeps.
        parts: How many cases each becomes, each with some of the notes.
    """
    found = []
    for archive in sorted(RECORDS.glob("*.tar.xz")):
        with tarfile.open(archive) as files:
            found += list(_cases(files))
    return [
        _listed(_shortened(case, alike, parts, part))
        for case in found
        for part in range(parts)
    ]


def _listed(case: Case) -> Case:
    """A case whose manifest lists its files, as this release does; see `seal`."""
    sizes = {
        name: 0 if name.endswith(".journal") else len(content)
        for name, content in case.items()
        if name != MANIFEST
    }
    manifest = json.loads(case[MANIFEST]) | {"files": sizes}
    return {**case, MANIFEST: json.dumps(manifest).encode()}


def _cases(files: tarfile.TarFile) -> Iterator[Case]:
    by_record: dict[str, Case] = {}
    for member in files.getmembers():
        parts = Path(member.name).parts
        if member.isfile() and len(parts) == 2 and not parts[1].startswith("."):
            file = files.extractfile(member)
            assert file is not None
            by_record.setdefault(parts[0], {})[parts[1]] = file.read()
    yield from by_record.values()


def compacted(folder: Path) -> Case:
    """A record folder as a case, without the room that its journals did not use."""
    case = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return _shortened(case, 1 << 30)


# --- changes ---

_HOSTILE = (
    *(0, 1, 2, 3, 5, 8, 63, 64, 127, 128, 255, 256, 1000, 4096, 65_535, 99_999),
    *(131_071, 131_072, 10**6, 10**9, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**53),
    *(2**62, 2**63 - 1, 2**63, 2**64 - 1),
)


def _number(code: str, rng: random.Random) -> int:
    """A number that fits into a field of a binary format."""
    bits = _WIDTH[code]
    value = rng.choice(_HOSTILE) if rng.random() < 0.8 else rng.getrandbits(bits)
    value &= (1 << bits) - 1
    if rng.random() < 0.2:
        value = (1 << bits) - value & (1 << bits) - 1
    return value - (1 << bits) if code == "i" and value >> bits - 1 else value


def _in_header(box: Box, rng: random.Random) -> None:
    at = rng.randrange(2, len(HEADER_FIELDS))
    box.header[at] = _number(HEADER_FIELDS[at][1], rng)


def _in_records(box: Box, rng: random.Random) -> None:
    if not box.records:
        return
    at = rng.randrange(1, len(RECORD_FIELDS))
    value = _number(RECORD_FIELDS[at][1], rng)
    start = rng.randrange(len(box.records))
    for record in box.records[start : start + rng.choice((1, 1, 1, 5, 1000))]:
        record[at] = value


def _of_records(box: Box, rng: random.Random) -> None:
    """Records fall out, come twice, change places."""
    if not box.records:
        return
    at, to = rng.randrange(len(box.records)), rng.randrange(len(box.records))
    how = rng.randrange(4)
    if how == 0:
        del box.records[at : at + rng.choice((1, 1, 5, 50))]
    elif how == 1:
        again = [list(one) for one in box.records[at : at + rng.choice((1, 5))]]
        box.records[at:at] = again * rng.choice((1, 2))
    elif how == 2:
        box.records[at], box.records[to] = box.records[to], box.records[at]
    else:
        field = rng.randrange(1, len(RECORD_FIELDS))
        box.records[at][field] = box.records[to][field]


_MEMBERS = (
    *("0-131071", "0-9999999999", "-1", "1,1,1,1", "1-0", "0-1,0-1", "5", "999999"),
    *("0,2-9", "x", "0--1", "٣", "9" * 5000, ",".join(["0-99999"] * 40), "1e3", " 1"),
)


def _in_strings(box: Box, rng: random.Random) -> None:
    if not box.strings:
        return
    at = rng.randrange(len(box.strings))
    text = box.strings[at]
    how = rng.randrange(6)
    if text[:1] in (b"{", b"[") and how < 4:
        with suppress(ValueError, RecursionError):
            text = _changed_json(text, rng)
    elif text.count(b"\n") == 3 and how < 3:  # a group
        parts = text.split(b"\n")
        parts[3] = rng.choice(_MEMBERS).encode()
        text = b"\n".join(parts)
    elif how == 4:
        text = rng.choice(box.strings)
    else:
        with suppress(ValueError, IndexError):
            ways = (hostile_inputs.as_tokens, hostile_inputs.as_numbers)
            text = rng.choice((*ways, hostile_inputs.as_bytes))(text, text, rng)
    box.strings[at] = text[:65_535]


def _changed_json(data: bytes, rng: random.Random) -> bytes:
    return hostile_inputs.as_values(data, data, rng)


def _journal(made: Case, _: Case, rng: random.Random) -> None:
    names = [name for name in made if name.endswith(".journal")]
    if not names:
        return
    name = rng.choice(names)
    box = Box.of(made[name])
    ways: tuple[Callable[[Box, random.Random], None], ...]
    ways = (_in_records, _in_records, _in_strings, _in_strings, _of_records)
    for _n in range(rng.choice((1, 1, 1, 2, 6))):
        rng.choice(ways)(box, rng)
    data = box.whole()
    if rng.random() < 0.25:
        for _n in range(rng.choice((1, 1, 2))):
            _in_header(box, rng)
        data = HEADER.pack(*box.header) + data[HEADER.size :]
    made[name] = data


def _header(made: Case, _: Case, rng: random.Random) -> None:
    """One field of the headers of all journals."""
    at = rng.randrange(2, len(HEADER_FIELDS))
    value = _number(HEADER_FIELDS[at][1], rng)
    for name in [name for name in made if name.endswith(".journal")]:
        box = Box.of(made[name])
        data = box.whole()
        box.header[at] = value
        made[name] = HEADER.pack(*box.header) + data[HEADER.size :]


def _note(made: Case, _: Case, rng: random.Random) -> None:
    """A value in a note; its record is made to fit, so that it is read."""
    names = [name for name in made if name.endswith(".journal")]
    rng.shuffle(names)
    for name in names[: rng.choice((1, 1, 2, 9))]:
        notes_name = name.replace(".journal", ".notes")
        box, text = Box.of(made[name]), made.get(notes_name, b"")
        records = box.notes()
        if not records or isinstance(text, Special):
            continue
        for _n in range(rng.choice((1, 1, 3, 10))):
            record = rng.choice(records)
            note = text[record[_BEGIN] : record[_BEGIN] + record[_SIZE]]
            with suppress(ValueError, RecursionError, OverflowError, TypeError):
                note = _changed_json(note, rng)
                record[_BEGIN], record[_SIZE] = len(text), len(note)
                text += note
        if len(text) < hostile_inputs.LARGEST:
            made[name], made[notes_name] = box.whole(), text


def _json(made: Case, _: Case, rng: random.Random) -> None:
    """A value in a file of JSON, or in one line of a file of such lines."""
    names = [name for name in made if name.endswith((".json", ".jsonl"))]
    if not names:
        return
    name = rng.choice(names)
    lines = made[name].split(b"\n") if name.endswith("l") else [made[name]]
    at = rng.randrange(len(lines))
    for _n in range(rng.choice((1, 1, 2))):
        lines[at] = _changed_json(lines[at], rng)
    made[name] = b"\n".join(lines)


def _any_bytes(made: Case, other: Case, rng: random.Random) -> None:
    name = rng.choice(list(made))
    theirs = other.get(name) or rng.choice(list(other.values()))
    ways = (hostile_inputs.as_bytes, hostile_inputs.as_bytes, hostile_inputs.as_cut)
    more = (hostile_inputs.as_splice, hostile_inputs.as_tokens)
    made[name] = rng.choice((*ways, *more))(made[name], theirs, rng)


def _file_kind(made: Case, _: Case, rng: random.Random) -> None:
    made[rng.choice(list(made))] = rng.choice(SPECIALS)


_NAMES = (
    *("rank-131071.0.journal", "rank-99999999999.0.journal", "rank-2.0.journal"),
    *("rank-0.1.journal", "rank-1.1.journal", "rank-.0.journal", "rank-x.y.journal"),
    *(
        "x.journal",
        ".journal",
        "rank--1.0.journal",
        "unranked.0.journal",
        "a.0.journal",
    ),
    *(
        "rank-\x1b[31m.0.journal",
        "unranked.1.journal",
        "comparison.json",
        "stacks.json",
    ),
    *("losses.jsonl", "substitutes.jsonl", "streams.jsonl", "children.jsonl"),
    *("shells.jsonl", "exits.jsonl", "sources.json", "nccl-logs.jsonl", "run.json"),
    *("nccl/a.1.log", "rank-2.0.notes", "rank-0.1.notes"),
)


def _names(made: Case, other: Case, rng: random.Random) -> None:
    """A file is missing, comes under two names, or is another record's."""
    how, name = rng.randrange(4), rng.choice(list(made))
    if how == 0 and len(made) > 1:
        del made[name]
    elif how == 1:
        made[rng.choice(_NAMES)] = made[name]
    elif how == 2:
        made[name] = made[rng.choice(list(made))]
    else:
        theirs = rng.choice(list(other))
        made[theirs] = other[theirs]


_LINES: Mapping[str, object] = {
    "losses.jsonl": {"rank": 0, "why": "entering: KeyError()"},
    "substitutes.jsonl": {"kind": "amp"},
    "shells.jsonl": {"pid": 1, "shell": 2},
    "exits.jsonl": {"pid": 1, "status": -9, "by": 2, "site": "/t.py\n3\nf"},
    "nccl-logs.jsonl": {"path": "/dev/zero"},
    "streams.jsonl": {
        "pid": 7,
        "by": 1,
        "site": "/t.py\n3\nf",
        "drawn": {"loader": 1, "epoch": 1},
    },
    "children.jsonl": {"by": 1, "op": "all_reduce", "site": "/t.py\n3\nf", "worker": 1},
}
_DIFFERENCE = {
    "rank": 0,
    "step": 1,
    "what": "x",
    "name": "y",
    "file": "t.py",
    "line": 3,
}
_FRAME = {"file": "/t.py", "line": 3, "function": "f", "integers": {"n": 1}}
_SAMPLE = {
    "rank": 0,
    "pid": 1,
    "seconds": 1.0,
    "cpu_seconds": 0.1,
    "holds_gil": True,
    "frames": [_FRAME],
    "standing": [[_FRAME]],
}
_DOCUMENTS: Mapping[str, object] = {
    "comparison.json": {"how": "twice", "steps": 3, "differences": [_DIFFERENCE]},
    "stacks.json": [_SAMPLE] * 12,
}


def _written(made: Case, _: Case, rng: random.Random) -> None:
    """A file that this record does not have, with a value changed in it."""
    if rng.random() < 0.5:
        name = rng.choice(list(_LINES))
        line = json.dumps(_LINES[name]).encode()
        lines = [_changed_json(line, rng) if n else line for n in range(3)]
        made[name] = b"\n".join(lines)
    else:
        name = rng.choice(list(_DOCUMENTS))
        whole = json.dumps(_DOCUMENTS[name]).encode()
        made[name] = _changed_json(whole, rng)


Way = Callable[[Case, Case, random.Random], None]

WAYS: dict[str, tuple[Way, int]] = {
    "a field or a text of a journal": (_journal, 30),
    "a field of all headers": (_header, 4),
    "a value in a note": (_note, 30),
    "a value in JSON": (_json, 12),
    "bytes": (_any_bytes, 10),
    "a kind of file": (_file_kind, 4),
    "names of files": (_names, 5),
    "a file that was not there": (_written, 5),
}
"""What changes a case, and how often of a hundred times."""


def changed(case: Case, other: Case, rng: random.Random) -> Case:
    """A hostile record.

    Args:
        case: A seed, or what was made of one.
        other: Another one, from which parts may come.
        rng: Decides.
    """
    made = dict(case)
    ways, often = zip(*WAYS.values(), strict=True)
    for way in rng.choices(ways, often, k=rng.choice((1, 1, 1, 2, 3))):
        try:
            way(made, other, rng)
        except (ValueError, TypeError, RecursionError, OverflowError, IndexError):
            continue  # it does not fit such content any more
    return made


__all__ = ["NUMBERS", "TEXTS", "WAYS", "Special", "changed", "place", "seeds"]
