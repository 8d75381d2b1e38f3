"""The training loop: a run is given minutes, not steps, and anneals so as to end well when they are over."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from demo_model.agent_life import Lives
from demo_model.batches import IGNORED, Batch, Mix, batches
from demo_model.export import export
from demo_model.muon import Muon
from demo_model.network import Network, Shape
from demo_model.tokenizer import Vocabulary


@dataclass(frozen=True)
class Plan:
    """How long and how to train."""

    minutes: float
    seed: int
    tokens: int = 3072  # of one batch, padding included
    matrix_rate: float = 0.01  # twice that is too much noise for batches this small: copying stays blurred
    other_rate: float = 0.002
    steady: float = 0.3  # the share of the time before the rates begin to fall
    average: float = 0.995  # of the running mean of the weights, which is what is exported
    export_every: float = 5.0  # minutes
    compile: bool = False
    agents: float = 0.0  # the share of agents' lives; what is left is as below, at the end of a training from nothing
    open: float = 0.0  # the share of tools of any kind in what is left
    half: bool = False  # compute in bfloat16, which is faster where the processor can

    def rate(self, done: float) -> float:
        """The factor of the learning rates when a share of the time is over."""
        return 1.0 if done < self.steady else max(0.0, (1 - done) / (1 - self.steady))

    def mix(self, done: float) -> Mix:
        """What is trained on when a share of the time is over: short copying first, long dialogues last."""
        if self.agents:
            return Mix(easy=0.2, long=0.05, agents=self.agents, open=self.open)
        if done < 0.16:
            return Mix(easy=0.92, long=0.0)
        if done < 0.3:
            return Mix(easy=0.6, long=0.0)
        if done < 0.6:
            return Mix(easy=0.3, long=0.02)
        return Mix(easy=0.2, long=0.06)


class Trainer:
    """A network in training, with its optimisers and the running mean of its weights."""

    def __init__(self, vocabulary: Vocabulary, shape: Shape, plan: Plan, folder: Path) -> None:
        torch.manual_seed(plan.seed)
        self.vocabulary, self.plan, self.folder = vocabulary, plan, folder
        self.network = Network(shape)
        matrices = [weight for weight in self.network.layers.parameters() if weight.ndim == 2]
        vectors = [weight for weight in self.network.parameters() if weight.ndim == 1]
        self.muon = Muon(matrices)
        groups = [{"params": vectors}, {"params": [self.network.embedding]}]
        self.adam = torch.optim.AdamW(groups, lr=plan.other_rate, betas=(0.9, 0.98), weight_decay=0.0)
        self.mean = {name: weight.detach().clone() for name, weight in self.network.named_parameters()}
        self.step, self.seconds, self.rounds = 0, 0.0, 0
        self.stopped = False
        self.forward = cast(
            "Callable[..., torch.Tensor]",
            torch.compile(self.network, dynamic=True) if plan.compile else self.network,
        )

    def save(self) -> None:
        """Write a checkpoint, whole or not at all."""
        state = {
            "shape": self.network.shape.as_dict(), "network": self.network.state_dict(), "mean": self.mean,
            "muon": self.muon.buffers, "adam": self.adam.state_dict(), "step": self.step, "seconds": self.seconds,
            "rounds": self.rounds,
        }  # fmt: skip
        partial = self.folder / "checkpoint.partial"
        torch.save(state, partial)
        partial.replace(self.folder / "checkpoint.pt")

    def load(self) -> None:
        """Go on from the checkpoint."""
        state: dict[str, Any] = torch.load(self.folder / "checkpoint.pt")
        self.network.load_state_dict(state["network"])
        self.adam.load_state_dict(state["adam"])
        self.muon.buffers, self.mean = state["muon"], state["mean"]
        self.step, self.seconds, self.rounds = state["step"], state["seconds"], state["rounds"] + 1

    def begin_with(self, weights: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Take over the weights of a trained model; layers that it lacks come in the middle and do nothing at first."""
        found = self.network.state_dict()
        had = {int(name.split(".")[1]) for name in weights if name.startswith("layers.")}
        new = len(self.network.layers) - len(had)
        for name, weight in weights.items():
            where, _, part = name.removeprefix("layers.").partition(".")
            if part:
                index = int(where) + new * (int(where) > len(had) // 2)
                name = f"layers.{index}.{part}"
            found[name] = torch.from_numpy(weight)
        for index in range(len(had) // 2 + 1, len(had) // 2 + 1 + new):
            for part in ("o", "down"):
                found[f"layers.{index}.{part}"] = torch.zeros_like(found[f"layers.{index}.{part}"])
        self.network.load_state_dict(found)
        self.mean = {name: weight.detach().clone() for name, weight in self.network.named_parameters()}

    def export(self, path: Path) -> None:
        """Write the running mean of the weights as a GGUF file."""
        weights: dict[str, npt.NDArray[np.float32]] = {name: mean.numpy() for name, mean in self.mean.items()}
        export(path, self.vocabulary, self.network.shape.as_dict(), weights)

    def learn(self, batch: Batch, rate: float) -> torch.Tensor:
        """One step; the loss before it."""
        ids, targets, shared = map(torch.from_numpy, (batch.ids, batch.targets, batch.shared))
        wanted = targets != IGNORED
        with torch.autocast("cpu", torch.bfloat16, enabled=self.plan.half):
            logits = self.forward(ids, wanted, shared)
        loss = functional.cross_entropy(logits.float(), targets[wanted])
        loss.backward()
        self.muon.step(self.plan.matrix_rate * rate)
        for group in self.adam.param_groups:
            group["lr"] = self.plan.other_rate * rate
        self.adam.step()
        for weight in self.network.parameters():
            weight.grad = None
        self.step += 1
        keep = min(self.plan.average, self.step / (self.step + 10))
        with torch.no_grad():
            for name, weight in self.network.named_parameters():
                self.mean[name].lerp_(weight, 1 - keep)
        return loss.detach()

    def stop(self, *_: object) -> None:
        """End the run after this step, as a signal's handler."""
        self.stopped = True

    def run(self, out: Path) -> None:
        """Train until the time is over, exporting to `out` on the way."""
        encoder, lives = self.vocabulary.encoder(), Lives(bare=0.6)
        limit, exported, shown = self.plan.minutes * 60, time.monotonic(), time.monotonic()
        rng = Random(f"{self.plan.seed}.{self.rounds}")
        mix = None
        losses: list[torch.Tensor] = []
        tokens = 0
        while self.seconds < limit and not self.stopped:
            begun = time.monotonic()
            done = self.seconds / limit
            if self.plan.mix(done) != mix:
                mix = self.plan.mix(done)
                source = batches(encoder, rng, self.plan.tokens, mix, self.network.shape.context, lives)
            batch = next(source)
            warm = min(1.0, (self.step + 1) / 60)
            losses.append(self.learn(batch, warm * self.plan.rate(done)))
            tokens += batch.ids.size + batch.shared.size
            now = time.monotonic()
            self.seconds += now - begun
            if now - shown > 20:
                loss = torch.stack(losses).mean().item()
                print(
                    f"{self.seconds / 60:6.1f} min  step {self.step:5d}  loss {loss:.4f}  "
                    f"{tokens / (now - shown):5.0f} tokens/s  rate {self.plan.rate(done):.2f}",
                    flush=True,
                )
                shown, losses, tokens = now, [], 0
            if now - exported > self.plan.export_every * 60:
                self.save()
                self.export(out)
                exported = now
        self.save()
        self.export(out)
        lives.close()
