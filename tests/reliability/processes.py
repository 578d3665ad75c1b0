"""Kill the processes of a deployment at random moments, and compare its end with the simulation.

python tests/reliability/processes.py [--kills 50] [--minutes 600] [--rounds 12] [--waiting 0.5]
    [--seed 1] [--folder FOLDER]

A SuperLink, the server's app, and SuperNodes with TLS, each a process of its own, as `phalanx flower up` starts them.
Again and again one is killed with SIGKILL, with its children: a SuperNode, the server's app, the SuperLink, or the last
two at once.  The moment is drawn: half of the kills (--waiting) wait for a further round, and all for up to 10 s more.
A supervisor starts what has ended again.  Runs follow one another until there were enough kills, or time is over.  At
the end of each, the server's state must be that of a simulation in which the same clients took part in each round, to
the bit, and the record and the audit trail must be whole.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from flwr.app import Context

import phalanx
from flower.federations import SMALL
from phalanx import LocalSGD, Until
from phalanx.core import InfeasibleError
from phalanx.engine import LoopSettings
from phalanx.engine.lost import LostRounds
from phalanx.engine.observer import Progress
from phalanx.flower import Coordinator, Participant, Suspension, Timeouts, participant_of
from phalanx.flower.audit import read
from phalanx.flower.from_run import coordinator_of
from phalanx.flower.live import lines
from phalanx.flower.local_federation import LocalFederation
from phalanx.runs.federation import Federation
from phalanx.runs.lock import exclusive
from phalanx.runs.plan import Run
from phalanx.runs.record import SUMMARY, Record
from phalanx.runs.schema import StepRecord
from phalanx.simulation import Simulation
from phalanx.training.sgd import Trainer
from phalanx.wording import plural
from reliability.chaos import digest

CLIENTS = 2
VICTIMS = ("node", "server's app", "SuperLink", "SuperLink and server's app")
AFTER, LONGEST = 10.0, 180.0  # seconds from a round to the kill, and of waiting for a round
STUCK = 900.0  # seconds without a round
INTRODUCTION = 90  # seconds, on a busy machine
NEVER = 1_000_000  # misses that suspend a client
PAUSE = 5.0  # seconds between two starts of a process
PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "phalanx-chaos"
version = "1.0.0"
description = "A federation whose processes are killed"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "phalanx"

[tool.flwr.app.components]
serverapp = "phalanx_chaos:server"
clientapp = "phalanx_chaos:client"

[tool.flwr.app.config]
roster = ""
folder = ""
rounds = 1
clients = 2
answer = 150
shortest = 40
"""
MODULE = '''"""The apps that Flower runs."""

from phalanx.flower import client_app, server_app
from reliability.processes import coordinator, participant

server = server_app(coordinator)
client = client_app(participant)
'''


def planned(rounds: int, clients: int = CLIENTS) -> Run:
    return replace(SMALL, clients=clients, until=Until(rounds))


def write_app(folder: Path) -> Path:
    """Write the two files of the app that Flower runs."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "phalanx_chaos.py").write_text(MODULE)
    return folder


# --- the apps


def coordinator(context: Context) -> Coordinator:
    """Return the server, which keeps the digest of its last state."""
    config = context.run_config
    folder, clients = Path(str(config["folder"])), int(config["clients"])
    answer, shortest = float(config["answer"]), float(config["shortest"])

    def note(progress: Progress) -> None:
        _digest_of(folder).write_text(digest(progress.state))

    return coordinator_of(
        planned(int(config["rounds"]), clients),
        Path(str(config["roster"])),
        folder=folder,
        timeouts=Timeouts(answer=answer, shortest=shortest, introduction=INTRODUCTION, enrolment=600, least=clients),
        suspension=Suspension(strikes=NEVER, misses=NEVER),
        lost_rounds=LostRounds("wait", most=1_000),
        observers=(note,),
    )


def participant(context: Context) -> Participant:
    """Return a client, which notes the turns that it trains."""
    config = context.node_config
    made = participant_of(planned(1), int(config["client"]), Path(str(config["key"])), coordinator="")
    return replace(made, training=Noted(**vars(made.training), notes=str(config["notes"])))


@dataclass(frozen=True)
class Noted(LocalSGD):
    """Local training that writes version and turn of each task to a file."""

    notes: str = ""

    def trainer(self, model, task, seed):
        return NotingTrainer(model, self, seed, task)


class NotingTrainer(Trainer):
    def train(self, task, data):
        with Path(self.recipe.notes).open("a") as file:
            file.write(f"{task.version} {task.turn}\n")
        return super().train(task, data)


# --- the deployment


class Deployment(LocalFederation):
    """A federation whose processes are killed and started again.

    Args:
        folder: of everything.
        rounds: of each run.
    """

    def __init__(self, folder: Path, rounds: int) -> None:
        config = {i: {"client": i, "notes": str(folder.absolute() / f"notes-{i}")} for i in range(CLIENTS)}
        super().__init__(folder, CLIENTS, config)
        here = str(Path(__file__).parents[1])
        self.environment["PYTHONPATH"] = f"{here}:{self.environment.get('PYTHONPATH', '')}"
        self.rounds, self.number, self._started = rounds, 0, dict[str, float]()
        write_app(folder / "app")

    @property
    def results(self) -> Path:
        return self.folder / f"run-{self.number}"

    @property
    def over(self) -> bool:
        return (self.results / SUMMARY).is_file() and Record.load(self.results).summary.status == "finished"

    def kill(self, victim: str, client: int) -> None:
        """Kill a process and its children."""
        if victim == "node" and client in self.nodes:
            self.kill_node(client)
        if "app" in victim:
            self.kill_server_app()
            for run in self.runs:
                run.kill()
                run.wait()
        if "SuperLink" in victim:
            self.kill_superlink()

    def tend(self) -> None:
        """Start what is not running, as a supervisor does."""
        if self.server is None or self.server.poll() is not None:
            self.start_superlink()
        if (self.executor is None or self.executor.poll() is not None) and self._due("executor"):
            self.start_executor()
        for client in range(CLIENTS):
            node = self.nodes.get(client)
            if (node is None or node.poll() is not None) and self._due(f"node {client}"):
                self.start_node(client)
        if all(run.poll() is not None for run in self.runs) and not self.over and self._idle() and self._due("run"):
            settings = {"roster": str(self.folder / "roster.yaml"), "folder": str(self.results), "rounds": self.rounds}
            self.runs = []
            self.run(self.folder / "app", settings)

    def _due(self, what: str) -> bool:
        """Return whether something may be started again now."""
        due = time.monotonic() > self._started.get(what, 0.0) + PAUSE
        if due:
            self._started[what] = time.monotonic()
        return due

    def _idle(self) -> bool:
        """Return whether no server works in the folder of the run."""
        try:
            with exclusive(self.results):
                return True
        except InfeasibleError:
            return False


# --- the simulation


class Replayed(Trainer):
    """Clients whose turns are those of the deployment: a task without an answer is a turn, too."""

    turns: dict[tuple[int, int], int]  # by client and version

    def train(self, task, data):
        return super().train(task._replace(turn=self.turns[task.client, task.version]), data)


def turns_of(folder: Path) -> dict[tuple[int, int], int]:
    """Return the last turn that each client trained with each version."""
    found = dict[tuple[int, int], int]()
    for client in range(CLIENTS):
        for line in (folder / f"notes-{client}").read_text().splitlines():
            version, turn = map(int, line.split())
            found[client, version] = turn
    return found


def simulated(steps: list[StepRecord], folder: Path) -> str:
    """Return the digest of the last state of a simulation with the clients of these steps."""
    plan = planned(len(steps))
    federation = Federation(plan)
    trainer = Replayed(federation.model, plan.training, plan.seed, plan.task)
    trainer.turns = turns_of(folder)
    transport = Simulation(plan.algorithm, trainer, dict(enumerate(federation.data)), seed=plan.seed)
    came = [set(step.verdicts) for step in steps]
    state = phalanx.run(
        plan.algorithm,
        transport,
        federation.start,
        LoopSettings(until=Until(len(steps)), guard=plan.guard),
        sample=lambda ready, attempt: came[attempt],
    )
    return digest(state)


class Outcome(NamedTuple):
    """What came of a run: the number of rounds with updates, and with those of all clients; what is wrong, if any."""

    rounds: int
    whole: int
    wrong: str


def outcome(deployment: Deployment) -> Outcome:
    record = Record.load(deployment.results)
    steps = [line for line in record.history if line.verdicts]
    whole = sum(len(line.verdicts) == CLIENTS for line in steps)
    return Outcome(len(steps), whole, wrong(record, steps, deployment))


def wrong(record: Record, steps: list[StepRecord], deployment: Deployment) -> str:
    """Return what is wrong with a run that is over; empty if nothing is."""
    if _digest_of(deployment.results).read_text() != simulated(steps, deployment.folder):
        return "the last state is not that of the simulation"
    numbers = [line.step for line in record.history]  # a round that nobody answered has a line, and is repeated
    if [line.step for line in steps] != list(range(1, deployment.rounds + 1)) or numbers != [0, *sorted(numbers[1:])]:
        return f"steps are missing in the history, twice, or in another order: {numbers}"
    events = Counter(entry.event for entry in read(deployment.results / "audit.jsonl"))
    if events["enrolled"] != CLIENTS or events["ended"] < 1:
        return f"the audit trail has {dict(events)}"
    return ""


def _digest_of(results: Path) -> Path:
    return results.with_suffix(".digest")


# --- the kills


def wait_for(deployment: Deployment, count: int, longest: float) -> None:
    """Tend the deployment until its history has so many lines, or its run is over, or time is."""
    end = time.monotonic() + longest
    while len(lines(deployment.results)) < count and not deployment.over and time.monotonic() < end:
        deployment.tend()
        time.sleep(0.3)


def finished(deployment: Deployment) -> bool:
    """Wait for the end of a run; return whether it comes."""
    while not deployment.over:
        before = len(lines(deployment.results))
        wait_for(deployment, before + 1, STUCK)
        if len(lines(deployment.results)) == before and not deployment.over:
            return False
    return True


def chaotic(deployment: Deployment, kills: int, rng: random.Random, until: float, waiting: float) -> int:
    """Kill up to so many processes in a run, until it is over or time is (`time.monotonic`); return their number."""
    done = 0
    while done < kills and time.monotonic() < until:
        further = rng.random() < waiting
        wait_for(deployment, len(lines(deployment.results)) + further, LONGEST)
        wait_for(deployment, deployment.rounds + 2, rng.uniform(0, AFTER))
        if deployment.over:
            break
        victim, client = rng.choice(VICTIMS), rng.randrange(CLIENTS)
        deployment.kill(victim, client)
        done += 1
        name = f"{victim} {client}" if victim == "node" else victim
        print(f"  kill {done}: {name}, after {max(0, len(lines(deployment.results)) - 1)} rounds", flush=True)
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--waiting", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng, kills, bad, begun = random.Random(options.seed), 0, 0, time.monotonic()
    rounds, whole, until = 0, 0, begun + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="phalanx-chaos-") as made:
        folder = options.folder or Path(made)
        with Deployment(folder, options.rounds) as deployment:
            while not deployment.number or (kills < options.kills and time.monotonic() < until):
                for note in folder.glob("notes-*"):
                    note.unlink()
                kills += chaotic(deployment, options.kills - kills, rng, until, options.waiting)
                if not finished(deployment):
                    bad += 1
                    print(f"No round within {STUCK:g} s. Logs: {folder}", flush=True)
                    break
                found = outcome(deployment)
                rounds, whole, bad = rounds + found.rounds, whole + found.whole, bad + bool(found.wrong)
                print(f"run {deployment.number}: {found}", flush=True)
                deployment.number += 1
    counts = f"{plural(kills, 'kill')} in {plural(deployment.number, 'run')}, {rounds} rounds, {whole} of all clients"
    print(f"{counts}, {time.monotonic() - begun:.0f} s: {bad} differ.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
