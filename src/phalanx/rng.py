"""Named random streams.

Every random draw of the library comes from a stream that is named by its purpose, such as
`generator(seed, "batches", client, turn)`.  Streams do not depend on the order in which they are created, so an added
attacker, an interrupted and resumed run or another number of workers does not change the numbers of other clients.  No
global seed is set or read.
"""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

_LENT = threading.RLock()  # torch has one global generator for all threads


def stream(seed: int, *key: int | str) -> int:
    """Return the 64-bit seed of a stream.

    Args:
        seed: the run's seed.
        key: purpose of the stream, from general to specific.  `1` and `"1"` are different keys.
    """
    # A hash of the printed key: the same on every machine, unlike `hash`, which Python randomises.
    name = repr(tuple(part if isinstance(part, str) else int(part) for part in (seed, *key))).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "little")


def generator(seed: int, *key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator on a device for the stream `key` of the run `seed`.

    torch seeds its CPU generator with 32 bits: among 10,000 streams of one run the probability that any two
    coincide is about 1 %, and two that do share numbers for unrelated purposes.
    """
    return torch.Generator(device).manual_seed(stream(seed, *key))


@contextmanager
def borrowed(seed: int, *key: int | str, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators by a stream, for code that draws from them (module initialisation, dropout).

    On leaving, the global states of the CPU, and of `device` if it is a GPU, are restored, so that nothing else is
    affected.  Only one thread at a time may use them; others wait.
    """
    generators = [torch.default_generator]
    if device is not None and device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    with _LENT:
        before = [g.get_state() for g in generators]
        for g in generators:
            g.manual_seed(stream(seed, *key))
        try:
            yield
        finally:
            for g, state in zip(generators, before, strict=True):
                g.set_state(state)


def numpy_generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return the stream `key` of the run `seed` as a NumPy generator (Philox), for distributions that torch lacks."""
    return np.random.Generator(np.random.Philox(stream(seed, *key)))


class Entropy:
    """Random numbers from the operating system's entropy, which nobody can compute.

    No generator of NumPy or torch is safe: their numbers can be computed from a few observed ones, or from 32 bits.
    """

    def random(self, count: int) -> NDArray[np.float64]:
        """Return numbers that are uniform in (0, 1)."""
        bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
        return (bits.astype(np.float64) + 0.5) * 2.0**-53

    def standard_normal(self, count: int) -> NDArray[np.float64]:
        """Return standard normal numbers, by the transform of Box and Muller (1958)."""
        u = self.random(2 * ((count + 1) // 2)).reshape(2, -1)
        radius, angle = np.sqrt(-2.0 * np.log(u[0])), 2.0 * np.pi * u[1]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
