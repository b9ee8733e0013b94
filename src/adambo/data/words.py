"""Words of a text, and their numbers in a table of word vectors.

number        meaning
0             padding
1 ... n       the words: row r of the table has the number r + 1
n + 1         unknown: the only word of a text in which no word has a vector
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping

LINK = re.compile(r"https?://\S+|www\.\S+")
WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+|[^\sa-z0-9]")
CLITIC = re.compile(r"(.+?)(n't|'(?:s|re|ve|ll|d|m))")


def tokenize(text: str) -> list[str]:
    """The words, numbers and signs of `text` in lower case; HTML entities are resolved and links are left out.

    Each sign is a word of its own, and n't, 's, 're, 've, 'll, 'd and 'm are split off, as in the word lists of the
    vectors.

    Example:
        >>> tokenize("I can't see Tom's &quot;cat&quot;: http://cat.org/1 No2!")
        ['i', 'ca', "n't", 'see', 'tom', "'s", '"', 'cat', '"', ':', 'no', '2', '!']
    """
    words: list[str] = []
    for word in WORD.findall(LINK.sub(" ", html.unescape(text).lower())):
        split = CLITIC.fullmatch(word)
        words.extend(split.groups() if split else (word,))
    return words


def word_ids(texts: Iterable[str], words: Mapping[str, int], max_length: int) -> list[list[int]]:
    """The number of each word of each text, by the table at the top; words without a vector are left out.

    Args:
        texts: Sentences.
        words: The row of each word in the table of vectors, from 0, every row once.
        max_length: Further words of a text are cut off (those without a vector do not count).

    Returns:
        One row per text, none of them empty: where no word is known, the row is the one number `len(words) + 1`.

    Example:
        >>> word_ids(["a b a", "b?", "!"], {"a": 0, "b": 1}, max_length=2)
        [[1, 2], [2], [3]]
    """
    unknown = len(words) + 1
    rows = ([words[word] + 1 for word in tokenize(text) if word in words][:max_length] for text in texts)
    return [row or [unknown] for row in rows]
