"""Common part of the tests of docs/running.md: its blocks of commands, and a shell that runs them as a reader would."""
import os
import re
import subprocess

from harness import BUILD, SOURCE, LockstepTest

PAGE = (SOURCE / "docs/running.md").read_text()
BLOCK = re.compile(r"^<!-- (test|not run): (.*?) -->\n```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ROOT_TOO = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def blocks(kind):
    return [text for word, name, text in BLOCK.findall(PAGE) if word == "test" and name == kind]


class PageTest(LockstepTest):
    def setUp(self):
        super().setUp()
        (self.folder / "configs").symlink_to(SOURCE / "configs")
        self.environment = {**os.environ, **ROOT_TOO, "PATH": f"{BUILD}/bin:{os.environ['PATH']}", "LOCKSTEP_RUN_THREADS": "1"}

    def shell(self, text, timeout_s=100):
        """Output of the commands, all of which must end with 0."""
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False)
        self.assertEqual(done.returncode, 0, f"{text}\n{done.stdout}")
        return done.stdout

    def begin(self, *command):
        process = subprocess.Popen([*map(str, command)], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(process)
        return process
