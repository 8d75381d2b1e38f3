"""A byte-level BPE tokenizer that cuts a string the same way wherever it stands.

Names and file names have to be copied, and a string can be copied piece by piece only if it has the same pieces
at both places. So no merge holds a capital, a digit or bytes of two characters; lower-case runs are merged only
within themselves; and a space is merged with a following word only for a short list of frequent words. The
pre-tokenization is that of GPT-2, which llama.cpp has built in.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from demo_model.chat_format import END_OF_TEXT, IM_END, IM_START, TOOL_CALL, TOOL_CALL_END, TRANSCRIPT_PREFIXES

CONTROL = (END_OF_TEXT, IM_START, IM_END)
# Found in any text, and one token each: so a prompt's last token is the same with and without the reply behind it.
MARKS = (TOOL_CALL, TOOL_CALL_END, *TRANSCRIPT_PREFIXES.values())
_BASE_MERGES = [("{", '"'), ('"', ":"), ('"', ","), ('"', "}"), ('"}', "}"), ("[", '"'), ('"', "]"), ('"]', "}"),
                ("Ġ", '{"'), ("Ġ", '["'), ("Ġ", '"')]  # fmt: skip
_WORD = re.compile(r"[a-z]+")
_SPACED = re.compile(r"(?<= )[a-z]{3,}(?![a-z])")
_WIDE = re.compile(r"[^\x00-\u02ff]")


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def _learn_pieces(words: Counter[str], count: int) -> list[tuple[str, str]]:
    """The most useful merges inside lower-case runs (plain BPE on word counts)."""
    split = {word: list(word) for word in words}
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, pieces in split.items():
            for pair in pairwise(pieces):
                pairs[pair] += words[word]
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for pieces in split.values():
            index = 0
            while index < len(pieces) - 1:
                if (pieces[index], pieces[index + 1]) == best:
                    pieces[index : index + 2] = ["".join(best)]
                index += 1
    return merges


@dataclass(frozen=True)
class Vocabulary:
    """The tokens in the order of their ids, and the merges in the order of their ranks."""

    tokens: list[str]
    merges: list[tuple[str, str]]

    def save(self, path: Path) -> None:
        """Write the vocabulary as JSON."""
        path.write_text(json.dumps({"tokens": self.tokens, "merges": self.merges}, ensure_ascii=False))

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read a vocabulary written by `save`."""
        data = json.loads(path.read_text())
        return cls(data["tokens"], [(first, second) for first, second in data["merges"]])

    def encoder(self) -> Tokenizer:
        """A fast encoder with this vocabulary."""
        ids = {token: index for index, token in enumerate(self.tokens) if token not in (*CONTROL, *MARKS)}
        encoder = Tokenizer(models.BPE(vocab=ids, merges=self.merges))
        encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        encoder.decoder = decoders.ByteLevel()
        encoder.add_special_tokens([AddedToken(token, normalized=False) for token in (*CONTROL, *MARKS)])
        for token in (*CONTROL, *MARKS):
            assert encoder.token_to_id(token) == self.tokens.index(token)
        return encoder


def learn(texts: Iterable[str], pieces: int = 560, spaced: int = 130, wide: int = 760) -> Vocabulary:
    """Learn a vocabulary of about 2,000 tokens from dialogues."""
    words: Counter[str] = Counter({"system": 10**6, "assistant": 10**6, "user": 10**6, "tool": 10**6})
    after_space: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for text in texts:
        words.update(_WORD.findall(text))
        after_space.update(_SPACED.findall(text))
        characters.update(_WIDE.findall(text))
    alphabet = byte_alphabet()
    # Words seen a few times only are mostly made up: they are to be cut into small pieces, not to shape them.
    merges = _learn_pieces(Counter({word: count for word, count in words.items() if count > 5}), pieces)
    whole = {"".join(pair) for pair in merges} & {word for word, count in words.items() if count > 5}
    spaced_words = [word for word, _ in after_space.most_common() if word in whole][:spaced]
    merges += [*_BASE_MERGES, *(("Ġ", word) for word in spaced_words)]
    for character, _ in characters.most_common(wide):
        symbols = [alphabet[byte] for byte in character.encode()]
        while len(symbols) > 1:
            if (symbols[0], symbols[1]) not in merges:
                merges.append((symbols[0], symbols[1]))
            symbols[:2] = [symbols[0] + symbols[1]]
    tokens = list(dict.fromkeys([*alphabet, *("".join(pair) for pair in merges)]))
    return Vocabulary([*tokens, *CONTROL, *MARKS], merges)
