"""Errors planted in the PTX of small kernels, one at a time, and what the emulator says of them.

    python -m tests.mutations [--family NAME] [--kind NAME] [--sample N --seed S] [--json]

Every kind of error is planted at every site of every family of kernels: a barrier, wait, commit, fence, copy, mbarrier
operation or mask gone, a wait that leaves one more, the other parity, an address one slot off, a swizzle without one
of its terms, another lane or block, a number that is not rounded. An error is found if there is a diagnostic, if the
text is refused, or if the result is not that of the kernel as it was, bit for bit. `EQUIVALENT` lists those that
change nothing that the PTX model defines, each with the reason. Exit status 1 where an error survives
that is not listed, or is found though it is.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping

from tests.mutations.errors import ERRORS, mutants
from tests.mutations.kernels import FAMILIES
from tests.mutations.plant import plant


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__.split("\n\n")[0])
    parser.add_argument("--family", choices=FAMILIES, help="only this kernel")
    parser.add_argument("--kind", choices=ERRORS, help="only errors of this kind")
    parser.add_argument("--sample", type=int, help="so many errors, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = [options.family] if options.family else list(FAMILIES)
    chosen = [each for name in names for each in mutants(name) if options.kind in (None, each.kind)]
    if options.sample is not None:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    result = plant(chosen)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        for title in ("families", "kinds"):
            for name, counts in result[title].items():
                outcomes = "  ".join(f"{what} {count}" for what, count in sorted(counts.items()))
                print(f"{name:36}{outcomes}{_share(counts)}")
            print()
        print("how they show:", ", ".join(f"{how} {count}" for how, count in result["shown"].items()), "\n")
        for each in result["survivors"]:
            print(each["mutant"], f"\n    {each['reason'] or 'SURVIVED'}")
        for each in result["found though listed"]:
            print("found though listed:", each)
        print(f"{result['found']} of {result['planted']} found: {100 * result['share']:.1f} %")
    return int(bool(result["found though listed"]) or any(not each["reason"] for each in result["survivors"]))


def _share(counts: Mapping[str, int]) -> str:
    """What is found of all, and of those that change something."""
    found, planted = counts.get("found", 0), sum(counts.values())
    change = planted - counts.get("equivalent", 0)
    return f"  {100 * found / planted:.1f} %, {100 * found / max(1, change):.1f} % without equivalents"


if __name__ == "__main__":
    sys.exit(main())
