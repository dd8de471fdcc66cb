"""Pages of lockstep.DataParallel(metrics_address=...): series of a loop, probes, targets, access."""
import json
import pathlib
import tempfile
import unittest
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

import ranks
import user_loop
from ranks import dist, torch
from data_parallel_test import PRUNING

F = torch.nn.functional
STEPS, BATCH = 6, 5
TOKEN = "0123456789abcdef0123"


def fetch(address, page, token=None):
    """(status, text) of a page."""
    request = urllib.request.Request(address + page, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as fault:
        return fault.code, fault.read().decode()


def series(text):
    """{(name, labels that matter): value}"""
    return {(sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples}


def train(case):
    import lockstep
    torch.manual_seed(3)
    network = user_loop.Plain()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    model = lockstep.DataParallel(network, optimizer, recipe=case.get("recipe"), steps_per_epoch=4, timeout=20, engine_update=case.get("engine_update"),
                                  metrics_address=case.get("address", "127.0.0.1:0"))
    address, payload = model.metrics_address, 0
    before = fetch(address, "/readyz")[0] if address else None
    for step in range(STEPS):
        for micro in range(2):  # one update of two passes
            x, y = torch.randn(BATCH, 10), torch.randint(0, 4, (BATCH,))
            with model.no_sync() if micro == 0 else torch.enable_grad():
                F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        payload += torch.ops.lockstep.loop_facts(model.loop)[2]
        if "save" in case and step == 2:
            lockstep.save(model, case["save"], wait=True)
    if address is None:
        return None
    pages = {page: fetch(address, page) for page in ("/metrics", "/livez", "/readyz", "/healthz", "/targets.json", "/live.json", "/")}
    pruned = (network.first.weight == 0).sum().item()
    dist.barrier()
    model.finish()
    finished = series(fetch(address, "/metrics")[1]) if dist.get_rank() == 0 else {}
    model.close()
    try:
        fetch(address, "/livez")
        stays = True
    except urllib.error.URLError:
        stays = False
    return {"address": address, "payload": payload, "before": before, "pages": pages, "finished": finished, "stays": stays,
            "pruned": pruned}


def protected(token_file):
    """Status of a page at all interfaces, without and with the token; or the error."""
    import os
    import lockstep
    os.environ["LOCKSTEP_METRICS_TOKEN_FILE"] = token_file
    network = user_loop.Plain()
    try:
        model = lockstep.DataParallel(network, torch.optim.SGD(network.parameters(), lr=0.1), metrics_address="0.0.0.0:0")
    except lockstep.Error as fault:
        return fault.exit_code, str(fault)
    address = model.metrics_address.replace("0.0.0.0", "127.0.0.1")
    return fetch(address, "/metrics")[0], fetch(address, "/metrics", TOKEN)[0]


def refused(address):
    import lockstep
    network = user_loop.Plain()
    try:
        lockstep.DataParallel(network, torch.optim.SGD(network.parameters(), lr=0.1), metrics_address=address)
    except lockstep.Error as fault:
        return fault.exit_code, str(fault)
    return 0, ""


class Pages(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="lockstep-pages-")))

    def run_ranks(self, num_ranks=2, environment=None, **case):
        return ranks.values(num_ranks, train, case, backend="gloo", environment=environment)

    def test_each_rank_counts_its_steps(self):
        for engine_update in (None, False):
            for number, rank in enumerate(self.run_ranks(engine_update=engine_update)):
                with self.subTest(engine_update=engine_update, rank=number):
                    status, text = rank["pages"]["/metrics"]
                    self.assertEqual(status, 200)
                    found = series(text)
                    self.assertEqual(found["lockstep_steps_total",], STEPS)
                    self.assertEqual(found["lockstep_samples_total",], STEPS * 2 * BATCH)
                    self.assertEqual(found["lockstep_step_duration_seconds_count",], STEPS)
                    self.assertEqual(found["lockstep_allreduce_bytes_total",], rank["payload"])
                    self.assertGreater(rank["payload"], 0)
                    phases = {labels[0]: value for (name, *labels), value in found.items() if name == "lockstep_step_phase_seconds_total"}
                    self.assertAlmostEqual(sum(phases.values()), found["lockstep_step_duration_seconds_sum",], delta=1e-6)
                    self.assertTrue(all(phases[name] > 0 for name in ("data", "backward", "optimizer")), phases)
                    if number == 0:
                        self.assertEqual((found["lockstep_step",], found["lockstep_epoch",], found["lockstep_world_ranks",]), (STEPS, STEPS / 4, 2))
                        self.assertAlmostEqual(found["lockstep_learning_rate", "weights"], 0.1)
                        self.assertEqual(found["lockstep_parameters",], 10 * 32 + 32 + 32 * 4 + 4)
                    else:
                        self.assertNotIn(("lockstep_step",), found)

    def test_probes_targets_and_the_end(self):
        first, second = self.run_ranks()
        for rank in (first, second):
            self.assertEqual(rank["before"], 503)  # no step was done
            self.assertEqual({page: rank["pages"][page][0] for page in ("/livez", "/readyz", "/healthz", "/live.json", "/")},
                             {"/livez": 200, "/readyz": 200, "/healthz": 200, "/live.json": 200, "/": 200})
            self.assertFalse(rank["stays"])
        targets = json.loads(first["pages"]["/targets.json"][1])
        self.assertEqual([target["labels"]["rank"] for target in targets], ["0", "1"])
        self.assertEqual([f"http://{target['targets'][0]}" for target in targets], [first["address"], second["address"]])
        self.assertEqual(first["finished"]["lockstep_run_state", "finished"], 1)

    def test_a_recipe_and_a_save(self):
        recipe = self.folder / "recipe.yaml"
        recipe.write_text(PRUNING)
        first, _ = self.run_ranks(recipe=str(recipe), save=str(self.folder / "saves"))
        found = series(first["pages"]["/metrics"][1])
        self.assertEqual(found["lockstep_pruned_parameters",], first["pruned"])
        self.assertAlmostEqual(found["lockstep_sparsity_ratio",], first["pruned"] / (10 * 32 + 32 * 4), delta=1e-6)
        self.assertGreater(found["lockstep_mask_updates_total",], 0)
        self.assertEqual((found["lockstep_checkpoint_saves_total",], found["lockstep_checkpoint_last_step",]), (1, 3))

    def test_no_pages_by_default(self):
        self.assertEqual(self.run_ranks(address=None), [None, None])

    def test_the_address_of_the_environment(self):
        for rank in self.run_ranks(address=None, environment={"LOCKSTEP_METRICS_LISTEN": "127.0.0.1:0"}):
            self.assertEqual(rank["pages"]["/metrics"][0], 200)

    def test_an_address_that_others_reach_requires_a_token(self):
        code, text = ranks.values(1, protected, "", backend="gloo")[0]
        self.assertEqual(code, 78)
        self.assertIn("reachable from other hosts", text)
        file = self.folder / "token"
        file.write_text(f"{TOKEN}\n")
        file.chmod(0o600)
        self.assertEqual(ranks.values(1, protected, str(file), backend="gloo")[0], (401, 200))

    def test_an_address_of_the_wrong_form(self):
        for code, text in ranks.values(2, refused, "9464", backend="gloo"):
            self.assertEqual(code, 78)
            self.assertIn("metrics_address must be host:port", text)


if __name__ == "__main__":
    unittest.main()
