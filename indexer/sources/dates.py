"""When an image was taken: dates in metadata, in file names, and of files."""

from __future__ import annotations

import re
from datetime import datetime

_EARLIEST = datetime(1980, 1, 2)  # 1980-01-01 is what cameras and archives write without a clock
# 2024-01-31T12:34:56+09:00, 2024:01:31 12:34:56, 20240131: the zone is left out, as in EXIF,
# because people search by the clock on the wall.
_STORED = re.compile(
    r"(\d{4})[-:/.]?(\d{2})[-:/.]?(\d{2})(?:[T ]?(\d{2}):?(\d{2})(?::?(\d{2}))?)?(?!\d)"
)
# IMG_20240131_123456.jpg, PXL_20240131_123456789.jpg, 2024-01-31 12.34.56.jpg,
# Screenshot_2024-01-31-12-34-56, IMG-20240131-WA0001, "... 2024-01-31 at 12.34.56".
_NAMED = re.compile(
    r"(?<!\d)((?:19|20)\d{2})([-_.]?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])"
    r"(?:(?:[-_ T.]| at )([01]\d|2[0-3])[-_.:]?([0-5]\d)[-_.:]?([0-5]\d)(?:\d{3})?(?!\d))?(?!\d)"
)
_MILLISECONDS = re.compile(r"(?:mmexport|wx_camera_|FB_IMG_)(1\d{12})(?!\d)")  # since 1970


def parsed_date(text: str) -> datetime | None:
    """A date as EXIF, IPTC and XMP store it, with or without a time; None if it is not one."""
    found = _STORED.match(text.strip("\0 "))
    return _datetime(*found.groups()) if found else None


def date_in_name(name: str) -> datetime | None:
    """The date that a camera or a messenger put into a file name; None if there is none."""
    since_1970 = _MILLISECONDS.search(name)
    if since_1970:
        return datetime.fromtimestamp(int(since_1970[1]) // 1000)
    found = _NAMED.search(name)
    if found is None:
        return None
    year, _, *rest = found.groups()
    return _datetime(year, *rest)


def date_of_file(mtime_ns: int) -> datetime | None:
    """The time of a file's last change, in local time; None for a clock that was not set."""
    try:
        moment = datetime.fromtimestamp(mtime_ns // 10**9)
    except (OverflowError, OSError, ValueError):
        return None
    return moment if moment >= _EARLIEST else None


def _datetime(*parts: str | None) -> datetime | None:
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in parts)
        return datetime(year, month, day, hour, minute, second)
    except ValueError:  # 0000:00:00, 2024-13-45
        return None
