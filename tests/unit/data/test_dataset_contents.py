"""What datasets of ranks hold, compared, from drawings."""

import pytest

from distdoctor.catalogue import every_check
from distdoctor.examination.examining import examine
from distdoctor.model.drawing import sketch
from distdoctor.model.findings import Unknown


@pytest.mark.parametrize("rows", ["4+5", "4+5+6+7", ""])
def test_few_rows_of_several_numbers_are_not_compared(rows: str) -> None:
    held = f"held(names=x,rows={rows})" if rows else "held(names=x)"
    run = sketch(
        f"""
        rank 0 | wrap=ddp:a  held(names=x,rows=1+2+3)  read(samples=0+2+4,steps=2)
        rank 1 | wrap=ddp:a  {held}  read(samples=1+3+5,steps=2)
        """
    )
    verdicts = examine(run, every_check())
    assert not [one for one in verdicts if isinstance(one, Unknown) and one.internal]
