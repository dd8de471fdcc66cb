"""Kubernetes' manifests without a cluster: every field is one that its kind has, and pods' sshd, mpirun and preStop do what the manifests count on."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

from harness import BUILD, DIGITS, LOCKSTEPD, SOURCE, LockstepTest, wait_for
sys.path.insert(0, str(SOURCE / "tests/support"))
from skips import missing_tool, require_tool, skip

KUBERNETES = SOURCE / "launch/kubernetes"
CHECK = SOURCE / "tests/integration/programs/check_manifests.py"
JOBS = ("mpijob", "mpijob-gpu", "jobset", "trainjob")
HOSTS = {"a": "10.231.7.1", "b": "10.231.7.2"}  # of tools/netns


def documents():
    return sorted(path for path in KUBERNETES.rglob("*.yaml") if path.name not in ("kustomization.yaml", "run.yaml", "gpu.yaml"))


def graces(found):
    """What each kind of pod has to save and stop, in seconds."""
    return [int(seconds) for seconds in re.findall(r'"terminationGracePeriodSeconds": (\d+)', json.dumps(found))]


def hopeless_codes():
    """Those of which docs/exit_codes.md says that a job shall fail."""
    return re.findall(r"^\| (\d+) \|.*\| fail; ", (SOURCE / "docs/exit_codes.md").read_text(), re.MULTILINE)


def commands(node):
    """Every `command` at any depth of these documents."""
    if isinstance(node, list):
        return [one for item in node for one in commands(item)]
    if not isinstance(node, dict):
        return []
    own = [node["command"]] if isinstance(node.get("command"), list) else []
    return own + [one for item in node.values() for one in commands(item)]


class ManifestsTest(LockstepTest):
    def checked(self, *paths):
        """The exit code, and what the check says."""
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
                         ["ClusterTrainingRuntime", "JobSet", "MPIJob", "NetworkPolicy", "PersistentVolumeClaim", "PodMonitor", "TrainJob"])

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
        kubectl = shutil.which("kubectl")
        version = subprocess.run([kubectl, "version", "--client", "-o", "json"], capture_output=True, text=True) if kubectl else None
        if version is None or version.returncode != 0 or int(json.loads(version.stdout)["clientVersion"]["minor"].rstrip("+")) < 27:
            skip("no kubectl of 1.27 or later, whose kustomize knows `patches` and `labels`; Debian 12 has none")
        for job in JOBS:
            built = subprocess.run([kubectl, "kustomize", KUBERNETES / job], capture_output=True, text=True)
            self.assertEqual((built.returncode, built.stderr), (0, ""))
            path = self.folder / f"{job}.yaml"
            path.write_text(built.stdout)
            code, said = self.checked(path)
            self.assertEqual(code, 0, said)
            self.assertIn("ConfigMap lockstep-run", said)

    def test_variables_of_open_mpi_have_the_names_of_4_and_5(self):
        """Where an operator sets those of Open MPI 4, those of 5 stand alone."""
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


class Launcher(LockstepTest):
    """launcher.sh with programs that end as ranks do."""

    def program(self, text):
        path = self.folder / "program.sh"
        path.write_text(f"echo started >>{self.folder}/starts\n{text}\n")
        return ["bash", path]

    def starts(self):
        path = self.folder / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def start(self, program, *arguments):
        words = [KUBERNETES / "launcher.sh", "--pause", "0", *arguments, *program]
        process = subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        self.started.append(process)
        return process

    def ended(self, process, code):
        said, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, code, said)
        return said

    def test_what_no_other_try_mends_ends_this_job_and_no_other(self):
        for code in (*hopeless_codes(), "74", "132", "136"):
            starts = self.starts()
            noted = ("--tries", "3", "--job", f"uid-{code}", "--notes", self.folder / "a/notes")
            self.assertIn(f"ended with {code}, which no other try mends", self.ended(self.start(self.program(f"exit {code}"), *noted), int(code)))
            self.assertEqual(self.starts(), starts + 1, code)
            self.assertIn("delete the job and apply it anew", self.ended(self.start(self.program("exit 0"), *noted), int(code)))
            self.assertEqual(self.starts(), starts + 1, f"{code}: a further launcher of the job started ranks")
        self.ended(self.start(self.program("exit 0"), "--job", "another", "--notes", self.folder / "a/notes"), 0)
        self.ended(self.start(self.program("exit 78"), "--job", "", "--notes", self.folder / "b"), 78)  # a cluster that does not say which job it is
        self.assertFalse((self.folder / "b").exists())

    def test_lost_ranks_are_started_again_so_often(self):
        for code in (1, 69, 79, 134, 135, 137, 139, 255):
            starts = self.starts()
            self.ended(self.start(self.program(f"exit {code}"), "--tries", "2"), code)
            self.assertEqual(self.starts(), starts + 3, code)
        starts = self.starts()
        self.ended(self.start(self.program("exit 137")), 137)
        self.assertEqual(self.starts(), starts + 1)

    def test_a_stop_that_it_was_not_told_of_is_no_failure(self):
        self.assertIn("started again", self.ended(self.start(self.program(f'[ "$(wc -l <{self.folder}/starts)" -gt 5 ] || exit 75')), 0))
        self.assertEqual(self.starts(), 6)

    def test_signals_go_on_and_a_told_launcher_starts_nothing_again(self):
        waits = 'trap "exit 75" USR1; trap "exit 1" TERM; trap "echo saved >>saves" USR2; touch ready; while :; do sleep 0.1; done'
        for number, code in ((signal.SIGUSR1, 75), (signal.SIGTERM, 75)):
            (self.folder / "ready").unlink(missing_ok=True)
            starts = self.starts()
            process = self.start(self.program(waits), "--tries", "3")
            wait_for((self.folder / "ready").exists, "the program to start")
            process.send_signal(signal.SIGUSR2)
            wait_for((self.folder / "saves").exists, "SIGUSR2 to be passed on")
            process.send_signal(number)
            self.ended(process, code)
            self.assertEqual(self.starts(), starts + 1)
        starts = self.starts()
        process = self.start(self.program("exit 137"), "--tries", "9", "--pause", "60")
        wait_for(lambda: self.starts() > starts, "the program to start")
        time.sleep(0.5)
        process.send_signal(signal.SIGUSR1)
        self.ended(process, 75)
        self.assertEqual(self.starts(), starts + 1)

    def test_told_while_it_waits_for_hosts_it_ends(self):
        hosts = self.folder / "hostfile"
        hosts.write_text("# the operator's\n\n127.0.0.1 slots=1\n  127.0.0.1 slots=1\n")
        with unittest.mock.patch.dict(os.environ, PRTE_MCA_prte_default_hostfile=str(hosts), PRTE_MCA_plm_ssh_args="-p 9"):
            process = self.start(self.program("exit 0"), "--wait", "60")
        time.sleep(1)
        process.send_signal(signal.SIGUSR1)
        self.ended(process, 75)
        self.assertEqual(self.starts(), 0)

    def test_hosts_that_do_not_answer_are_named(self):
        names = [f"no-such-{i}.invalid" for i in range(20)]
        said = self.ended(self.start([*self.program("exit 0"), "-host", ",".join(f"{name}:2" for name in names)], "--wait", "1"), 69)
        self.assertEqual(self.starts(), 0)
        [line] = [line for line in said.splitlines() if "after 1 s ssh cannot reach" in line]
        named = re.findall(r"no-such-\d+\.invalid(?=: ssh: Could not resolve hostname)", line)
        self.assertEqual(len(set(named)), 10, said)  # of twenty

    def test_usage(self):
        for words in ((), ("--tries", "3"), ("--none", "3", "true")):
            self.assertIn("is no command", self.ended(self.start((), *words), 64))


class Rendered(ManifestsTest):
    """`lockstep launch kubernetes`: the same manifests, filled in."""
    KINDS = {"mpijob": ["MPIJob"], "jobset": ["JobSet"], "trainjob": ["ClusterTrainingRuntime", "TrainJob"]}
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
        """With the values that stand in launch/kubernetes, every field is there again: nothing is lost or changes its type on the way."""
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
        self.assertIn("there are mpijob, jobset and trainjob", self.render("--kind", "pod", expect=64))
        self.assertIn("--nodes", self.render("--nodes", 0, expect=64))
        self.assertIn("--name is required", self.tool("launch", "kubernetes", DIGITS, "--image", "a", expect=64))
        self.render("--set", "optimizer.learning_rat=1", expect=78)
        self.render(config=self.folder / "none.yaml", expect=66)
        self.assertIn("kubectl apply", self.tool("launch", "kubernetes", "--help"))


class Pods(LockstepTest):
    """A host of tools/netns for each worker pod, with its sshd; a launcher on one of them."""

    def setUp(self):
        super().setUp()
        require_tool("ip")
        self.sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")  # it wants its whole path
        if self.sshd is None:
            (skip if pathlib.Path("/run/systemd/system").exists() else missing_tool)("no sshd; Debian's package openssh-server has it")
        self.keys = self.folder / "keys"
        self.keys.mkdir(mode=0o700)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.keys / "id_rsa"], check=True)
        shutil.copy(self.keys / "id_rsa.pub", self.keys / "authorized_keys")
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)

    def settings(self, name):
        """The image's file, with the keys of this test in the place of the pod's."""
        path = self.folder / name
        path.write_text((KUBERNETES / name).read_text().replace("/home/lockstep/.ssh", str(self.keys)).replace("/tmp/sshd.pid", str(self.folder / "none")))
        return path

    def launcher(self):
        """The manifest's mpirun, where the operator's host file and variables are."""
        hosts = self.folder / "hostfile"
        hosts.write_text("".join(f"{address} slots=1\n" for address in HOSTS.values()))
        manifest = (KUBERNETES / "mpijob/job.yaml").read_text()
        words = re.sub(r"\s+", " ", re.search(r"command: \[(lockstep-launcher[^]]*)\]", manifest)[1]).split(", ")
        command = [word.strip('"') for word in words]
        command[0] = str(KUBERNETES / "launcher.sh")
        command[command.index("--notes") + 1] = str(self.folder / "notes")
        command[command.index("odls_base_sigkill_timeout") + 1] = "1"  # mpirun waits so long, twice, after its ranks' end
        at = command.index("lockstepd")
        ours = ["--allow-run-as-root", "--mca", "btl_vader_single_copy_mechanism", "none"]
        sets = [f"run.project_dir={self.folder}/run", "run.threads=1", "metrics.listen='127.0.0.1:0'", "train.max_steps=1000000"]
        return {"OMPI_MCA_orte_default_hostfile": str(hosts), "OMPI_MCA_orte_keep_fqdn_hostnames": "true", "OMPI_MCA_orte_set_default_slots": "1",
                "OMPI_MCA_plm_rsh_args": f"-F {self.settings('ssh_config')} -i {self.keys}/id_rsa -o ConnectionAttempts=10",
                "OMPI_MCA_oob_tcp_if_include": "10.231.7.0/24", "OMPI_MCA_btl_tcp_if_include": "10.231.7.0/24"}, [
                    *command[:at], *ours, LOCKSTEPD, "--config", DIGITS, *(word for one in sets for word in ("--set", one))]

    def start_pods(self, late_s="0", changes=lambda command: command):
        """Pod b takes connections after `late_s`; the launcher's command may be changed."""
        environment, command = self.launcher()
        command = changes(command)
        sshd = f"{self.sshd} -De -f {self.settings('sshd_config')}"
        script = self.folder / "pods.sh"
        script.write_text(f'for pod in a b; do {SOURCE}/tools/netns on $pod sh -c \'[ "$1" = a ] || sleep {late_s}; exec {sshd}\' pod $pod </dev/null >{self.folder}/sshd_$pod.log 2>&1 & done\n'
                          f'{SOURCE}/tools/netns on a "$@" & launcher=$!\necho $launcher >{self.folder}/launcher.pid\n'
                          'while kill -0 $launcher 2>/dev/null; do wait $launcher; code=$?; done\nexit $code\n')
        process = subprocess.Popen(["bash", SOURCE / "tools/netns", "exec", "bash", script, *map(str, command)], env={**os.environ, **environment},
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder)
        self.started.append(process)
        return process

    def ranks(self):
        """Process ids of the run's ranks, by the parent's name: a rank of a pod is a child of its sshd's session."""
        found = subprocess.run(["pgrep", "-f", f"lockstepd --config .*{self.folder}/run"], capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in found if self.name_of(pid) == "lockstepd"]

    @staticmethod
    def name_of(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:  # it has ended
            return ""

    def stopped_by(self, *stops):
        """Each but the last one stops ranks that then begin again."""
        process = self.start_pods()
        try:
            wait_for(lambda: process.poll() is not None or list((self.folder / "run/checkpoints").glob("*.index")), "a save of two ranks", 120)
            self.assertIsNone(process.poll(), process.stdout.read() if process.poll() is not None else "")
            for stop in stops:
                before = wait_for(lambda: len(self.ranks()) == 2 and self.ranks(), "two ranks")
                stop()
                if stop is not stops[-1]:
                    wait_for(lambda: len(self.ranks()) == 2 and not set(self.ranks()) & set(before), "two other ranks", 120)
                    wait_for(lambda: "resumed" in self.log_of_rank_0(), "the save to be restored")
            said, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        if process.returncode == 77:
            skip("network namespaces are not permitted here")
        self.assertEqual(process.returncode, 75, said)
        self.assertIn("on request, saved", said)
        self.assertEqual(self.ranks(), [])
        accepted = (self.folder / "sshd_b.log").read_text()
        self.assertIn("Accepted publickey", accepted)  # the second rank came this way
        return said

    def test_a_pod_that_is_late_is_waited_for(self):
        process = self.start_pods(late_s="4", changes=lambda command: [*command, "--set", "train.max_steps=3"])
        said, _ = process.communicate(timeout=120)
        if process.returncode == 77:
            skip("network namespaces are not permitted here")
        self.assertEqual(process.returncode, 0, said)

    def test_a_pod_that_does_not_come_is_named(self):
        process = self.start_pods(late_s="1000", changes=lambda command: [command[0], "--wait", "3", "--tries", "0", *command[command.index("--job"):]])
        said, _ = process.communicate(timeout=120)
        if process.returncode == 77:
            skip("network namespaces are not permitted here")
        self.assertEqual(process.returncode, 69, said)
        self.assertIn(f"after 3 s ssh cannot reach: {HOSTS['b']}: ssh: connect to host {HOSTS['b']} port 2222: Connection refused", said)
        self.assertNotIn(f"reach: {HOSTS['a']}", said)

    def test_variables_reach_ranks_by_x_alone(self):
        def changes(command):
            at = command.index("mpirun") + 1
            return [*command[:at], "-x", "LOCKSTEP_RUN_SEED", *command[at:]]
        with unittest.mock.patch.dict(os.environ, LOCKSTEP_RUN_SEED="77", OF_THE_LAUNCHER="yes"):
            process = self.start_pods(changes=changes)
        try:
            wait_for(lambda: process.poll() is not None or (len(self.ranks()) == 2 and list((self.folder / "run/checkpoints").glob("*.index"))), "a save of two ranks", 120)
            if process.poll() == 77:
                skip("network namespaces are not permitted here")
            environments = [pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in self.ranks()]
        finally:
            if process.poll() is None:
                self.end_launcher()
            process.communicate(timeout=60)
        self.assertEqual(["LOCKSTEP_RUN_SEED=77" in one for one in environments], [True, True])
        self.assertIn(False, ["OF_THE_LAUNCHER=yes" in one for one in environments], "a rank of another pod gets no other variable")

    def end_launcher(self):
        os.kill(int((self.folder / "launcher.pid").read_text()), signal.SIGUSR1)

    def log_of_rank_0(self):
        return (self.folder / "run/logs/rank0.log").read_text()

    def test_the_launchers_pre_stop_saves_on_all_pods(self):
        self.stopped_by(self.end_launcher)

    def test_a_workers_pre_stop_saves_on_all_pods_and_the_launcher_goes_on(self):
        said = self.stopped_by(lambda: os.kill(self.ranks()[-1], signal.SIGUSR1), self.end_launcher)
        self.assertIn("have saved and stopped (75): started again", said)


if __name__ == "__main__":
    unittest.main()
