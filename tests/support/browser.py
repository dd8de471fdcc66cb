"""A headless browser, for pages that draw with JavaScript: the page after some seconds, and a picture of it."""
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import skips

NAME = "chromium-headless-shell"


class Seen:
    """Contents of a page in a browser."""

    def __init__(self, dom, log):
        self.dom = dom
        self.complaints = re.findall(r"CONSOLE.*", log)  # of scripts and refused requests

    def text_of(self, element_id):
        found = re.search(rf'<(\w+)[^>]* id="{element_id}"[^>]*>(.*?)</\1>', self.dom, re.S)
        assert found, f"no element {element_id}"
        return re.sub(r"<[^>]*>", " ", found[2]).strip()

    def rows(self):
        """Texts of the cells of each row of the only table's body."""
        return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", self.dom.split("<tbody>")[1])]

    def num_points(self, curve_id):
        """Number of points of a curve that is drawn as one path."""
        svg = re.search(rf'<svg id="{curve_id}"[^>]*>(.*?)</svg>', self.dom, re.S)[1]
        path = re.search(r'<path d="([^"]*)"', svg)
        return len(re.findall(r"[ML]", path[1])) if path else 0


def look_at(url, seconds=9, picture=None, size=(1160, 770)):
    """Opens the page for so long, by the page's own clock. No other host than the page's own can be reached."""
    program = skips.require_tool(NAME)
    with tempfile.TemporaryDirectory() as profile:
        command = [program, "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
                   "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--enable-logging=stderr",
                   f"--window-size={size[0]},{size[1]}", f"--virtual-time-budget={1000 * seconds}"]
        command += [f"--screenshot={picture}"] if picture else ["--dump-dom"]
        done = subprocess.run([*command, url], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    return Seen(done.stdout, done.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: browser.py URL PICTURE.png")
    look_at(sys.argv[1], picture=pathlib.Path(sys.argv[2]).resolve())
