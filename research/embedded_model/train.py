"""Train the embedded demonstration model and write it as a GGUF file.

    pip install torch tokenizers gguf     (and the project with its extra `agents`)
    cd research/embedded_model
    python train.py --minutes 90 --out ../../server/cfs_server/models/cfs-demo.gguf

    python train.py --start OLD.gguf --agents 0.65 --rate 0.6 --steady 0.75 --half --out NEW.gguf
    python train.py --average A.gguf B.gguf --out MEAN.gguf

A run that was stopped goes on where its last checkpoint was when it is started again with the same --folder.
"""

import argparse
import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import structlog
import torch

from demo_model.averaging import average
from demo_model.dialogues import dialogue
from demo_model.network import Shape
from demo_model.reading import read_vocabulary, read_weights
from demo_model.tokenizer import Vocabulary, learn
from demo_model.training import Plan, Trainer


def _texts(seed: int, count: int = 6000) -> Iterator[str]:
    rng = Random(seed)
    for _ in range(count):
        yield "".join(span.text for span in dialogue(rng).spans())


def _vocabulary(folder: Path, seed: int) -> Vocabulary:
    path = folder / "vocabulary.json"
    if not path.exists():
        learn(_texts(seed)).save(path)
    return Vocabulary.load(path)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=90, help="training time in all, earlier runs included")
    parser.add_argument("--out", type=Path, required=True, help="the GGUF file to write")
    parser.add_argument("--folder", type=Path, default=Path("build/demo-model"), help="vocabulary and checkpoint")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=Plan.tokens, help="tokens of one batch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--export-every", type=float, default=Plan.export_every, help="minutes between exports")
    parser.add_argument("--steady", type=float, default=Plan.steady, help="share of the time at the full rate")
    parser.add_argument(
        "--compile", action="store_true", help="compile the network (a minute's start, 10-15 %% faster)"
    )
    parser.add_argument("--start", type=Path, help="a model file to go on with, weights and vocabulary")
    parser.add_argument("--agents", type=float, default=0.0, help="share of agents' lives in what is trained on")
    parser.add_argument("--open", type=float, default=0.0, help="share of tools of any kind in what is left")
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--half", action="store_true", help="compute in bfloat16")
    parser.add_argument("--average", type=Path, nargs="+", help="do not train: write the mean of these models")
    arguments = parser.parse_args()
    if arguments.average:
        average(arguments.average, arguments.out)
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(arguments.threads)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    known = arguments.start
    vocabulary = read_vocabulary(known) if known else _vocabulary(arguments.folder, arguments.seed)
    shape = Shape(len(vocabulary.tokens), width=arguments.width, layers=arguments.layers)
    plan = Plan(
        minutes=arguments.minutes,
        seed=arguments.seed,
        tokens=arguments.tokens,
        steady=arguments.steady,
        export_every=arguments.export_every,
        compile=arguments.compile,
        agents=arguments.agents,
        open=arguments.open,
        half=arguments.half,
        matrix_rate=Plan.matrix_rate * arguments.rate,
        other_rate=Plan.other_rate * arguments.rate,
    )
    trainer = Trainer(vocabulary, shape, plan, arguments.folder)
    if (arguments.folder / "checkpoint.pt").exists():
        trainer.load()
    elif known:
        trainer.begin_with(read_weights(known))
    signal.signal(signal.SIGTERM, trainer.stop)
    signal.signal(signal.SIGINT, trainer.stop)
    trainer.run(arguments.out)


if __name__ == "__main__":
    main()
