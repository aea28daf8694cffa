"""Which of very many calls matter: the question that DuckDB answers out of core.

Calls that all members of a group made alike, and that are complete on all of them,
explain nothing that hangs later. So of each group the calls are kept from shortly
before the first at which that does not hold, and of messages from as far on both sides.
What was called for the first time is kept as well, for it may be asked whether a rank
had ever made such a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distdoctor.postmortem.columns.column_tables import (
    CLOSING,
    COMPARED,
    NOT_UNDERSTOOD,
    TABLES,
    files_sql,
)

BEFORE = 12
"""Calls that are kept before the first that matters.

Our choice: enough to see that a ring is in order, and how many messages a rank has
between two collectives.
"""

MOST_WHOLE = 2_000_000
"""Calls of a folder that is not reduced at all."""

MOST_KEPT = 12_000_000
"""Calls that are looked at together: they take some gigabytes."""


class TooManyCalls(ValueError):
    """What matters is more than one machine can look at."""


@dataclass(frozen=True, slots=True)
class KeptCalls:
    """What was kept of the calls, in the table `kept` of the connection.

    Attributes:
        calls: How many.
        is_part: Whether others were left out.
        without_lines: Groups of which lines were not compared.
    """

    calls: int
    is_part: bool
    without_lines: tuple[str, ...] = ()


def keep(connection: Any, tables: dict[str, list[str]], most_whole: int) -> KeptCalls:
    """Choose the calls that matter.

    Args:
        connection: Of DuckDB.
        tables: By table, its Parquet files.
        most_whole: Calls that are kept without a choice.

    Returns:
        What was kept: rows of the table `kept`, ordered by file and record.

    Raises:
        TooManyCalls: It is too much even so.
    """
    once = ""
    for name in ("files", *(name for name in tables if name != "files")):
        columns = ", ".join(f'"{column}"' for column in TABLES[name])
        parquet = f"read_parquet({files_sql(tables[name])})"
        if name == "files":
            # A dump that was written again with others stands in two parts.
            ((doubled,),) = connection.execute(
                f"SELECT count(*) > count(DISTINCT file) FROM {parquet}"  # noqa: S608
            ).fetchall()
            once = "DISTINCT " if doubled else ""
        connection.execute(
            f"CREATE VIEW {name} AS SELECT {once}{columns} "  # noqa: S608 - our names
            f"FROM {parquet}"
        )
    ((total,),) = connection.execute("SELECT sum(calls) FROM files").fetchall()
    total = int(total or 0)
    if total <= most_whole:
        connection.execute(
            "CREATE TABLE kept AS SELECT * FROM calls ORDER BY file, record"
        )
        return KeptCalls(total, is_part=False)
    _run(connection, _CHANNELS, _STARTS)
    ((expected,),) = connection.execute(_EXPECTED).fetchall()
    without: tuple[str, ...] = ()
    if expected > MOST_KEPT:
        # Lines that differ on purpose would keep all calls.
        _run(connection, _WITHOUT_LINES)
        without = tuple(
            name
            for (name,) in connection.execute(
                "SELECT DISTINCT group_name FROM lineless ORDER BY 1"
            ).fetchall()
        )
        ((expected,),) = connection.execute(_EXPECTED).fetchall()
        if expected > MOST_KEPT:
            raise TooManyCalls(_where(connection, expected))
    _run(connection, _NOVEL, _CUTS, _OF_MESSAGES, _KEPT)
    if without:
        _run(connection, _NO_LINES)
    ((count,),) = connection.execute("SELECT count(*) FROM kept").fetchall()
    return KeptCalls(int(count), is_part=True, without_lines=without)


def _run(connection: Any, *statements: str) -> None:
    for each in statements:
        for one in each.split(";"):
            if one.strip():
                connection.execute(one)


def _where(connection: Any, expected: int) -> str:
    """The group that keeps most, and from where on."""
    name, start, calls = connection.execute(
        """SELECT any_value(spans.group_name), greatest(any_value(start), 1),
            sum(spans.last - start + 1)::BIGINT
        FROM spans JOIN channels USING (channel)
        GROUP BY channel ORDER BY 3 DESC LIMIT 1"""
    ).fetchone()
    return (
        f"ranks differ, or are not complete, from call {start:,} of group {name} on, "
        f"and {calls:,} calls follow; together {expected:,} calls are too many to be "
        "looked at here"
    )


# --- the statements ---

_CHANNELS = f"""
CREATE TABLE mixed AS
    SELECT group_name FROM spans GROUP BY group_name
    HAVING bool_or(members = '') AND bool_or(members <> '');
CREATE TABLE channels AS
    SELECT channel, any_value(spans.group_name) AS group_name,
        any_value(pair) AS pair, max(first) AS lowest, min(last) AS last,
        min(good_to) AS good_to, count(*) AS files,
        bool_or(mixed.group_name IS NOT NULL) AS is_mixed
    FROM spans LEFT JOIN mixed ON spans.group_name = mixed.group_name
    GROUP BY channel;
CREATE TABLE positions AS
    SELECT channel, number, min(call) <> max(call) AS differs,
        min(site) <> max(site) AS lines_differ
    FROM calls WHERE role = {COMPARED} GROUP BY channel, number
    HAVING differs OR lines_differ;
"""  # noqa: S608 - a number of ours
"""What calls meet in, and where they do not meet alike."""

_STARTS = f"""
CREATE TABLE differing AS
    SELECT channel, min(number) AS any_at, min(number) FILTER (differs) AS call_at
    FROM positions JOIN channels USING (channel)
    WHERE number >= lowest OR pair <> '' GROUP BY channel;
ALTER TABLE channels ADD COLUMN start BIGINT;
ALTER TABLE channels ADD COLUMN call_start BIGINT;
UPDATE channels SET start = least(last + 1, good_to + 1) - {BEFORE};
UPDATE channels SET call_start = start;
UPDATE channels SET start = least(start, any_at - {BEFORE}),
    call_start = least(call_start, coalesce(call_at - {BEFORE}, call_start))
    FROM differing WHERE differing.channel = channels.channel;
UPDATE channels SET start = 0, call_start = 0 WHERE is_mixed;
"""  # noqa: S608
"""From where on each of them is kept."""

_EXPECTED = """
SELECT coalesce(sum(least(greatest(last - start + 1, 0), calls)), 0)::BIGINT
FROM (SELECT spans.last, spans.calls, channels.start
    FROM spans JOIN channels USING (channel))
"""

_WITHOUT_LINES = """
CREATE TABLE lineless AS
    SELECT channel, group_name FROM channels WHERE call_start > start;
UPDATE channels SET start = call_start
"""

_NO_LINES = """
UPDATE kept SET chain = (SELECT min(chain) FROM chains WHERE places = '[]')
WHERE channel IN (SELECT channel FROM lineless)
"""

_NOVEL = f"""
CREATE TABLE novel AS
    SELECT channel, call, site, min(number) AS number,
        bool_or(number BETWEEN start AND start + {BEFORE} - 1) AS is_kept
    FROM calls JOIN channels USING (channel)
    WHERE role = {COMPARED} AND pair = '' GROUP BY channel, call, site;
CREATE TABLE novelties AS
    SELECT DISTINCT channel, novel.number FROM novel JOIN channels USING (channel)
    WHERE novel.number < start AND NOT is_kept;
"""  # noqa: S608
"""Where a group was called for the first time in a way that no kept call tells of."""

_CUTS = """
CREATE TABLE busiest AS
    SELECT file, arg_max(channel, calls) AS channel
    FROM spans WHERE pair = '' GROUP BY file;
CREATE TABLE cuts AS
    SELECT calls.file, max(record) + 1 AS cut
    FROM calls JOIN busiest ON calls.file = busiest.file
        AND calls.channel = busiest.channel
    JOIN channels ON channels.channel = calls.channel
    WHERE number < start
        AND EXISTS (SELECT 1 FROM spans WHERE pair <> '')
    GROUP BY calls.file;
"""
"""By file, what is behind the last call of its busiest group that is left out: messages
are kept from there on, so that all since that call are there."""

_OF_MESSAGES = f"""
CREATE TABLE dropped AS
    SELECT spans.file, spans.channel, count(calls.record) AS dropped
    FROM spans LEFT JOIN cuts ON spans.file = cuts.file
    LEFT JOIN calls ON calls.file = spans.file AND calls.channel = spans.channel
        AND role = {COMPARED} AND record < cut
    WHERE pair <> '' GROUP BY spans.file, spans.channel;
CREATE TABLE starts AS
    SELECT spans.file, spans.channel, start, false AS is_message
    FROM spans JOIN channels USING (channel) WHERE spans.pair = '';
INSERT INTO starts
    SELECT file, channel, least(dropped + 1, good_to + 1 - {BEFORE}), true
    FROM dropped JOIN spans USING (file, channel) JOIN files USING (file)
    JOIN (SELECT channel, bool_and(first_record = 0) AND count(*) <= 2 AS counted
        FROM spans JOIN files USING (file) GROUP BY channel) USING (channel)
    WHERE NOT counted;
INSERT INTO starts
    SELECT file, channel, least(min(dropped + 1) OVER (PARTITION BY channel), start),
        true
    FROM dropped JOIN channels USING (channel)
    WHERE (file, channel) NOT IN (SELECT (file, channel) FROM starts);
UPDATE starts SET start = 0 WHERE is_message
    AND EXISTS (SELECT 1 FROM spans WHERE pair LIKE '%?%');
"""  # noqa: S608
"""Of both sides of a channel as many messages are left out."""

_KEPT = f"""
CREATE TABLE chosen AS
    SELECT calls.* FROM calls JOIN starts USING (file, channel)
    LEFT JOIN cuts ON cuts.file = calls.file
    WHERE number >= start OR (NOT is_message AND record >= cut);
INSERT INTO chosen
    SELECT calls.* FROM calls
    JOIN novelties ON novelties.channel = calls.channel
        AND novelties.number = calls.number
    LEFT JOIN cuts ON cuts.file = calls.file
    WHERE cut IS NULL OR record < cut;
INSERT INTO chosen SELECT * FROM calls WHERE role = {NOT_UNDERSTOOD};
INSERT INTO chosen
    SELECT calls.* FROM calls
    JOIN (SELECT file, min(record) AS since
        FROM chosen JOIN starts USING (file, channel) WHERE is_message GROUP BY file)
    USING (file)
    WHERE role = {CLOSING} AND record >= since;
CREATE TABLE kept AS SELECT * FROM chosen ORDER BY file, record;
DROP TABLE chosen;
"""  # noqa: S608
