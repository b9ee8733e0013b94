"""Texts with labels, as every reader returns them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from adambo.errors import DataError


@dataclass(frozen=True)
class Labelled:
    """Texts, or pairs of texts, in the order of their file, each with the index of its class.

    Attributes:
        texts: The texts; of pairs, the premises.
        labels: The class of each, an index into `classes`.
        classes: The names of the classes.
        files: The files that were read.
        second: Of pairs, the hypotheses; otherwise None.
    """

    texts: list[str]
    labels: list[int]
    classes: tuple[str, ...]
    files: tuple[Path, ...]
    second: list[str] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: Iterable[int]) -> Labelled:
        """Those of the examples, in the given order."""
        indices = list(indices)
        return replace(
            self,
            texts=[self.texts[index] for index in indices],
            labels=[self.labels[index] for index in indices],
            second=None if self.second is None else [self.second[index] for index in indices],
        )

    def counts(self) -> dict[str, int]:
        """How many examples there are of each class."""
        count = Counter(self.labels)
        return {name: count[label] for label, name in enumerate(self.classes)}


def usable(data: Labelled, form: str) -> Labelled:
    """The data as it is, unless it has no examples or those of one class only: nothing could be learnt from them."""
    present = [f"{count:,} {name}" for name, count in data.counts().items() if count]
    if len(present) < 2:
        came = f"only one class, {present[0]}" if present else "no labelled examples"
        raise DataError(
            f"{', '.join(map(str, data.files))} holds {came}; at least two of {', '.join(data.classes)} are needed. "
            f"Expected: {form}."
        )
    return data
