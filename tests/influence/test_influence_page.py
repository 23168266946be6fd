"""HTML page of a study: escaping of texts, completeness of targets, and behavior of the script."""

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
from lengthwise.influence.report.study_report import render_page

HOSTILE = [
    "<script>alert(1)</script>",
    "</script>",
    "</SCRIPT ><img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>",
    "&lt;b&gt;",
    "\"'`",
    "{{ study }}",
    "{% raw %}",
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
    *tokens: tuple[int, float, str], losses: tuple[float, ...] = (2.0, 1.5), **changes: Any
) -> dict[str, Any]:
    """Return a selection of the headline group from (distance, gain, text) of its tokens."""
    chosen = [{"distance": distance, "gain": gain, "text": text, "tokens": 1} for distance, gain, text in tokens]
    group = {"mode": "strict", "knows": "target", "from": "own", "measure": "greedy"}
    return {**group, "chosen": chosen, "losses": list(losses), "divergences": [1.0, 0.25], **changes}


def row(place: int, *selections: dict[str, Any], document: str = "a", **changes: Any) -> dict[str, Any]:
    """Return a row with these selections."""
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


class ParsedPage(HTMLParser):
    """Elements with their attributes, and the text in each kind of element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.comments: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Record text under the most recent start tag."""
        self.texts.setdefault(self.elements[-1][0] if self.elements else "", []).append(data)

    def handle_comment(self, data: str) -> None:
        """Record a comment."""
        self.comments.append(data)

    @property
    def study(self) -> dict[str, Any]:
        """JSON data that the script reads."""
        return json.loads("".join(self.texts["script"]).split('"use strict"')[0])


def parsed_page(rows: list[dict[str, Any]], tokens: list[str], start: int = 0, **options: Any) -> ParsedPage:
    """Render and parse the page of one excerpt."""
    return ParsedPage(render_page(rows, {"a": (start, tokens)}, ks=KS, near=2, **options))


def test_texts_are_escaped_and_preserved():
    hostile = [
        row(place, selection((place, 0.5, text), mode=text), kinds=[text], model=text)
        for place, text in enumerate(HOSTILE)
    ]
    harmless = [row(place, selection((1, 0.5, "x"))) for place in range(len(HOSTILE))]
    names = dict.fromkeys(HOSTILE, (0, HOSTILE))
    bad = ParsedPage(
        render_page(
            [{**each, "document": name} for each, name in zip(hostile, HOSTILE, strict=True)], names, ks=KS, near=2
        )
    )
    good = parsed_page(harmless, ["x"] * len(HOSTILE))
    without_policy = [[each for each in parsed.elements if "content" not in each[1]] for parsed in (bad, good)]
    assert without_policy[0] == without_policy[1]
    assert bad.comments == []
    study = bad.study
    assert [document["name"] for document in study["documents"]] == HOSTILE
    assert all(document["tokens"] == HOSTILE for document in study["documents"])
    assert study["kinds"] == HOSTILE
    assert [group[0] for group in study["groups"]] == HOSTILE
    assert study["model"] == HOSTILE[-1]
    selections = [target["selections"] for document in study["documents"] for target in document["targets"]]
    assert [next(iter(each.values()))["chosen"][0][2] for each in selections] == HOSTILE


def test_page_is_ascii_and_no_text_ends_the_json_script():
    html = render_page([row(3, selection((2, 0.5, "<")))], {"a": (0, [*HOSTILE])}, ks=KS, near=2)
    assert html.isascii()
    data = re.search(r'id="study">(.*?)</script>', html, re.DOTALL)
    assert data
    assert not set("<>&") & set(data[1])


def test_page_loads_nothing_and_allows_only_its_own_script_and_style():
    html = render_page([row(3)], {"a": (0, ["x"] * 5)}, ks=KS, near=2)
    parsed = ParsedPage(html)
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


def test_all_targets_in_an_excerpt_are_listed_in_text_order():
    rows = [row(place, selection((1, 0.5, "x"))) for place in (14, 10, 12, 9, 15)]
    study = parsed_page([*rows, row(12, document="b")], ["x"] * 5, start=10).study
    assert [target["place"] for target in study["documents"][0]["targets"]] == [10, 12, 14]
    assert study["notes"] == ["The page omits 3 targets outside the excerpts."]


def test_targets_without_selections_are_listed():
    (target,) = parsed_page([row(3, clear=False, weight=0.0)], ["x"] * 5).study["documents"][0]["targets"]
    losses = {"loss_short": 3.0, "loss_long": 1.0, "loss_other": 2.75, "divergence_short": 1.0}
    assert target == {"place": 3, "clear": False, "kinds": [0], "selections": {}, **losses}


def test_page_starts_with_the_answer_and_counts_omitted_targets():
    excerpts = {name: (0, ["x"] * 9) for name in "ab"}
    rows = [row(place, document=name) for name in "abc" for place in range(4)]
    study = ParsedPage(render_page(rows, excerpts, ks=KS, near=2, answer="No use.", max_targets=5)).study
    assert [len(document["targets"]) for document in study["documents"]] == [4, 1]
    omitted = "The page omits 4 targets outside the excerpts and 3 targets beyond the limit of the page."
    assert study["notes"] == ["No use.", omitted]
    assert parsed_page([row(3)], ["x"] * 5).study["notes"] == []


def test_headline_selection_is_displayed_first():
    masked = selection((3, 0.5, "x"), mode="masked")
    study = parsed_page(
        [row(3, masked, selection((3, 0.5, "x"), knows="nothing"), selection((3, 0.5, "x")))], ["x"] * 5
    ).study
    assert study["groups"][study["first"]] == ["strict", "target", "own", "greedy"]
    assert parsed_page([row(3, masked)], ["x"] * 5).study["first"] == 0
    prediction = selection((3, 0.5, "x"), knows="prediction")
    study = parsed_page([row(3, selection((3, 0.5, "x")), prediction)], ["x"] * 5).study
    assert study["groups"][study["first"]] == ["strict", "prediction", "own", "greedy"]


def test_numbers_that_are_not_finite_raise():
    with pytest.raises(SettingError, match="a row contains a number that is not finite; repeat the study in float32"):
        parsed_page([row(3, loss_long=float("nan"))], ["x"] * 5)


# The subset of the DOM that the script uses.
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
  get visibleText() { return this.all.map((each) => each.textContent).filter((text) => text !== undefined).join(" "); }
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
const highlights = () => Object.fromEntries(["active", "near", "border", "selected"].map(
  (name) => [name, spans.flatMap((span, at) => span.classList.has(name) ? [at] : [])]));
const state = () => ({ ...highlights(), focus: spans.indexOf(document.focused), text: elements.panel.visibleText,
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
  classes: spans.map((span) => [...span.classList]), notes: document.getElementById("notes").visibleText }));
"""
NODE = shutil.which("node")


def run_script(rows: list[dict[str, Any]], tokens: list[str], *steps: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Run the script in the minimal DOM above and return its state after each step."""
    html = render_page(rows, {"a": (100, tokens)}, ks=KS, near=2, **options)
    (study, script) = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    assert NODE
    program = f"const STUDY = {json.dumps(study)}, STEPS = {json.dumps(steps)};{DOCUMENT}{script}{PROBE}"
    completed = subprocess.run([NODE, "-"], input=program, capture_output=True, text=True, check=False, timeout=60)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


needs_node = pytest.mark.skipif(NODE is None, reason="needs node to run the script")
ROWS = (
    row(105, selection((3, 0.5, "C"), (5, 1.0, "A"), (9, 0.1, "?")), kinds=["digit", "word_start"]),
    row(107, selection((4, 0.2, "D")), selection((4, 0.7, "other"), **{"from": "other"})),
    row(108, clear=False, weight=0.0, loss_short=0.9),
)


@needs_node
def test_first_target_highlights_far_tokens_by_gain_and_near_tokens():
    first = run_script(list(ROWS), list("ABCDEFGHIJ"))["states"][0]
    assert (first["active"], first["near"], first["border"], first["selected"]) == ([5], [3, 4], [3], [0, 2])
    assert (first["gain"][0], first["gain"][2]) == ("1.000", "0.500")
    # Tab reaches one target; arrow keys and the pointer reach the others.
    assert (first["tab"], first["by_arrow"]) == ([5], [7, 8])
    assert first["count"] == "3 of 3 targets are displayed."
    for text in (
        'Target "F"',
        "token 105",
        "clear gain",
        "digit, word_start",
        "1.500 0.75",
        "2.000 0.250",
        '"A" 5 1.000',
    ):
        assert text in first["text"]
    assert "Number of them before this excerpt: 1." in first["text"]


@needs_node
def test_arrow_keys_and_pointer_move_between_targets():
    keys = ["ArrowRight", "ArrowDown", "ArrowRight", "Home", "End", "ArrowLeft", "Tab"]
    states = run_script(list(ROWS), list("ABCDEFGHIJ"), *({"key": key} for key in keys), {"over": 5}, {"over": 6})[
        "states"
    ]
    assert [state["active"][0] for state in states] == [5, 7, 8, 8, 5, 8, 7, 7, 5, 5]
    assert all(state["tab"] == state["active"] for state in states)
    assert states[1]["selected"] == [3]
    assert states[2]["selected"] == []
    assert "The study did not measure this selection for this target." in states[2]["text"]


@needs_node
def test_kind_filter_excludes_other_targets_from_keys_and_pointer():
    rows = list(ROWS)
    result = run_script(rows, list("ABCDEFGHIJ"), {"kind": "0"}, {"key": "ArrowRight"}, {"over": 7}, {"kind": ""})
    assert [state["active"] for state in result["states"]] == [[5], [5], [5], [5], [5]]
    assert result["states"][1]["count"] == "1 of 3 targets are displayed."


@needs_node
def test_tokens_of_another_document_are_listed_but_not_highlighted():
    state = run_script(list(ROWS), list("ABCDEFGHIJ"), {"group": "1"}, {"key": "ArrowRight"})["states"][-1]
    assert state["selected"] == []
    assert '"other" 4 0.700' in state["text"]
    assert "These are from another context, so the page does not highlight them." in state["text"]


@needs_node
def test_random_selections_have_no_token_list():
    (state,) = run_script([row(105, selection())], list("ABCDEFGHIJ"))["states"]
    assert "The losses are means over random selections, so there is no list." in state["text"]


@needs_node
def test_unchanged_prediction_has_no_share():
    (state,) = run_script([row(105, selection(), divergence_short=0.0)], list("ABCDEFGHIJ"))["states"]
    assert "no change" in state["text"]


@needs_node
def test_hostile_tokens_stay_text_in_the_document():
    result = run_script([row(100 + len(HOSTILE) - 1, selection((1, 0.5, "</script>")))], HOSTILE)
    assert result["texts"] == HOSTILE
    classes = dict(zip(HOSTILE, result["classes"], strict=True))
    assert "line" in classes["\n"]
    assert "empty" in classes[""]
    assert "bidirectional" in classes["\u202eabc"]


@needs_node
def test_excerpt_without_targets_displays_a_message():
    (state,) = run_script([], list("ABC"))["states"]
    assert (state["active"], state["text"]) == ([], "The page has no target of this kind.")
