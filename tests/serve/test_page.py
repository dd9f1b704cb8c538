"""The page in a real browser: what one types, clicks and sees, against `CharLM`."""

from collections.abc import Iterator
from typing import Any

import pytest

from charwise import CharLM, healing
from serving import Running, chromium, running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as one:
        yield one


class Page:
    """The page, and all that it asked for and complained of."""

    def __init__(self, browser: Any, address: str, *, wait: bool = True, **context: Any) -> None:
        self.page = browser.new_context(**context).new_page()
        self.page.set_default_timeout(30_000)  # of what must come, however busy the machine is
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)
        if wait:
            self.shown()

    @property
    def text(self) -> str:
        return str(self.page.locator("#text").input_value())

    def shown(self, what: str = "shown") -> None:
        """Until what is typed is shown: "looked", the quick part; "shown", everything."""
        waiting = f"text => document.body.dataset.{what} === text"
        self.page.wait_for_function(waiting, arg=self.text)

    def write(self, text: str) -> None:
        self.page.fill("#text", text)
        self.shown()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def texts(self, selector: str) -> list[str]:
        return [str(one) for one in self.page.locator(selector).all_text_contents()]


@pytest.fixture(scope="module")
def opened(browser: Any, running_server: Running) -> Iterator[Page]:
    yield (page := Page(browser, running_server.url))
    page.page.context.close()


@pytest.fixture
def page(opened: Page, running_server: Running) -> Iterator[Page]:
    yield opened
    assert opened.complaints == []
    assert all(url.startswith((running_server.url, "data:")) for url in opened.requests)


def test_typing_shows_what_the_model_says(page: Page, lm: CharLM) -> None:
    page.write("")
    page.page.focus("#text")
    state = lm.state("")
    for key in "raise ValueErr":
        page.page.keyboard.type(key)
        page.shown("looked")
        state = state + key
    kept, forced = healing.cut("raise ValueErr", lm.index)
    ids = healing.prompt_ids("raise ValueErr", lm.vocabulary)
    spelled = [(lm.vocabulary.tokens[id] or b"").decode().replace(" ", "␣") for id in ids[1:]]
    assert page.texts("#chips .chip")[1:] == spelled
    assert page.count("#chips .back") == len(ids) - len(kept)
    assert page.texts("#healing .forced") == [forced.decode().replace(" ", "␣")]
    assert page.texts("#bars .chip")[0] == state.next_chars().top(1)[0][0] == "o"
    page.shown()
    [exact] = state.complete(max_new_bytes=32, stop="\n\n")
    assert page.page.locator("#exact pre").get_attribute("data-text") == exact.text
    assert (page.count("#exact mark"), page.count("#plain mark")) == (0, 1)
    assert page.count("#heat span") == len("raise ValueErr")
    page.page.locator("#bars button").first.click()
    assert page.text == "raise ValueErro"
    page.shown()


def test_the_tree_shrinks_and_grows_and_is_clicked(page: Page, lm: CharLM) -> None:
    leaf, other = '#tree [data-beyond="eError"]', '#tree [data-beyond="Error"]'
    page.write("raise Valu")
    assert page.count(leaf) == 1
    page.page.focus("#text")
    page.page.keyboard.type("eX")
    page.shown("looked")
    assert page.count(leaf) == page.count(other) == 0
    page.press("Backspace", "Backspace")
    page.shown("looked")
    [member] = lm.covering("raise Valu").top(1)
    assert member.text == "raise ValueError"
    shares = page.page.locator("#tree [data-beyond]").evaluate_all(
        "items => items.map(item => [Number(item.dataset.share), item.dataset.beyond])"
    )
    assert max(shares)[1] == "eError"
    page.page.locator(leaf).first.locator(".node").click()
    assert page.text == "raise ValueError"
    page.shown()


def test_the_tree_and_the_steps_by_keyboard(page: Page) -> None:
    page.write("raise Valu")
    page.page.locator("#tree [role=treeitem]").first.focus()
    for _ in range(page.count("#tree [role=treeitem]")):
        if page.page.evaluate("document.activeElement.dataset.beyond") == "eError":
            break
        page.press("ArrowDown")
    page.press("Enter")
    assert page.text == "raise ValueError"
    page.write("self.assertEq")  # several contexts weigh something
    page.page.locator("#tree [aria-expanded=true]").first.focus()
    for key, closed in (("ArrowLeft", 1), ("ArrowRight", 0)):
        page.press(key)
        assert page.count("#tree [aria-expanded=false]") == closed
    page.write("def sweep(self):\n    self.sw")
    written = []
    while page.page.locator("#forward").is_enabled():
        page.page.click("#forward")
        written += page.texts("#figure .taken .chip")[:1]
    assert written[:3] == [".", "s", "we"]
    page.page.locator("#figure").focus()
    page.press("ArrowLeft", "ArrowLeft")
    assert page.page.locator("#figure .forced").first.text_content() == "w"


def test_no_text_becomes_markup(page: Page) -> None:
    text = "<img src=x onerror=alert(1)><b>bold</b>\n</pre><script>alert(2)</script> '\"&amp;"
    page.write(text)
    assert page.texts("#heat") == [text]
    assert page.count("main img, main b, main script") == 0
    page.write("s = '😀東京é\u202e'\n\tx = na")
    assert page.texts("#heat") == [page.text]
    page.write("")
    assert page.texts("#tree > li") == []


def test_a_text_that_is_too_long_is_said_to_be(opened: Page) -> None:
    opened.page.fill("#text", "x" * 9000)
    opened.page.wait_for_function("() => document.getElementById('status').textContent !== ''")
    assert "at most 8000 characters" in opened.texts("#status")[0]
    opened.write("x = 1")
    assert opened.texts("#status") == [""]
    opened.complaints.clear()  # of the browser, about the answer


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone(browser: Any, running_server: Running, scheme: str) -> None:
    phone = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
    page = Page(browser, running_server.url, color_scheme=scheme, **phone)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 360
    color = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, color.removeprefix("rgb(").removesuffix(")").split(","))) > 384
    assert light == (scheme == "light")
    page.page.locator("#theme").tap()
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != color
    assert page.complaints == []
    page.page.context.close()


def test_the_page_asks_for_the_key(browser: Any, lm: CharLM) -> None:
    with running(lm, api_key="secret") as server:
        page = Page(browser, server.url, wait=False)
        form = page.page.locator("#key-form")
        form.wait_for(state="visible")
        page.page.fill("#key", "secret")
        page.press("Enter")
        page.shown()
        assert not form.is_visible()
        page.write("import nump")
        assert page.texts("#bars .chip")[0] == "y"
        page.page.context.close()
