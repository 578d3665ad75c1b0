"""Realistic records for the tests of the report, made without running anything."""

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from phalanx.core import Verdict
from phalanx.runs.record import Record
from phalanx.runs.schema import (
    BestAccuracy,
    ClientRecord,
    DataRecord,
    Exclusion,
    FinalMetrics,
    StepRecord,
)
from phalanx.runs.summary import detection
from phalanx.training.evaluation import Metrics
from summaries import summary


def with_summary(run: Record, **fields: Any) -> Record:
    return replace(run, summary=msgspec.structs.replace(run.summary, **fields))


def alter(run: Record, client: int, **fields: Any) -> None:
    """Changes, in place, what is known of a client."""
    run.summary.clients[client] = msgspec.structs.replace(run.summary.clients[client], **fields)


def alter_step(run: Record, at: int, **fields: Any) -> None:
    """Changes, in place, a line of the history."""
    run.history[at] = msgspec.structs.replace(run.history[at], **fields)


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
    excluded: dict[int, Exclusion] = {}
    top = 0.955 if removes or not attacked else {"Median": 0.82, "FedAvg": 0.21}.get(algorithm, 0.6)
    before = Metrics(accuracy=0.09, loss=2.31, worst_client_accuracy=0.0)
    history = [StepRecord(step=0, version=0, seconds=0.0, metrics=before)]
    for step in range(1, steps + 1):
        alive = [c for c in range(clients) if c not in excluded]
        leaving = set()
        if removes and step == 2:
            leaving = set(sorted(bad)[: len(bad) // 2])
        if removes and step == 5:
            leaving = bad - set(excluded) | ({3} if wrong else set())
        verdicts, invalid, lost = {}, {}, {}
        takers = [c for c in alive if not (c == 4 and step % 11 == 3) and not (c == 7 and step == 6)]
        weight = {c: size[c] * (0.4 + 0.6 * rng.random()) for c in takers if c not in leaving}
        for c in alive:
            if c == 4 and step % 11 == 3:
                lost[c] = f"silent past its deadline of {30 + step} s"
            elif c == 7 and step == 6:
                invalid[c] = "delta holds NaN"
            elif c in leaving:
                reason = f"cosine cluster of {len(leaving)}, benign cluster has {len(alive) - len(leaving)}"
                verdicts[c] = Verdict(False, 0.0, -0.12, reason)
                excluded[c] = Exclusion(step=step, reason=reason)
            else:
                verdicts[c] = Verdict(True, weight[c] / sum(weight.values()), 0.3)
        seconds = step * 1.7 + rng.random() * 0.3
        state: dict[str, Any] = {}
        if removes:
            alpha = (
                (-0.35 if leaving else 0.34 - 0.25 * math.exp(-step / 6) + 0.03 * rng.standard_normal())
                if attacked or step % 9
                else None
            )
            state = {"alpha_cross": alpha, "threshold": 0.02}
        metrics = None
        if step % 2 == 0 or step == steps:
            value = float(top - (top - 0.09) * math.exp(-step / 7) + 0.008 * rng.standard_normal())
            metrics = Metrics(
                accuracy=value,
                loss=2.3 * math.exp(-step / 9) + 0.2,
                worst_client_accuracy=max(0.0, value - 0.09),
                attack_success=float(np.clip(1.05 - value, 0, 1)) if attacked else None,
            )
        told = {"verdicts": verdicts, "invalid": invalid, "lost": lost, "state": state, "metrics": metrics}
        history.append(StepRecord(step=step, version=step, seconds=seconds, **told))
    measured = [(step.step, step.metrics) for step in history if step.metrics]
    at, best = max(measured, key=lambda item: item[1].accuracy)
    final = measured[-1][1]
    about = {
        c: ClientRecord(
            reported=size[c] * (10 if c in bad and c % 2 else 1), size=size[c], classes=tuple(_holdings(c, size[c])),
            byzantine=c in bad, excluded=excluded.get(c),
        )
        for c in range(clients)
    }  # fmt: skip
    return Record(
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
        summary=summary(
            name=f"{algorithm}, {'attacked' if attacked else 'clean'}",
            steps=steps,
            seconds=history[-1].seconds,
            final=FinalMetrics(
                accuracy=final.accuracy,
                loss=final.loss,
                worst_client_accuracy=final.worst_client_accuracy,
                attack_success=final.attack_success,
            ),
            best=BestAccuracy(accuracy=best.accuracy, step=at),
            clients=about,
            detection=detection(excluded.keys(), bad),
            data=DataRecord(name="Digits", train=1437, test=360, fingerprint={"train": "0b5f"}),
            lines=len(history),
        ),
    )


def make_async(arrivals: int = 3000, clients: int = 20) -> Record:
    """FedAsync: a line for each arrival, evaluated now and then; slow clients come rarely, one is invalid at times."""
    base = make("FedAsync", attacked=False, clients=clients, steps=4)
    rng = np.random.default_rng(7)
    speed = rng.lognormal(0, 0.9, clients)
    history = [base.history[0]]
    clock = 0.0
    for step in range(1, arrivals + 1):
        clock += float(rng.exponential(0.03))
        c = int(rng.choice(clients, p=speed / speed.sum()))
        stale = float(rng.exponential(4))
        used, reason = stale < 16, "" if stale < 16 else f"{stale:.1f} versions late, at most 16"
        metrics = Metrics(
            accuracy=0.93 - 0.84 * math.exp(-step / 500),
            loss=0.3,
            worst_client_accuracy=0.8 - 0.8 * math.exp(-step / 700),
        )
        line = StepRecord(
            step=step,
            version=step,
            seconds=clock,
            metrics=metrics if step % 100 == 0 else None,
            verdicts={c: Verdict(used, 0.6 / (1 + stale) ** 0.5 if used else 0.0, stale, reason)},
            versions={c: max(0, step - 1 - int(stale))},
            invalid={11: "delta holds NaN"} if step % 611 == 0 else {},
        )
        history.append(line)
    last = history[-1].metrics or Metrics()
    final = FinalMetrics(accuracy=last.accuracy, loss=last.loss, worst_client_accuracy=last.worst_client_accuracy)
    best = BestAccuracy(accuracy=last.accuracy, step=arrivals)
    record = Record(base.config, history, base.summary)
    return with_summary(record, name="FedAsync, clean", steps=arrivals, seconds=clock, final=final, best=best)


def make_clusters(clients: int = 12, groups: int = 4) -> Record:
    """ClusteredFL: one group after the other is split off, from step 3 on; group g gets to 0.5 + g / 100."""
    base = make("ClusteredFL", attacked=False, clients=clients, steps=groups + 4)
    group = {c: c * groups // clients for c in range(clients)}
    members = {g: [c for c in group if group[c] == g] for g in range(groups)}
    for c, number in group.items():
        alter(base, c, group=number)
    leaves, parents, born = {0: list(range(groups))}, {0: None}, {0: 0}
    for step in range(1, groups + 5):
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
        state = {
            "clusters": {v: sorted(c for g in of for c in members[g]) for v, of in leaves.items()},
            "parents": dict(parents),
            "born": dict(born),
            "norms": {v: {"mean": 1.0 / step, "max": 1.0, "epsilon1": 0.4, "epsilon2": 0.6} for v in now},
            "separation": separation,
            "similarity": {0: {"clients": now[0], "alpha": cosine}} if cosine else {},
        }
        received = {c: 0.5 + group[c] / 100 if step == groups + 4 else 0.2 for c in range(clients)}
        alter_step(base, step, state=state, metrics=measured(base.history[step], received))
    return base


def measured(step: StepRecord, received: dict[int, float]) -> Metrics:
    """What the step measured, and what each client received."""
    return msgspec.structs.replace(step.metrics or Metrics(), received_accuracy=received)


def make_reputations(clients: int = 6) -> Record:
    """RFFL: the last client attacks, and is excluded in step 2 with a reputation of 0.01."""
    base = make("RFFL", attacked=False, clients=clients, steps=5)
    last = clients - 1
    alter(base, last, byzantine=True, excluded=Exclusion(step=2, reason="reputation"))
    for step in range(1, 6):
        left = range(clients if step < 2 else last)
        verdict = Verdict(False, 0.0, 0.01, "reputation", final=True)
        received = {c: 0.5 + (0.02 * c if clients < 20 else 0.004 * c) + 0.01 * step for c in range(last)}
        alter_step(
            base,
            step,
            state={"reputation": {c: (c + step) / 100 for c in left}, "threshold": 0.02 + step / 1000},
            verdicts={last: verdict} if step == 2 else {},
            metrics=measured(base.history[step], received),
        )
    return base


def make_alone(clients: int = 6) -> Record:
    """Standalone, with the participants of `make_reputations`."""
    base = make("Standalone", attacked=False, clients=clients, steps=5)
    received = {c: 0.4 + (0.03 * c if clients < 20 else 0.005 * c) for c in range(clients - 1)}
    alter_step(base, -1, metrics=measured(base.history[-1], received))
    return base


def six(**size: int) -> list[Record]:
    return [make(a, attacked, **size) for a in ("FedAvg", "Median", "ByzantineCFL") for attacked in (False, True)]
