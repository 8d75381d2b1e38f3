"""Examine the embedded model: recall of unseen names, tool calls, sums, and whether it ends its turns by itself.

    scripts/bench demo_model_quality [MODEL.gguf] [--count 240] [--json FILE] [--failures 20]

Greedy unless --temperature says otherwise; every conversation goes on with the model's own replies.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import llama_cpp

from demo_model.chat_format import Message, chat_prompt, transcript_prompt
from demo_model.examination import Case, long_cases, recall_cases, talk_cases, tool_cases

DEFAULT = Path(__file__).resolve().parents[2] / "server" / "cfs_server" / "models" / "cfs-demo.gguf"
MOST_TOKENS = 256


@dataclass(frozen=True)
class Reply:
    """What the model wrote, whether it ended the turn by itself, and the prompt's length in tokens."""

    text: str
    ended: bool
    prompt_tokens: int


@dataclass(frozen=True)
class Result:
    """One checked reply."""

    category: str
    language: str
    style: str
    right: bool
    ended: bool
    prompt: str
    reply: str
    prompt_tokens: int


class Model:
    """A GGUF model that completes prompts."""

    def __init__(self, path: Path, temperature: float = 0.0) -> None:
        self.temperature = temperature
        self.llama = llama_cpp.Llama(str(path), n_ctx=2048, n_threads=1, n_threads_batch=1, seed=1, verbose=False)
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.llama.model)

    def reply(self, prompt: str) -> Reply:
        """Complete a prompt up to an end-of-generation token."""
        tokens = self.llama.tokenize(prompt.encode(), add_bos=False, special=True)
        written: list[int] = []
        ended = False
        if len(tokens) + 2 < self.llama.n_ctx():
            for token in self.llama.generate(tokens, temp=self.temperature, top_k=40, top_p=0.95, repeat_penalty=1.0):
                ended = llama_cpp.llama_vocab_is_eog(self.vocabulary, token)
                if ended or len(written) == MOST_TOKENS or len(tokens) + len(written) + 2 > self.llama.n_ctx():
                    break
                written.append(token)
        return Reply(self.llama.detokenize(written).decode(errors="replace").strip(), ended, len(tokens))


def converse(model: Model, case: Case) -> Iterable[Result]:
    """Put a case's turns before the model; one result for each reply that is checked."""
    messages = [Message("system", case.system)] if case.system else []
    render = chat_prompt if case.style == "chat" else transcript_prompt
    for turn in case.turns:
        if turn.given[0].role == "assistant":
            messages.pop()  # a fixed call and its result stand in for the model's own call
        messages += turn.given
        prompt = render(messages, case.tools)
        reply = model.reply(prompt)
        if turn.check:
            right = turn.check(reply.text)
            yield Result(
                turn.category, case.language, case.style, right, reply.ended, prompt, reply.text, reply.prompt_tokens
            )
        messages.append(Message("assistant", reply.text))


def examine(model: Model, cases: Iterable[Case]) -> list[Result]:
    """The results of many cases."""
    return [result for case in cases for result in converse(model, case)]


def _figures(results: list[Result]) -> dict[str, dict[str, list[int]]]:
    table: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for result in results:
        for column in ("all", result.language, result.style):
            table[result.category][column][0] += result.right
            table[result.category][column][1] += 1
        table["ends by itself"]["all"][0] += result.ended
        table["ends by itself"]["all"][1] += 1
        if result.category.startswith("name after") and "long" not in result.category:
            for column in ("all", result.language, result.style):
                table["NAME RECALL"][column][0] += result.right
                table["NAME RECALL"][column][1] += 1
        if result.category.startswith("call "):
            for column in ("all", result.language, result.style):
                table["TOOL CALLS"][column][0] += result.right
                table["TOOL CALLS"][column][1] += 1
    return table


def _show(table: dict[str, dict[str, list[int]]]) -> None:
    columns = ("all", "en", "zh", "chat", "transcript")
    print(f"{'':36}" + "".join(f"{column:>19}" for column in columns))
    for category, row in sorted(table.items()):
        cells = [
            f"{100 * row[column][0] / row[column][1]:6.1f} % of {row[column][1]:<4d}" if column in row else ""
            for column in columns
        ]
        print(f"{category:36}" + "".join(f"{cell:>19}" for cell in cells))


def main() -> None:
    """Examine a model and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=DEFAULT)
    parser.add_argument("--count", type=int, default=240, help="recall dialogues; the other kinds are scaled by it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--failures", type=int, default=0, help="print so many failures")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    model = Model(arguments.model, arguments.temperature)
    count, seed = arguments.count, arguments.seed
    cases = chain(
        recall_cases(seed, count),
        talk_cases(seed, count // 4),
        tool_cases(seed, count // 6),
        long_cases(seed, count // 8),
    )
    results = examine(model, cases)
    table = _figures(results)
    _show(table)
    longest = max(result.prompt_tokens for result in results)
    print(f"longest prompt: {longest} tokens")
    for result in [result for result in results if not result.right][: arguments.failures]:
        print(f"--- {result.category} ({result.language}, {result.style})\n{result.prompt[-400:]}>>> {result.reply!r}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"longest_prompt_tokens": longest, "right_of": table}, indent=2) + "\n")


if __name__ == "__main__":
    main()
