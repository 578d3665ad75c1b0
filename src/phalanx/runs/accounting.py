"""The privacy guarantee of noise, by Google's dp-accounting (extra `privacy`).

`epsilon`, for `Private`: local differential privacy of whole clients.  For any two sets of examples that a client might
hold, the server, and all that see its data, can distinguish them by its T uploads no better than (epsilon, delta).  Two
clipped updates differ by 2 clip at most, so noise of standard deviation z clip is a Gaussian mechanism of multiplier
z / 2, composed T times.  Sampling of clients does not improve it, as the server knows the sampled ones, nor does other
clients' noise.

`central_epsilon`, for `CentrallyPrivate`: differential privacy of whole clients against those who see models, but not
single updates.  Two federations are neighbours if they differ in one client, whose updates count as zero in one of
them.  The mean changes by clip / n at most, which is a Gaussian mechanism of multiplier z in each round.

`example_epsilon`, for `PrivateSGD`: differential privacy of single examples of a client, against all who see its
updates.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from phalanx.core import InfeasibleError
from phalanx.installation import optional
from phalanx.runs.record import Record
from phalanx.runs.schema import StepRecord
from phalanx.training.local import LocalTraining
from phalanx.training.private_sgd import PrivateSGD
from phalanx.wording import plural

MOST, LEAST = 2.0**20, 2.0**-4  # range of the search for a multiplier
FINE, NO_NOISE = 0.1, 1e-3  # multipliers of noise on examples: the account is coarser below, and infinite


def epsilon(noise_multiplier: float, uploads: int, delta: float = 1e-5) -> float:
    """Return the epsilon of this number of uploads of one client.

    Args:
        noise_multiplier: of `Private`; at least 0, which guarantees nothing: infinity.
        uploads: that left the client, at least 0.
        delta: in (0, 1), well below one over the number of clients.

    Raises:
        ModuleNotFoundError: dp-accounting is not installed.
        ValueError: an argument is out of range.
    """
    if not noise_multiplier >= 0:
        raise ValueError(f"noise_multiplier must be at least 0, got {noise_multiplier}.")
    if uploads < 0:
        raise ValueError(f"uploads must be at least 0, got {uploads}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}.")
    if uploads == 0:
        return 0.0
    if noise_multiplier == 0:
        return float("inf")
    accounting = _library()
    event = accounting.GaussianDpEvent(noise_multiplier / 2)
    accountant = accounting.pld.PLDAccountant().compose(event, uploads)
    return float(accountant.get_epsilon(delta))


def central_epsilon(noise_multiplier: float, rounds: int, share: float = 1.0, delta: float = 1e-5) -> float:
    """Return the epsilon of the models of so many rounds of `CentrallyPrivate`, for each client.

    Below a share of 1 this is an approximation in two ways: it takes each client to be drawn by itself (Poisson
    sampling), where `Participation` draws a fixed number; and it takes the draw to be secret, which on a deployment it
    is not for anyone who knows the seed.  With a share of 1, and `rounds` the rounds in which the client took part, it
    holds without either.

    Args:
        noise_multiplier: of `CentrallyPrivate`; at least 0, which guarantees nothing: infinity.
        rounds: at least 0.
        share: of the clients that take part in a round, in (0, 1].
        delta: in (0, 1), well below one over the number of clients.

    Raises:
        ModuleNotFoundError: dp-accounting is not installed.
        ValueError: an argument is out of range.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must lie in (0, 1], got {share}.")
    if share == 1 or not noise_multiplier > 0:
        return epsilon(2 * noise_multiplier, rounds, delta)  # which halves it
    epsilon(0.0, rounds, delta)  # raises if an argument is out of range
    accounting = _library()
    event = accounting.PoissonSampledDpEvent(share, accounting.GaussianDpEvent(noise_multiplier))
    return float(accounting.pld.PLDAccountant().compose(event, rounds).get_epsilon(delta)) if rounds else 0.0


def example_epsilon(training: PrivateSGD, examples: int, tasks: int) -> float:
    """Return the epsilon of each example of a client that trains by `PrivateSGD`, at `training.delta`.

    Two sets of examples are neighbours if one has one example more.  Each step takes an example with probability q by
    itself, which is how minibatches are drawn, so nothing is approximated.  The number of examples is taken as known.

    Args:
        training: the settings.
        examples: number of examples of the client.
        tasks: number of its tasks whose updates were sent.

    Returns:
        Epsilon; infinity below a `noise_multiplier` of 0.001, where a single step has an epsilon above 100,000.

    Raises:
        ModuleNotFoundError: dp-accounting is not installed.
    """
    steps = tasks * training.training.count(examples)
    if not steps:
        return 0.0
    if training.noise_multiplier < NO_NOISE:
        return float("inf")
    accounting = _library()
    event = accounting.GaussianDpEvent(training.noise_multiplier)
    if (q := training.share(examples)) < 1:
        event = accounting.PoissonSampledDpEvent(q, event)
    # Losses are rounded up to multiples of the interval: 1e-3 is ten times as fast as 1e-4.  With little noise they are
    # as large as 1 / z^2, and need no finer ones.
    interval = 1e-3 * max(1.0, (FINE / training.noise_multiplier) ** 2)
    coarse = accounting.pld.PLDAccountant(value_discretization_interval=interval)
    return float(coarse.compose(event, steps).get_epsilon(training.delta))


def example_epsilons(
    training: LocalTraining, examples: Sequence[int], history: Sequence[StepRecord]
) -> dict[int, float]:
    """Return the epsilon of the examples of each client, by the numbers that they hold; only finite ones."""
    settings = training.base
    if not (isinstance(settings, PrivateSGD) and settings.noise_multiplier):
        return {}
    tasks, found = sent(history), dict[tuple[int, int], float]()
    for i, count in enumerate(examples):
        if (key := (count, tasks.get(i, 0))) not in found:
            found[key] = example_epsilon(settings, *key)
    known = {i: found[count, tasks.get(i, 0)] for i, count in enumerate(examples)}
    return {i: value for i, value in known.items() if isfinite(value)}


def noise_multiplier_for(epsilon_at_most: float, uploads: int, delta: float = 1e-5) -> float:
    """Return the least noise_multiplier, to 1 in 1000, with which the uploads have at most this epsilon.

    Raises:
        InfeasibleError: not even a multiplier of a million is enough.
        ValueError: an argument is out of range.
    """
    if not epsilon_at_most > 0:
        raise ValueError(f"epsilon_at_most must be positive, got {epsilon_at_most}.")
    if epsilon(MOST, uploads, delta) > epsilon_at_most:
        sent = plural(uploads, "upload")
        raise InfeasibleError(f"No noise gives {sent} an epsilon of {epsilon_at_most} at delta {delta}.")
    high = MOST  # from above: little noise takes the library long
    while high > LEAST and epsilon(high / 2, uploads, delta) <= epsilon_at_most:
        high /= 2
    low = high / 2
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle, uploads, delta) > epsilon_at_most else (low, middle)
    return high


def uploads(record: Record) -> dict[int, int]:
    """Return how many uploads left each client, at most.

    With real clients, each task that a client was given counts, answered or not, and those that were given again after
    a kill once more: the noise is another each time.  In a simulation nothing leaves but what arrives, and what is done
    again has the same noise: each verdict, invalid update and loss counts.  Updates that wait for a later step have two
    verdicts, and count twice.
    """
    given = {i: client.tasks for i, client in record.summary.clients.items() if client.tasks is not None}
    return given or sent(record.history)


def sent(history: Iterable[StepRecord]) -> dict[int, int]:
    """Return how many updates of each client a history has, at most: its verdicts, invalid updates and lost tasks."""
    counts = Counter(i for step in history for part in (step.verdicts, step.invalid, step.lost) for i in part)
    return dict(sorted(counts.items()))


def _library() -> Any:
    optional("dp_accounting.pld", "Accounting", "privacy")
    return optional("dp_accounting", "Accounting", "privacy")
