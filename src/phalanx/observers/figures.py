"""The figures of a step that services plot: one number for each name."""

from phalanx.core import InfeasibleError
from phalanx.engine.observer import Progress

METRICS = ("accuracy", "loss", "worst_client_accuracy", "attack_success")


def figures(progress: Progress) -> dict[str, float]:
    """Return the metrics of a step, if it was evaluated, and the number of updates that were used and that were not."""
    found = dict[str, float]()
    for name in METRICS:
        if (value := getattr(progress.metrics, name, None)) is not None:
            found[name] = float(value)
    if progress.updates is not None:
        decided = [verdict for verdict in progress.state.verdicts.values() if not verdict.waits]
        used = sum(verdict.accepted for verdict in decided)
        found |= {"updates/used": used, "updates/filtered": len(decided) - used}
    return found | {"updates/invalid": len(progress.invalid), "updates/lost": len(progress.lost)}


def missing(observer: str, package: str) -> InfeasibleError:
    """Return the error of an observer whose package is not installed."""
    return InfeasibleError(f"{observer} needs the package {package}. Install it: pip install {package}.")
