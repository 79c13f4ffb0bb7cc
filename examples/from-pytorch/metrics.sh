#!/bin/sh
# metrics.sh - classification metrics of predictions in files, one JSON object a line.
set -e

binary=$(mktemp) classes=$(mktemp) labels=$(mktemp)
trap 'rm -f "$binary" "$classes" "$labels"' EXIT
printf '{"prediction": %s, "target": %d}\n' 0.9 1 0.4 0 0.6 0 0.2 1 >"$binary"
printf '{"prediction": [%s], "target": %d}\n' '0.7, 0.2, 0.1' 0 '0.1, 0.3, 0.6' 1 '0.2, 0.5, 0.3' 1 >"$classes"
printf '{"prediction": [%s], "target": [%s]}\n' '0.9, 0.2' '1, 0' '0.8, 0.6' '0, 1' >"$labels"

d9d-metrics eval -q -m binary_auroc -m accuracy,threshold=0.5 "$binary"
d9d-metrics eval -q -m accuracy,problem=multiclass,num_classes=3,top_k=2 \
    -m precision,problem=multiclass,num_classes=3,average=none "$classes"
d9d-metrics eval -q -m f1,problem=multilabel,num_classes=2,average=macro "$labels"
