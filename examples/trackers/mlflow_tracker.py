"""A run in MLflow: its settings as parameters, its curves, its newest export as artifacts."""
import csv
import re
import time

import mlflow
from mlflow.entities import Metric, Param

LONGEST_VALUE, MOST_PARAMS = 6000, 100  # MLflow's limits on a parameter and on a call


class Tracker:
    incoming_keys = ["step", "loss", "learning_rate", "sparsity"]

    def __init__(self, every=10, experiment="lockstep", tracking_uri=None):
        """every: steps between two points. tracking_uri: None: that of MLFLOW_TRACKING_URI."""
        self.every, self.experiment, self.tracking_uri = every, experiment, tracking_uri

    def begin(self):
        self.run_folder = self.log_dir.parents[1]
        self.client = mlflow.MlflowClient(self.tracking_uri)
        number = self.log_dir / "mlflow_run_id"
        if number.exists():  # continues what an earlier start has begun
            self.run_id = number.read_text()
            self.client.update_run(self.run_id, status="RUNNING")
            return
        found = self.client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found else self.client.create_experiment(self.experiment)
        self.run_id = self.client.create_run(experiment, run_name=self.run_folder.name).info.run_id
        settings = (line.partition("=") for line in (self.run_folder / "settings.txt").read_text().splitlines())
        params = [Param(re.sub(r"[^\w.:/ -]", "_", name), value[:LONGEST_VALUE]) for name, _, value in settings]
        for i in range(0, len(params), MOST_PARAMS):
            self.client.log_batch(self.run_id, params=params[i:i + MOST_PARAMS])
        self.log_dir.mkdir(parents=True, exist_ok=True)
        number.write_text(self.run_id)

    def log(self, points):
        """points: (name, step, value). A server that is away must not end the training."""
        now_ms = int(time.time() * 1000)
        try:
            self.client.log_batch(self.run_id, metrics=[Metric(name, value, now_ms, step) for name, step, value in points])
        except Exception as fault:
            print(f"MLflow lacks points from step {points[0][1]} on: {fault}")

    def on_iteration_end(self, step, **values):
        if step.item() % self.every == 0:
            self.log([(name, int(step.item()), value.item()) for name, value in values.items()])
            self.log_evaluations()

    def log_evaluations(self):
        """Sends evaluations after the newest one that was sent, also by an earlier start."""
        path, sent = self.run_folder / "train" / "evals.csv", self.log_dir / "mlflow_evaluated_step"
        after = int(sent.read_text()) if sent.exists() else -1
        rows = csv.DictReader(path.read_text().splitlines()) if path.exists() else []
        points = [(f"eval/{row['name']}", int(row["step"]), float(row["value"])) for row in rows if not row["class"] and int(row["step"]) > after]
        if points:
            self.log(points)
            sent.write_text(str(points[-1][1]))

    def end(self):
        self.log_evaluations()
        exports = sorted((self.run_folder / "saved_models").glob("[0-9]*"), key=lambda folder: int(folder.name))
        if exports:
            self.client.log_artifacts(self.run_id, exports[-1], f"saved_models/{exports[-1].name}")
        self.client.set_terminated(self.run_id)
