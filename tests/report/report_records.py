"""Realistic records for the tests of the report, made without running anything."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ENVIRONMENT = {
    "phalanx": "0.1.0",
    "torch": "2.13.0+cpu",
    "python": "3.11.7",
    "device": "cpu",
    "threads": 2,
    "platform": "Linux-6.1-x86_64",
}


@dataclass(frozen=True)
class Record:
    name: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    summary: dict[str, Any] = field(default_factory=dict)


def _holdings(client: int, size: int) -> list[int]:
    """How many of the client's examples are of which of ten classes."""
    counts = [0] * 10
    for label, share in ((client % 10, 0.6), ((client + 1) % 10, 0.3), ((3 * client) % 10, 0.1)):
        counts[label] += round(share * size)
    return counts


def make(
    algorithm: str = "ByzantineCFL",
    attacked: bool = True,
    clients: int = 20,
    steps: int = 40,
    seed: int = 0,
    wrong: bool = False,
) -> Record:
    """A synchronous run.  Only ByzantineCFL removes anybody: the attackers, and if `wrong` an honest client too."""
    rng = np.random.default_rng([seed, clients, steps, attacked])
    bad = set(range(clients - round(0.3 * clients), clients)) if attacked else set()
    size = {c: int(rng.integers(40, 105)) for c in range(clients)}
    removes = algorithm == "ByzantineCFL"
    removed: dict[int, dict[str, Any]] = {}
    top = 0.955 if removes or not attacked else {"Median": 0.82, "FedAvg": 0.21}.get(algorithm, 0.6)
    history: list[dict[str, Any]] = [
        {
            "step": 0,
            "version": 0,
            "seconds": 0.0,
            "accuracy": 0.09,
            "loss": 2.31,
            "worst_client_accuracy": 0.0,
            "state": {},
        }
    ]
    for step in range(1, steps + 1):
        alive = [c for c in range(clients) if c not in removed]
        leaving = set()
        if removes and step == 2:
            leaving = set(sorted(bad)[: len(bad) // 2])
        if removes and step == 5:
            leaving = bad - set(removed) | ({3} if wrong else set())
        verdicts, refused, lost = {}, {}, {}
        takers = [c for c in alive if not (c == 4 and step % 11 == 3) and not (c == 7 and step == 6)]
        weight = {c: size[c] * (0.4 + 0.6 * rng.random()) for c in takers if c not in leaving}
        for c in alive:
            if c == 4 and step % 11 == 3:
                lost[str(c)] = f"silent past its deadline of {30 + step} s"
            elif c == 7 and step == 6:
                refused[str(c)] = "delta holds NaN"
            elif c in leaving:
                reason = f"cosine cluster of {len(leaving)}, benign cluster has {len(alive) - len(leaving)}"
                verdicts[str(c)] = {"accepted": False, "weight": 0.0, "score": -0.12, "reason": reason}
                removed[c] = {"step": step, "reason": reason}
            else:
                verdicts[str(c)] = {
                    "accepted": True,
                    "weight": weight[c] / sum(weight.values()),
                    "score": 0.3,
                    "reason": "",
                }
        line: dict[str, Any] = {
            "step": step,
            "version": step,
            "seconds": step * 1.7 + rng.random() * 0.3,
            "state": {},
            "verdicts": verdicts,
            "refused": refused,
            "lost": lost,
        }
        if removes:
            alpha = (
                (-0.35 if leaving else 0.34 - 0.25 * math.exp(-step / 6) + 0.03 * rng.standard_normal())
                if attacked or step % 9
                else None
            )
            line["state"] = {"alpha_cross": alpha, "threshold": 0.02}
        if step % 2 == 0 or step == steps:
            value = float(top - (top - 0.09) * math.exp(-step / 7) + 0.008 * rng.standard_normal())
            line |= {
                "accuracy": value,
                "loss": 2.3 * math.exp(-step / 9) + 0.2,
                "worst_client_accuracy": max(0.0, value - 0.09),
            }
            if attacked:
                line["attack_success"] = float(np.clip(1.05 - value, 0, 1))
        history.append(line)
    measured = [line for line in history if "accuracy" in line]
    best = max(measured, key=lambda line: line["accuracy"])
    told = {
        str(c): {
            "declared": size[c] * (10 if c in bad and c % 2 else 1), "size": size[c], "classes": _holdings(c, size[c]),
            "byzantine": c in bad, "removed": removed.get(c),
        }
        for c in range(clients)
    }  # fmt: skip
    caught, false = len(bad & set(removed)), len(set(removed) - bad)
    keys = ("accuracy", "loss", "worst_client_accuracy", "attack_success")
    return Record(
        name=f"{algorithm}, {'attacked' if attacked else 'clean'}",
        config={
            "algorithm": {
                "class_path": f"phalanx.algorithms.{algorithm}",
                "init_args": {"threshold": 0.02} if removes else {},
            },
            "data": {"class_path": "phalanx.data.Digits", "init_args": {}},
            "model": {"class_path": "phalanx.models.MLP", "init_args": {"hidden": [128, 64]}},
            "clients": clients,
            "partition": {"class_path": "phalanx.data.Dirichlet", "init_args": {"alpha": 0.5, "least": 20}},
            "training": {"epochs": 2, "batch_size": 16, "learning_rate": 0.05},
            "attack": {"class_path": "phalanx.attacks.SignFlip", "init_args": {"scale": 3.0}} if attacked else None,
            "byzantine": 0.3 if attacked else 0.0,
            "latency": {"class_path": "phalanx.simulation.LogNormal", "init_args": {"median": 1.0, "sigma": 0.5}},
            "until": {"steps": steps},
            "seed": seed,
        },
        history=history,
        summary={
            "identity": "9f2c41d0", "status": "finished", "error": None, "steps": steps,
            "seconds": history[-1]["seconds"],
            "wall_seconds": 4.2, "dimension": 38410, "final": {k: measured[-1].get(k) for k in keys},
            "best": {"accuracy": best["accuracy"], "step": best["step"]}, "clients": told,
            "detection": {
                "true_positives": caught, "false_positives": false, "false_negatives": len(bad) - caught,
                "precision": caught / (caught + false) if caught + false else None,
                "recall": caught / len(bad) if bad else None,
            },
            "environment": ENVIRONMENT,
            "data": {"name": "Digits", "train": 1437, "test": 360, "fingerprint": "sha256:0b5f"},
        },
    )  # fmt: skip


def make_async(arrivals: int = 3000, clients: int = 20) -> Record:
    """FedAsync: a line for each arrival, evaluated now and then; slow clients come rarely, one is refused at times."""
    base = make("FedAsync", attacked=False, clients=clients, steps=4)
    rng = np.random.default_rng(7)
    speed = rng.lognormal(0, 0.9, clients)
    history = [base.history[0]]
    clock = 0.0
    for step in range(1, arrivals + 1):
        clock += float(rng.exponential(0.03))
        c = int(rng.choice(clients, p=speed / speed.sum()))
        stale = float(rng.exponential(4))
        verdict = {
            "accepted": stale < 16,
            "weight": 0.6 / (1 + stale) ** 0.5 if stale < 16 else 0.0,
            "score": stale,
            "reason": "" if stale < 16 else f"{stale:.1f} versions late, at most 16",
        }
        line: dict[str, Any] = {
            "step": step,
            "version": step,
            "seconds": clock,
            "state": {},
            "verdicts": {str(c): verdict},
            "refused": {},
            "lost": {},
        }
        line["versions"] = {str(c): max(0, step - 1 - int(stale))}
        if step % 611 == 0:
            line["refused"] = {"11": "delta holds NaN"}
        if step % 100 == 0:
            line |= {
                "accuracy": 0.93 - 0.84 * math.exp(-step / 500),
                "loss": 0.3,
                "worst_client_accuracy": 0.8 - 0.8 * math.exp(-step / 700),
            }
        history.append(line)
    final = {k: v for k, v in history[-1].items() if k in {"accuracy", "loss", "worst_client_accuracy"}}
    summary = base.summary | {
        "steps": arrivals,
        "seconds": clock,
        "final": final,
        "best": {"accuracy": final.get("accuracy"), "step": arrivals},
    }
    return Record("FedAsync, clean", base.config, history, summary)


def make_clusters(clients: int = 12, groups: int = 4) -> Record:
    """ClusteredFL: one group after the other is split off, from step 3 on; group g gets to 0.5 + g / 100."""
    base = make("ClusteredFL", attacked=False, clients=clients, steps=groups + 4)
    group = {c: c * groups // clients for c in range(clients)}
    members = {g: [c for c in group if group[c] == g] for g in range(groups)}
    for c, about in base.summary["clients"].items():
        about["group"] = group[int(c)]
    leaves, parents, born = {0: list(range(groups))}, {0: None}, {0: 0}
    for line in base.history[1:]:
        step = line["step"]
        now = {v: sorted(c for g in of for c in members[g]) for v, of in leaves.items()}
        split = max(leaves) if step >= 3 and len(leaves[max(leaves)]) > 1 else None
        separation = {v: {"alpha_cross": -0.1 * step if len(of) > 1 else 0.4, "gap": 0.9 if len(of) > 1 else 0.05}
                      for v, of in leaves.items()}  # fmt: skip
        cosine = [[1.0 if i == j else 0.8 if group[i] == group[j] else -0.2 for j in now[0]] for i in now.get(0, ())]
        if split is not None:
            first, *rest = leaves.pop(split)
            n = len(parents)
            leaves |= {n: [first], n + 1: rest}
            parents |= {n: split, n + 1: split}
            born |= {n: step, n + 1: step}
        line["state"] = {
            "clusters": {str(v): sorted(c for g in of for c in members[g]) for v, of in leaves.items()},
            "parents": {str(v): p for v, p in parents.items()},
            "born": {str(v): b for v, b in born.items()},
            "norms": {str(v): {"mean": 1.0 / step, "max": 1.0, "epsilon1": 0.4, "epsilon2": 0.6} for v in now},
            "separation": {str(v): about for v, about in separation.items()},
            "similarity": {"0": {"clients": now[0], "alpha": cosine}} if cosine else {},
        }
        line["received_accuracy"] = {
            str(c): 0.5 + group[c] / 100 if step == groups + 4 else 0.2 for c in range(clients)
        }  # fmt: skip
    return base


def make_reputations(clients: int = 6) -> Record:
    """RFFL: the last client attacks, and is removed in step 2 with a reputation of 0.01."""
    base = make("RFFL", attacked=False, clients=clients, steps=5)
    last = clients - 1
    base.summary["clients"][str(last)] |= {"byzantine": True, "removed": {"step": 2, "reason": "reputation"}}
    for line in base.history[1:]:
        step = line["step"]
        left = range(clients if step < 2 else last)
        line["state"] = {"reputation": {str(c): (c + step) / 100 for c in left}, "threshold": 0.02 + step / 1000}
        told = {"accepted": False, "weight": 0.0, "score": 0.01, "reason": "reputation", "final": True}
        line["verdicts"] = {str(last): told} if step == 2 else {}
        line["received_accuracy"] = {
            str(c): 0.5 + (0.02 * c if clients < 20 else 0.004 * c) + 0.01 * step for c in range(last)
        }
    return base


def make_alone(clients: int = 6) -> Record:
    """Standalone, with the participants of `make_reputations`."""
    base = make("Standalone", attacked=False, clients=clients, steps=5)
    base.history[-1]["received_accuracy"] = {
        str(c): 0.4 + (0.03 * c if clients < 20 else 0.005 * c) for c in range(clients - 1)
    }
    return base


def six(**size: int) -> list[Record]:
    return [make(a, attacked, **size) for a in ("FedAvg", "Median", "ByzantineCFL") for attacked in (False, True)]
