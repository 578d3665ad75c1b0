"""Reasons why some published numbers of the tables with attackers cannot come from the named methods."""

from collections.abc import Callable, Mapping

from papers.rffl.setting import FEW, FIXED, FLIP, INVERT, MANY, RAMP, RESCALE, RIDE, SIGNS

PAGE = "docs/measurements/xu-lyu-baselines.md"
REVERSED = (
    "No median has this: a model that knows nothing has 10 %, and one that always says the same at least 8.9. Who goes "
    f"up the loss has it: our median with the wrong sign comes to 0.2 to 0.3 % ({PAGE})."
)
MAJORITY = (
    "No median tolerates eleven of 21 that send minus a hundred times their update; one with the wrong sign has 87 % "
    f"there ({PAGE})."
)
UNTRAINED = (
    "The published figures are the same for both splits and any number of attackers: those of a model that does not "
    f"depend on its training. A decay of the weights of 0.977 a round leaves ours at some 20 % ({PAGE})."
)
NOVEL = "As published, and no mistake: who sends noise is like nobody, and those who are like nobody count most."
LENGTH = "As published, and no mistake: all count alike, and FoolsGold sets no limit to the length of an update."
SUM = (
    "With the sum of the paper's last line, twelve updates make a step twelve times too long, and ours has 9.8 %, too "
    f"({PAGE}); here their mean is taken."
)
CONTRADICTION = "Published as 10 % with two of these attackers in Table 7, and as 96 to 97 % in Tables 15 and 19."
FAR = (
    "Published Multi-Krum averages attackers that are far away from everybody, and which its scores leave out if given "
    "their number."
)
NOISE = (
    "Noise from [-1, 1] is a hundred times as long as an honest update: few of them move the model by it in each "
    "round. Published as harmless, since it is zero on average."
)
TURNED = (
    "Eleven of 21 who send minus a hundred times their update are the majority: the aggregate points their way, and "
    "the honest are excluded. The published row is that of standalone models."
)
THEIRS = "Where long updates are the majority, the median norm is theirs: it limits nothing. Gamma does."


def remark(method: str, attack: str, split: str, attackers: int) -> str:
    """Return a remark on the comparison of our number with the published one; "" if there is none."""
    known = OF.get(method)
    return known(attack, split, attackers) if known else ""


def _rffl(attack: str, split: str, attackers: int) -> str:
    return TURNED if (attack, attackers) == (RESCALE, MANY) else ""


def _median_norm(attack: str, split: str, attackers: int) -> str:
    long = attackers == MANY and attack in (RIDE, INVERT)
    return THEIRS if long else _rffl(attack, split, attackers)


def _fedavg(attack: str, split: str, attackers: int) -> str:
    return {SIGNS: CONTRADICTION, RIDE: NOISE}.get(attack, "")


def _foolsgold(attack: str, split: str, attackers: int) -> str:
    if attack == FLIP:
        return SUM if attackers == FEW else ""
    if attack == RESCALE:
        return "" if split == RAMP else LENGTH
    if attack == SIGNS and (split == RAMP or attackers == MANY):
        return ""
    return NOVEL


def _krum(attack: str, split: str, attackers: int) -> str:
    fine = attackers == MANY or attack == FLIP or (attack == SIGNS and split == RAMP)
    return "" if fine else FAR


def _signsgd(attack: str, split: str, attackers: int) -> str:
    return "" if attack == RESCALE and attackers == FEW and split != RAMP else UNTRAINED


def _median(attack: str, split: str, attackers: int) -> str:
    if attack == RESCALE and attackers == MANY:
        return MAJORITY
    likely = (attack == RESCALE and split != RAMP) or (attack in (FLIP, INVERT) and attackers == MANY)
    return "" if likely else REVERSED


OF: Mapping[str, Callable[[str, str, int], str]] = {
    "RFFL": _median_norm,
    FIXED: _rffl,
    "FedAvg": _fedavg,
    "FoolsGold": _foolsgold,
    "Multi-Krum": _krum,
    "SignSGD": _signsgd,
    "Median": _median,
}
