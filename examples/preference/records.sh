#!/bin/sh
# records.sh N - writes N records of answers: of two answers the shorter one is preferred.
LC_ALL=C awk -v n="${1:-256}" '
# Lehmer 1951: the same numbers from every awk.
function draw() {
    state = state * 48271 % 2147483647
    return state / 2147483647
}
BEGIN {
    state = 1
    split("int char void long short const static struct", word, " ")
    for (i = 0; i < n; i++) {
        w = word[1 + int(8 * draw())]
        printf "{\"prompt\": \"declare %s x%d\", \"chosen\": \"%s x%d;\", ", w, i % 50, w, i % 50
        printf "\"rejected\": \"Of course. Here is what was asked for: %s x%d;\"}\n", w, i % 50
    }
}'
