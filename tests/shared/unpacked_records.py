"""Records of the repository's, which lie packed."""

from __future__ import annotations

import tarfile
from pathlib import Path

_RECORDS = Path(__file__).parent.parent / "records"


def unpack(name: str, folder: Path) -> None:
    """Unpack an archive of records.

    Args:
        name: Of a file in tests/records.
        folder: Where to; made if it is not there.
    """
    with tarfile.open(_RECORDS / name) as archive:
        # Before 3.11.4, Python takes no filter as an argument.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
