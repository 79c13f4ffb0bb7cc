#!/bin/sh
# points.sh N - writes N points: 16 normal numbers, and a linear function of them with noise.
LC_ALL=C awk -v n="${1:-65536}" '
function draw() { # Box and Muller 1958, of Lehmer 1951
    state = state * 48271 % 2147483647
    u = sqrt(-2 * log(state / 2147483647))
    state = state * 48271 % 2147483647
    return u * cos(6.283185307179586 * state / 2147483647)
}
BEGIN {
    state = 1
    for (k = 0; k < 16; k++) weight[k] = draw()
    for (i = 0; i < n; i++) {
        y = 0.1 * draw()
        for (k = 0; k < 16; k++) {
            x = draw()
            y += x * weight[k]
            printf "%s%.5f", k ? ", " : "{\"x\": [", x
        }
        printf "], \"y\": %.5f}\n", y
    }
}'
