"""The engine's workloads, W1 to W11, and a long conversation, against peers that this script sets up itself.

    scripts/bench engine [--smoke] [--only W3,W6] [--peers llama-server,packaged,batch] [--json FILE]
    scripts/bench engine --from FILE [--plots docs/images] [--write-docs]

All sides get the same model file, threads, pool and prompts; what is compared takes turns; medians are shown, and
beside them tokens evaluated and CPU seconds, which a busy machine cannot touch. Models have random weights
(`tools/make_random_gguf.py`): speed does not depend on what the weights say.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from engine_bench import plots, report
from engine_bench.bench import PEERS, Bench
from engine_bench.llama_server import LlamaServer
from engine_bench.models import Models
from engine_bench.servers import BatchServer
from engine_bench.source import Source


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small models and few of everything: does it still run?")
    parser.add_argument("--only", help=f"some of {', '.join(report.WORKLOADS)}, separated by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="those to compare with, by commas; '' for none")
    parser.add_argument(
        "--source",
        type=Path,
        help="where llama-cpp-python's source is unpacked: llama.cpp's server is compiled from it, as our own build was"
        " (otherwise it comes out of a wheel), and it brings the peer batch",
    )
    parser.add_argument("--model", type=Path, help="a GGUF to use for everything, in place of random ones")
    parser.add_argument(
        "--threads", type=int, default=0, help="of each side; unless set all cores, or one in a smoke test"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of those workloads that take medians of rounds")
    parser.add_argument("--json", type=Path, help="also write all figures here")
    parser.add_argument("--from", type=Path, dest="figures", help="run nothing: take the figures of such a file")
    parser.add_argument("--plots", type=Path, help="draw the figures into this folder (needs matplotlib)")
    parser.add_argument("--write-docs", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args()
    if options.figures:
        found = report.read(options.figures)
    else:
        found = asyncio.run(report.measure(bench(options), options.only))
    print(report.markdown(found))
    if options.json:
        report.write(found, options.json)
    if options.plots:
        plots.draw(found, options.plots)
    if options.write_docs:
        report.write_docs(found, Path(__file__).parents[2] / "docs" / "benchmarks.md")
    if not all(result["finished"] for result in found["results"].values()):
        raise SystemExit(1)


def bench(options: argparse.Namespace) -> Bench:
    """Set a run up."""
    LlamaServer.source = BatchServer.source = Source(options.source.resolve()) if options.source else None
    peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(peers) - set(PEERS):
        raise SystemExit(f"there is no peer {', '.join(unknown)}; there are {', '.join(PEERS)}")
    usable = tuple(peer for peer in peers if peer != "batch" or options.source)
    threads = options.threads or (1 if options.smoke else len(os.sched_getaffinity(0)))
    return Bench(Models(options.model, smoke=options.smoke), options.smoke, threads, usable, options.rounds)


if __name__ == "__main__":
    main()
