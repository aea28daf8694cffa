"""What `benchmarks/compare.py` reads out of the tables of other benchmarks."""

import io
from contextlib import redirect_stdout

from compare import LaneFigures, _rows, figures_of
from figures import print_table


def printed(*tables: list[list[str]]) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        for table in tables:
            output.write("a line of text\n")
            print_table(table[0], table[1:])
            output.write("\n")
    return output.getvalue()


def test_numbers_are_found_by_row_and_column() -> None:
    table = [["ranks", "seconds", "of what"], ["64", "0.5 (0.4 to 0.6)", "all"]]
    again = [["way", "added", "µs"], ["bare call", "", "1,200.5"]]
    again += [["  probe", "+49.1 (48 to 50)", "7"]]
    bare = [["", "measured", "goal"], ["CPU µs", "3.5", "at most 4"]]
    assert figures_of(printed(table, again, bare)) == {
        ("64", "seconds", 1): 0.5,
        ("bare call", "µs", 2): 1200.5,
        ("probe", "added", 2): 49.1,
        ("probe", "µs", 2): 7.0,
        ("CPU µs", "measured", 3): 3.5,
    }


def test_ratios_are_taken_turn_by_turn() -> None:
    cell = ("64", "seconds", 1)
    before = LaneFigures({cell: [1.0, 2.0, 4.0], ("gone", "seconds", 1): [1.0]})
    after = LaneFigures({cell: [2.0, 4.0, 4.0]})
    assert [*_rows(before, after)] == [
        ["64: seconds", "2", "4", "2.00", "1.00 to 2.00"]
    ]
