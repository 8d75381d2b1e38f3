"""Servers that refuse what known ones refuse, each in its own words, status and shape.

Each rule and each wording names where it was seen: an issue, or the documentation of the server.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.upstream.openai_stub import OpenAIStub
from tests.upstream.stub import NotAllowed, Speech

Rows = Sequence[Mapping[str, Any]]
"""The messages of a request."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Something that a server refuses, with the words and the status of its refusal."""

    source: str
    words: str
    broken: Callable[[Rows], bool]
    status: int = 400


def _turns(rows: Rows) -> list[str]:
    """Return the roles without those that templates leave out when they check whether roles alternate."""
    return [row["role"] for row in rows if row["role"] in ("user", "assistant") and not row.get("tool_calls")]


def _after(first: str, second: str) -> Callable[[Rows], bool]:
    return lambda rows: any(pair == (first, second) for pair in pairwise(row["role"] for row in rows))


def _ids(rows: Rows) -> list[str]:
    return [call["id"] for row in rows for call in row.get("tool_calls") or ()]


def _is_blank(row: Mapping[str, Any]) -> bool:
    return not (row["content"] or "").strip() and not row.get("tool_calls")


ALTERNATING = Rule(
    "vllm-project/vllm#6862",
    "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
    lambda rows: any(role != ("user", "assistant")[n % 2] for n, role in enumerate(_turns(rows))),
)
SUCCESSIVE = Rule(
    "BerriAI/litellm#8018",
    "deepseek-reasoner does not support successive user or assistant messages (messages[1] and messages[2])",
    lambda rows: _after("user", "user")(rows) or _after("assistant", "assistant")(rows),
)
SYSTEM_FIRST = Rule(
    "ggml-org/llama.cpp#27367",
    "Jinja Exception: System message must be at the beginning.",
    lambda rows: any(row["role"] == "system" for row in rows[1:]),
    500,
)
NOT_EMPTY = Rule(
    "OpenHands/OpenHands#8685, labring/FastGPT#3575",
    "Assistant message must have either content or tool_calls, but not none.",
    lambda rows: any(row["role"] == "assistant" and _is_blank(row) for row in rows),
)
NOT_BLANK = Rule(
    "boto/botocore#3525, anthropics/claude-code#23369",
    "The text field in the ContentBlock object at messages.1.content.0 is blank. Add text to the text field.",
    lambda rows: any(map(_is_blank, rows)),
)
TEXT_CONTENT = Rule(
    "lmstudio-ai/lmstudio-bug-tracker#261",
    "Invalid 'content': 'content' field must be a string or an array of objects.",
    lambda rows: any(row["content"] is None for row in rows),
)
IDS_OF_40 = Rule(
    "BerriAI/litellm#17343",
    "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40.",
    lambda rows: any(len(call) > 40 for call in _ids(rows)),
)
IDS_OF_9 = Rule(
    "anomalyco/opencode#1680",
    "Tool call id was call_0 but must be a-z, A-Z, 0-9, with a length of 9.",
    lambda rows: any(len(call) != 9 or not call.isalnum() for call in _ids(rows)),
)
REPLY_AFTER_RESULT = Rule(
    "pipecat-ai/pipecat-flows#178", "Unexpected role 'user' after role 'tool'", _after("tool", "user")
)
NO_CALLS = Rule(  # its template raises, and vLLM sends no reason: microsoft/autogen#5965
    "huggingface/text-generation-inference#3198, microsoft/autogen#5965",
    "",
    lambda rows: any(row["role"] == "tool" for row in rows) or ALTERNATING.broken(rows),
)
SIGNED_CALLS = Rule(
    "securo-finance/securo#884",
    "Function call is missing a thought_signature in functionCall parts.",
    lambda rows: bool(_ids(rows)),
)
USER_FIRST = Rule(
    "google-gemini/gemini-cli#11814",
    "Please ensure that function call turn comes immediately after a user turn or after a function response turn.",
    lambda rows: [row["role"] for row in rows if row["role"] != "system"][:1] != ["user"],
)
USER_LAST = Rule(
    "0xPlaygrounds/rig#1130, ggml-org/llama.cpp#20861",
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
    lambda rows: rows[-1]["role"] not in ("user", "tool"),
)
NO_THINKING = Rule(
    "janhq/jan#8136",
    "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property "
    "'reasoning_content' is unsupported)]",
    lambda rows: any("reasoning_content" in row for row in rows),
)
EXTRA_THINKING = Rule(
    "charmbracelet/crush#1590",
    "[{'type': 'extra_forbidden', 'loc': ['body', 'messages', 1, 'assistant', 'reasoning_content'], "
    "'msg': 'Extra inputs are not permitted'}]",
    NO_THINKING.broken,
    422,
)
THINKING_OF_CALLS = Rule(
    "mastra-ai/mastra#12592, theopenco/llmgateway#2093",
    "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
    lambda rows: any(row.get("tool_calls") and not row.get("reasoning_content") for row in rows),
)


@dataclass(frozen=True, slots=True)
class TooLong:
    """How a server refuses a prompt that is too long. With `in_stream`, the refusal is an event after a success."""

    source: str
    words: str
    status: int = 400
    code: str | None = None
    in_stream: bool = False


WORDS_OF_LENGTH = {
    "openai": TooLong("API reference", "Your input exceeds the context window of this model.", code="context_length"),
    "vllm": TooLong(
        "anomalyco/opencode#17340, earendil-works/pi#5930",
        "This model's maximum context length is 300 tokens. However, you requested 0 output tokens and your prompt "
        "contains at least 301 input tokens. (parameter=input_tokens, value=301)",
    ),
    "sglang": TooLong(
        "openclaw/openclaw#129352", "The input (301 tokens) is longer than the model's context length (300 tokens)."
    ),
    "sglang, with the reply": TooLong(
        "anomalyco/opencode#25231", "Requested token count exceeds the model's maximum context length of 300 tokens."
    ),
    "lm studio": TooLong(
        "lmstudio-ai/lmstudio-bug-tracker#546",
        "Trying to keep the first 301 tokens when context the overflows. However, the model is loaded with context "
        "length of only 300 tokens, which is not enough.",
        in_stream=True,
    ),
    "gemini": TooLong(
        "earendil-works/pi, overflow.ts",
        "The input token count (301) exceeds the maximum number of tokens allowed (300).",
    ),
    "groq": TooLong("Groq's documentation", "Please reduce the length of the messages or completion."),
    "groq, per minute": TooLong(
        "vellum-ai/vellum-assistant#42635",
        "Request too large for model `m` on tokens per minute (TPM): Limit 300, Requested 301",
        413,
        "rate_limit_exceeded",
    ),
    "bedrock": TooLong("openclaw/openclaw#58839", "Input is too long for requested model."),
    "ollama": TooLong("openclaw/openclaw#58839", "prompt too long; exceeded max context length by 4 tokens", 500),
    "kimi": TooLong("earendil-works/pi, overflow.ts", "Your request exceeded model token limit: 300 (requested: 301)"),
    "proxy": TooLong("anomalyco/opencode#14562", "<html><h1>413 Request Entity Too Large</h1></html>", 413),
    "other words": TooLong("anomalyco/opencode#27519", "tokens in request more than max tokens allowed"),
    "misleading words": TooLong("tontinton/maki#981", "Request is missing a header and cannot be routed", code="Id"),
    "no words": TooLong("earendil-works/pi, overflow.ts (Cerebras, Mistral)", ""),
    "no words, 422": TooLong("the same, with the status of FastAPI", "", 422),
}


class StrictStub(OpenAIStub):
    """Speaks OpenAI's protocol and keeps to some rules. Its model reads `window` words; `context` names their number.

    `long_ids`: its calls have ids of 46 characters, as vLLM's of some versions.
    """

    def __init__(
        self,
        *rules: Rule,
        window: int = 300,
        too_long: TooLong = WORDS_OF_LENGTH["openai"],
        context: str = "",
        long_ids: bool = False,
    ) -> None:
        super().__init__()
        self.rules, self.window, self.too_long, self.context, self.long_ids = rules, window, too_long, context, long_ids
        self.broken: list[str] = []
        self._replies = 0

    def read(self, body: Any) -> Iterable[str]:
        """Refuse what breaks a rule, or is too long."""
        rows = body["messages"]
        words = sum(len((row["content"] or "").split()) for row in rows)
        if words > self.window:
            self.broken.append("length")
            if not self.too_long.in_stream:
                raise NotAllowed(self.too_long.words, self.too_long.status, code=self.too_long.code)
            self.acts.appendleft(Speech(words=(), failing=("", self.too_long.words)))
            return ("too", "long")
        for rule in self.rules:
            if rule.broken(rows):
                self.broken.append(rule.source)
                raise NotAllowed(rule.words, rule.status)
        return super().read(body)

    def model(self, name: str) -> dict[str, Any]:
        """Tell the length under the name that the server has for it."""
        row = {"id": name, "object": "model", "created": 1, "owned_by": "us"}
        return row | ({self.context: self.window} if self.context else {})

    def events(self, speech: Speech, words: Iterable[str], prompt: int, most: int) -> Any:
        """Give calls an id of their own."""
        self._replies += 1
        prefix = f"{'chatcmpl-tool-' if self.long_ids else 'call_'}{self._replies:0{32 if self.long_ids else 2}d}"
        for event in super().events(speech, words, prompt, most):
            yield event.replace('"id": "call_', f'"id": "{prefix}')


def strict_stubs() -> dict[str, StrictStub]:
    """Make the known servers, and one that keeps to all rules at once."""
    length = WORDS_OF_LENGTH
    mistral = (ALTERNATING, NOT_EMPTY, IDS_OF_9, REPLY_AFTER_RESULT, USER_LAST, EXTRA_THINKING)
    return {
        "openai": StrictStub(IDS_OF_40),
        "vllm": StrictStub(ALTERNATING, too_long=length["vllm"], context="max_model_len", long_ids=True),
        "llama": StrictStub(SYSTEM_FIRST, USER_LAST, too_long=length["proxy"]),
        "mistral": StrictStub(*mistral, too_long=length["no words"], context="max_context_length"),
        "deepseek": StrictStub(SUCCESSIVE, NOT_EMPTY, THINKING_OF_CALLS, too_long=length["other words"]),
        "gemma": StrictStub(NO_CALLS, too_long=length["no words, 422"], long_ids=True),
        "gemini": StrictStub(USER_FIRST, SIGNED_CALLS, too_long=length["gemini"]),
        "groq": StrictStub(NO_THINKING, IDS_OF_40, too_long=length["groq, per minute"], context="context_window"),
        "studio": StrictStub(TEXT_CONTENT, SYSTEM_FIRST, too_long=length["lm studio"]),
        "bedrock": StrictStub(NOT_BLANK, USER_FIRST, too_long=length["misleading words"]),
        "strictest": StrictStub(
            *mistral, SYSTEM_FIRST, SUCCESSIVE, NOT_BLANK, TEXT_CONTENT, USER_FIRST, NO_THINKING,
            too_long=length["no words"],
        ),
    }  # fmt: skip
