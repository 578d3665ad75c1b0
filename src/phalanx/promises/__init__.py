"""Promises: how many attackers a run tolerates, computed from its settings and checked at each call of a rule."""

from phalanx.core import Pool, Setting, Tolerance
from phalanx.promises.promise import Bound, Promise, promise
from phalanx.promises.promise_watch import BrokenPromise, PromiseError, combine, held, watched
from phalanx.promises.remarks import innermost, preprocess_of, tolerated

__all__ = [
    "Bound",
    "BrokenPromise",
    "Pool",
    "Promise",
    "PromiseError",
    "Setting",
    "Tolerance",
    "combine",
    "held",
    "innermost",
    "preprocess_of",
    "promise",
    "tolerated",
    "watched",
]
