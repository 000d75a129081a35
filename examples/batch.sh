#!/bin/sh
# Answer a file of requests in the format of OpenAI's Batch API. An interrupted run continues where it stopped.
#
#     router --model smollm2            # in another terminal
#     sh examples/batch.sh [answers.jsonl] [URL of the router]
set -eu
here=$(dirname "$0")
router batch "$here/requests.jsonl" "${1:-answers.jsonl}" --url "${2:-http://127.0.0.1:30000}"
cut -c 1-200 "${1:-answers.jsonl}"
