#!/usr/bin/env python3
"""Golden values of metrics: what scikit-learn says of random predictions.

    python make_metrics.py                     # writes metrics/ beside this file
    python make_metrics.py check D9D_METRICS   # the same of 100,000 rows, by that program

A case is a file of predictions and what to ask of it: metrics/expected.json has
[[file, metric, value or values, tolerance], ...].  Scores are in steps of 1e-3, so that there are ties.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn import metrics as sk

HERE = Path(__file__).resolve().parent / "metrics"
CLASSES, LABELS, OUTPUTS = 7, 4, 3
AVERAGES = ("micro", "macro", "weighted", "none")


def predictions(rows, seed):
    g = np.random.default_rng(seed)
    out = {}
    y = (g.random(rows) < 0.3).astype(int)
    out["binary"] = (np.round(np.clip(0.35 * y + 0.65 * g.random(rows), 0, 1), 3), y)
    y = g.choice(CLASSES, rows, p=np.array([40, 25, 15, 10, 6, 3, 1]) / 100)
    s = g.random((rows, CLASSES))
    s[np.arange(rows), y] += 0.4
    out["multiclass"] = (np.round(s, 3), y)
    y = (g.random((rows, LABELS)) < [0.5, 0.2, 0.1, 0.02]).astype(int)
    out["multilabel"] = (np.round(0.4 * y + 0.6 * g.random((rows, LABELS)), 3), y)
    # Outputs of different spread; the last one varies little beside its mean.
    y = g.standard_normal((rows, OUTPUTS)) * [1, 30, 0.05] + [0, -5, 1e4]
    p = y * [0.9, 1.1, 1] + g.standard_normal((rows, OUTPUTS)) * [0.5, 20, 0.03]
    out["regression"] = (np.round(p, 3), np.round(y, 3))
    one = out["regression"]
    out["regression_one"] = (one[0][:, 0], one[1][:, 0])
    return out


def sk_average(word):
    return None if word == "none" else word


def statistics(problem, p, y):
    """(metric, value) of precision, recall, F1 and F-beta."""
    keys = {"binary": "", "multiclass": f",problem=multiclass,num_classes={CLASSES}",
            "multilabel": f",problem=multilabel,num_classes={LABELS},threshold=0.6"}[problem]
    said = p.argmax(1) if problem == "multiclass" else (p > (0.5 if problem == "binary" else 0.6)).astype(int)
    for average in AVERAGES if problem != "binary" else ("binary",):
        a = dict(average=sk_average(average), zero_division=0)
        tail = keys + (f",average={average}" if problem != "binary" else "")
        yield f"precision{tail}", sk.precision_score(y, said, **a)
        yield f"recall{tail}", sk.recall_score(y, said, **a)
        yield f"f1{tail}", sk.f1_score(y, said, **a)
        yield f"fbeta,beta=2{tail}", sk.fbeta_score(y, said, beta=2, **a)


def regressions(problem, n, p, y):
    each = {"mse": sk.mean_squared_error(y, p, multioutput="raw_values"),
            "mae": sk.mean_absolute_error(y, p, multioutput="raw_values"),
            "r2": sk.r2_score(y, p, multioutput="raw_values"),
            "pearson": np.array([np.corrcoef(p[:, k], y[:, k])[0, 1] for k in range(n)])}
    for name, values in each.items():
        yield problem, f"{name},num_outputs={n}", values.mean(), 1e-9
        yield problem, f"{name},num_outputs={n},average=none", values.tolist() if n > 1 else values[0], 1e-9


def cases(data):
    p, y = data["binary"]
    yield "binary", "binary_auroc", sk.roc_auc_score(y, p), 1e-4
    yield "binary", "binary_auroc,num_bins=100000", sk.roc_auc_score(y, p), 1e-5
    yield "binary", "accuracy", sk.accuracy_score(y, p > 0.5), 1e-12
    yield "binary", "mean", p.mean(), 1e-12
    yield "binary", "max", p.max(), 0
    yield "binary", "confusion_matrix", sk.confusion_matrix(y, p > 0.5).ravel().tolist(), 0
    p, y = data["multiclass"]
    keys = f",problem=multiclass,num_classes={CLASSES}"
    yield "multiclass", "accuracy" + keys, sk.accuracy_score(y, p.argmax(1)), 1e-12
    # Which of equal scores is among the k highest is a choice; they are taken apart for the question.
    apart = p - np.arange(CLASSES) * 1e-9
    yield "multiclass", "accuracy,top_k=3" + keys, sk.top_k_accuracy_score(y, apart, k=3), 1e-12
    yield "multiclass", "confusion_matrix" + keys, sk.confusion_matrix(y, p.argmax(1)).ravel().tolist(), 0
    p, y = data["multilabel"]
    keys = f",problem=multilabel,num_classes={LABELS}"
    yield "multilabel", "accuracy" + keys, float(np.mean((p > 0.5) == y)), 1e-12
    yield ("multilabel", "confusion_matrix" + keys,
           sk.multilabel_confusion_matrix(y, (p > 0.5).astype(int)).ravel().tolist(), 0)
    yield "multilabel", "multilabel_auroc,num_bins=100000,average=micro" + f",num_classes={LABELS}", sk.roc_auc_score(
        y, p, average="micro"), 1e-5
    for average in AVERAGES:
        want = sk.roc_auc_score(y, p, average=sk_average(average))
        yield "multilabel", f"multilabel_auroc,num_classes={LABELS},average={average}", np.asarray(want).tolist(), 1e-3
    for problem, n in (("regression", OUTPUTS), ("regression_one", 1)):
        yield from regressions(problem, n, *(x.reshape(-1, n) for x in data[problem]))
    for problem in ("binary", "multiclass", "multilabel"):
        p, y = data[problem]
        for metric, value in statistics(problem, p, y):
            yield problem, metric, np.asarray(value).tolist(), 1e-12


def write(data, where):
    for name, (p, y) in data.items():
        with open(where / f"{name}.jsonl", "w") as f:
            for a, b in zip(p.tolist(), y.tolist()):
                f.write(json.dumps({"prediction": a, "target": b}) + "\n")


def check(program):
    data = predictions(100_000, 1)
    wrong = n = 0
    with tempfile.TemporaryDirectory() as where:
        write(data, Path(where))
        for problem, metric, want, tolerance in cases(data):
            got = json.loads(subprocess.check_output(
                [program, "eval", "-q", "--json", "-m", metric, f"{where}/{problem}.jsonl"]))["metrics"][0]
            got = got.get("value", got.get("values"))
            far = np.abs(np.asarray(got, float) - np.asarray(want, float)).max()
            n += 1
            if not far <= tolerance:
                wrong += 1
                print(f"{problem}: {metric}: {got}, scikit-learn {want}")
    print(f"{n} metrics of 100,000 rows, {wrong} wrong")
    return wrong > 0


def make():
    HERE.mkdir(exist_ok=True)
    data = predictions(300, 0)
    write(data, HERE)
    with open(HERE / "expected.json", "w") as f:
        rows = [json.dumps(case) for case in cases(data)]
        f.write("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    sys.exit(check(sys.argv[2]) if sys.argv[1:2] == ["check"] else make())
