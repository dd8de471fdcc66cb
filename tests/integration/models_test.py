"""Run files as the pages and configs/ have them: one for each network, published recipes on the networks that they are for, a network
that goes on with other classes, metrics."""
import json
import re
import unittest

from harness import LockstepTest, SOURCE, metric
from soak import rounds

PAGE = (SOURCE / "docs" / "models.md").read_text()
SNIPPET = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALL = {"imagenette_resnet50": "{type: resnet50}", "imagenet_mobilenet": "{type: mobilenet_v1, width_multiplier: 0.25}",
         "finetune_mobilenet": "{type: mobilenet_v1, width_multiplier: 0.25}",
         "imagenette_vit": "{type: vit, patch_size: 8, num_heads: 2, hidden_dim: 16, mlp_dim: 32}"}


class Models(LockstepTest):
    def test_each_run_file_of_the_page_trains(self):
        types = {}
        for snippet in SNIPPET.findall(PAGE):
            name = re.search(r"type: (\w+)", snippet[snippet.index("model:"):])[1]
            self.assertNotIn(name, types)
            types[name] = snippet
        choices = re.search(r"`model\.type` \| one of: ([\w, ]+\w)", self.tool("reference"))[1]
        brought = {"python", "torchscript", "plugin"}  # by the user: other tests train them
        self.assertEqual(sorted(types), sorted(set(choices.split(", ")) - brought), "docs/models.md has one run file, under \"One of each\", of each network")
        for name, snippet in types.items():
            with self.subTest(name):
                config = self.folder / f"{name}.yaml"
                config.write_text(snippet)
                run = self.train(1, config=config, run=name, sets=["checkpoint=off", "summary.tensorboard=false"])
                num_steps = int(re.search(r"max_steps: (\d+)", snippet)[1])
                self.assertEqual(run.summary()["steps"], num_steps, json.dumps(run.summary()))

    def shipped(self, name, *sets, classes=10, ranks=1):
        """A shipped run file with small random images, one step an epoch, in place of its data and size."""
        return self.train(ranks, config=SOURCE / "configs" / f"{name}.yaml", run=name, sets=[
            f"data.train={{type: random, shape: [3, 32, 32], classes: {classes}, samples: 4}}", "data.eval=null",
            "data.global_batch_size=4", f"model={SMALL[name]}", "summary.per_layer=true", "summary.tensorboard=false", *sets])

    def test_published_recipes_prune_the_networks_that_they_are_for(self):
        encoder = "encoder.layers.encoder_layer_"
        for name, steps, sparsity in (
                ("imagenette_resnet50", 10, {"conv1": 0, "layer1.0.downsample.0": 0.8, "layer2.1.conv1": 0.85, "layer2.2.conv3": 0.8,
                                             "layer3.5.conv2": 0.9, "layer4.2.conv3": 0.9, "fc": 0.8}),
                ("imagenet_mobilenet", 90, {"Conv2d_0": 0, "Conv2d_1_pointwise": 0, "Conv2d_4_pointwise": 0.7,
                                            "Conv2d_11_pointwise": 0.8, "Conv2d_13_pointwise": 0.9, "Conv2d_13_depthwise": 0, "Logits": 0}),
                ("imagenette_vit", 30, {f"{encoder}0.mlp.0": 0.8, f"{encoder}1.mlp.0": 0, f"{encoder}11.mlp.3": 0.8, "heads.head": 0,
                                        f"{encoder}8.self_attention.out_proj": 0.8})):
            with self.subTest(name):
                run = self.shipped(name, "checkpoint=off")
                self.assertEqual(run.summary()["steps"], steps)
                page = run.last_page(0)
                for layer, wanted in sparsity.items():
                    if wanted == 0:
                        self.assertNotIn(f'param="{layer}.weight"', page)
                        continue
                    found = metric(page, "lockstep_layer_sparsity_ratio", param=f"{layer}.weight")
                    self.assertAlmostEqual(found, wanted, delta=0.005, msg=layer)

    def test_other_classes_train_the_head_first(self):
        trained = self.shipped("imagenet_mobilenet", "train.max_steps=3", ranks=2)
        saves = trained.folder / "checkpoints"

        def changed(steps):
            tuned = self.shipped("finetune_mobilenet", f"checkpoint.warm_start_ckpt={trained.folder}", f"train.max_steps={steps}",
                                 f"run.name=steps{steps}", "run.deterministic=true", classes=4, ranks=2)
            weights = [{tensor["name"]: tensor["sha256"] for tensor in
                        json.loads(self.tool("ckpt", "show", folder, "--json"))["tensors"]}
                       for folder in (saves, tuned.folder / "checkpoints")]
            return {name.split("/")[1] for name in weights[0]
                    if name.startswith("model/Conv2d_5") and "BatchNorm/m" not in name and "num_batches" not in name
                    and weights[0][name] != weights[1][name]}
        self.assertEqual(changed(2), set())
        self.assertEqual(changed(3), {"Conv2d_5_depthwise", "Conv2d_5_pointwise"})

    def test_metrics_are_the_same_on_any_number_of_ranks(self):
        config = self.folder / "metrics.yaml"
        config.write_text(SNIPPET.search((SOURCE / "docs" / "evaluation.md").read_text())[1])
        runs = [self.train(ranks, config=config, run=f"ranks{ranks}", sets=["run.deterministic=elastic", "checkpoint=off"])
                for ranks in rounds((1, 2), (4,))]
        first = runs[0].summary()["eval"]
        matrix = first["metrics"]["confusion_matrix"]
        self.assertAlmostEqual(sum(matrix[i][i] for i in range(10)) / first["num_samples"], first["accuracy"])
        self.assertGreater(first["metrics"]["top_3"], first["accuracy"])
        for run in runs:
            self.assertEqual(run.summary()["eval"]["metrics"], first["metrics"])
        page, lines = runs[1].last_page(0), (runs[1].folder / "train" / "evals.csv").read_text().splitlines()
        recall = matrix[7][7] / sum(matrix[7])
        self.assertAlmostEqual(metric(page, "lockstep_validation_class_metric", metric="recall", **{"class": "7"}), recall)
        self.assertAlmostEqual(metric(page, "lockstep_validation_metric", metric="top_3"), first["metrics"]["top_3"])
        self.assertAlmostEqual(float(next(line for line in reversed(lines) if line.startswith("46,recall,7,")).split(",")[3]), recall)
        refused = self.start(2, config=config, run="refused", sets=["eval.top_k.k=11", "checkpoint=off"]).wait()
        self.assertEqual(refused.code, 78, refused.log)
        self.assertIn("eval.top_k.k is 11, but the data has 10 classes", refused.log)


if __name__ == "__main__":
    unittest.main()
