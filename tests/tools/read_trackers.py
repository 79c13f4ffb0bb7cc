#!/usr/bin/env python3
"""What wandb, mlflow, aim and tensorboard read of a run that tracker_clients.bats recorded, each by its own reader.

    read_trackers.py RUN ID MLFLOW_URI AIM_REPO LAST_STEP

Prints what is wrong, and fails; needs the four packages.
"""
import glob
import json
import sys

run, identity, uri, repo, last = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
steps = list(range(1, last + 1))
with open(f"{run}/metrics.jsonl") as f:
    losses = {r["step"]: r["loss"] for r in map(json.loads, f) if "loss" in r}
assert sorted(losses) == steps, losses


def same(what, found, expected):
    assert found == expected, f"{what}: {found}, not {expected}"


def read_mlflow():
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("tries").experiment_id])
    kept, data = found.info.run_id, found.data
    same("mlflow losses", {m.step: m.value for m in client.get_metric_history(kept, "loss")}, losses)
    same("mlflow own", [m.step for m in client.get_metric_history(kept, "watch/weight")], steps)
    same("mlflow status", found.info.status, "FINISHED")
    same("mlflow hparams", (data.params["hparams/a/b"], data.params["config/optimizer/lr"]), ("3", "0.001"))
    same("mlflow tags", (data.tags["d9d.run"], data.tags["red"]), (identity, "true"))
    files = {f.path for kind in ("lengths", "note", "squares") for f in client.list_artifacts(kept, f"watch/{kind}")}
    for name in ("lengths/step-%08d.json", "note/step-%08d.txt", "squares/step-%08d.png"):
        assert "watch/" + name % last in files, files


def read_aim():
    import aim

    (kept,) = aim.Repo.from_path(repo).list_all_runs()
    # Opened for writing: what `aim up` has not indexed is not there for readers.
    found = aim.Run(
        kept, repo=repo, log_system_params=False, system_tracking_interval=None, capture_terminal_logs=False
    )
    same("aim name and tags", (found.name, found.tags, found["d9d_run"]), ("small", ["red"], identity))
    same("aim hparams", (found["hparams"]["a"]["b"], found["config"]["optimizer"]["lr"]), (3, 0.001))
    values = {m.name: sorted(v for _, v in m.values.items()) for m in found.metrics()}
    same("aim losses", values["loss"], sorted(losses.values()))
    same("aim own", len(values["watch/weight"]), last)
    kinds = found.collect_sequence_info(sequence_types=("distributions", "texts", "images"))
    names = {kind: [s["name"] for s in kinds[kind]] for kind in ("distributions", "texts", "images")}
    same("aim kinds", names, {"distributions": ["watch/lengths"], "texts": ["watch/note"], "images": ["watch/squares"]})


def wandb_records(path):
    """The protobufs of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    block, at, whole = 32768, 7, b""
    with open(path, "rb") as f:
        data = f.read()
    while at + 7 <= len(data):
        if block - at % block < 7:  # the rest of a block that no header fits into
            at += block - at % block
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # all of a record, or its last part
            yield whole
            whole = b""


def read_wandb():
    from wandb.proto import wandb_internal_pb2 as pb

    seen, ids, tags, names, exits = {}, set(), set(), set(), []
    for path in sorted(glob.glob(f"{run}/wandb/offline-run-*/*.wandb")):
        for data in wandb_records(path):
            record = pb.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                tags.update(record.run.tags)
                names.update(u.key for u in record.run.config.update)
            if record.HasField("history"):
                row = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                seen.update({(row["_step"], key): v for key, v in row.items()})
            if record.HasField("exit"):
                exits.append(record.exit.exit_code)
    same("wandb run", (ids, tags, {"hparams", "config"} <= names), ({identity}, {"red"}, True))
    same("wandb losses", {k: v for (k, key), v in seen.items() if key == "loss"}, losses)
    same("wandb own", [k for (k, key) in sorted(seen) if key == "watch/weight"], steps)
    for key, kind in (("watch/lengths", "histogram"), ("watch/note", "html-file"), ("watch/squares", "image-file")):
        same(f"wandb {key}", seen[last, f"{key}._type"], kind)
    assert exits and not any(exits), exits


def read_tensorboard():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    sizes = {"tensors": 0, "histograms": 0, "images": 0, "scalars": 0}
    events = EventAccumulator(f"{run}/tensorboard", size_guidance=sizes)
    events.Reload()
    found = {e.step: e.value for e in events.Scalars("loss")}
    same("tensorboard losses", sorted(found), steps)
    assert all(abs(found[k] - losses[k]) < 1e-6 * losses[k] for k in steps), found
    (histogram,) = [e for e in events.Histograms("watch/lengths") if e.step == last]
    same("tensorboard histogram", histogram.histogram_value.bucket_limit, [0.5, 1, 2])
    same("tensorboard text", events.Tensors("watch/note")[-1].tensor_proto.string_val[0], b"what was seen")
    same("tensorboard picture", events.Images("watch/squares")[-1].encoded_image_string[1:4], b"PNG")
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    same("tensorboard hparams", hparams["hparams/a/b"].number_value, 3)
    same("tensorboard optimizer", hparams["optimizer/name"].string_value, "adamw")


for read in (read_mlflow, read_aim, read_wandb, read_tensorboard):
    read()
