"""RFFL without a limit on norms excludes the honest, and keeps two free riders; with the median norm it does not.

Ten honest participants with 600 MNIST images each, two free riders who send U(-1, 1), a perceptron, 20 rounds.  The
paper mentions no limit; the authors' program has one.  Stored (docs/rffl.md): without, all ten honest are excluded;
with the median norm both free riders are, in round 2, and no honest participant.
"""

import torch
from mnist import load
from torch import nn

HONEST, RIDERS, EACH, ROUNDS, BATCH, FADE, C = 10, 2, 600, 20, 16, 0.8, 1 / 3


def trained(net, at, i, version, generator):
    """Return the change by one epoch on the examples of participant i."""
    nn.utils.vector_to_parameters(at.clone(), net.parameters())
    lr, params = 0.25 * 0.93**version, list(net.parameters())
    for batch in torch.randperm(EACH, generator=generator).split(BATCH):
        net.zero_grad()
        rows = i * EACH + batch
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        with torch.no_grad():
            torch._foreach_add_(params, [p.grad for p in params], alpha=-lr)
    return nn.utils.parameters_to_vector(net.parameters()).detach() - at


def largest(v, share):
    """Return v with all but its largest entries, a share of them, set to zero."""
    kept = torch.zeros_like(v)
    index = v.abs().topk(round(share * len(v))).indices
    kept[index] = v[index]
    return kept


def excluded(limited):
    """Return the rounds in which honest participants and free riders are excluded, by participant."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    start = nn.utils.parameters_to_vector(net.parameters()).detach()
    models = {i: start.clone() for i in range(HONEST)}
    r, out = dict.fromkeys(range(HONEST + RIDERS), 1 / (HONEST + RIDERS)), {}
    for version in range(ROUNDS):
        dw = {i: trained(net, models[i], i, version, generator) for i in r if i < HONEST}
        dw |= {i: 2 * torch.rand(len(start), generator=generator) - 1 for i in r if i >= HONEST}
        if limited:
            most = torch.stack([u.norm() for u in dw.values()]).median()
            dw = {i: u * min(1.0, float(most / u.norm())) for i, u in dw.items()}
        total = sum(r.values())
        aggregate = sum((r[i] / total) * u for i, u in dw.items())
        cosine = {i: float(nn.functional.cosine_similarity(u, aggregate, 0)) for i, u in dw.items()}
        new = {i: max(FADE * r[i] / total + (1 - FADE) * cosine[i], 0.0) for i in r}
        scale = sum(new.values())
        new = {i: value / scale for i, value in new.items()}
        gone = {i for i, value in new.items() if value < C / len(r)}
        out |= dict.fromkeys(gone, version + 1)
        for i in new.keys() - gone:
            if i < HONEST:
                paid = largest(aggregate, new[i] / max(new.values()))
                own = torch.where(paid != 0, (r[i] / total) * dw[i], 0.0)
                models[i] = models[i] + dw[i] + paid - own
        r = {i: value for i, value in new.items() if i not in gone}
        if len(r) < 2:
            break
    return out


x, y = (torch.from_numpy(a[: HONEST * EACH]) for a in load("train"))
without, limited = excluded(False), excluded(True)
print("no limit, excluded in round:", without)
print("median norm, excluded in round:", limited)
assert set(without) == set(range(HONEST)), "all honest, and no others, should be excluded"
assert set(limited) == {HONEST, HONEST + 1}, "both free riders, and no others, should be excluded"
assert max(limited.values()) <= 5, "not within 5 rounds"
