"""The run files of docs/models.md: one for each network, each trains for a few steps as it stands."""
import json
import re
import unittest

from harness import LockstepTest, SOURCE

PAGE = (SOURCE / "docs" / "models.md").read_text()


class Models(LockstepTest):
    def test_each_run_file_of_the_page_trains(self):
        snippets = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
        types = {}
        for snippet in snippets:
            name = re.search(r"type: (\w+)", snippet[snippet.index("model:"):])[1]
            self.assertNotIn(name, types)
            types[name] = snippet
        choices = re.search(r"`model\.type` \| one of: ([\w, ]+\w)", self.tool("reference"))[1]
        brought = {"python", "torchscript", "plugin"}  # by the user: other tests train them
        self.assertEqual(sorted(types), sorted(set(choices.split(", ")) - brought))
        for name, snippet in types.items():
            with self.subTest(name):
                config = self.folder / f"{name}.yaml"
                config.write_text(snippet)
                run = self.train(1, config=config, run=name, sets=["checkpoint=off", "summary.tensorboard=false"])
                num_steps = int(re.search(r"max_steps: (\d+)", snippet)[1])
                self.assertEqual(run.summary()["steps"], num_steps, json.dumps(run.summary()))


if __name__ == "__main__":
    unittest.main()
