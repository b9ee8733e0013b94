"""Word pieces of a text by a BERT vocabulary: [CLS] ... [SEP]."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from adambo.errors import DataError

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")


def read_vocabulary(path: Path) -> dict[str, int]:
    """The word pieces of a vocabulary file (UTF-8, one per line) with their numbers, the line numbers from 0.

    Raises:
        DataError: The file is missing or not such a list, a special token is missing, or [PAD] is not the first line.
    """
    try:
        # Only "\n" ends a line: some pieces are signs that str.splitlines would take for the end of one.
        with open(path, encoding="utf-8", newline="\n") as file:
            pieces = [line.rstrip("\r\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"The vocabulary {path} cannot be read ({error}). It is a UTF-8 text file with one word piece per line, "
            "such as bert-base-uncased-vocab.txt."
        ) from error
    numbers = {piece: number for number, piece in enumerate(pieces)}
    missing = [token for token in SPECIAL if token not in numbers]
    if missing:
        raise DataError(
            f"The vocabulary {path} has {len(pieces)} lines, but none of them is {' or '.join(missing)}. A BERT "
            f"vocabulary holds {', '.join(SPECIAL)}, one word piece per line."
        )
    if numbers["[PAD]"] != 0:
        raise DataError(
            f"The vocabulary {path} has [PAD] in line {numbers['[PAD]'] + 1}. Rows are padded with the number 0, so "
            "[PAD] must be the first line, as in the vocabularies of BERT."
        )
    if len(numbers) < len(pieces):
        twice = next(piece for number, piece in enumerate(pieces) if numbers[piece] != number)
        raise DataError(f"The vocabulary {path} has the word piece {twice!r} twice, so that it has no one number.")
    return numbers


def word_piece_ids(texts: Iterable[str], vocabulary: Path, max_length: int) -> list[list[int]]:
    """The numbers of the word pieces of each text in lower case, [CLS] first and [SEP] last.

    Args:
        texts: Sentences.
        vocabulary: The vocabulary file, see `read_vocabulary`.
        max_length: Further pieces of a text are cut off; [CLS] and [SEP] count and always stay, so 2 or more.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import BertProcessing

    numbers = read_vocabulary(vocabulary)
    tokenizer = Tokenizer(WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"]))
    tokenizer.enable_truncation(max_length)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
