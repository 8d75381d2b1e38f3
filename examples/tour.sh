#!/usr/bin/env bash
# One conversation from its first message to its end: examples/tour.sh [http://localhost:8000]
set -euo pipefail
sessions=${1:-http://localhost:${PORT:-8000}}/v1/sessions
id=tour-$$
say() { printf '\n\n# %s\n' "$*"; }

say "A reply as it comes: one event a token"
curl -sS -N -H 'Accept: text/event-stream' -d 'My name is Alice.' "$sessions/$id/messages"

say "The next turn remembers"
curl -sS -d 'What is my name?' "$sessions/$id/messages?wait=true"

say "A fork goes its own way"
curl -sS -X POST -H 'Content-Type: application/json' -d "{\"id\": \"$id-fork\"}" "$sessions/$id/fork"
curl -sS -d 'Tell me a joke.' "$sessions/$id-fork/messages?wait=true"

for session in "$id" "$id-fork"; do
  say "Transcript of $session"
  curl -sS -H 'Accept: text/plain' "$sessions/$session"
  curl -sS -X DELETE "$sessions/$session"
done
