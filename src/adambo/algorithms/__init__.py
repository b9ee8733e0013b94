"""One paper, one file. `ALL` lists them by name; each class says in `summary` and `cost` what it is."""

from adambo.algorithms.accbo import AccBO
from adambo.algorithms.adambo import AdamBO
from adambo.algorithms.anil import ANIL
from adambo.algorithms.base import Algorithm
from adambo.algorithms.borep import BOREP
from adambo.algorithms.f2sa import F2SA
from adambo.algorithms.fsla import FSLA
from adambo.algorithms.info import Info
from adambo.algorithms.maml import MAML
from adambo.algorithms.masoba import MASOBA
from adambo.algorithms.saba import SABA
from adambo.algorithms.slip import SLIP
from adambo.algorithms.soba import SOBA
from adambo.algorithms.stocbio import StocBiO
from adambo.algorithms.sustain import SUSTAIN
from adambo.algorithms.ttsa import TTSA
from adambo.algorithms.vradambo import VRAdamBO
from adambo.algorithms.vrbo import VRBO

__all__ = [
    "ANIL",
    "BOREP",
    "F2SA",
    "FSLA",
    "MAML",
    "MASOBA",
    "SABA",
    "SLIP",
    "SOBA",
    "SUSTAIN",
    "TTSA",
    "VRBO",
    "AccBO",
    "AdamBO",
    "Algorithm",
    "Info",
    "StocBiO",
    "VRAdamBO",
]

_named = [name for name in __all__ if name not in ("Algorithm", "Info")]
ALL: dict[str, type[Algorithm]] = {name: globals()[name] for name in sorted(_named, key=str.lower)}
