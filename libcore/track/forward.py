"""forward.py - records of a run from standard input to Weights & Biases, MLflow or Aim.

    python3 -c "$(cat forward.py)" CLIENT check     import the client; one sentence and status 2 if it cannot be
    python3 -c "$(cat forward.py)" CLIENT           read lines of JSON until the input ends

The first line describes the run, the others are those of metrics.jsonl (d9d/track/sink.h).  Its "tracker" is the
section of the configuration, and its "run" the id that is the same over all restarts: each client continues the run
that has it.
"""
import importlib
import json
import math
import os
import signal
import sys

# Members of a line that are no values.
ABOUT = ("step", "time", "values", "evaluation", "save", "local_save", "pipeline", "documents", "restart", "end")
# The member that has the step of a line, the first that is there.
STEP = ("step", "values", "save", "local_save", "pipeline", "documents")


def flat(value, path=""):
    """Leaves of nested objects, by their path: {"optimizer/lr": 0.001}."""
    if not isinstance(value, dict):
        return {path: value}
    return {name: leaf for key, v in value.items() for name, leaf in flat(v, f"{path}/{key}" if path else key).items()}


def numbers(record):
    """The values of a line that are finite numbers."""
    return {
        key: v
        for key, v in record.items()
        if key not in ABOUT and isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v)
    }


class Client:
    """What all clients have: the run's description, its hyperparameters, and one call for each kind of line."""

    def __init__(self, about):
        self.about = about
        self.options = about["tracker"]
        self.hparams = {"hparams": about.get("hparams") or {}, "config": about.get("config") or {}}
        self.open()

    def put(self, record):
        step = next((record[key] for key in STEP if isinstance(record.get(key), int)), 0)
        for kind in ("histogram", "text", "picture"):
            if isinstance(record.get(kind), str):
                return getattr(self, kind)(record[kind], step, record)
        if "end" in record:
            self.outcome = record["end"]
        values = numbers(record)
        return self.scalars(values, step) if values else None

    outcome = "failed"  # unless the last line says otherwise

    def path(self, record):
        return os.path.join(self.about["dir"], record["file"])


class Wandb(Client):
    module = "wandb"

    def open(self):
        o = self.options
        self.api = wandb = importlib.import_module(self.module)
        self.run = wandb.init(
            project=o["project"],
            entity=o["entity"],
            group=o["group"],
            tags=o["tags"],
            mode=o["mode"],
            dir=o["dir"] or self.about["dir"],
            id=self.about["run"],
            resume="allow",
            name=self.about["name"],
            notes=self.about["description"],
            config=self.hparams,
            settings=wandb.Settings(console="auto" if o["capture_terminal_logs"] else "off"),
        )
        self.newest = self.about["step"]

    def log(self, values, step):
        # Its steps only ascend: what arrives late stands at the newest step, and names its own.
        late = {"late/step": step} if step < self.newest else {}
        self.newest = max(self.newest, step)
        self.run.log({**values, **late}, step=self.newest)

    def scalars(self, values, step):
        self.log(values, step)

    def histogram(self, name, step, record):
        limit = self.api.Histogram.MAX_LENGTH
        counts, edges = record["counts"], record["edges"]
        every = -(-len(counts) // limit)  # neighbouring bins are joined where it takes fewer
        counts = [sum(counts[i : i + every]) for i in range(0, len(counts), every)]
        edges = edges[:-1:every] + edges[-1:]
        self.log({name: self.api.Histogram(np_histogram=(counts, edges))}, step)

    def text(self, name, step, record):
        self.log({name: self.api.Html("<pre>" + escape(record["content"]) + "</pre>")}, step)

    def picture(self, name, step, record):
        self.log({name: self.api.Image(self.path(record))}, step)

    def close(self):
        self.run.finish(exit_code=1 if self.outcome == "failed" else 0)


class Mlflow(Client):
    module = "mlflow"
    TAG = "d9d.run"
    PARAMS = 100  # of a call

    def open(self):
        o, about = self.options, self.about
        mlflow = importlib.import_module("mlflow")
        self.entities = importlib.import_module("mlflow.entities")
        self.client = client = mlflow.MlflowClient(tracking_uri=o["tracking_uri"])
        found = client.get_experiment_by_name(o["experiment"])
        experiment = found.experiment_id if found else client.create_experiment(o["experiment"])
        runs = client.search_runs([experiment], f"tags.`{self.TAG}` = '{about['run']}'", max_results=1)
        if runs:
            self.id = runs[0].info.run_id
            client.update_run(self.id, status="RUNNING")
            return
        tags = {self.TAG: about["run"], **{tag: "true" for tag in o["tags"]}}
        if about["description"]:
            tags["mlflow.note.content"] = about["description"]
        self.id = client.create_run(experiment, run_name=about["name"], tags=tags).info.run_id
        params = [self.entities.Param(k[:250], str(v)[:6000]) for k, v in flat(self.hparams).items()]
        for i in range(0, len(params), self.PARAMS):
            client.log_batch(self.id, params=params[i : i + self.PARAMS])

    def scalars(self, values, step):
        now = int(self.now() * 1000)
        metrics = [self.entities.Metric(k, float(v), now, step) for k, v in values.items()]
        for i in range(0, len(metrics), 1000):  # of a call
            self.client.log_batch(self.id, metrics=metrics[i : i + 1000])

    @staticmethod
    def now():
        return importlib.import_module("time").time()

    def histogram(self, name, step, record):
        content = {"step": step, "edges": record["edges"], "counts": record["counts"]}
        self.client.log_dict(self.id, content, f"{name}/step-{step:08}.json")  # it has no histograms

    def text(self, name, step, record):
        self.client.log_text(self.id, record["content"], f"{name}/step-{step:08}.txt")

    def picture(self, name, step, record):
        self.client.log_artifact(self.id, self.path(record), name)

    def close(self):
        self.client.set_terminated(self.id, status="FAILED" if self.outcome == "failed" else "FINISHED")


class Aim(Client):
    module = "aim"

    def open(self):
        o, about = self.options, self.about
        self.api = aim = importlib.import_module(self.module)
        if "://" not in o["repo"]:
            os.makedirs(o["repo"], exist_ok=True)
            if not aim.Repo.exists(o["repo"]):
                aim.Repo.from_path(o["repo"], init=True)
        # The hash is kept in the run directory: a query finds no run that `aim up` has not indexed yet.
        kept = os.path.join(about["dir"], "aim_run")
        found = open(kept).read().strip() if os.path.exists(kept) else None
        options = {k: o[k] for k in ("repo", "log_system_params", "capture_terminal_logs", "system_tracking_interval")}
        try:
            self.run = aim.Run(run_hash=found, **options)
        except importlib.import_module("aim.sdk.errors").MissingRunError:
            found = None
            self.run = aim.Run(**options)
        with open(kept, "w") as f:
            f.write(self.run.hash + "\n")
        self.run["d9d_run"] = about["run"]
        self.run.name = about["name"]
        if about["description"]:
            self.run.description = about["description"]
        self.run["hparams"] = self.hparams["hparams"]
        self.run["config"] = self.hparams["config"]
        for tag in o["tags"] if not found else ():
            self.run.add_tag(tag)

    def scalars(self, values, step):
        for name, v in values.items():
            self.run.track(v, name=name, step=step)

    def histogram(self, name, step, record):
        edges = record["edges"]
        if len(record["counts"]) > 512:  # its limit
            return self.text(name, step, {"content": json.dumps(record)})
        value = self.api.Distribution(hist=record["counts"], bin_range=(edges[0], edges[-1]))
        return self.run.track(value, name=name, step=step)

    def text(self, name, step, record):
        self.run.track(self.api.Text(record["content"]), name=name, step=step)

    def picture(self, name, step, record):
        self.run.track(self.api.Image(self.path(record)), name=name, step=step)

    def close(self):
        self.run.close()


CLIENTS = {"wandb": Wandb, "mlflow": Mlflow, "aim": Aim}


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def check(kind):
    try:
        importlib.import_module(kind.module)
    except ImportError as e:
        print(f"{sys.executable} cannot import {kind.module} ({e}); pip install {kind.module}", end="")
        return 2
    return 0


def main():
    kind = CLIENTS[sys.argv[1]]
    for word in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"):  # the job's: its last lines are still to come
        signal.signal(getattr(signal, word), signal.SIG_IGN)
    if sys.argv[2:] == ["check"]:
        return check(kind)
    client = kind(json.loads(sys.stdin.readline()))
    try:
        for line in sys.stdin:
            client.put(json.loads(line))
    finally:
        client.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
