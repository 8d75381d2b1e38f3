"""A slow reader gets pieces of a reply joined. Each protocol says the same, whichever pieces were joined."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from cfs.wire import Usage
from cfs_server.engine.contract.interface import CallDelta, Delta, Finished
from cfs_server.engine.upstream.turn import UpstreamTurn
from cfs_server.protocols.anthropic_replies import MessageWriter
from cfs_server.protocols.chat import Writer
from cfs_server.protocols.ollama_replies import OllamaWriter
from cfs_server.protocols.response_events import ResponseWriter
from tests.engine.support import request

PIECES = [
    Delta("", 1, thinking="Hm."),
    Delta("Look. ", 1),
    Delta("", 1, calls=(CallDelta(0, "a", "read_file", ""),)),
    Delta("", 1, calls=(CallDelta(0, arguments='{"path"'),)),
    Delta("", 1, calls=(CallDelta(0, arguments=': "a.txt"}'),)),
    Delta("", 1, calls=(CallDelta(1, "b", "list_directory", ""),)),
    Delta("And so. ", 1),
    Delta("", 1, calls=(CallDelta(1, arguments='{"path": '),)),
    Delta("", 1, calls=(CallDelta(1, arguments='"/"}'),)),
    Delta("Done.", 1),
]
END = Finished("tool_calls", Usage())
CALLS = [("a", "read_file", {"path": "a.txt"}), ("b", "list_directory", {"path": "/"})]
SAID = ("Hm.", "Look. And so. Done.", CALLS)
Said = tuple[str, str, list[tuple[str, str, Any]]]


async def joined(cuts: tuple[bool, ...]) -> list[Delta | Finished]:
    """Let a reader take what there is at some places only."""
    turn, found = UpstreamTurn(request("hello")), list[Delta | Finished]()
    for piece, cut in zip(PIECES, (*cuts, True), strict=True):
        turn.add(piece)
        if cut:
            turn.end("tool_calls")
            while (delta := await turn.next()) is not None:
                found.append(delta)
            turn.reason = None
    return [*found, END]


def by_chat(items: list[Delta | Finished]) -> Said:
    writer = Writer("m")
    choices = [choice.delta for item in items for chunk in writer.write(item) for choice in chunk.choices]
    calls: dict[int, list[str]] = {}
    for piece in (piece for delta in choices for piece in delta.tool_calls or ()):
        assert piece.function is not None
        call = calls.setdefault(piece.index, [piece.id or "", piece.function.name or "", ""])
        call[2] += piece.function.arguments or ""
    text = "".join(delta.content or "" for delta in choices)
    thinking = "".join(delta.reasoning_content or "" for delta in choices)
    return thinking, text, [(call_id, name, json.loads(text)) for call_id, name, text in calls.values()]


def by_anthropic(items: list[Delta | Finished]) -> Said:
    """One block is open at a time, and each grows only while it is open."""
    writer, blocks, is_open = MessageWriter("m", None), list[dict[str, Any]](), False
    for event in (event for item in items for event in writer.write(item)):
        match event["type"]:
            case "content_block_start":
                assert not is_open
                blocks.append({"all": "", **event["content_block"]})
                is_open = True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(blocks) - 1
                change = event["delta"]
                blocks[-1]["all"] += change.get("text") or change.get("thinking") or change.get("partial_json") or ""
            case "content_block_stop":
                is_open = False
    texts = {kind: "".join(block["all"] for block in blocks if block["type"] == kind) for kind in ("thinking", "text")}
    calls = [(b["id"], b["name"], json.loads(b["all"])) for b in blocks if b["type"] == "tool_use"]
    return texts["thinking"], texts["text"], calls


def by_responses(items: list[Delta | Finished]) -> Said:
    writer = ResponseWriter("resp_1", "m", 0)
    for item in items:
        for _ in writer.write(item):
            pass
    output = writer.response()["output"]
    text = "".join(part["text"] for item in output if item["type"] == "message" for part in item["content"])
    thinking = "".join(part["text"] for item in output if item["type"] == "reasoning" for part in item["summary"])
    calls = [i for i in output if i["type"] == "function_call"]
    return thinking, text, [(call["call_id"], call["name"], json.loads(call["arguments"])) for call in calls]


def by_ollama(items: list[Delta | Finished]) -> Said:
    writer = OllamaWriter("m", None, chats=True)
    said = [piece["message"] for item in items for piece in writer.write(item)]
    calls = [call for message in said for call in message.get("tool_calls", ())]
    assert [call["function"]["index"] for call in calls] == [0, 1]
    return (
        "".join(message.get("thinking", "") for message in said),
        "".join(message["content"] for message in said),
        [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls],
    )


def all_cuts() -> Iterator[tuple[bool, ...]]:
    return itertools.product((True, False), repeat=len(PIECES) - 1)


async def test_every_way_of_joining_pieces_says_the_same_in_every_protocol() -> None:
    for cuts in all_cuts():
        items = await joined(cuts)
        assert [write(items) for write in (by_chat, by_anthropic, by_responses, by_ollama)] == [SAID] * 4, cuts
