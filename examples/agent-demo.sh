#!/usr/bin/env bash
# An agent with the embedded model does a small task: examples/agent-demo.sh [http://localhost:8000]
# agent-demo.txt is what it wrote once.
set -euo pipefail
export CFS_URL=${1:-http://localhost:${PORT:-8000}}
PATH=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH
cd "$(mktemp -d)"
trap 'rm -rf "$PWD"' EXIT

typed() {
  printf '\n$ %s\n' "$1"
  eval "$1"
}
typed "cfs agent run 'Write hello to notes.txt, then read it back' --root demo --temperature 0"
typed "cat demo/workspace/notes.txt"
echo
