"""`tilewright cache`: the compile cache on disk."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.arguments import AsJson
from tilewright.cli.console import show_json
from tilewright.cli.printing import say
from tilewright.options import Options

EPILOG = """\
\b
example: tilewright cache --clear
exit status: 0 done, 2 bad usage
"""

Clear = Annotated[bool, typer.Option("--clear", help="remove every entry")]


def cache(clear: Clear = False, as_json: AsJson = False) -> None:
    """Say where the compile cache is and what it holds.

    TILEWRIGHT_CACHE_DIR moves it, TILEWRIGHT_CACHE=0 switches it off.
    """
    from tilewright.runtime.cache import Cache

    store = Cache.from_options(Options())
    if clear:
        store.clear()
    found = store.statistics()
    record = {
        "directory": str(store.directory),
        "enabled": store.enabled,
        "entries": found.entries,
        "bytes": found.bytes,
        "capacity_bytes": store.capacity_bytes,
        "refused": store.refused(),
    }
    if as_json:
        show_json(record)
        return
    state = "" if store.enabled else " (switched off)"
    if record["refused"]:
        state += f" (not used: {record['refused']})"
    say(f"{store.directory}{state}: {found.entries} entries, {found.bytes:,} of {store.capacity_bytes:,} bytes")
