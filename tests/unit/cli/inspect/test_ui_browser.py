"""The page of ``tidegate ui`` in a real browser, on a screen and on a phone, with hostile values."""

from __future__ import annotations

import contextlib
import json
import threading

import pytest

from support import browser as browsers
from tidegate.committers import barrier
from tidegate.options import Options
from tidegate.options.endpoints import parse_store
from tidegate.testing.example import Example
from tidegate.ui.facts import Facts
from tidegate.ui.server import Server
from tidegate.ui.spaces import Spaces
from tidegate.wal.manifest import Step

pytestmark = [
    pytest.mark.skipif(browsers.PROGRAM is None, reason="no chromium on PATH"),
    pytest.mark.xdist_group("browser"),
]
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
LONG = "carrier " * 60
STEPS = (Step("reduce.aircraft", "reduce", ("aircraft",), 2, 1234, 300, 0.25, 1),)
READY = "document.querySelectorAll('#versions time').length > 1 && !document.querySelector('main.stale')"
SECRET = "p4ssw0rd"
WIDER = """[...document.querySelectorAll('main *')].filter(node => {
    const box = node.getBoundingClientRect();
    return box.width && (box.right > innerWidth + 0.5 || box.left < -0.5);
}).map(node => node.outerHTML.slice(0, 200))"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A browser, and the URL of the page of a namespace with hostile values and a store that is down."""
    folder = tmp_path_factory.mktemp("page")
    wal, store = f"file://{folder}/wal", f"sqlite://{folder}/store"
    with contextlib.ExitStack() as opened:
        writer = Example(wal, store, options=Options(key_groups=4))
        opened.callback(writer.close)
        patched = opened.enter_context(pytest.MonkeyPatch.context())
        for number in range(4):
            if number == 3:
                patched.setattr(barrier, "_steps", lambda *_: STEPS)
            planes = {f"N{plane}": {"carrier": "UA", "flights": number} for plane in range(60)}
            writer.write({"aircraft": planes | {HOSTILE: {"carrier": HOSTILE, "flights": number}}})
        with contextlib.closing(Example(wal, store, "orders")) as orders:
            for flights in (1, 2):
                orders.write({"aircraft": {"N1": {"carrier": LONG, "flights": flights}}})
        ats = (parse_store(store), parse_store(f"down=redis://user:{SECRET}@127.0.0.1:6"))

        def facts(name):
            return Facts(name, ats, wal)

        first = facts("flights")
        spaces = Spaces(first, lambda: ["flights", "orders"], facts)
        opened.callback(spaces.close)
        server = Server(first, "127.0.0.1", 0, spaces=spaces)
        opened.callback(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        opened.callback(server.shutdown)
        page = opened.enter_context(browsers.browser(folder))
        yield page, server.url, writer


@pytest.fixture
def page(world):
    """The page, which has to end without an error in the browser's console, and without what HTML did."""
    page, url, _ = world
    page.errors.clear()

    def show(place="", width=1280, scheme="light"):
        page.open(url + place, width, scheme=scheme)
        page.wait(READY)
        return page

    yield show
    assert page.errors == []
    assert page.run("document.title") == "flights: 4"
    assert page.run("document.querySelectorAll('img').length") == 0
    assert SECRET not in page.run("document.documentElement.innerHTML")


def texts(page, selector):
    return page.run(f"[...document.querySelectorAll({selector!r})].map(node => node.textContent)")


def test_the_age_of_the_visible_version_is_first_and_green_while_the_writer_runs(page, world):
    world[2].driver.store.heartbeat(world[2].driver.folded.epoch)
    shown = page()
    assert texts(shown, ".tile > span")[:2] == ["age of the newest version", "writer"]
    shown.wait("document.querySelectorAll('.tile b')[1].textContent === 'running'")
    assert shown.run("document.querySelectorAll('.tile b.good').length") == 3  # age, writer, lag
    assert shown.run("document.querySelector('.tile time').title").count("UTC") == 1


def test_a_silent_writer_is_not_green(page, monkeypatch):
    monkeypatch.setattr("tidegate.ui.facts.WRITER_ALIVE_S", 0.0)
    shown = page()
    shown.wait("document.querySelectorAll('.tile b')[1].textContent === 'silent'")
    assert shown.run("document.querySelectorAll('.tile b.good').length") == 0
    assert shown.run("document.querySelectorAll('.tile b.warn').length") == 2


def test_the_chart_has_a_scale_with_its_unit_and_times(page):
    shown = page()
    labels = texts(shown, "#chart text")
    assert any(label.startswith("0 ") and label.split()[1] in {"ms", "s", "min"} for label in labels)
    assert any(label.count(":") == 2 for label in labels)
    assert "v4" in labels
    assert shown.run("document.querySelectorAll('#chart g.v').length") == 4


def test_a_version_that_is_opened_shows_the_calls_that_made_it(page):
    shown = page()
    shown.click("4")
    shown.wait("document.querySelectorAll('#job td').length > 0")
    assert texts(shown, "#job td") == ["reduce.aircraft", "→ aircraft", "2", "1,234", "300", "0.25 s", "1"]
    shown.click("3")
    shown.wait("!document.querySelector('#job td') && document.querySelectorAll('#answer td').length > 0")


def test_times_are_local_or_utc_at_a_click(page):
    shown = page()
    local = texts(shown, "#versions time")[0]
    assert texts(shown, "#zone") == ["times: Europe/Berlin"]
    shown.click("times: Europe/Berlin")
    assert texts(shown, "#zone") == ["times: UTC"]
    utc = texts(shown, "#versions time")[0]
    hours = int(local.split()[-1][:2]) - int(utc.split()[-1][:2])
    assert hours % 24 in {1, 2}
    shown.click("times: UTC")


def test_a_word_is_explained_on_hover_and_leads_to_its_line(page):
    shown = page()
    assert (
        shown.run("document.querySelector('a.term[href=\"#word-lease\"]').title")
        == "a reader's pin on a version, with an expiry"
    )
    shown.click("Leases")
    assert (
        shown.run("document.getElementById('words').open && document.querySelector('dt.here').textContent")
        == "lease"
    )


def test_rows_are_paged_and_a_key_leads_to_its_history_with_changes_marked(page):
    shown = page()
    shown.click("Show rows")
    shown.wait("document.querySelectorAll('#answer tbody tr').length === 50")
    first = texts(shown, "#answer tbody td:first-child")
    shown.click("Next")
    shown.wait("document.querySelectorAll('#answer tbody tr').length === 11")
    keys = first + texts(shown, "#answer tbody td:first-child")
    assert sorted(keys) == sorted([*(f"N{plane}" for plane in range(60)), HOSTILE])
    if HOSTILE in first:
        shown.click("Previous")
        shown.wait("document.querySelectorAll('#answer tbody tr').length === 50")
    shown.click(HOSTILE, "#answer")
    shown.wait("document.querySelector('#history') !== null")
    assert texts(shown, "#history mark") == ["3", "2", "1"]
    assert texts(shown, "#history tbody tr:last-child .fields > span") == [f"carrier{HOSTILE}", "flights0"]
    address = shown.run("location.href")
    shown.open(address)
    shown.wait("document.querySelector('#history') !== null")


def test_two_versions_are_compared_from_a_version_of_the_list(page):
    shown = page()
    shown.click("4", "#versions")
    shown.wait("document.querySelectorAll('#answer tbody tr').length === 61")
    assert texts(shown, "#answer tbody tr:first-child .fields") == ["flights2 → 3"]
    assert "61 rows differ between versions 3 and 4" in texts(shown, "#answer p")[0]
    shown.run("document.querySelector('#pane-diff').after.value = 'x'")
    shown.click("Compare")
    shown.wait("document.querySelector('#answer .bad') !== null")
    assert texts(shown, "#answer .bad") == ["after 'x' is no whole number"]
    shown.errors.clear()  # the browser notes the answer 400


def choose(page, namespace):
    page.run(f"space.value = '{namespace}', space.dispatchEvent(new Event('change'))")  # the element's id
    page.wait(f"document.title.startsWith('{namespace}: ')")


def test_another_namespace_is_chosen(page):
    shown = page()
    choose(shown, "orders")
    assert "namespace=orders" in shown.run("location.href")
    choose(shown, "flights")


def test_an_address_leads_to_rows_of_the_namespace_that_it_names(page):
    shown = page("#namespace=orders&view=rows&table=aircraft")
    shown.wait("document.querySelector('#answer tbody tr') !== null")
    assert texts(shown, "#answer tbody td:first-child") == ["N1"]
    choose(shown, "flights")


@pytest.mark.parametrize("width", [390, 768])
def test_a_long_value_takes_three_lines_until_it_is_opened(page, width):
    shown = page("#namespace=orders&view=rows&table=aircraft", width)
    shown.wait("document.querySelector('#answer .clipped') !== null")
    height = "document.querySelector('#answer td:last-child, #answer td:nth-child(2)').offsetHeight"
    clipped = shown.run(height)
    shown.click("more", "#answer")
    shown.wait("document.querySelector('#answer .clipped') === null")
    assert shown.run(height) > clipped
    shown.click("less", "#answer")
    shown.wait("document.querySelector('#answer .clipped') !== null")
    assert shown.run(height) == clipped
    choose(shown, "flights")


@pytest.mark.parametrize("width,scheme", [(390, "light"), (390, "dark"), (768, "light"), (1280, "dark")])
def test_no_column_is_cut_at_any_width(page, width, scheme):
    shown = page("#view=diff&before=0&after=4", width, scheme)
    shown.wait("document.querySelector('#answer table') !== null")
    shown.wait("document.querySelector('#stores .bad') !== null")
    assert shown.run("document.documentElement.scrollWidth") <= width
    assert shown.run(WIDER) == []
    background = shown.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(json.loads(background.replace("rgb(", "[").replace(")", "]"))) > 384) == (scheme == "light")
