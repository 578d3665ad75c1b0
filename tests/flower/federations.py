"""Federations over Flower's messages that the tests share."""

import dataclasses
import time

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import phalanx
from phalanx import LocalSGD, Run, Until
from phalanx.data import Dataset, InMemory
from phalanx.engine.participation import everyone
from phalanx.flower import (
    Coordinator,
    FlowerTransport,
    InProcessGrid,
    Member,
    Roster,
    Timeouts,
    client_app,
    codec,
    participant_of,
)
from phalanx.flower.client import ANY
from phalanx.flower.identity import public_bytes, public_text
from phalanx.models import MLP
from phalanx.rng import generator
from phalanx.runs.federation import Federation
from phalanx.runs.verification import verify
from phalanx.runs.witnesses import WITNESSES

QUICK = Timeouts(answer=20.0, absent=1.0, outage=5.0, enrolment=5.0, poll=0.002, roll_call=0.02, introduction=20.0)
FIRST_NODE = 100


def examples(n, seed):
    rng = generator(seed, "examples")
    x = torch.rand(n, 5, generator=rng)
    return Dataset(x, (x.sum(1) > 2.5).long(), 2)


SMALL = Run(
    data=InMemory(examples(60, 0), examples(20, 1)),
    clients=6,
    model=MLP((4,), dropout=0.2),
    training=LocalSGD(batch_size=5, momentum=0.5),
    until=Until(6),
)
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in range(1, 13)]


def roster_of(clients):
    return Roster(tuple(Member(i, f"clinic-{i}", public_bytes(KEYS[i])) for i in range(clients)))


MINE = public_text(KEYS[11])  # the key of a coordinator


def named(clients):
    """A roster that names its coordinator."""
    return dataclasses.replace(roster_of(clients), coordinator=MINE)


def honest(plan, folder, federation=None, coordinator=ANY):
    """The app of each client."""
    made = federation or Federation(plan)
    return {
        i: client_app(participant_of(plan, i, KEYS[i], folder / str(i), made, coordinator=coordinator))
        for i in range(plan.clients)
    }


def at_nodes(apps):
    return {FIRST_NODE + i: app for i, app in apps.items()}


class Stepwise(FlowerTransport):
    """One arrival at a time, in the order in which their tasks were sent."""

    def receive(self, *, every):
        self.register.grid.allow(len(self._open) if every else 1)
        return super().receive(every=every)


def states_over_flower(plan, folder, transfer="float32"):
    """The state at each line, over Flower's messages."""
    federation, states = Federation(plan), []
    grid = InProcessGrid(at_nodes(honest(plan, folder, federation)), stepwise=True)
    size = len(federation.start)
    made = Stepwise(grid, roster_of(plan.clients), timeouts=QUICK, transfer=transfer, update_size=size)
    with grid, made as transport:
        phalanx.run(
            plan.algorithm,
            transport,
            federation.start,
            plan,
            sample=everyone,
            reference=federation.reference,
            observers=[lambda progress: states.append(progress.state)],
        )
    return states


def states_in_simulation(plan):
    """The state at each line, in the simulation."""
    federation, states = Federation(plan), []
    phalanx.run(
        plan.algorithm,
        federation.transport,
        federation.start,
        plan,
        reference=federation.reference,
        observers=[lambda progress: states.append(progress.state)],
    )
    return states


def unwitnessed(folder, witnesses=()):
    """What a folder shows whose trail was rewritten, but for the co-signatures in it, which show that alone."""
    found = verify(folder, witnesses)
    own = [finding for finding in found.findings if WITNESSES in finding.text]
    assert own, "no client has co-signed this trail"
    findings = tuple(finding for finding in found.findings if finding not in own)
    return found._replace(findings=findings, evidence=tuple(s for s in found.evidence if "co-signed" not in s))


def attacked(app, change, kind="train"):
    """An app whose replies somebody changes; the change gets the message, the honest reply and the context."""

    def node(message, context):
        reply = app(message, context)
        return change(message, reply, context) if message.metadata.message_type == kind else reply

    return node


def resigned(message, content, key):
    """The content, signed by a key as the client of the task would."""
    task = codec.TaskMessage(**{name: message.content[codec.WORDS][name] for name in codec.TaskMessage._fields})
    content[codec.WORDS]["signature"] = key.sign(codec.signing_input(task, content))
    return content


def silent(seconds=0.0):
    """An app that says who it is, and nothing else."""

    def of(app):
        def node(message, context):
            if message.metadata.message_type == "train":
                time.sleep(seconds)
                return None
            return app(message, context)

        return node

    return of


def coordinator(plan, **options):
    federation = options.pop("federation", None) or Federation(plan)
    made = Coordinator(
        plan.algorithm,
        federation.model.module,
        options.pop("roster", roster_of(plan.clients)),
        until=plan.until,
        timeouts=options.pop("timeouts", QUICK),
        accept=("no promise",),
    )
    return dataclasses.replace(made, **options)
