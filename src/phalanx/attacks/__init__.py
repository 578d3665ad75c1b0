"""Attacks of Byzantine clients: on their data, their updates, their reported sizes and their timing.

`docs/attacks.md` is the catalogue: what each attack sends, what it sees, and its source.
"""

from phalanx.attacks.attack import (
    Attack,
    AttackTraits,
    Colluding,
    Combining,
    Forged,
    Knowledge,
    Remembering,
    Role,
    Update,
    Varying,
)
from phalanx.attacks.capture import Divided, InGroup, OnCredit
from phalanx.attacks.chameleon import Chameleon
from phalanx.attacks.data import Backdoor, DistributedBackdoor, EdgeCases, NoiseInputs, Poisoning
from phalanx.attacks.fang import FangKrum, FangTrimmedMean
from phalanx.attacks.freeride import LazyFreeRider, RandomFreeRider
from phalanx.attacks.labels import AllLabelsTo, LabelFlip, LabelPermutation, LabelShift, LabelSwap
from phalanx.attacks.minmax import MinMax, MinSum
from phalanx.attacks.omniscient import ALIE, InnerProduct, Mimic
from phalanx.attacks.poisoned import PoisonedFL
from phalanx.attacks.scheduled import Scheduled
from phalanx.attacks.size import Misreporting, ReportSize, ReportTimes
from phalanx.attacks.tailored import Tailored
from phalanx.attacks.timing import (
    Answer,
    Answering,
    ClaimVersion,
    Delaying,
    Duplicate,
    Flood,
    HoldBack,
    Joining,
    JoinLate,
    Linger,
    Meanwhile,
    Replay,
    Withholding,
)
from phalanx.attacks.together import Sybils, Together
from phalanx.attacks.training import (
    AttackTask,
    ConstrainAndScale,
    Neurotoxin,
    OwnTraining,
    ProjectedTraining,
    Training,
)
from phalanx.attacks.update import (
    Gaussian,
    ModelNegation,
    NonFinite,
    RandomInversion,
    RandomPerturbation,
    RandomRescale,
    RandomSigns,
    Rescale,
    SignFlip,
)

__all__ = [
    "ALIE",
    "AllLabelsTo",
    "Answer",
    "Answering",
    "Attack",
    "AttackTask",
    "AttackTraits",
    "Backdoor",
    "Chameleon",
    "ClaimVersion",
    "Colluding",
    "Combining",
    "ConstrainAndScale",
    "Delaying",
    "DistributedBackdoor",
    "Divided",
    "Duplicate",
    "EdgeCases",
    "FangKrum",
    "FangTrimmedMean",
    "Flood",
    "Forged",
    "Gaussian",
    "HoldBack",
    "InGroup",
    "InnerProduct",
    "JoinLate",
    "Joining",
    "Knowledge",
    "LabelFlip",
    "LabelPermutation",
    "LabelShift",
    "LabelSwap",
    "LazyFreeRider",
    "Linger",
    "Meanwhile",
    "Mimic",
    "MinMax",
    "MinSum",
    "Misreporting",
    "ModelNegation",
    "Neurotoxin",
    "NoiseInputs",
    "NonFinite",
    "OnCredit",
    "OwnTraining",
    "PoisonedFL",
    "Poisoning",
    "ProjectedTraining",
    "RandomFreeRider",
    "RandomInversion",
    "RandomPerturbation",
    "RandomRescale",
    "RandomSigns",
    "Remembering",
    "Replay",
    "ReportSize",
    "ReportTimes",
    "Rescale",
    "Role",
    "Scheduled",
    "SignFlip",
    "Sybils",
    "Tailored",
    "Together",
    "Training",
    "Update",
    "Varying",
    "Withholding",
]
