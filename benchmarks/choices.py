"""Measure the compositions that `phalanx choose` chooses among, and write what it reads.

Each is tuned, meets the worst attack that a search finds, and runs without attack, in federations of several sizes.
The records, a line for each run, are kept in results/choices; a run that is there is not carried out again.

    python benchmarks/choices.py [--tiers 4 8 20 100] [--jobs 1] [--no_training]
"""

import argparse
from functools import partial
from pathlib import Path

from rich.console import Console

from phalanx.experiments import choosing
from phalanx.experiments.carrying_out import Carrier, Means, local_workers, stored
from phalanx.experiments.choosing.compositions import COMPOSITIONS
from phalanx.experiments.choosing.federations import TIERS
from phalanx.experiments.choosing.measured import FILE, measured, text_of
from phalanx.experiments.leaderboard.ranking import expected, ranked
from phalanx.experiments.line_store import LineStore
from phalanx.runs.provenance import checkout

RECORDS = Path(__file__).parents[1] / "results" / "choices"
TABLE = Path(choosing.__file__).with_name(FILE)


def main() -> None:
    """Carry out what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiers", nargs="+", default=[tier.name for tier in TIERS])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--no_training", action="store_true", help="write the table from the records alone")
    options = parser.parse_args()
    console, rows, seconds, origins = Console(), [], 0.0, dict[str, None]()
    for tier in TIERS:
        store = LineStore(RECORDS / f"{tier.name}.jsonl")
        if tier.name in options.tiers and not options.no_training:
            if checkout()[1] is False:
                raise SystemExit("Records name the commit that computed them. Commit the code first.")
            found = [ranked(tier, one.defence, partial(stored, store=store)) for one in COMPOSITIONS]
            waiting = [one.defence for one in found if not one.cells and not one.error]
            start = partial(local_workers, options.jobs, store, Means())
            most = sum(expected(tier, one) for one in waiting)
            with Carrier(store, start, None, console, at_most=most) as carrier:
                for one in waiting:
                    ranked(tier, one, carrier)
                    print(f"{tier.name}: {one.name}, {store.seconds():.0f} s of processor so far", flush=True)
        rows += measured(tier, store)
        seconds += store.seconds()
        origins |= dict.fromkeys(f"commit {o.commit}, {o.processor}" for o in store.origins)
    TABLE.write_text(text_of(rows, list(origins)), encoding="utf-8")
    print(f"{len(rows)} rows in {TABLE.name}; {seconds / 3600:.2f} core-hours")


if __name__ == "__main__":
    main()
