"""A run in Weights & Biases: its settings as configuration, its curves, its newest export as an artifact."""
import csv
import secrets

import wandb


class Tracker:
    incoming_keys = ["step", "loss", "learning_rate", "sparsity"]

    def __init__(self, every=10, project="lockstep", mode=None):
        """every: steps between two points. mode: online or offline; None: that of WANDB_MODE."""
        self.every, self.project, self.mode_of_client = every, project, mode

    def begin(self):
        self.run_folder = self.log_dir.parents[1]
        self.log_dir.mkdir(parents=True, exist_ok=True)
        number = self.log_dir / "wandb_run_id"
        if not number.exists():  # otherwise it continues what an earlier start has begun
            number.write_text(secrets.token_hex(4))
        settings = (line.partition("=") for line in (self.run_folder / "settings.txt").read_text().splitlines())
        self.run = wandb.init(project=self.project, name=self.run_folder.name, id=number.read_text(), resume="allow", mode=self.mode_of_client,
                              dir=self.log_dir, config={name: value for name, _, value in settings})
        self.run.define_metric("eval/*", step_metric="eval/step")

    def on_iteration_end(self, step, **values):
        if step.item() % self.every == 0:
            self.log_evaluations(int(step.item()))
            self.run.log({name: value.item() for name, value in values.items()}, step=int(step.item()))

    def log_evaluations(self, newest_step=None):
        """Sends evaluations after the newest one that was sent, also by an earlier start. W&B takes no point of an earlier step than its newest."""
        path, sent = self.run_folder / "train" / "evals.csv", self.log_dir / "wandb_evaluated_step"
        after = int(sent.read_text()) if sent.exists() else -1
        evaluations = {}
        for row in csv.DictReader(path.read_text().splitlines()) if path.exists() else []:
            if not row["class"] and int(row["step"]) > after:
                evaluations.setdefault(int(row["step"]), {})[f"eval/{row['name']}"] = float(row["value"])
        for step, values in evaluations.items():
            self.run.log({**values, "eval/step": step}, step=newest_step)
            sent.write_text(str(step))

    def end(self):
        self.log_evaluations()
        exports = sorted((self.run_folder / "saved_models").glob("[0-9]*"), key=lambda folder: int(folder.name))
        if exports:
            artifact = wandb.Artifact(self.run_folder.name, type="model", metadata={"step": int(exports[-1].name)})
            artifact.add_dir(str(exports[-1]))
            self.run.log_artifact(artifact)
        self.run.finish()
