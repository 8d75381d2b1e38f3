#!/usr/bin/env bash
# One agent becomes three, by a message in a file: examples/fibre-demo.sh [http://localhost:8000]
# Needs what `cfs mount` needs. fibre-demo.txt is what it wrote once, with the embedded model.
set -euo pipefail
export CFS_URL=${1:-http://localhost:${PORT:-8000}}
PATH=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin:$PATH
cd "$(mktemp -d)"
mkdir cfs
cfs agent serve --session main --root agents --temperature 0 >agent.log 2>&1 &
agent=$!
end() {
  kill "$agent" && wait "$agent" || true
  ! mountpoint -q cfs || fusermount3 -u cfs
  rm -rf "$PWD"
}
trap end EXIT
cfs mount cfs --background
until grep -q answers agent.log; do sleep 0.1; done

typed() {
  printf '\n$ %s\n' "$1"
  eval "$1"
}
typed "echo 'Make a.txt with \"hello\" and b.txt with \"world\" in parallel.' >> cfs/main"
typed "cat cfs/main"
typed "cfs agent tree"
typed "head agents/main/agent_workspace/*.txt"
echo
typed "cat cfs/.sub_sessions/main/writer_1"
