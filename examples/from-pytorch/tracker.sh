#!/bin/sh
# tracker.sh FILE - a tracker: gets a line of JSON for the run, then one for each record, and keeps
# the losses, after the run's id.  A restart sends the same id, so that the file goes on.
#
#     "tracker": {"provider": "command", "command": ["sh", "tracker.sh", "losses.txt"]}
while read -r line; do
    case $line in
    '{"run"'*) echo "$line" | sed -E 's/.*"run": "([0-9a-f]+)".*/run \1/' ;;
    '{"step"'*) echo "$line" | sed -nE 's/.*"step": ([0-9]+), "loss": ([^,]+).*/\1 \2/p' ;;
    esac
done >>"$1"
