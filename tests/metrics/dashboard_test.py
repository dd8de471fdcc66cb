"""metrics/grafana: the dashboard is what panels.py says, and keeps the rules that Grafana's own linter has."""
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

from promql import SOURCE, exported_types, parser_fault, series_in, skips

FOLDER = SOURCE / "metrics" / "grafana"
PYTHON = SOURCE / ".venv-test" / "bin" / "python"
MATCHERS = ('job=~"$job"', 'instance=~"$instance"', 'run=~"$run"')


def dashboard():
    return json.loads((FOLDER / "lockstep.json").read_text())


def panels():
    """All, those of collapsed rows too."""
    everything = [panel for row in dashboard()["panels"] for panel in [row, *row.get("panels", [])]]
    return [panel for panel in everything if panel["type"] != "row"]


def is_of_other_exporters(expression):
    return not series_in(expression)


def queries():
    """(what it belongs to, expression) of panels and annotations."""
    found = [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]
    return found + [(mark["name"], mark["expr"]) for mark in dashboard()["annotations"]["list"]]


def with_values(expression):
    """The expression as Grafana sends it, with a value for each variable."""
    return re.sub(r"\$(job|run|node|instance)", ".*", expression.replace("$__rate_interval", "5m"))


def unwrapped_counters(expression, types):
    """Counters that stand outside rate, increase and the like."""
    counters = [name for name in series_in(expression) if types.get(name) == "counter"]
    return [name for name in counters if not re.search(rf"(rate|increase|changes)\({name}\{{[^}}]*\}}\[", expression)]


class Dashboard(unittest.TestCase):
    def test_the_file_is_what_the_script_writes(self):
        if not any((SOURCE / ".venv-test").glob("lib/python3*/site-packages/grafana_foundation_sdk")):
            skips.missing_tool("no grafana-foundation-sdk in .venv-test (tools/setup test installs it)")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "lockstep.json"
            subprocess.run([PYTHON, FOLDER / "make_dashboard", path], check=True, capture_output=True, timeout=60)
            self.assertEqual(path.read_text(), (FOLDER / "lockstep.json").read_text(), "run metrics/grafana/make_dashboard")

    def test_job_and_instance_are_variables_of_the_data_source(self):
        variables = {one["name"]: one for one in dashboard()["templating"]["list"]}
        self.assertEqual(list(variables), ["datasource", "job", "run", "node", "instance"])
        self.assertEqual((variables["datasource"]["type"], variables["datasource"]["query"]), ("datasource", "prometheus"))
        for name in ("job", "run", "node", "instance"):
            one = variables[name]
            self.assertEqual((one["type"], one["datasource"]["uid"], one["refresh"]), ("query", "${datasource}", 2), name)  # 2: on time change
            self.assertTrue(one["multi"] and one["includeAll"] and one["allValue"] == ".*", name)
            self.assertRegex(one["query"], rf"^label_values\(lockstep_rank_info.*, {name}\)$")
        self.assertFalse(dashboard()["editable"])

    def test_every_panel_says_what_it_shows(self):
        for panel in panels():
            title = panel["title"]
            self.assertTrue(title)
            self.assertRegex(panel.get("description", ""), r"\w.*\.$", title)
            self.assertTrue(panel["fieldConfig"]["defaults"].get("unit"), title)
            self.assertGreaterEqual(len(panel["targets"]), 1, title)
            self.assertEqual(panel["datasource"]["uid"], "${datasource}", title)
            self.assertTrue(all(target["legendFormat"] for target in panel["targets"]), title)
        titles = [panel["title"] for panel in panels()]
        self.assertEqual(len(set(titles)), len(titles))

    def test_every_query_is_of_the_chosen_job_run_and_instance(self):
        for title, expression in queries():
            if is_of_other_exporters(expression):
                self.assertIn('=~"$node"', expression, title)
                continue
            selectors = re.findall(r"\{([^}]*)\}", expression)
            self.assertEqual(len(selectors), len(series_in(expression)), f"{title}: a series without matchers: {expression}")
            for selector in selectors:
                self.assertTrue(all(matcher in selector for matcher in MATCHERS), f"{title}: {expression}")
            for window in re.findall(r"\b(?:rate|increase|deriv|changes)\([^\[]*\[([^\]]*)\]", expression):
                self.assertIn(window, ("$__rate_interval", "1d"), title)

    def test_every_series_exists_and_counters_are_rated(self):
        types = exported_types()
        others = [(title, expression) for title, expression in queries() if is_of_other_exporters(expression)]
        hardware = next(row for row in dashboard()["panels"] if row["title"] == "Hardware")
        self.assertTrue(hardware["collapsed"])
        self.assertEqual([title for title, _ in others], [panel["title"] for panel in hardware["panels"]])
        for _, expression in others:
            self.assertRegex(expression, r"\b(node_[a-z]\w+|DCGM_FI_DEV_\w+)")
        for title, expression in queries():
            if is_of_other_exporters(expression):
                continue
            self.assertEqual([name for name in series_in(expression) if name not in types], [], title)
            self.assertEqual(unwrapped_counters(expression, types), [], title)
            for name in re.findall(r"(?:rate|increase)\((\w+)", expression):
                self.assertEqual(types[name], "counter", f"{title}: a gauge has no rate")

    def test_every_query_is_promql(self):
        self.assertEqual(parser_fault([with_values(expression) for _, expression in queries()]), "")
        self.assertNotEqual(parser_fault(["rate(lockstep_steps_total[5m)"]), "")

    def test_every_row_of_the_plan_is_there(self):
        rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
        self.assertEqual(rows, ["Run", "Goodput", "Speed", "Ranks", "Recipe", "Checkpoints", "Data", "Memory", "Service", "Hardware"])
        kinds = {panel["title"]: panel["type"] for panel in panels()}
        self.assertEqual((kinds["Work per step by rank"], kinds["Layer sparsity table"]), ("heatmap", "table"))

    def test_panels_lie_in_a_grid_without_overlap(self):
        taken = set()
        for panel in [*(row for row in dashboard()["panels"] if row["type"] == "row"), *panels()]:
            grid = panel["gridPos"]
            cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
            self.assertLess(max(x for x, _ in cells), 24, panel["title"])
            self.assertTrue(taken.isdisjoint(cells), f"{panel['title']} lies over another panel")
            taken |= cells


class Provisioning(unittest.TestCase):
    def test_the_files_name_what_is_installed(self):
        provider = (FOLDER / "provisioning/dashboards/lockstep.yaml").read_text()
        self.assertIn("path: /usr/share/lockstep/grafana", provider)
        install = (SOURCE / "cmake/LockstepPackage.cmake").read_text()
        self.assertRegex(install, r'metrics/grafana.*DESTINATION "\$\{CMAKE_INSTALL_DATADIR\}/lockstep"')
        source = (FOLDER / "provisioning/datasources/prometheus.yaml").read_text()
        self.assertIn("type: prometheus", source)


if __name__ == "__main__":
    unittest.main()
