"""What is told of a run that ended: how it ended, what came out, who took part, where it was computed."""

import math
import platform
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import torch

from phalanx.core import InfeasibleError, StalledError
from phalanx.runs.canonical import source
from phalanx.runs.history import Line
from phalanx.version import VERSION

if TYPE_CHECKING:
    from phalanx.runs.plan import Run


def ending(error: BaseException | None) -> dict[str, Any]:
    """How a run ended: its status "finished", "failed" or "stopped", and the error if it failed."""
    if error is None or isinstance(error, KeyboardInterrupt):
        return {"status": "stopped" if error else "finished", "error": None}
    kind = "" if isinstance(error, (InfeasibleError, StalledError)) else f"{type(error).__name__}: "
    return {"status": "failed", "error": "\n".join([f"{kind}{error}", *getattr(error, "__notes__", [])])}


def outcome(history: Sequence[Line], *, texts: bool = False) -> dict[str, Any]:
    """How far a run came, and what its models were worth at the end and at best, where that was measured.

    Args:
        history: of the run.
        texts: whether the examples are sequences of labels, so that the exponential of the loss is a perplexity.
    """
    measured = [line for line in history if line.get("accuracy") is not None]
    unmeasured = [{"accuracy": None, "step": history[-1]["step"]}]
    last, best = (measured or unmeasured)[-1], max(measured or unmeasured, key=lambda line: line["accuracy"] or 0.0)
    figures = ("accuracy", "loss", "worst_client_accuracy", "attack_success")
    final = {name: last[name] for name in figures if name in last}
    if texts and (loss := final.get("loss")) is not None:
        final["perplexity"] = math.exp(min(loss, 700.0))  # larger ones are beyond what a float can hold
    return {
        "steps": history[-1]["step"],
        "seconds": history[-1]["seconds"],
        "final": final,
        "best": {"accuracy": best["accuracy"], "step": best["step"]},
    }


def detection(removed: Set[int], byzantine: Set[int]) -> dict[str, float | None]:
    """How well the removed clients agree with the Byzantine ones.

    Returns:
        precision: share of the removed that are Byzantine, None if nobody was removed;
        recall: share of the Byzantine that were removed, None if nobody is Byzantine; and the counts.
    """
    hits = len(removed & byzantine)
    return {
        "true_positives": hits,
        "false_positives": len(removed) - hits,
        "false_negatives": len(byzantine) - hits,
        "precision": hits / len(removed) if removed else None,
        "recall": hits / len(byzantine) if byzantine else None,
    }


def environment(device: torch.device | str) -> dict[str, str | int]:
    """What a run was computed with: floating-point bits can depend on it."""
    on_gpu = torch.device(device).type == "cuda"
    return {
        "phalanx": VERSION,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(device) if on_gpu else "cpu",
        "threads": torch.get_num_threads(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def outdated(plan: "Run", summary: Mapping[str, Any]) -> str:
    """Why a run that was carried out before could come out differently today; empty if it could not.

    A run that failed by its own parameters fails again.

    Args:
        plan: the run.
        summary: what is known of it from then: its `status`, `steps`, `environment` and `source`.
    """
    version = summary["environment"].get("phalanx")
    if summary["status"] == "stopped":
        return f"it was stopped after step {summary.get('steps')}"
    if version != VERSION:
        return f"its results are by Phalanx {version}, this is {VERSION}"
    if summary.get("source") != source(plan):
        return "the source of the classes of your own that it uses has changed since"
    return ""
