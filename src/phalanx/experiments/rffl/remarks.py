"""Why some published numbers of the tables with attackers cannot be what the named methods do."""

from phalanx.experiments.rffl.setting import FEW, FLIP, INVERT, MANY, RAMP, RESCALE, RIDE, SIGNS

PAGE = "docs/fair-rivals.md"
REVERSED = (
    "No median has this: a model that knows nothing has 10 %, and one that always says the same at least 8.9. Who goes "
    f"up the loss has it: our median with the wrong sign comes to 0.2 to 0.3 % ({PAGE})."
)
MAJORITY = (
    "No median stands eleven of 21 who send minus a hundred times their update; one with the wrong sign has 87 % "
    f"there ({PAGE})."
)
UNTRAINED = (
    "The published figures are the same for both splits and any number of attackers: those of a model that does not "
    f"depend on its training. A decay of the weights of 0.977 a round leaves ours at some 20 % ({PAGE})."
)
NOVEL = "As published, and no mistake: those who follow nobody are like nobody, and FoolsGold follows them alone."
SUM = (
    "With the sum of the paper's last line, twelve updates make a step twelve times too long, and ours has 9.8 %, too "
    f"({PAGE}); here their mean is taken."
)
CONTRADICTION = "Published as 10 % with two of these attackers in Table 7, and as 96 to 97 % in Tables 15 and 19."
FAR = (
    "Published Multi-Krum averages attackers that are far away from everybody, and whom its scores leave out if told "
    "of their number."
)
NOISE = (
    "Noise from [-1, 1] is a hundred times as long as an honest update: two of twelve move the model by it in each "
    "round. Published as harmless, since it is zero on average."
)


def remark(method: str, attack: str, split: str, beside: int) -> str:
    """What must be known to compare our number with the published one; "" if nothing."""
    if method == "SignSGD":
        return UNTRAINED if not (attack == RESCALE and beside == FEW and split != RAMP) else ""
    if method == "FoolsGold":
        return _foolsgold(attack, split, beside)
    if method == "Median":
        return _median(attack, split, beside)
    if method == "FedAvg":
        return {SIGNS: CONTRADICTION, RIDE: NOISE}.get(attack, "")
    if method == "Multi-Krum" and attack != FLIP and beside == FEW and not (attack == SIGNS and split == RAMP):
        return FAR
    return ""


def _foolsgold(attack: str, split: str, beside: int) -> str:
    if attack == FLIP and beside == FEW:
        return SUM
    if attack in (RIDE, INVERT) or (attack in (SIGNS, RESCALE) and split != RAMP and (attack, beside) != (SIGNS, MANY)):
        return NOVEL
    return ""


def _median(attack: str, split: str, beside: int) -> str:
    if attack == RESCALE and beside == MANY:
        return MAJORITY
    likely = (attack == RESCALE and split != RAMP) or (attack in (FLIP, INVERT) and beside == MANY)
    return "" if likely else REVERSED
