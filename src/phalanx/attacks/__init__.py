"""What Byzantine clients do: to their data, to their updates, to the size that they declare."""

from phalanx.attacks.attack import Attack, Knowledge, Update
from phalanx.attacks.data import AllLabelsTo, NoiseInputs
from phalanx.attacks.update import Gaussian, NonFinite, Rescale, SignFlip

__all__ = [
    "AllLabelsTo",
    "Attack",
    "Gaussian",
    "Knowledge",
    "NoiseInputs",
    "NonFinite",
    "Rescale",
    "SignFlip",
    "Update",
]
