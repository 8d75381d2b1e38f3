"""Run llama.cpp's own server for a bench, under a Python that has the xllamacpp wheel.

    PYTHON research/engine_bench/peers/llama_server.py
        '{"model": FILE, "parallel": 8, "pool": 8192, "threads": 2, "memory_mib": 512, "batch": 512}'

`"port": 8080` and `"speculation": "NGRAM_SIMPLE"`, one of llama.cpp's own ways to guess tokens, may be added.
Prints its address and its build as a line of JSON and serves until its standard input ends.
"""

import json
import sys

import xllamacpp  # type: ignore[import-not-found,unused-ignore]


def main() -> None:
    """Serve."""
    wanted = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path = wanted["model"]
    params.n_parallel = wanted["parallel"]
    params.n_ctx = wanted["pool"]
    params.n_batch = params.n_ubatch = wanted["batch"]
    params.kv_unified = True
    params.cache_ram_mib = wanted["memory_mib"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = wanted["threads"]
    params.endpoint_slots = True
    params.port = wanted.get("port", 0)
    if kind := wanted.get("speculation"):  # such as NGRAM_SIMPLE
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{kind}")]
    params.verbosity = -1
    server = xllamacpp.Server(params)
    build = f"xllamacpp {xllamacpp.__version__}: {' '.join(xllamacpp.get_system_info().split())}"
    print(json.dumps({"address": server.listening_address, "build": build}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
