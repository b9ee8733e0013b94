"""Everybody who takes part in `peers.py`, one file per library."""

from contenders.adambo import Adambo
from contenders.betty import Betty, BettyCG, BettyDarts
from contenders.boat import Boat, BoatCG
from contenders.by_hand import Naive, PlainAdam, StraightAutograd
from contenders.contender import Contender, Settings
from contenders.hypertorch import Hypertorch, HypertorchOnFeatures
from contenders.torchopt import TorchOpt, TorchOptNormalCG, TorchOptOnFeatures

CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        PlainAdam(),
        StraightAutograd(),
        Adambo(),
        TorchOptOnFeatures(),
        TorchOpt(),
        TorchOptNormalCG(),
        Betty(),
        BettyCG(),
        BettyDarts(),
        Boat(),
        BoatCG(),
        HypertorchOnFeatures(),
        Hypertorch(),
        Naive(),
    )
}

__all__ = ["CONTENDERS", "Contender", "Settings"]
