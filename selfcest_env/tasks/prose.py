"""Plain text as filler: the sentences of books, one text file each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np

from selfcest_env.errors import ConfigError, DataError, TaskError, did_you_mean
from selfcest_env.structure import Checked, Distinct, OneOf, check_unused
from selfcest_env.tasks.files import list_files, read_text
from selfcest_env.tasks.finite import ALL
from selfcest_env.tasks.splits import TEST, TRAIN

_SUFFIXES = (".txt",)
_PARAGRAPH_END = re.compile(r"\n\s*\n")
# No sentence ends after these.
_ABBREVIATIONS = "".join(rf"(?<!\b{word}\.)" for word in ("Mr", "Mrs", "Dr", "St"))
# A sentence ends with a mark, perhaps before a closing quotation mark, if a capital letter follows.
_SENTENCE_END = re.compile(
    _ABBREVIATIONS + r"""(?:(?<=[.!?])|(?<=[.!?]["\u201d\u2019'])) (?=["\u201c\u2018'_]*[A-Z])"""
)
_ENDS_SENTENCE = re.compile(r"""[.!?]["\u201d\u2019'_)]*$""")
# Headings such as `CHAPTER I.` are shorter.
_MIN_WORDS = 3


@dataclass(frozen=True)
class Prose(Checked):
    """The sentences of a folder of plain text, with some books kept apart for evaluation.

    Files are read at the first use, so a config may name a folder that does not exist yet.

    Attributes:
        path: a text file, or a folder whose `.txt` files are the books. Environment variables are expanded.
        part: "train" for all books but `test_books`, "test" for these, or "all".
        test_books: names of the files of the part "test", without `.txt`.
    """

    path: str
    part: Annotated[str, OneOf(ALL, TRAIN, TEST)] = ALL
    test_books: Annotated[tuple[str, ...], Distinct()] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part != ALL and not self.test_books:
            raise ConfigError(f"part is '{self.part}', and test_books is empty; name the books of the part 'test'")
        if self.part == ALL:
            check_unused(self, "part is 'all'; set it to 'train' to keep these books apart", "test_books")

    @cached_property
    def books(self) -> Mapping[str, tuple[str, ...]]:
        """The sentences of each book of the part, by its name.

        Raises:
            DataError: the folder has no text file, or a book has no sentence.
            ConfigError: there is no book of a name in `test_books`, or the part has no book.
        """
        files = list_files(self.path, _SUFFIXES)
        file_by_name = {file.stem: file for file in files}
        if len(file_by_name) < len(files):
            twice = next(file for file in files if file_by_name[file.stem] != file)
            raise DataError(f"{twice} and {file_by_name[twice.stem]} have one name; rename one of these books")
        for name in self.test_books:
            if name not in file_by_name:
                hint = did_you_mean(name, file_by_name)
                raise ConfigError(
                    f"test_books has '{name}', which is no book of {self.path}.{hint} The books are "
                    f"{', '.join(file_by_name)}"
                )
        names = [name for name in file_by_name if self.part == ALL or (name in self.test_books) == (self.part == TEST)]
        if not names:
            raise ConfigError(f"test_books has all books of {self.path}, so none is left for the part '{self.part}'")
        return {name: _read_sentences(file_by_name[name]) for name in names}

    def draw_book(self, rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
        """Draw a book and return its name and its sentences from a random one on, continued from its start."""
        names = list(self.books)
        name = names[int(rng.integers(len(names)))]
        sentences = self.books[name]
        start = int(rng.integers(len(sentences)))
        return name, (*sentences[start:], *sentences[:start])

    def check_length(self, words: int) -> None:
        """Raise `TaskError` if a book has fewer words in its sentences."""
        for name, sentences in self.books.items():
            available = sum(count_words(sentence) for sentence in sentences)
            if available < words:
                raise TaskError(
                    f"the book {name} of {self.path} has {available} words in sentences, and {words} are asked for; "
                    "lower the length, or remove the book"
                )


def count_words(text: str) -> int:
    return len(text.split())


def split_prose(text: str) -> list[str]:
    """Return the sentences of a text whose paragraphs are separated by empty lines. Headings are left out."""
    sentences: list[str] = []
    for paragraph in _PARAGRAPH_END.split(text.replace("\r\n", "\n")):
        for piece in split_paragraph(paragraph):
            if _ENDS_SENTENCE.search(piece) and count_words(piece) >= _MIN_WORDS:
                sentences.append(piece)
    return sentences


def pack_sentences(sentences: Sequence[str], length: int) -> list[list[str]]:
    """Return the sentences of each document of at most `length` words. A document is full before the next one starts.

    A longer sentence is a document of its own.
    """
    documents: list[list[str]] = []
    words = length  # words of the last document, which is full at first
    for sentence in sentences:
        words += count_words(sentence)
        if words > length:
            documents.append([])
            words = count_words(sentence)
        documents[-1].append(sentence)
    return documents


def split_paragraph(text: str) -> list[str]:
    """Return the sentences of a text without empty lines, and what is left after the last one."""
    return _SENTENCE_END.split(" ".join(text.split()))


def _read_sentences(file: Path) -> tuple[str, ...]:
    sentences = split_prose(read_text(file))
    if not sentences:
        raise DataError(
            f"{file}: no sentence was found; expected plain text in sentences of at least {_MIN_WORDS} words that end "
            "with '.', '!' or '?'"
        )
    return tuple(sentences)
