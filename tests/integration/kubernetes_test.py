"""Kubernetes' manifests without a cluster, those of launch/kubernetes and of `lockstep launch kubernetes`: every field is one that its kind has."""
import json
import re
import shutil
import subprocess
import sys
import unittest

from harness import BUILD, DIGITS, LOCKSTEP, LOCKSTEPD, SOURCE, LockstepTest
sys.path.insert(0, str(SOURCE / "tests/support"))
from skips import missing_tool

KUBERNETES = SOURCE / "launch/kubernetes"
CHECK = SOURCE / "tests/integration/programs/check_manifests.py"
JOBS = ("mpijob", "mpijob-gpu", "jobset", "trainjob")


def documents():
    return sorted(path for path in KUBERNETES.rglob("*.yaml") if path.name not in ("kustomization.yaml", "run.yaml", "gpu.yaml"))


def graces(found):
    """Seconds that each kind of pod has to save and stop."""
    return [int(seconds) for seconds in re.findall(r'"terminationGracePeriodSeconds": (\d+)', json.dumps(found))]


def hopeless_codes():
    """Codes for which docs/exit_codes.md says that a job shall fail."""
    return re.findall(r"^\| (\d+) \|.*\| fail; ", (SOURCE / "docs/exit_codes.md").read_text(), re.MULTILINE)


def commands(node):
    """Every `command` at any depth of these documents."""
    if isinstance(node, list):
        return [one for item in node for one in commands(item)]
    if not isinstance(node, dict):
        return []
    own = [node["command"]] if isinstance(node.get("command"), list) else []
    return own + [one for item in node.values() for one in commands(item)]


def pod_templates(node):
    """Templates of pods, at any depth: a map with containers in its `spec`."""
    if isinstance(node, list):
        return [one for item in node for one in pod_templates(item)]
    if not isinstance(node, dict):
        return []
    own = [node] if isinstance(node.get("spec"), dict) and "containers" in node["spec"] else []
    return own + [one for item in node.values() for one in pod_templates(item)]


class ManifestsTest(LockstepTest):
    def checked(self, *paths):
        """The exit code, and the check's output."""
        python = SOURCE / ".venv-test/bin/python"
        if not python.exists():
            missing_tool("no .venv-test; tools/setup test makes it")
        done = subprocess.run([python, CHECK, *paths], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class Manifests(ManifestsTest):
    def test_every_document_has_only_fields_of_its_kind(self):
        code, said = self.checked(*documents())
        self.assertEqual(code, 0, said)
        self.assertEqual(sorted(line.split()[0] for line in said.splitlines()),
                         ["JobSet", "MPIJob", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor", "TrainJob", "TrainingRuntime"])

    def test_an_unknown_field_at_any_depth_is_found(self):
        for name, field in (("mpijob/job.yaml", "slotsPerWorker"), ("mpijob/job.yaml", "restartPolicy"), ("mpijob/job.yaml", "terminationGracePeriodSeconds"),
                            ("jobset/job.yaml", "podFailurePolicy"), ("jobset/job.yaml", "maxRestarts"), ("trainjob/runtime.yaml", "readinessProbe"),
                            ("trainjob/job.yaml", "numNodes"), ("base/volume.yaml", "accessModes"), ("base/pod_monitor.yaml", "podMetricsEndpoints")):
            text = (KUBERNETES / name).read_text()
            changed = re.sub(rf"\b{field}:", f"{field}s:", text)
            self.assertNotEqual(changed, text, f"{name} has no {field}")
            path = self.folder / "changed.yaml"
            path.write_text(changed)
            code, said = self.checked(path)
            self.assertEqual(code, 1, f"{field}s in {name} was taken: {said}")
            self.assertIn("changed.yaml", said)

    def test_kustomize_builds_every_folder(self):
        kubectl = SOURCE / ".venv-test/bin/kubectl"
        if not kubectl.exists():
            missing_tool(f"no {kubectl} (tools/setup test makes it)")
        for job in JOBS:
            built = subprocess.run([kubectl, "kustomize", KUBERNETES / job], capture_output=True, text=True)
            self.assertEqual((built.returncode, built.stderr), (0, ""))
            path = self.folder / f"{job}.yaml"
            path.write_text(built.stdout)
            code, said = self.checked(path)
            self.assertEqual(code, 0, said)
            self.assertIn("ConfigMap lockstep-run", said)
        print(f"\n{len(JOBS)} of {len(JOBS)} folders are built by kustomize and fit their schemas")

    def test_each_pod_has_what_the_policies_of_a_cluster_ask_for(self):
        """Labels that the network policy lets through, rights of `restricted` namespaces, a volume that the user may write, and resources."""
        python = SOURCE / ".venv-test/bin/python"
        if not python.exists():
            missing_tool("no .venv-test; tools/setup test makes it")
        number = 0
        for kind in Rendered.KINDS:
            text = self.tool("launch", "kubernetes", DIGITS, "--kind", kind, "--name", "try-1", "--image", "a/b:1")
            done = subprocess.run([python, "-c", "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"], input=text, capture_output=True, text=True, check=True)
            found = {document["kind"]: document for document in json.loads(done.stdout)}
            policy = found["NetworkPolicy"]["spec"]
            wanted = policy["podSelector"]["matchLabels"]
            self.assertEqual(policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"], wanted)
            self.assertEqual(found["PodMonitor"]["spec"]["selector"]["matchLabels"], wanted)
            for pod in pod_templates(list(found.values())):
                number += 1
                labels = pod.get("metadata", {}).get("labels", {})
                self.assertEqual({name: labels.get(name) for name in wanted}, wanted, f"{kind}: {pod}")
                self.assertEqual(pod["spec"]["securityContext"], {"fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}, kind)
                self.assertIs(pod["spec"]["automountServiceAccountToken"], False)
                for container in pod["spec"]["containers"]:
                    self.assertEqual(container["securityContext"], {"runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}})
                    self.assertIn("memory", container["resources"]["requests"])
        self.assertEqual(number, 6)
        print(f"\n{number} pod templates have the labels, rights and resources")

    def test_variables_of_open_mpi_have_the_names_of_4_and_5(self):
        """The variables of Open MPI 5 are there alone if an operator sets those of Open MPI 4."""
        for name in ("mpijob/job.yaml", "jobset/job.yaml", "trainjob/job.yaml"):
            self.assertIn("name: PRTE_MCA_plm_ssh_args, value: \"-o ConnectionAttempts=10\"", (KUBERNETES / name).read_text(), name)
        for name in ("mpijob/job.yaml", "trainjob/job.yaml"):
            self.assertIn("name: PRTE_MCA_prte_default_hostfile, value: /etc/mpi/hostfile", (KUBERNETES / name).read_text(), name)
        self.assertIn("OMPI_MCA_plm_rsh_args", (KUBERNETES / "jobset/job.yaml").read_text())

    def test_the_run_file_is_one(self):
        run = self.folder / "run.yaml"
        run.write_text((KUBERNETES / "base/run.yaml").read_text().replace("/runs/", f"{self.folder}/runs/").replace("/token/", f"{self.folder}/"))
        (self.folder / "token").write_text("0123456789abcdef0123\n")
        done = subprocess.run([LOCKSTEPD.parent / "lockstep", "check", run], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_exit_codes_that_end_a_job_set_are_those_that_no_other_try_mends(self):
        for name in ("jobset/job.yaml", "trainjob/runtime.yaml"):
            text = (KUBERNETES / name).read_text()
            fails, again = re.findall(r"action: (\w+), onExitCodes: .*values: \[([0-9, ]+)\]", text)
            self.assertEqual(fails, ("FailJob", ", ".join(hopeless_codes())), name)
            self.assertEqual(again, ("Ignore", "75"), name)


class Rendered(ManifestsTest):
    """`lockstep launch kubernetes`: the same manifests, filled in."""
    KINDS = {"mpijob": ["MPIJob"], "jobset": ["JobSet"], "trainjob": ["TrainingRuntime", "TrainJob"]}
    BASE = ["ConfigMap", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor"]

    def render(self, *arguments, expect=0, name="try-1", config=DIGITS):
        return self.tool("launch", "kubernetes", config, "--name", name, "--image", "registry.example:5000/team/lockstep:0.1.0", *arguments, expect=expect)

    def documents_of(self, text):
        yaml = SOURCE / ".venv-test/bin/python"
        if not yaml.exists():
            missing_tool("no .venv-test; tools/setup test makes it")
        done = subprocess.run([yaml, "-c", "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"], input=text, capture_output=True, text=True, check=True)
        return {document["kind"]: document for document in json.loads(done.stdout)}

    def test_every_kind_passes_the_check_of_the_manifests(self):
        for kind, kinds in self.KINDS.items():
            for gpus in (0, 8):
                path = self.folder / f"{kind}-{gpus}.yaml"
                self.render("--kind", kind, "--nodes", 3, "--ranks-per-node", 2, "--gpus-per-node", gpus, "-o", path)
                code, said = self.checked(path)
                self.assertEqual(code, 0, said)
                self.assertEqual(sorted(line.split()[0] for line in said.splitlines()), sorted([*self.BASE, *kinds]))

    def test_what_is_filled_in(self):
        found = self.documents_of(self.render("--nodes", 3, "--ranks-per-node", 2, "--gpus-per-node", 2, "--cpus", 8, "--memory", "32Gi", "--storage", "1Ti",
                                              "--set", "run.seed=3"))
        spec = found["MPIJob"]["spec"]
        self.assertEqual((spec["slotsPerWorker"], spec["mpiReplicaSpecs"]["Worker"]["replicas"]), (2, 3))
        [worker] = spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        [launcher] = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
        self.assertEqual({worker["image"], launcher["image"]}, {"registry.example:5000/team/lockstep:0.1.0"})
        self.assertEqual(worker["resources"], {"requests": {"cpu": "8", "memory": "32Gi"}, "limits": {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": 2}})
        command = launcher["command"]
        self.assertEqual(command[command.index("-n") + 1], "6")
        sets = [command[place + 1] for place, word in enumerate(command) if word == "--set"]
        self.assertIn("run.project_dir=/runs/try-1", sets)
        self.assertIn("run.device=cuda", sets)
        self.assertEqual(sets[-1], "run.seed=3")
        self.assertEqual(found["ConfigMap"]["data"]["run.yaml"], DIGITS.read_text())
        self.assertEqual(found["ConfigMap"]["data"]["recipe.yaml"], (SOURCE / "configs/recipes/digits_prune.yaml").read_text())
        self.assertIn("recipe=/config/recipe.yaml", sets)
        self.assertEqual({kind: document["metadata"]["name"] for kind, document in found.items()},
                         {"ConfigMap": "try-1-run", "PersistentVolumeClaim": "try-1-runs", "NetworkPolicy": "try-1", "PodMonitor": "try-1", "MPIJob": "try-1"})
        volumes = {volume["name"]: volume for volume in spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["volumes"]}
        self.assertEqual((volumes["config"]["configMap"]["name"], volumes["runs"]["persistentVolumeClaim"]["claimName"]), ("try-1-run", "try-1-runs"))
        self.assertEqual(found["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"], "1Ti")
        labels = spec["mpiReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
        self.assertEqual(labels["app.kubernetes.io/instance"], "try-1")
        self.assertEqual(found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"], labels, "one job's rules are for its own pods")

    def test_the_rest_is_as_the_manifests_say(self):
        """Filling in the values of launch/kubernetes gives every field again: none is lost or changes its type."""
        found = self.documents_of(self.render("--kind", "jobset", name="lockstep"))
        text = (KUBERNETES / "jobset/job.yaml").read_text()
        wanted = self.documents_of(text)["JobSet"]
        job = found["JobSet"]
        for replicated in (wanted, job):
            for one in replicated["spec"]["replicatedJobs"]:
                template = one["template"]["spec"]["template"]
                template["metadata"]["labels"].pop("app.kubernetes.io/instance", None)
                [container] = template["spec"]["containers"]
                container["image"] = "the image"
                words = container["command"]
                container["command"] = words[:words.index("--set")] if "--set" in words else words  # the run file's place adds the others
        self.assertEqual(job, wanted)

    def test_the_runs_files_are_taken_by_a_run(self):
        """The ConfigMap's files with the command's --set, where the pods' folders are this test's."""
        found = self.documents_of(self.render())
        for name, text in found["ConfigMap"]["data"].items():
            (self.folder / name).write_text(text)
        (self.folder / "token").write_text("0123456789abcdef0123\n")
        [launcher] = found["MPIJob"]["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
        command = launcher["command"][launcher["command"].index("lockstepd") + 1:]
        moved = [re.sub(r"/(config|runs|token)/", f"{self.folder}/", word) for word in command]
        self.assertEqual(moved[0], "--config")
        self.assertIn("/run.yaml: ok", self.tool("check", *moved[1:]))

    def test_the_ranks_know_how_many_they_are_and_their_grace_unless_the_user_says(self):
        def said(*arguments, kind="mpijob", config=DIGITS):
            found = self.documents_of(self.render("--kind", kind, "--nodes", 3, "--ranks-per-node", 2, *arguments, config=config))
            [command] = [words for words in commands(found) if "lockstepd" in words]
            values = dict(command[place + 1].split("=", 1) for place, word in enumerate(command) if word == "--set")
            names = ("run.expect_world_size", "run.expect_nodes", "preemption.grace_seconds")
            return {name: values.get(name) for name in names}, command[command.index("odls_base_sigkill_timeout") + 1], graces(found)
        for kind in self.KINDS:
            values, timeout, pods = said(kind=kind)
            self.assertEqual((list(values.values()), timeout, pods), (["6", "3", "10"], "10", [300, 300]))
        config = self.folder / "own.yaml"
        config.write_text(DIGITS.read_text().replace("recipe: recipes/digits_prune.yaml", "train: {max_steps: 4}") + "preemption: {grace_seconds: 44.5}\n")
        values, timeout, pods = said("--set", "run.expect_nodes=1", "--grace", 600, config=config)
        self.assertEqual((values, timeout, pods), ({"run.expect_world_size": "6", "run.expect_nodes": "1", "preemption.grace_seconds": None}, "45", [600, 600]))
        self.assertIn("write --grace 95 or more", self.render("--grace", 94, config=config, expect=64))
        self.render("--grace", 95, config=config)

    def test_an_estimator_its_flags_and_settings_reach_the_ranks(self):
        moons, config = BUILD / "examples/estimator_plugin/libmoons.so", SOURCE / "examples/estimator_plugin/run.yaml"
        for kind in self.KINDS:
            found = self.documents_of(self.render("--kind", kind, "--estimator", moons, "--set", "train.max_steps=4", "--", "--width", "3", config=config))
            [command] = [words for words in commands(found) if "lockstepd" in words]
            self.assertEqual(command[-7:], ["--set", "train.max_steps=4", "--estimator", str(moons), "--", "--width", "3"])
        said = self.render("--estimator", moons, "--", "--widht", "3", config=config, expect=64)
        self.assertIn("unknown flag --widht (did you mean '--width'?)", said)

    def test_files_in_python_go_with_the_run_file_and_others_are_listed(self):
        project = self.folder / "project"
        self.tool("new", "project", project, "--python")
        done = subprocess.run([LOCKSTEP, "launch", "kubernetes", project / "run.yaml", "--name", "own", "--image", "a"], capture_output=True, text=True, cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = self.documents_of(done.stdout)
        self.assertEqual(found["ConfigMap"]["data"]["net.py"], (project / "net.py").read_text())
        self.assertEqual(found["ConfigMap"]["data"]["data.py"], (project / "data.py").read_text())
        [command] = [words for words in commands(found) if "lockstepd" in words]
        for setting in ("model.path=/config/net.py", "data.train.path=/config/data.py", "data.eval.path=/config/data.py"):
            self.assertIn(setting, command)
        self.assertIn("the image needs Python with torch", done.stderr)

    def test_odd_names_are_quoted_or_refused(self):
        config = self.folder / "odd.yaml"
        config.write_text("# - a: 'b' \"c\" {d} \\\n" + DIGITS.read_text().replace("recipe: recipes/digits_prune.yaml", "train: {max_steps: 4}"))
        odd = "run.name=a 'b\" #: {c}"
        found = self.documents_of(self.render("--set", odd, "--cpus", "1e0", config=config))
        self.assertEqual(found["ConfigMap"]["data"], {"run.yaml": config.read_text()})
        [launcher] = found["MPIJob"]["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
        self.assertEqual(launcher["command"][-1], odd)
        [worker] = found["MPIJob"]["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        self.assertEqual(worker["resources"]["limits"]["cpu"], "1e0")
        for kind in ("mpijob", "jobset", "trainjob"):  # words and numbers of YAML that are names here
            for document in self.documents_of(self.render("--kind", kind, "--storage", "5000000000", name="no")).values():
                self.assertIn(document["metadata"]["name"], ("no", "no-run", "no-runs"))
        images = re.findall(r"^ *image: (.*)$", self.tool("launch", "kubernetes", DIGITS, "--name", "a", "--image", "1.5"), re.MULTILINE)
        self.assertEqual(set(images), {'"1.5"'})
        for name in ("", "Try", "-a", "a-", "a_b", "1a", "a.b", "x" * 41, "a\nb"):
            self.assertIn("--name", self.render(name=name, expect=64))
        self.assertIn("--image", self.tool("launch", "kubernetes", DIGITS, "--name", "a", "--image", "a b", expect=64))

    def test_any_text_of_a_run_file_reaches_the_pods(self):
        """Texts that a literal block of YAML would change."""
        text = DIGITS.read_text().replace("recipe: recipes/digits_prune.yaml", "train: {max_steps: 4}")
        config = self.folder / "odd.yaml"
        for odd in (text.rstrip("\n"), " # blank\n" + text, "\n" + text, text + "\n\n", "# a\tb \"c\" \\\n" + text, "# \u00e9\n" + text):
            config.write_text(odd)
            self.assertEqual(self.documents_of(self.render(config=config))["ConfigMap"]["data"], {"run.yaml": odd})

    def test_quantities_are_those_of_kubernetes(self):
        for option, text in (("--cpus", "many"), ("--cpus", "0"), ("--cpus", "-1"), ("--cpus", "2 cores"), ("--cpus", "1.2.3"), ("--memory", "lots"), ("--memory", "4gb"),
                             ("--memory", "4 Gi"), ("--memory", "4"), ("--memory", "128m"), ("--memory", "nan"), ("--memory", "1e99"), ("--storage", "Gi"), ("--storage", "5")):
            said = self.render(f"{option}={text}", expect=64)
            self.assertRegex(said, rf"\[launch\] {option} .*: write (cores|bytes)", text)
        for option, text in (("--cpus", "500m"), ("--cpus", "1.5"), ("--cpus", "+2"), ("--memory", "4G"), ("--memory", "1e9"), ("--memory", "2E9"), ("--memory", "1.5Gi"), ("--storage", "1Ti")):
            self.render(option, text)

    def test_a_rank_has_a_gpu_of_its_own(self):
        said = self.render("--ranks-per-node", 4, "--gpus-per-node", 2, expect=64)
        self.assertIn("--gpus-per-node 2 is too few for --ranks-per-node 4", said)
        self.assertIn("write --gpus-per-node 4", said)
        self.render("--ranks-per-node", 2, "--gpus-per-node", 4)

    def test_paths_with_blanks_are_quoted_in_what_to_type(self):
        folder = self.folder / "a b"
        folder.mkdir()
        shutil.copy(SOURCE / "configs/recipes/digits_prune.yaml", folder / "r.my recipe")
        config = folder / "run.yaml"
        config.write_text(DIGITS.read_text().replace("recipes/digits_prune.yaml", "r.my recipe"))
        out = folder / "job.yaml"
        self.assertIn(f"kubectl apply -f '{out}'", self.render("-o", out, config=config))
        self.assertEqual(self.checked(out)[0], 0)
        self.assertEqual(list(self.documents_of(out.read_text())["ConfigMap"]["data"]), ["recipe.my_recipe", "run.yaml"])

    def test_usage(self):
        self.assertIn("available are mpijob, jobset and trainjob", self.render("--kind", "pod", expect=64))
        self.assertIn("--nodes", self.render("--nodes", 0, expect=64))
        self.assertIn("--name is required", self.tool("launch", "kubernetes", DIGITS, "--image", "a", expect=64))
        self.render("--set", "optimizer.learning_rat=1", expect=78)
        self.render(config=self.folder / "none.yaml", expect=66)
        self.assertIn("kubectl apply", self.tool("launch", "kubernetes", "--help"))


if __name__ == "__main__":
    unittest.main()
