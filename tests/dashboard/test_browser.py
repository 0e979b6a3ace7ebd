"""The dashboard in a real Chromium: open, filter, compare, live update, keyboard, narrow window, hostile text.

Skipped where there is no `chromium` with its `chromedriver`, or no selenium (`make test-browser`)."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from burnish.literal import literal
from tests.dashboard.made import HOSTILE, json_line, metrics_line, trajectory, write_run, write_step, write_trace
from tests.processes import until

webdriver = pytest.importorskip("selenium.webdriver")
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver"),
]
FIRST, SECOND = "proj/first", "proj/second"


class Page:
    def __init__(self, driver: Any, address: str):
        self.driver, self.address = driver, address

    def open(self, route: str = "#/") -> "Page":
        self.driver.get("about:blank")
        self.driver.get(f"{self.address}/{route}")
        return self

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
        return self.driver.execute_script(script, selector)

    def wait(self, selector: str, count: int = 1) -> list[Any]:
        return until(lambda: len(found := self.all(selector)) >= count and found)

    def until(self, condition: Any) -> Any:
        def now() -> Any:
            try:
                return condition()
            except StaleElementReferenceException:  # it was drawn again
                return None

        return until(now)

    def press(self, *keys: str) -> None:
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(key).perform()

    def js(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def chart(self, name: str) -> list[list[float]]:
        """The y values of its traces."""
        found = f"document.querySelector('[data-metric=\"{name}\"] .chart')"
        return self.js(f"{found} && {found}.data ? {found}.data.map(trace => [...trace.y]) : []")


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield made
    made.quit()


@pytest.fixture
def page(driver: Any, address: str) -> Iterator[Page]:
    driver.set_window_size(1280, 900)
    driver.get_log("browser")
    yield Page(driver, address)
    # Plotly also wants a style sheet of its maps, which the policy refuses.
    errors = [line["message"] for line in driver.get_log("browser") if "Applying inline style" not in line["message"]]
    driver.get("about:blank")
    assert not errors


def test_runs_are_opened_filtered_selected_and_compared(page):
    page.open().wait("tbody tr", 2)
    assert page.texts(".badge.done") == ["done", "done"] and page.all("svg.spark polyline")
    assert "most responses were cut" in page.all(".badge.warning")[0].get_attribute("title")
    page.all("[data-filter]")[0].send_keys("sec")
    page.until(lambda: page.texts("tbody a") == [SECOND])
    page.all("[data-filter]")[0].send_keys(Keys.BACKSPACE * 3)
    for box in page.wait("tbody input[type=checkbox]", 2):
        box.click()
    page.until(lambda: "compare 2 runs" in page.texts(".button"))
    page.all(".button")[0].click()
    page.until(lambda: len(page.chart("critic/score/mean")) == 4)  # of each run its values, and smoothed
    traces = page.chart("critic/score/mean")
    assert sorted(map(len, traces)) == [4, 4, 6, 6]
    raw, smooth, *_ = traces
    assert raw[0] == smooth[0] and raw[-1] > smooth[-1]
    assert set(page.texts(".legend > span")) == {FIRST, SECOND}


def test_metrics_are_chosen_and_smoothed_and_the_address_keeps_it(page):
    page.open(f"#/curves?run={FIRST}").until(lambda: page.chart("critic/score/mean"))
    page.all(".chooser [data-filter]")[0].send_keys("max_mem")
    page.until(lambda: page.texts(".choices label") == ["perf/max_memory_allocated_gb"])
    page.all(".choices input")[0].click()
    page.until(lambda: page.chart("perf/max_memory_allocated_gb"))
    page.js("(e => { e.value = 0; e.dispatchEvent(new Event('input')) })(document.querySelector('[type=range]'))")
    page.until(lambda: len(page.chart("perf/max_memory_allocated_gb")) == 1)
    page.driver.refresh()
    page.until(lambda: len(page.chart("perf/max_memory_allocated_gb")) == 1)


def test_a_live_run_grows_on_the_page(page, outputs):
    page.open(f"#/curves?run={FIRST}").until(lambda: len((page.chart("critic/score/mean") or [[]])[0]) == 6)
    with (outputs / FIRST / "metrics.jsonl").open("a") as file:
        file.write(metrics_line(7))
    page.until(lambda: len(page.chart("critic/score/mean")[0]) == 7)
    page.open(f"#/samples?run={FIRST}").wait("tbody tr", 8)
    write_step(outputs / FIRST, 7, rows=2)
    page.wait("[role=status] a")[0].click()
    page.until(lambda: page.texts("tbody a") == ["7 / 0", "7 / 1"])
    page.open().wait("tbody tr", 2)
    write_run(outputs / "proj" / "third", steps=1)
    page.wait("tbody tr", 3)


def test_phases_of_a_step_failures_and_state(page):
    page.open(f"#/time?run={FIRST}").wait(".lane", 2)
    assert page.texts(".lane span") == ["gen 2 s", "update_actor 1 s"]
    assert "step 6: 3.5 s in all, engine 1.5 s, 0.5 s in no phase" in page.texts(".timeline p")
    widths = [bar.size["width"] for bar in page.all(".phase")]
    assert widths[0] == pytest.approx(2 * widths[1], abs=2)
    page.until(lambda: page.chart("failures/tool") and page.chart("perf/max_memory_allocated_gb"))
    page.press("4")
    page.until(lambda: "tool search: execute" in page.texts("td"))
    page.wait("main button")[-1].click()
    page.until(lambda: any("too few" in text for text in page.texts("pre")))


def test_a_step_is_drawn_as_its_processes_did_it_and_its_trace_and_profiles_are_saved(page, outputs, tmp_path):
    write_trace(outputs / FIRST)
    (outputs / FIRST / "profiles/step_2").mkdir(parents=True)
    (outputs / FIRST / "profiles/step_2/critic-0.json.gz").write_bytes(b"as it is")
    command = {"cmd": "Browser.setDownloadBehavior", "params": {"behavior": "allow", "downloadPath": str(tmp_path)}}
    page.driver.execute("executeCdpCommand", command)
    page.open(f"#/time?run={FIRST}&step=2").wait(".lane.process", 3)
    assert page.texts(".lane > span") == ["controller", "agents-0", "global_pool-0"]
    assert page.texts(".phase:not(.wait)") == ["gen", "update_actor", "update_actor"] and len(page.all(".wait")) == 3
    whole, (gen, _, call) = page.all(".track")[0].size["width"], page.all(".phase:not(.wait)")
    assert gen.size["width"] == pytest.approx(0.6 * whole, abs=2)
    assert call.location["x"] - gen.location["x"] == pytest.approx(0.7 * whole, abs=2)
    for button in page.all(".bar button"):
        button.click()
    saved = {"trace-2.json", "trace.json", "step_2-critic-0.json.gz"}
    page.until(lambda: saved <= {file.name for file in tmp_path.iterdir()})
    assert (tmp_path / "step_2-critic-0.json.gz").read_bytes() == b"as it is"
    assert json.loads((tmp_path / "trace-2.json").read_text())["traceEvents"]


def test_trajectories_are_filtered_by_source_score_and_text_and_over_steps(page):
    page.open(f"#/samples?run={FIRST}").wait("tbody tr", 8)
    assert page.texts("tbody a")[0] == "6 / 0"
    page.js(
        "(e => { e.value = 'code'; e.dispatchEvent(new Event('change')) })(document.querySelector('[name=source]'))"
    )
    page.until(lambda: page.texts("tbody a") == [f"6 / {row}" for row in range(4, 8)])
    page.all("[name=low]")[0].send_keys("1", Keys.ENTER)
    page.until(lambda: page.texts("tbody a") == ["6 / 6"])
    page.open(f"#/samples?run={FIRST}&first=1&last=6").wait("tbody tr", 48)
    page.press("/", "3*5</tool", Keys.ENTER)
    page.until(lambda: page.texts("tbody a") == [f"{step} / 5" for step in range(6, 0, -1)])


def test_a_group_side_by_side_its_colours_folded_calls_difference_and_the_same_prompt(page):
    page.open(f"#/group?run={FIRST}&kind=rollouts&step=6&row=2").wait("article", 4)
    first, second, *_ = page.all("article")
    assert first.location["y"] == second.location["y"] and first.location["x"] < second.location["x"]
    assert "score1advantage0.75acc1format0.5" in page.texts("article.chosen dl")[0]
    folded = page.all("article.chosen details")
    assert [one.get_attribute("class") for one in folded] == ["call", "observation"]
    assert not any(one.get_attribute("open") for one in folded)
    assert page.texts("article.chosen details.observation")[0].endswith(" result 6")
    seen = {}
    for _ in range(5):
        page.press("c")
        chosen = page.js("document.querySelector('[data-cycle]').value")
        seen[chosen] = page.js(
            "[...document.querySelectorAll('article.chosen .text span[title]')].map(e => e.style.background)"
        )
    assert [name for name, tints in seen.items() if tints] == ["log-prob", "advantage", "gap", "mask"] and not seen[
        "none"
    ]
    assert len(set(seen["log-prob"])) > 1 and len(set(seen["mask"])) == 2
    left, right = page.all("[aria-label='first answer'], [aria-label='second answer']")
    left.send_keys("sample 1")
    right.send_keys("sample 2")
    page.until(lambda: page.texts("del") and page.texts("ins"))
    assert "".join(page.texts("del")).startswith("<tool_call>3*1") and "".join(page.texts("ins")).startswith(
        "<tool_call>3*2"
    )
    page.driver.find_element(By.LINK_TEXT, "the same prompt over steps").click()
    page.until(lambda: page.texts("tbody a") == [f"{step} / {row}" for step in (6, 1) for row in range(4)])


def test_configurations_of_two_runs(page):
    page.open(f"#/config?run={FIRST}&run={SECOND}").wait("tr.differs")
    (different,) = [row for row in page.texts("tr.differs") if "actor.optim.lr" in row]
    assert different == "actor_rollout_ref.actor.optim.lr1e-060.011e-06"
    page.all("main input[type=checkbox]")[0].click()
    page.until(lambda: any("algorithm.gamma" in row for row in page.texts("tbody tr")))


def test_everything_is_reached_by_the_keyboard(page):
    page.open().wait("tbody tr", 2)
    page.press("/", "first", Keys.ESCAPE)
    page.until(lambda: page.texts("tbody a") == [FIRST])
    page.press("j", Keys.ENTER)
    page.wait("#tabs [aria-current]")
    for key, tab in enumerate(("curves", "time", "samples", "state", "config"), start=1):
        page.press(str(key))
        page.until(lambda tab=tab: page.texts("#tabs [aria-current]") == [tab])
    page.press("3")
    page.wait("table.samples tbody tr", 8)
    page.press("j", "j", "k", "j", Keys.ENTER)
    page.wait("article.chosen", 1)
    assert "row=1" in page.js("location.hash")
    page.press(Keys.ESCAPE)
    page.wait("table.samples tr", 8)
    page.press("?")
    page.until(lambda: page.js("document.getElementById('help').open"))
    page.press(Keys.ESCAPE)
    page.until(lambda: not page.js("document.getElementById('help').open"))
    page.press(Keys.ESCAPE)
    page.wait("table.runs")


@pytest.mark.parametrize("route", ["", "curves", "time", "samples", "state", "config", "group"])
def test_a_narrow_window_needs_no_sideways_scrolling(page, route):
    page.driver.set_window_size(500, 800)  # Chromium's narrowest
    more = "&step=6&row=0&kind=rollouts" if route == "group" else ""
    page.open(f"#/{route}?run={FIRST}{more}" if route else "#/")
    page.wait({"": "tbody tr", "curves": ".main-svg", "time": ".lane", "group": "article"}.get(route, "td"))
    assert page.js("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.js(
        "[...document.querySelectorAll('#tabs a, main input')].every(e => e.getBoundingClientRect().left < innerWidth)"
    )


def test_texts_of_models_files_and_folders_do_nothing(page, outputs):
    run = write_run(outputs / "proj" / "<img src=x onerror=window.broken=1>", steps=1, rows=0)
    texts = dict.fromkeys(("prompt", "uid", "data_source", "finish_reason", "ground_truth"), HOSTILE)
    rows = [{**trajectory(1, row, response=HOSTILE), **texts, "reward_info": {HOSTILE: HOSTILE}} for row in range(2)]
    (run / "rollouts" / "1.jsonl").write_text("".join(map(json_line, rows)))
    times = {f"timing_s/{HOSTILE}": 1.0, "timing_s/gen": 1.0, "timing_s/step": 1.0}
    (run / "metrics.jsonl").write_text(json_line({"step": 1, HOSTILE: 1.0, "critic/score/mean": 1.0, **times}))
    (run / "events.jsonl").write_text(json_line({"kind": HOSTILE, "time": 1.0, HOSTILE: [HOSTILE]}))
    name = page.js("encodeURIComponent('proj/<img src=x onerror=window.broken=1>')")
    page.open().wait("tbody tr", 3)
    metric = page.js(f"encodeURIComponent({literal(HOSTILE)!r})")
    for route, ready in {
        f"curves?run={name}&m={metric}": "[data-metric*=onerror] .main-svg",
        f"time?run={name}": ".lane",
        f"samples?run={name}": "tbody tr",
        f"group?run={name}&kind=rollouts&step=1&row=0&colour=advantage": "article",
        f"state?run={name}": ".events tr",
        f"config?run={name}": "td",
    }.items():
        page.open(f"#/{route}").wait(ready)
        assert not page.js("window.broken") and not page.all("main img, main script, main iframe"), route
    page.open(f"#/group?run={name}&kind=rollouts&step=1&row=0").wait("article")
    assert (
        "<script>window.broken=1</script> \\x1b[31mred\\x1b[0m \\u202egnp.exe \\x00end"
        in page.texts("article .text")[0]
    )


def test_a_key_is_taken_from_the_address_and_asked_for_without_it(driver, outputs):
    from tests.dashboard.conftest import serving

    with serving(outputs, key="sesame") as address:
        page = Page(driver, address)
        page.open().wait("form.key")
        page.press("wrong", Keys.ENTER)
        page.wait("form.key")
        page.open("#key=sesame").wait("tbody tr", 2)
        assert "sesame" not in page.js("location.href")
        driver.get_log("browser")  # 401 is logged
        driver.execute_script("sessionStorage.clear()")
