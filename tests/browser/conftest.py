"""A real JupyterLab on a free port of this machine, and a real Chromium in front of it, steered through Playwright.

Nothing is downloaded and nothing outside this machine is asked: a request to anywhere else fails the test, and so does
every error in the browser's console. Where there is no browser, the suite fails; it does not skip itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "browser"
TOKEN = "for-the-tests-of-this-machine"
SECONDS_TO_START = 60.0
WIDE, NARROW = {"width": 1280, "height": 1000}, {"width": 900, "height": 1000}
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
KNOWN_ERRORS = (
    # Patterns of errors that are not ours: each with the date it was added and the reason.
    # 2026-12-01: JupyterLab breaks off its own requests, such as for a page icon that is replaced while it is loaded.
    r"^failed: .*\(net::ERR_ABORTED\)$",
)
FAILED = pytest.StashKey[bool]()
SERIOUS = ("serious", "critical")
OURS = ".jp-OutputArea-output, .jp-MarkdownOutput"  # the rest of a notebook is JupyterLab's own
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}}
CELLS = {
    "compare.ipynb": [
        "from dsaccum_helpers.panels import ComparePanel\n\npanel = ComparePanel()\npanel",
        "1 + 1",
    ],
    "doctor.ipynb": ["from dsaccum_helpers.panels import DoctorPanel\n\npanel = DoctorPanel()\npanel"],
    "guess.ipynb": [
        'from dsaccum_helpers.panels import GuessPanel\n\nGuessPanel("loss-divided-twice")',
        "from dsaccum_helpers import Setting\nfrom dsaccum_helpers.panels import GuessPanel\n\n"
        'GuessPanel("loss-divided-twice", Setting(optimizer_steps=9000))',
    ],
    "explorer.ipynb": ["from dsaccum_helpers.panels import BatchExplorer\n\nBatchExplorer()"],
}


class Lab:
    """The server, from its start until it and all of its kernels are gone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        self.runtime, self.log = folder / "runtime", folder / "jupyterlab.log"
        self._write_notebooks()
        self._write_settings()
        self.process = self._begin()
        self.url = self._wait()

    def _write_notebooks(self) -> None:
        """The tests' own notebooks, and the course as it is shipped with its pictures beside it."""
        self.root.mkdir()
        for name, cells in CELLS.items():
            notebook = new_notebook(cells=[new_code_cell(source) for source in cells], metadata=KERNEL)
            nbformat.write(notebook, self.root / name)
        for name in ("notebooks", "images"):
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns(".*", "dsaccum-export-*"))
        for path in (self.root / "notebooks").glob("*.ipynb"):
            notebook = nbformat.read(path, 4)
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs, cell.execution_count = [], None
            nbformat.write(notebook, path.with_name(f"emptied-{path.name}"))

    def _write_settings(self) -> None:
        """No question about news and no look for newer versions."""
        settings = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
        place = self.folder / "config" / "labconfig"
        place.mkdir(parents=True)
        (place / "default_setting_overrides.json").write_text(json.dumps(settings))

    def _begin(self) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"),
            *(f"--ServerApp.root_dir={self.root}", f"--IdentityProvider.token={TOKEN}"),
            *("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"),
            *("--LabApp.extension_manager=readonly", "--LanguageServerManager.autodetect=False"),
        ]
        if os.geteuid() == 0:
            command.append("--allow-root")
        places = {
            "JUPYTER_CONFIG_DIR": self.folder / "config",
            "JUPYTER_DATA_DIR": self.folder / "data",
            "JUPYTER_RUNTIME_DIR": self.runtime,
            "IPYTHONDIR": self.folder / "ipython",
            "PYTHONPATH": ROOT,
        }
        environment = os.environ | {name: str(place) for name, place in places.items()}
        with self.log.open("wb") as log:
            return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _wait(self) -> str:
        """The address, once the server answers. The server itself writes down which free port it took."""
        limit = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < limit and self.process.poll() is None:
            with contextlib.suppress(StopIteration, OSError, ValueError, KeyError):
                port = json.loads(next(self.runtime.glob("jpserver-*.json")).read_text())["port"]
                url = f"http://127.0.0.1:{port}"
                with urllib.request.urlopen(f"{url}/api?token={TOKEN}", timeout=5):
                    return url
            time.sleep(0.05)
        code = self.process.poll()
        said = self.log.read_text(errors="replace")[-2000:]
        self.end()
        how = f"ended with {code}" if code is not None else f"did not answer within {SECONDS_TO_START:.0f} s"
        pytest.fail(f"JupyterLab {how}. Its last words:\n{said}", pytrace=False)

    def end_kernels(self) -> None:
        """Shut down every kernel that notebooks have left running."""
        for kernel in json.load(self.ask("GET", "api/kernels")):
            self.ask("DELETE", f"api/kernels/{kernel['id']}").close()

    def ask(self, method: str, path: str) -> Any:
        """The answer of the server to a request of ours."""
        request = urllib.request.Request(f"{self.url}/{path}", method=method)
        request.add_header("Authorization", f"token {TOKEN}")
        return urllib.request.urlopen(request, timeout=30)

    def end(self) -> None:
        """End the server and whatever it started, by their process numbers."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        try:
            self.process.wait(20.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _, left = psutil.wait_procs(family, 5.0)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


class Watch:
    """What must not happen in a page while a test goes on."""

    def __init__(self, page: Page, url: str) -> None:
        self.url, self.seen = url, list[str]()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._note(f"uncaught: {error}"))
        page.on("request", self._request)
        page.on("requestfailed", lambda request: self._note(f"failed: {request.url} ({request.failure})"))

    def _console(self, line: ConsoleMessage) -> None:
        if line.type == "error":
            self._note(f"console: {line.text} ({line.location})")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((f"{self.url}/", "data:", "blob:")):
            self._note(f"asks another machine: {request.url}")

    def _note(self, text: str) -> None:
        if not any(re.search(pattern, text) for pattern in KNOWN_ERRORS):
            self.seen.append(text)


class Notebook:
    """One notebook, open in the browser as a learner has it."""

    def __init__(self, page: Page, lab: Lab, name: str, mode: str) -> None:
        self.page, self.lab, self.path = page, lab, lab.root / name
        page.goto(f"{lab.url}/lab/workspaces/{mode}/tree/{name}?reset&token={TOKEN}")
        self.area = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")
        expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "idle", timeout=30e3)
        expect(page.get_by_role("button", name="| Idle")).to_be_visible(timeout=30e3)
        expect(page.locator(".jp-Toolbar-kernelName")).to_contain_text("Python 3")

    def cell(self, number: int) -> Locator:
        """A cell by its place."""
        return self.area.locator(".jp-Cell").nth(number)

    def output(self, number: int) -> Locator:
        """All that a cell has shown."""
        return self.cell(number).locator(".jp-Cell-outputWrapper")

    def run_cell(self, number: int) -> None:
        """Run a cell as a learner does, and stay in it; once more where JupyterLab was not ready for it."""
        prompt = self.cell(number).locator(".jp-InputArea-prompt")
        before = prompt.inner_text()
        for seconds in (2, 20):
            self.cell(number).locator(".cm-content").click()
            self.page.keyboard.press("Control+Enter")
            try:
                expect(prompt).not_to_have_text(before, timeout=1000 * seconds)
                return
            except AssertionError:
                if seconds == 20:
                    raise

    def run_all(self, seconds: float) -> None:
        """Run all cells, without the mouse, and wait until each of them has run."""
        self.command("Run All Cells")
        prompts = self.area.locator(".jp-CodeCell .jp-InputArea-prompt")
        # From the file: JupyterLab shows a long notebook piece by piece.
        count = sum(cell.cell_type == "code" for cell in nbformat.read(self.path, 4).cells)
        expect(prompts).to_have_text([re.compile(r"^\[\d+\]:$")] * count, timeout=1000 * seconds)

    def wait_until_idle(self) -> None:
        """Wait until the kernel has worked off what was sent to it."""
        self.page.wait_for_timeout(100)  # what was typed goes to the kernel bit by bit; there is nothing to see of it
        expect(self.page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute("data-status", "idle")

    def command(self, name: str) -> None:
        """A command by its name, from the command palette: without the mouse."""
        self.page.keyboard.press("Control+Shift+C")
        palette = self.page.locator(".jp-ModalCommandPalette")
        palette.locator("input").fill(name)
        expect(palette.locator(".lm-CommandPalette-item.lm-mod-active")).to_contain_text(name)
        self.page.keyboard.press("Enter")
        expect(palette).to_be_hidden()

    def panel(self, number: int = 0) -> Panel:
        """Run a cell that ends in a panel; the new panel, once it is there."""
        box = self.output(number).locator(".jp-OutputArea-output > .jupyter-widgets")
        for old in box.all():
            old.evaluate("old => old.dataset.old = true")
        self.run_cell(number)
        box = box.and_(self.page.locator(":not([data-old])"))
        expect(box).to_be_visible(timeout=30e3)
        return Panel(self, box)

    def keep_picture(self, name: str, height: int = 1000) -> None:
        """A screenshot for people, in build/browser/."""
        before = self.page.viewport_size
        assert before is not None
        self.page.set_viewport_size({"width": before["width"], "height": height})
        self.area.evaluate("area => { area.querySelector('.jp-WindowedPanel-outer').scrollTop = 0; }")
        self.page.screenshot(path=PICTURES / f"{name}.png")
        self.page.set_viewport_size(before)

    def serious_findings(self) -> list[str]:
        """What axe finds in our part of the notebook: outputs and prose."""
        results = Axe().run(self.page, context=[".jp-Notebook"]).response
        assert len(results["passes"]) > 5, "axe looked at nothing"
        ours = "(target, ours) => document.querySelector(target)?.closest(ours) !== null"
        return [
            f"{rule['id']} ({rule['impact']}): {node['html'][:200]}: {node['failureSummary']}"
            for rule in results["violations"]
            if rule["impact"] in SERIOUS
            for node in rule["nodes"]
            if self.page.evaluate(f"([target, ours]) => ({ours})(target, ours)", [node["target"][-1], OURS])
        ]


class Panel:
    """A panel of ours in an open notebook, used by keyboard."""

    def __init__(self, notebook: Notebook, box: Locator) -> None:
        self.notebook, self.page, self.box = notebook, notebook.page, box

    def field(self, label: str) -> Locator:
        """A field, a list or a tick box by the beginning of its label."""
        return self.box.get_by_label(re.compile(rf"^\s*{re.escape(label)}(?!, slider)"))

    def slider(self, label: str) -> Locator:
        """The slider beside a field."""
        return self.box.get_by_role("slider", name=label)

    def button(self, name: str) -> Locator:
        """A button by the word on it; an icon may stand before it."""
        return self.box.get_by_role("button", name=re.compile(rf"\b{re.escape(name)}$"))

    def type(self, label: str, text: str) -> None:
        """Type into a field, in place of what is there."""
        self.field(label).focus()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.type(text)
        self.notebook.wait_until_idle()

    def press(self, target: Locator, key: str = "Enter") -> None:
        """A key on something that has the focus."""
        target.focus()
        self.page.keyboard.press(key)

    def says(self, text: str | re.Pattern[str], seconds: float = 5.0) -> None:
        """Wait until the panel shows this text."""
        expect(self.box).to_contain_text(text, timeout=1000 * seconds)

    def pictures(self) -> list[dict[str, Any]]:
        """The pictures that can be seen now: ``src``, ``alt`` (or the title in its place), ``width``, ``height``."""
        return self.box.evaluate(
            """box => [...box.querySelectorAll("img")].filter(one => one.getClientRects().length).map(one => ({
                src: one.src, alt: one.alt || one.title, width: one.naturalWidth, height: one.naturalHeight}))"""
        )

    def clipped(self) -> list[str]:
        """Controls and words that do not fit into the place they have, or reach beyond the notebook's edge."""
        return self.box.evaluate(
            """box => {
                const edge = box.closest(".jp-OutputArea-output").getBoundingClientRect().right + 1;
                return [...box.querySelectorAll("label, button, input, select, summary, th, td, p, pre, img, [role]")]
                    .filter(one => one.getClientRects().length)
                    .filter(one => one.getBoundingClientRect().right > edge
                        || (getComputedStyle(one).overflowX !== "visible" && one.scrollWidth > one.clientWidth + 1))
                    .map(one => `${one.tagName} ${one.className}: ${one.textContent || one.value || one.alt}`);
            }"""
        )


OpenNotebook = Callable[..., Notebook]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = os.environ.get("DSACCUM_CHROMIUM") or shutil.which("chromium")
    if path is None or shutil.which(path) is None:
        pytest.fail(
            f"The browser tests need Chromium, and there is none at {path or 'any usual place'}: "
            "run them with `make test-browser`, or name one with DSACCUM_CHROMIUM=/path/to/it.",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    PICTURES.mkdir(parents=True, exist_ok=True)
    server = Lab(tmp_path_factory.mktemp("jupyterlab"))
    yield server
    server.end()


class Desk:
    """The page that the tests of one file share, because loading JupyterLab takes seconds. A failed test renews it."""

    def __init__(self, browser: Browser, lab: Lab, name: str) -> None:
        self.browser, self.lab, self.name = browser, lab, name
        self.lay()

    def lay(self) -> None:
        """A fresh page, with nothing remembered."""
        self.context = self.browser.new_context(viewport=WIDE)
        self.page = self.context.new_page()
        self.watch = Watch(self.page, self.lab.url)
        self.notebook: Notebook | None = None

    def open(self, path: str) -> Notebook:
        """The notebook; where it is open already, the page and the kernel are taken as they are."""
        if self.notebook is None or self.notebook.path != self.lab.root / path:
            self.notebook = Notebook(self.page, self.lab, path, self.name)
        return self.notebook

    def renew(self) -> None:
        """A fresh page and fresh kernels, after something went wrong."""
        self.context.close()
        self.lab.end_kernels()
        self.lay()


@pytest.fixture(scope="module")
def desk(chromium: Browser, lab: Lab, request: pytest.FixtureRequest) -> Iterator[Desk]:
    desk = Desk(chromium, lab, request.node.name.removesuffix(".py"))
    yield desk
    desk.context.close()


@pytest.fixture
def open_notebook(desk: Desk, request: pytest.FixtureRequest) -> Iterator[OpenNotebook]:
    """``open_notebook("compare.ipynb")``: kernels go on between tests, so that runs begin at once."""
    desk.watch.seen.clear()
    yield desk.open
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    desk.page.screenshot(path=PICTURES / f"end-of-{name}.png")
    desk.page.set_viewport_size(WIDE)
    seen = list(desk.watch.seen)
    if FAILED in request.node.stash:
        desk.renew()
    assert seen == []


@pytest.fixture
def notebook(open_notebook: OpenNotebook, request: pytest.FixtureRequest) -> Notebook:
    """The notebook that the test's file names in ``NOTEBOOK``."""
    return open_notebook(request.module.NOTEBOOK)


@pytest.fixture
def panel(notebook: Notebook) -> Panel:
    """A new panel in it."""
    return notebook.panel()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report
