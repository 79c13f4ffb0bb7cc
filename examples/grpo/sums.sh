#!/bin/sh
# sums.sh - writes sums of two digits, as prompts with their answers.
LC_ALL=C awk 'BEGIN {
    for (a = 0; a < 10; a++)
        for (b = 0; b < 10; b++)
            printf "{\"prompt\": \"%d+%d=\", \"completion\": \"%d\"}\n", a, b, a + b
}'
