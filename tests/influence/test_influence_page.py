"""The page: nothing from a text becomes an element, every target is there, and its script lights up what it should."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import Any

import pytest

from lengthwise.core.errors import SettingError
from lengthwise.influence.report.page import page

HOSTILE = [
    "<script>alert(1)</script>",
    "</script>",
    "</SCRIPT ><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>",
    "&lt;b&gt;",
    "\"'`",
    "{policy}",
    "\\u003c",
    "\u2028\u2029",
    "\n",
    "\r\n",
    "\x00",
    "\ufffd",
    chr(0xD800),
    chr(0xDC00) + "x",
    "\u202eabc",
    "",
    "\U0001f600",
]
KS = (1, 2)


def selection(
    *chosen: tuple[int, float, str], losses: tuple[float, ...] = (2.0, 1.5), **changes: Any
) -> dict[str, Any]:
    """A selection of the headline group: distance, gain and text of what was chosen."""
    tokens = [{"distance": distance, "gain": gain, "text": text} for distance, gain, text in chosen]
    group = {"mode": "strict", "knows": "target", "from": "own", "measure": "greedy"}
    return {**group, "chosen": tokens, "losses": list(losses), "divergences": [1.0, 0.25], **changes}


def row(place: int, *selections: dict[str, Any], document: str = "a", **changes: Any) -> dict[str, Any]:
    """A row with these selections."""
    return {
        "model": "tiny",
        "document": document,
        "place": place,
        "target": 1,
        "text": "x",
        "kinds": ["word_start"],
        "loss_short": 3.0,
        "loss_long": 1.0,
        "divergence_short": 1.0,
        "clear": True,
        "controls": {"other": {"loss": 2.75, "gains": False, "loses": False}},
        "weight": 1.0,
        "selections": list(selections),
        **changes,
    }


class Parsed(HTMLParser):
    """Elements with their attributes, and the text within each kind of element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.comments: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Note text, under the element that began last."""
        self.texts.setdefault(self.elements[-1][0] if self.elements else "", []).append(data)

    def handle_comment(self, data: str) -> None:
        """Note a comment."""
        self.comments.append(data)

    @property
    def study(self) -> dict[str, Any]:
        """What the script reads."""
        return json.loads("".join(self.texts["script"]).split('\n"use strict"')[0])


def shown(rows: list[dict[str, Any]], tokens: list[str], start: int = 0, **how: Any) -> Parsed:
    """The page of one excerpt."""
    return Parsed(page(rows, {"a": (start, tokens)}, ks=KS, near=2, **how))


def test_no_text_becomes_an_element_and_every_text_comes_back():
    hostile = [
        row(place, selection((place, 0.5, text), mode=text), kinds=[text], model=text)
        for place, text in enumerate(HOSTILE)
    ]
    harmless = [row(place, selection((1, 0.5, "x"))) for place in range(len(HOSTILE))]
    names = dict.fromkeys(HOSTILE, (0, HOSTILE))
    bad = Parsed(
        page([{**each, "document": name} for each, name in zip(hostile, HOSTILE, strict=True)], names, ks=KS, near=2)
    )
    good = shown(harmless, ["x"] * len(HOSTILE))
    without_policy = [[each for each in parsed.elements if "content" not in each[1]] for parsed in (bad, good)]
    assert without_policy[0] == without_policy[1]
    assert bad.comments == []
    study = bad.study
    assert [document["name"] for document in study["documents"]] == HOSTILE
    assert all(document["tokens"] == HOSTILE for document in study["documents"])
    assert study["kinds"] == HOSTILE
    assert [group[0] for group in study["groups"]] == HOSTILE
    assert study["model"] == HOSTILE[-1]
    chosen = [target["selections"] for document in study["documents"] for target in document["targets"]]
    assert [next(iter(each.values()))["chosen"][0][2] for each in chosen] == HOSTILE


def test_the_page_is_ascii_without_anything_that_ends_its_data():
    html = page([row(3, selection((2, 0.5, "<")))], {"a": (0, [*HOSTILE])}, ks=KS, near=2)
    assert html.isascii()
    data = re.search(r'id="study">(.*?)</script>', html, re.DOTALL)
    assert data
    assert not set("<>&") & set(data[1])


def test_the_page_loads_nothing_and_runs_its_own_script_alone():
    html = page([row(3)], {"a": (0, ["x"] * 5)}, ks=KS, near=2)
    parsed = Parsed(html)
    for tag, attributes in parsed.elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "svg"}
        assert not {"src", "href", "action", "style", "srcdoc"}.intersection(attributes)
        assert not any(name.startswith("on") for name in attributes)
    (policy,) = (attributes["content"] for _, attributes in parsed.elements if "http-equiv" in attributes)
    assert policy
    assert "http" not in html.replace("http-equiv", "")
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'; ")
    for tag, pattern in (("style", r"<style>(.*?)</style>"), ("script", r"<script>(.*?)</script>")):
        (content,) = re.findall(pattern, html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
        assert "unsafe" not in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|url\(", html)


def test_every_target_in_an_excerpt_is_there_in_the_order_of_the_text():
    rows = [row(place, selection((1, 0.5, "x"))) for place in (14, 10, 12, 9, 15)]
    study = shown([*rows, row(12, document="b")], ["x"] * 5, start=10).study
    assert [target["place"] for target in study["documents"][0]["targets"]] == [10, 12, 14]
    assert study["notes"] == ["Left out: 3 targets outside of the excerpts."]


def test_a_target_that_was_not_measured_is_there_too():
    (target,) = shown([row(3, clear=False, weight=0.0)], ["x"] * 5).study["documents"][0]["targets"]
    losses = {"loss_short": 3.0, "loss_long": 1.0, "loss_other": 2.75, "divergence_short": 1.0}
    assert target == {"place": 3, "clear": False, "kinds": [0], "selections": {}, **losses}


def test_the_page_begins_with_the_answer_and_says_what_its_limits_leave_out():
    excerpts = {name: (0, ["x"] * 9) for name in "ab"}
    rows = [row(place, document=name) for name in "abc" for place in range(4)]
    study = Parsed(page(rows, excerpts, ks=KS, near=2, answer="No use.", max_targets=5)).study
    assert [len(document["targets"]) for document in study["documents"]] == [4, 1]
    left_out = "Left out: 4 targets outside of the excerpts, 3 targets over the page's limit."
    assert study["notes"] == ["No use.", left_out]
    assert shown([row(3)], ["x"] * 5).study["notes"] == []


def test_the_selection_shown_first_is_the_headline():
    masked = selection((3, 0.5, "x"), mode="masked")
    study = shown(
        [row(3, masked, selection((3, 0.5, "x"), knows="nothing"), selection((3, 0.5, "x")))], ["x"] * 5
    ).study
    assert study["groups"][study["first"]] == ["strict", "target", "own", "greedy"]
    assert shown([row(3, masked)], ["x"] * 5).study["first"] == 0
    prediction = selection((3, 0.5, "x"), knows="prediction")
    study = shown([row(3, selection((3, 0.5, "x")), prediction)], ["x"] * 5).study
    assert study["groups"][study["first"]] == ["strict", "prediction", "own", "greedy"]


def test_a_number_that_is_not_finite_is_refused():
    with pytest.raises(SettingError, match="a row holds a number that is not finite; measure its target in float32"):
        shown([row(3, loss_long=float("nan"))], ["x"] * 5)


# A document with as much behaviour as the page's script uses.
DOCUMENT = """
class Classes extends Set {
  remove(...names) { for (const name of names) this.delete(name); }
  toggle(name, on) { if (on) this.add(name); else this.delete(name); }
}
class Element {
  constructor(name) {
    Object.assign(this, { name, children: [], classList: new Classes(), attributes: {}, listeners: {}, value: "" });
    this.properties = {};
    this.style = { setProperty: (name, value) => { this.properties[name] = value; } };
  }
  set className(names) { this.classList = new Classes(names.split(" ")); }
  append(child) { this.children.push(child); child.parent = this; }
  replaceChildren() { this.children = []; }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  focus() { document.focused = this; for (let up = this; up; up = up.parent) up.listeners.focusin?.({ target: this }); }
  get all() { return [this, ...this.children.flatMap((child) => child.all)]; }
  get said() { return this.all.map((each) => each.textContent).filter((text) => text !== undefined).join(" "); }
}
const elements = {};
const document = {
  getElementById: (id) => elements[id] ??= new Element(id),
  createElement: (name) => new Element(name),
};
document.getElementById("study").textContent = STUDY;
"""
PROBE = """
const spans = elements.texts.all.filter((each) => each.name === "span");
const lights = () => Object.fromEntries(["active", "near", "border", "needed"].map(
  (name) => [name, spans.flatMap((span, at) => span.classList.has(name) ? [at] : [])]));
const state = () => ({ ...lights(), focus: spans.indexOf(document.focused), said: elements.panel.said,
  tab: spans.flatMap((span, at) => span.tabIndex === 0 ? [at] : []),
  by_arrow: spans.flatMap((span, at) => span.tabIndex === -1 ? [at] : []), count: elements.count.textContent,
  gain: spans.map((span) => span.properties["--gain-share"] ?? null) });
const press = (key) => elements.texts.listeners.keydown({ key, target: active, preventDefault() {} });
const states = [state()];
for (const step of STEPS) {
  if (step.key) press(step.key);
  if (step.over !== undefined) elements.texts.listeners.mouseover({ target: spans[step.over] });
  for (const name of ["kind", "group"]) if (step[name] !== undefined) {
    elements[name].value = step[name];
    elements[name].listeners.change();
  }
  states.push(state());
}
console.log(JSON.stringify({ states, texts: spans.map((span) => span.textContent), title: document.title,
  classes: spans.map((span) => [...span.classList]), notes: document.getElementById("notes").said }));
"""
NODE = shutil.which("node")


def acted(rows: list[dict[str, Any]], tokens: list[str], *steps: dict[str, Any], **how: Any) -> dict[str, Any]:
    """What the page's script makes of steps, in a document of this file's own."""
    html = page(rows, {"a": (100, tokens)}, ks=KS, near=2, **how)
    (study, script) = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    assert NODE
    program = f"const STUDY = {json.dumps(study)}, STEPS = {json.dumps(steps)};{DOCUMENT}{script}{PROBE}"
    done = subprocess.run([NODE, "-"], input=program, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


needs_node = pytest.mark.skipif(NODE is None, reason="needs node to run the page's script")
ROWS = (
    row(105, selection((3, 0.5, "C"), (5, 1.0, "A"), (9, 0.1, "?")), kinds=["digit", "word_start"]),
    row(107, selection((4, 0.2, "D")), selection((4, 0.7, "other"), **{"from": "other"})),
    row(108, clear=False, weight=0.0, loss_short=0.9),
)


@needs_node
def test_the_first_target_lights_up_its_far_tokens_by_gain_and_its_near_ones():
    first = acted(list(ROWS), list("ABCDEFGHIJ"))["states"][0]
    assert (first["active"], first["near"], first["border"], first["needed"]) == ([5], [3, 4], [3], [0, 2])
    assert (first["gain"][0], first["gain"][2]) == ("1.000", "0.500")
    # One stop for Tab; the others are for arrow keys and the pointer.
    assert (first["tab"], first["by_arrow"]) == ([5], [7, 8])
    assert first["count"] == "3 of 3 targets shown."
    for said in (
        'Target "F"',
        "token 105",
        "a clear gap",
        "digit, word_start",
        "1.500 0.75",
        "2.000 0.250",
        '"A" 5 1.000',
    ):
        assert said in first["said"]
    assert "1 of them lie before this excerpt." in first["said"]


@needs_node
def test_arrow_keys_and_the_pointer_go_from_target_to_target():
    keys = ["ArrowRight", "ArrowDown", "ArrowRight", "Home", "End", "ArrowLeft", "Tab"]
    states = acted(list(ROWS), list("ABCDEFGHIJ"), *({"key": key} for key in keys), {"over": 5}, {"over": 6})["states"]
    assert [state["active"][0] for state in states] == [5, 7, 8, 8, 5, 8, 7, 7, 5, 5]
    assert all(state["tab"] == state["active"] for state in states)
    assert states[1]["needed"] == [3]
    assert states[2]["needed"] == []
    assert "This selection was not made for this target." in states[2]["said"]


@needs_node
def test_a_kind_hides_the_targets_of_other_kinds_from_keys_and_pointer():
    rows = list(ROWS)
    found = acted(rows, list("ABCDEFGHIJ"), {"kind": "0"}, {"key": "ArrowRight"}, {"over": 7}, {"kind": ""})
    assert [state["active"] for state in found["states"]] == [[5], [5], [5], [5], [5]]
    assert found["states"][1]["count"] == "1 of 3 targets shown."


@needs_node
def test_tokens_of_another_document_are_listed_and_not_marked():
    found = acted(list(ROWS), list("ABCDEFGHIJ"), {"group": "1"}, {"key": "ArrowRight"})["states"][-1]
    assert found["needed"] == []
    assert '"other" 4 0.700' in found["said"]
    assert "They come from another document: none is marked." in found["said"]


@needs_node
def test_losses_that_are_means_of_draws_have_no_tokens_to_list():
    (state,) = acted([row(105, selection())], list("ABCDEFGHIJ"))["states"]
    assert "Its tokens are not listed: losses are means of several draws." in state["said"]


@needs_node
def test_a_share_of_an_unchanged_prediction_is_not_a_number_but_words():
    (state,) = acted([row(105, selection(), divergence_short=0.0)], list("ABCDEFGHIJ"))["states"]
    assert "no change" in state["said"]


@needs_node
def test_hostile_tokens_are_texts_of_spans():
    found = acted([row(100 + len(HOSTILE) - 1, selection((1, 0.5, "</script>")))], HOSTILE)
    assert found["texts"] == HOSTILE
    classes = dict(zip(HOSTILE, found["classes"], strict=True))
    assert ("line" in classes["\n"], "empty" in classes[""], "turned" in classes["\u202eabc"]) == (True, True, True)


@needs_node
def test_an_excerpt_without_targets_says_so():
    (state,) = acted([], list("ABC"))["states"]
    assert (state["active"], state["said"]) == ([], "No target of this kind is shown.")
