"""The page at `/` in a browser: it shows a run on two ranks, needs no other host, and shows when the run has ended."""
import json
import pathlib
import re
import sys
import tempfile
import unittest

from harness import ENDLESS, LockstepTest, wait_for

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import browser

PRUNING = """version: 1.0.0
modifiers:
  - !GradualKSModifier {params: __ALL__, init_sparsity: 0.2, final_sparsity: 0.6, start_step: 1, end_step: 20000, update_frequency_steps: 20}
"""


class LivePage(LockstepTest):
    def start_watched(self, ranks):
        """The run and the pages' addresses, by rank."""
        run = self.start(ranks, config=ENDLESS, sets=[self.recipe(PRUNING)])
        run.rank_pids()
        path = run.folder / "targets.json"
        wait_for(lambda: path.exists() and run.folder.joinpath("train/steps.csv").exists(), "targets.json")
        return run, [one["targets"][0] for one in json.loads(path.read_text())]

    def stop(self, run):
        run.process.send_signal(10)
        run.wait()
        self.assertEqual(run.code, 75, run.log)

    def test_it_shows_curves_and_ranks(self):
        run, addresses = self.start_watched(2)
        seen = browser.look_at(f"http://{addresses[0]}/")
        self.assertEqual(seen.complaints, [])
        self.assertEqual((seen.text_of("run"), seen.text_of("state")), ("digits", "training"))
        step = int(re.search(r"step (\d+), epoch [\d.]+ of \d+", seen.text_of("where"))[1])
        self.assertGreater(step, 0)
        for name in ("loss", "learning_rate", "sparsity", "speed"):
            self.assertRegex(seen.text_of(name), r"^[\d.,e+-]+( %)?$", name)
            self.assertGreater(seen.num_points(f"{name}_curve"), 5, name)
        self.assertAlmostEqual(float(seen.text_of("learning_rate")), 0.001)
        self.assertGreaterEqual(float(seen.text_of("sparsity").removesuffix(" %")), 20)
        self.assertEqual([row[0] for row in seen.rows()], ["0", "1"])
        for row in seen.rows():
            self.assertEqual(len(row), 7)
            self.assertRegex(" ".join(row[2:]), r"^[\d.,]+ [\d.,]+ [\d.]+ % [\d.]+ % \d+ MB$")
        self.assertEqual(seen.text_of("told"), "")
        self.stop(run)

    def test_another_ranks_page_shows_that_rank(self):
        run, addresses = self.start_watched(2)
        seen = browser.look_at(f"http://{addresses[1]}/")
        self.assertEqual(seen.complaints, [])
        self.assertEqual(seen.text_of("state"), "rank 1")
        self.assertEqual([row[0] for row in seen.rows()], ["1"])
        self.assertRegex(seen.dom, r'<div class="cards" id="curves" hidden')
        self.stop(run)

    def test_a_page_of_elsewhere_may_not_read_it(self):
        """A file in the browser asks for live.json of both ranks: the browser refuses it the answers."""
        run, addresses = self.start_watched(2)
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "page.html"
            asked = " ".join(f"ask('{address}', {rank});" for rank, address in enumerate(addresses))
            page.write_text("<p id=rank0></p><p id=rank1></p><script>function ask(address, rank) {"
                            "fetch('http://' + address + '/live.json').then(a => a.text()).catch(() => 'refused')"
                            ".then(text => { document.getElementById('rank' + rank).textContent = text; }); }" + asked + "</script>")
            seen = browser.look_at(page.as_uri())
        self.assertEqual((seen.text_of("rank0"), seen.text_of("rank1")), ("refused", "refused"))
        self.stop(run)

    def test_a_name_cannot_bring_a_script(self):
        run = self.start(1, config=ENDLESS, sets=["run.name='<img src=x onerror=alert(1)>'"])
        path = run.folder / "targets.json"
        wait_for(path.exists, "targets.json")
        address = json.loads(path.read_text())[0]["targets"][0]
        seen = browser.look_at(f"http://{address}/")
        self.assertEqual(seen.text_of("run"), "&lt;img src=x onerror=alert(1)&gt;")
        self.assertNotIn("<img", seen.dom)
        self.stop(run)


if __name__ == "__main__":
    unittest.main()
