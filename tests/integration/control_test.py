"""The control API: answers, actions of the ranks, and refusals."""
import base64
import contextlib
import crypt
import fcntl
import http.client
import json
import os
import pathlib
import re
import signal
import stat
import subprocess
import unittest

from harness import ENDLESS, SOURCE, LockstepTest, metric, stays, wait_for
from counts import count, counted

RARE = ["checkpoint.save_checkpoints_steps=1000000", "eval.every_epochs=0"]
PROGRESS = r"step \d+/\d+ \("
HEADER = {"X-Lockstep-Control": "1"}


def saves_of(run):
    return sorted(int(path.stem.rsplit("-", 1)[1]) for path in run.folder.glob("checkpoints/model.ckpt-*.index"))


def log_of(run, rank):
    path = run.folder / "logs" / f"rank{rank}.log"
    return path.read_text() if path.exists() else ""


def resident_bytes(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Control(LockstepTest):
    def begin(self, **kwargs):
        run = self.start(config=ENDLESS, **{"sets": RARE, **kwargs})
        run.wait_for_step(1)
        return run

    def call(self, run, method, path, headers=(), body=None):
        """Status and JSON of an answer of rank 0, at its socket."""
        status, text = run.ask(method, path, headers, body)
        return status, json.loads(text) if text.startswith("{") else text

    def test_status_save_and_stop(self):
        run = self.begin()
        status = run.ctl("status")
        self.assertEqual(status["run"], "digits")
        self.assertEqual(status["state"], "training")
        self.assertEqual(status["world_size"], 2)
        self.assertNotIn("last_save", status)
        noted = run.ctl("save")["noted_at_step"]
        self.assertGreaterEqual(noted, status["step"])
        saved = wait_for(lambda: saves_of(run), "the save")[0]
        self.assertGreater(saved, noted)
        self.assertEqual(run.ctl("status")["last_save"]["step"], saved)
        count("saves asked for and made")
        self.assertIn("noted_at_step", run.ctl("stop"))
        run.wait()
        self.assertEqual(run.code, 75, run.log)
        self.assertEqual(saves_of(run), [saved, run.summary()["steps"]])
        self.assertRegex(run.log, r"\[control\] /control/save at step \d+")

    def test_drain_waits_for_the_end(self):
        run = self.begin()
        self.assertIn("noted_at_step", run.ctl("drain"))
        self.assertTrue((run.folder / "summary.json").exists(), "it has ended")
        self.assertEqual(run.wait().code, 75)

    def test_pause_holds_all_ranks_at_one_step_and_resume_goes_on_to_the_same_weights(self):
        sets = [*RARE, "train.max_steps=200", "sync.timeout_s=3", "watchdog.hang_seconds=4"]
        unbroken = self.train(config=ENDLESS, run="unbroken", sets=sets)
        run = self.begin(sets=sets)
        run.ctl("pause")
        paused = run.wait_for_status("the pause", state="paused")
        self.assertLess(paused["step"], 200)
        wait_for(lambda: run.status()["seconds_since_step"] > 5, "longer than the time limits")
        self.assertEqual(run.ctl("status")["step"], paused["step"])
        run.ctl("save")
        wait_for(lambda: saves_of(run) == [paused["step"]], "a save in the pause")
        run.ctl("resume")
        self.assertEqual(run.wait().code, 0, run.log)
        self.assertEqual(run.summary()["parameters_sha256"], unbroken.summary()["parameters_sha256"])

    def test_a_save_asked_for_while_a_pause_waits_for_a_rank_is_made(self):
        run = self.begin()
        run.ctl("pause")
        paused = run.wait_for_status("the pause", state="paused")
        late = run.rank_pids()[1]
        os.kill(late, signal.SIGSTOP)
        stays(lambda: run.process.poll() is None, "the pause", 0.3)  # rank 0 waits in its next turn by then
        run.ctl("save")
        stays(lambda: run.process.poll() is None, "the pause", 0.2)
        os.kill(late, signal.SIGCONT)
        wait_for(lambda: saves_of(run) == [paused["step"]], "a save in the pause")
        run.ctl("stop")
        self.assertEqual(run.wait().code, 75, run.log)

    def test_a_stop_ends_a_pause(self):
        run = self.begin()
        run.ctl("pause")
        step = run.wait_for_status("the pause", state="paused")["step"]
        run.ctl("stop")
        self.assertEqual(run.wait().code, 75, run.log)
        self.assertEqual(run.summary()["steps"], step + 1)
        states = re.findall(r"\[state\] (\w+) \(was (\w+)\)", log_of(run, 0))
        begins = states.index(("training", "initializing"))
        self.assertEqual(states[begins:begins + 4], [("training", "initializing"), ("paused", "training"), ("training", "paused"), ("draining", "training")])
        self.assertEqual(re.findall(r"\[state\] (\w+)", run.log), ["draining"], "the console: what has no line of its own")
        self.assertNotIn("[state]", log_of(run, 1))

    def test_set_what_decides_no_numbers(self):
        run = self.begin()
        run.ctl("set", "checkpoint.save_checkpoints_steps=50")
        wait_for(lambda: len(saves_of(run)) >= 2, "saves every 50 steps")
        self.assertEqual({step % 50 for step in saves_of(run)}, {0})
        run.ctl("set", "log.level=debug")
        run.ctl("set", "eval.every_epochs=1")
        run.wait_for_step(run.status()["step"] + 2)  # a stop at the same step would find the change still to be made
        run.ctl("stop")
        run.wait()
        self.assertEqual(run.code, 75, run.log)
        for line in counted("values set in a running job", ("checkpoint.save_checkpoints_steps=50", "log.level=debug", "eval.every_epochs=1")):
            self.assertRegex(run.log, re.escape(line) + r" from step \d+ on")
        self.assertEqual(metric(run.last_page(0), "lockstep_checkpoint_interval_steps"), 50)

    def test_saves_kept_progress_and_grace_follow_a_change(self):
        """One save is kept instead of two; lines are logged more often; a stop that had time for a save has none."""
        run = self.begin(sets=["checkpoint.save_checkpoints_steps=20", "checkpoint.keep_checkpoint_max=2", "eval.every_epochs=0", "summary.progress_secs=1000",
                               "preemption.grace_seconds=1000"])
        wait_for(lambda: len(saves_of(run)) == 2, "two saves")
        run.ctl("set", "checkpoint.keep_checkpoint_max=1")
        step = run.status()["step"]
        wait_for(lambda: len(found := saves_of(run)) == 1 and found[0] > step, "one save alone")
        self.assertNotRegex(log_of(run, 0), PROGRESS)
        run.ctl("set", "summary.progress_secs=0.05")
        wait_for(lambda: re.search(PROGRESS, log_of(run, 0)), "a progress line")
        run.ctl("set", "watchdog.save.hang_seconds=900")
        run.ctl("set", "preemption.grace_seconds=0")
        wait_for(lambda: "preemption.grace_seconds=0 from step" in log_of(run, 0), "the change")
        os.kill(run.rank_pids()[1], signal.SIGTERM)
        self.assertEqual(run.wait().code, 75, run.log)
        self.assertIn("0 s of grace are too few", run.log)
        self.assertRegex(run.log, r"watchdog\.save\.hang_seconds=900 from step \d+ on")

    def test_what_cannot_be_set_is_refused(self):
        run = self.begin(sets=["checkpoint=off", "eval.every_epochs=0"])
        for change, text in counted("values refused to a running job", (("optimizer.learning_rate=1", "only these keys of a running job can be set"), ("log.level=loud", "log.level takes debug, info"),
                             ("eval.every_epochs=-1", "takes a number of epochs"), ("watchdog.slow_seconds=0", "takes seconds, more than 0"),
                             ("preemption.grace_seconds=x", "takes seconds, 0 or more"), ("watchdog.lunch.hang_seconds=1", "only these keys of a running job can be set"),
                             ("checkpoint.keep_checkpoint_max=1", "this run writes no checkpoints"), ("nonsense", "only these keys of a running job can be set"),
                             ("checkpoint.save_checkpoints_steps=5", "this run writes no checkpoints"))):
            code, said = run.ctl("set", change)
            self.assertEqual(code, 64, said)
            self.assertIn(text, said)
        code, said = run.ctl("save")
        self.assertIn("this run writes no checkpoints", said)
        self.assertEqual(run.ctl("status")["state"], "training")

    def test_bad_json_is_refused_and_costs_nothing(self):
        run = self.begin()
        pid = run.rank_pids()[0]
        before = resident_bytes(pid)
        for body in (b'{"a": [[[', b"[" * 60000, b'{"value": "' + b"x" * 60000, b"\xff\xfe", b"{}"):
            for _ in counted("bad bodies refused, with a page answered behind each", range(20)):
                self.assertIn(self.call(run, "POST", "/control/set", [*HEADER.items(), ("Content-Type", "application/json")], body=body)[0], (400, 422), body[:20])
                self.assertEqual(self.call(run, "GET", "/control/status")[0], 200)
        self.assertLess(resident_bytes(pid) - before, 10 << 20)
        self.assertEqual(run.ctl("status")["state"], "training")

    def test_calls_that_are_not_of_the_api_are_refused(self):
        run = self.begin()
        self.assertEqual(self.call(run, "POST", "/control/pause")[0], 403, "without the header that no web page sends")
        wait_for(lambda: re.search(r"W rank 0 \[control\] refused POST /control/pause from .*: 403", log_of(run, 0)), "the refused call in the log")
        self.assertFalse(run.status()["pause_asked"])
        self.assertEqual(self.call(run, "OPTIONS", "/control/pause", HEADER.items())[0], 405)
        self.assertEqual(self.call(run, "POST", "/control/nothing", HEADER.items())[0], 404)
        self.assertEqual(self.call(run, "POST", "/metrics", HEADER.items())[0], 404)
        self.assertEqual(self.call(run, "POST", "/control/save", HEADER.items(), body=b"x" * 70000)[0], 413)
        self.assertEqual(self.call(run, "GET", "/control/save")[0], 404)

    def test_another_user_of_the_host_can_change_nothing(self):
        """Every socket and port of a run with defaults, as a user who has none of its rights; where the folders are open for reading."""
        if os.geteuid() != 0:
            self.skipTest("only root can become another user")
        run = self.begin()
        for folder in (self.folder, run.folder):
            folder.chmod(0o755)
        address = json.loads((run.folder / "targets.json").read_text())[0]["targets"][0]
        posts = [f"/control/{call}" for call in ("save", "stop", "pause", "set?checkpoint.keep_checkpoint_max=1", "set?log.level=debug")]
        header = "X-Lockstep-Control: 1"
        for path in counted("calls of another user refused", posts):
            self.assertEqual(self.as_nobody("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "POST", "-H", header, f"http://{address}{path}"), (0, "405"), path)
            self.assertEqual(self.as_nobody("curl", "-s", "--unix-socket", run.folder / "control.sock", "-X", "POST", "-H", header, f"http://localhost{path}")[0], 7, path)
        self.assertEqual(self.as_nobody("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://{address}/control/status"), (0, "404"))
        writable = self.as_nobody("find", run.folder, "-not", "-type", "l", "-writable")[1].split()
        self.assertEqual(writable, [], "files that anybody may write")
        self.assertEqual(self.call(run, "GET", "/control/status")[1]["stop_asked"], False)
        self.assertEqual(saves_of(run), [])

    @staticmethod
    def as_nobody(*words):
        done = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    def port_of(self, run):
        """Port of rank 0, which listens on every address."""
        run.rank_pids()
        wait_for((run.folder / "targets.json").exists, "targets.json")
        return int(json.loads((run.folder / "targets.json").read_text())[0]["targets"][0].rsplit(":", 1)[1])

    def posted(self, port, headers):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("POST", "/control/stop", headers={**HEADER, **headers})
            return connection.getresponse().status

    def test_pages_take_calls_with_a_token_alone(self):
        self.assertIn("'control.listen: pages' (--set control.listen) needs 'metrics.token_file'", self.tool("check", ENDLESS, "--set", "control.listen=pages", expect=78))
        users = self.folder / "web.yml"
        users.write_text("basic_auth_users: {someone: '%s'}\n" % crypt.crypt("a password", crypt.mksalt(crypt.METHOD_BLOWFISH, rounds=16)))
        run = self.start(config=ENDLESS, sets=[*RARE, "metrics.listen='0.0.0.0:0'", f"metrics.web_config={users}"])
        login = base64.b64encode(b"someone:a password").decode()
        self.assertEqual(self.posted(self.port_of(run), {"Authorization": f"Basic {login}"}), 405)

    def test_a_thousand_wrong_tokens_do_nothing_and_the_right_one_works_under_any_name(self):
        token = self.folder / "token"
        token.write_text("0123456789abcdef0123456789abcdef\n")
        run = self.start(config=ENDLESS, sets=[*RARE, "metrics.listen='0.0.0.0:0'", f"metrics.token_file={token}", "control.listen=pages"])
        port = self.port_of(run)
        wait_for((run.folder / "control.sock").exists, "the socket")
        wrong = ["", "Bearer ", "Bearer 0123456789abcdef0123456789abcdee", "Bearer 0123456789abcdef0123456789abcdef0", "Basic 0123456789abcdef0123456789abcdef"]
        wrong += [f"Bearer {number:032x}" for number in range(1000 - len(wrong))]
        for text in counted("wrong tokens refused", wrong):
            self.assertEqual(self.posted(port, {"Authorization": text} if text else {}), 401)
        self.assertIsNone(run.process.poll())
        self.assertEqual(run.ctl("status")["state"], "training", "the socket asks for none")
        page = f"http://127.0.0.1:{port}"
        self.assertIn("needs a token", self.tool("ctl", page, "status", expect=64))
        self.assertIn('"training"', self.tool("ctl", page, "status", "--token-file", token))
        self.assertEqual(self.posted(port, {"Authorization": f"Bearer {token.read_text().strip()}", "Host": "lockstep-0.pods.example:9464"}), 202)
        self.assertEqual(run.wait().code, 75, run.log)

    def test_the_description_fits_what_is_served(self):
        run = self.begin()
        status, api = self.call(run, "GET", "/control/openapi.json")
        self.assertEqual(status, 200)
        self.assertEqual(api, json.loads((SOURCE / "daemon/control/openapi.json").read_text()))
        for path, methods in api["paths"].items():
            for method in counted("calls of the description answered as it says", methods):
                query = "?log.level=info" if path == "/control/set" else ""
                if path == "/control/stop":
                    continue
                answer = self.call(run, method.upper(), path + query, HEADER.items())
                self.assertIn(str(answer[0]), methods[method]["responses"], (path, answer))
        names = {one["name"] for one in api["paths"]["/control/set"]["post"]["parameters"] if "name" in one}
        refused = self.call(run, "POST", "/control/set?nonsense=1", HEADER.items())[1]["error"]
        self.assertEqual(names, set(re.search(r"results: (.*);", refused)[1].split(", ")))
        schema = api["components"]["schemas"]["Status"]
        status = self.call(run, "GET", "/control/status")[1]
        self.assertLessEqual(set(schema["required"]), set(status))
        self.assertLessEqual(set(status), set(schema["properties"]))

    def begin_at_a_socket(self, listen="unix", **kwargs):
        """A run that has a Unix socket and no port."""
        run = self.start(config=ENDLESS, sets=[*RARE, "metrics.listen='off'", f"control.listen={listen}"], **kwargs)
        wait_for(lambda: "[control] unix:" in log_of(run, 0), "the socket")
        return run

    def test_a_unix_socket_needs_no_port(self):
        run = self.begin_at_a_socket()
        self.assertFalse((run.folder / "targets.json").exists(), "no pages")
        self.assertEqual(stat.filemode((run.folder / "control.sock").stat().st_mode), "srw-------")
        self.assertEqual(run.ctl("status")["run"], "digits")
        self.assertIn("noted_at_step", run.ctl("save"))
        said = self.tool("ctl", f"unix:{run.folder}/control.sock", "status")
        self.assertEqual(json.loads(said)["world_size"], 2)
        code, said = run.ctl("set", "optimizer.learning_rate=1")
        self.assertEqual(code, 64)
        self.assertIn("only these keys of a running job can be set", said)
        self.assertIn("noted_at_step", run.ctl("drain"))
        self.assertEqual(run.wait().code, 75, run.log)
        self.assertFalse((run.folder / "control.sock").exists(), "it goes with the run")
        self.assertIn("no job runs in this folder", self.tool("ctl", run.folder, "status", expect=66))
        self.assertRegex(run.log, r"\[control\] /control/save at step \d+")

    def test_a_socket_of_a_killed_run_is_replaced_and_a_living_one_refused(self):
        socket = self.folder / "own.sock"
        run = self.begin_at_a_socket(f"unix:{socket}")
        other = self.start(config=ENDLESS, run="other", sets=["metrics.listen='off'", f"control.listen=unix:{socket}"]).wait()
        self.assertEqual(other.code, 73, other.log)
        self.assertIn(f"cannot listen on the Unix socket {socket}: another process listens on it", other.log)
        for pid in run.rank_pids().values():
            os.kill(pid, signal.SIGKILL)
        self.assertIn(run.wait().code, (137, 69), run.log)  # the other rank may have noticed before its own end
        self.assertTrue(socket.exists(), "left behind")
        self.assertIn("does not answer", self.tool("ctl", f"unix:{socket}", "status", expect=69))
        again = self.begin_at_a_socket(f"unix:{socket}", run="again")
        self.assertEqual(json.loads(self.tool("ctl", f"unix:{socket}", "status"))["project_dir"], str(again.folder))
        self.tool("ctl", f"unix:{socket}", "stop")
        self.assertEqual(again.wait().code, 75, again.log)

    def test_a_run_in_a_long_path_is_asked_at_its_socket(self):
        run = self.begin(run="/".join(["a-long-name-of-a-folder"] * 6))
        self.assertGreater(len(str(run.folder / "control.sock")), 107)
        self.assertIn("noted_at_step", run.ctl("drain"))
        self.assertEqual(run.wait().code, 75, run.log)

    def test_a_folder_without_a_safe_place_for_the_socket_is_a_warning(self):
        folder = self.folder / "open"
        folder.mkdir()
        folder.chmod(0o777)
        run = self.start(config=ENDLESS, run="open", sets=[*RARE, "train.max_steps=2"]).wait()
        self.assertEqual(run.code, 0, run.log)
        self.assertIn("lockstep ctl cannot reach this run: ", run.log)
        self.assertIn("is writable by all users", run.log)

    def test_a_foreign_lock_on_the_folder_of_the_socket_delays_nothing(self):
        """Any process that may open the folder may hold a lock on it forever."""
        sockets = self.folder / "sockets"
        sockets.mkdir()
        holder = os.open(sockets, os.O_RDONLY)
        self.addCleanup(os.close, holder)
        fcntl.flock(holder, fcntl.LOCK_EX)
        run = self.begin_at_a_socket(f"unix:{sockets}/own.sock")
        self.tool("ctl", f"unix:{sockets}/own.sock", "stop")
        self.assertEqual(run.wait().code, 75, run.log)

    def test_other_words_are_refused_before_anything_starts(self):
        for listen, text in (("socket", "must be unix, unix:PATH, pages or off"), ("'unix:'", "must be unix, unix:PATH, pages or off")):
            self.assertIn(text, self.tool("check", ENDLESS, "--set", f"control.listen={listen}", expect=78))

    def test_off_serves_no_control(self):
        run = self.start(config=ENDLESS, sets=[*RARE, "control.listen='off'"])
        wait_for((run.folder / "targets.json").exists, "targets.json")
        port = self.port_of(run)
        self.assertEqual(self.posted(port, {}), 405)
        self.assertIn("accepts no calls", self.tool("ctl", run.folder, "status", expect=64))
        self.assertFalse((run.folder / "control.sock").exists())

    def test_another_run_at_the_port_of_a_killed_one_is_left_alone(self):
        killed = self.begin()
        port = self.port_of(killed)
        for pid in killed.rank_pids().values():
            os.kill(pid, signal.SIGKILL)
        killed.wait()
        self.assertTrue((killed.folder / "targets.json").exists(), "left behind")
        self.assertTrue((killed.folder / "control.sock").exists(), "left behind")
        other = self.begin(run="other", sets=[*RARE, f"metrics.listen='127.0.0.1:{port}'"])
        self.assertEqual(self.port_of(other), port)
        for verb in counted("calls for a killed run kept from another one at its port", ("status", "drain")):
            self.assertIn(f"no job runs in {killed.folder}: it was killed (pid ", self.tool("ctl", killed.folder, verb, expect=66))
        self.assertFalse(other.ctl("status")["stop_asked"])
        alias = self.folder / "alias"
        alias.symlink_to(other.folder)
        self.tool("ctl", alias, "drain")
        self.assertEqual(other.wait().code, 75, other.log)
        again = self.start(config=ENDLESS, run=killed.folder.name, sets=[*RARE, "metrics.listen='off'", "control.listen=unix"])
        wait_for(again.status, "the socket")
        self.assertFalse((again.folder / "targets.json").exists(), "the dead address")
        self.tool("ctl", again.folder, "drain")
        self.assertEqual(again.wait().code, 75, again.log)

    def test_no_job_is_said(self):
        said = self.tool("ctl", self.folder, "status", expect=66)
        self.assertIn("no job runs in this folder", said)
        self.assertIn("does not answer", self.tool("ctl", "http://127.0.0.1:9", "status", expect=69))
        self.tool("ctl", self.folder, "dance", expect=64)
        self.tool("ctl", self.folder, "save", "a=b", expect=64)


if __name__ == "__main__":
    unittest.main()
