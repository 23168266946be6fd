"""One HTML file that shows texts token by token: a target lights up the far tokens that it needs."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lengthwise.core.errors import SettingError

Excerpts = Mapping[str, tuple[int, Sequence[str]]]
GROUP = ("mode", "knows", "from", "measure")
# Shown first: of these the first that there is.
HEADLINES = (["strict", "prediction", "own"], ["strict", "target", "own"])

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1a1a1a; --faint: #666; --line: #bbb; --soft: #f1f1ee;
  --near: #e4eef6; --gain: 230 159 0; --gap: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181a; --ink: #e8e6e3; --faint: #a0a0a0; --line: #555;
  --soft: #222528; --near: #1f2d38; --gain: 150 70 0; --gap: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; overflow-wrap: anywhere; }
p { margin: .4rem 0; color: var(--faint); }
form { display: flex; flex-wrap: wrap; gap: 1rem; }
label { display: block; } select { font: inherit; max-width: 100%; }
#columns { display: grid; grid-template-columns: minmax(0, 1fr) 21rem; gap: 1.5rem; align-items: start; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font: .95rem/1.9 ui-monospace, monospace;
  unicode-bidi: isolate; } .turned { unicode-bidi: isolate; }
.target { cursor: pointer; text-decoration: underline; text-decoration-color: var(--gap);
  text-decoration-thickness: calc(1px + 4px * var(--gap-share)); text-underline-offset: .25em; border-radius: 2px; }
.target.vague { text-decoration-style: dotted; } .target.filtered { text-decoration: none; cursor: auto; }
.target:focus-visible, .target.active { outline: 2px solid var(--gap); }
.near { background: var(--near); } .border { box-shadow: inset 2px 0 0 var(--gap); }
.needed { background: rgb(var(--gain) / calc(.2 + .8 * var(--gain-share))); outline: 1px solid var(--ink); }
.line::before { content: "\\21B5"; color: var(--faint); } .empty::before { content: "\\2205"; color: var(--faint); }
#panel { position: sticky; top: 1rem; max-height: calc(100vh - 2rem); overflow: auto; padding: .2rem 1rem 1rem;
  background: var(--soft); border: 1px solid var(--line); border-radius: 6px; overflow-wrap: anywhere; }
#panel p { color: inherit; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-top: .6rem; }
th, td { text-align: right; padding: .1rem .3rem; border-bottom: 1px solid var(--line); }
td.text { text-align: left; font-size: .85rem; line-height: 1.4; white-space: pre-wrap; }
@media (max-width: 52rem) { #columns { display: block; } body { padding-bottom: 42vh; }
  #panel { position: fixed; inset: auto 0 0 0; max-height: 40vh; border-radius: 0; } }
"""

SCRIPT = """
"use strict";
const study = JSON.parse(document.getElementById("study").textContent);
const panel = document.getElementById("panel"), groups = document.getElementById("group");
const filter = document.getElementById("kind"), texts = document.getElementById("texts");
const targets = new Map();
let active = null, lit = [];

function add(parent, name, text, classes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (classes) made.className = classes;
  parent.append(made);
  return made;
}

function table(title, heads, rows) {
  const made = add(panel, "table");
  add(made, "caption", title);
  const head = add(made, "tr");
  for (const each of heads) add(head, "th", each).scope = "col";
  for (const row of rows) {
    const line = add(made, "tr");
    row.forEach((cell, place) => add(line, "td", cell, heads[place] === "token" ? "text" : ""));
  }
}

const shown = (target) => filter.value === "" || target.kinds.includes(Number(filter.value));
const nats = (loss) => loss.toFixed(3);

function describe(target) {
  panel.replaceChildren();
  const gap = target.loss_short - target.loss_long, chosen = target.selections[groups.value];
  add(panel, "h2", "Target " + JSON.stringify(target.spans[target.at].textContent));
  add(panel, "p", "token " + target.place + " of its document; " +
    (target.clear ? "a clear gap" : "no clear gap") + "; " + target.kinds.map((each) => study.kinds[each]).join(", "));
  table("loss, nats", ["near alone", "near + far", "gap", "gap, other text"],
    [[target.loss_short, target.loss_long, gap, target.loss_short - target.loss_other].map(nats)]);
  if (!chosen) {
    add(panel, "p", "This selection was not made for this target.");
    return;
  }
  const whole = target.divergence_short;
  table("with k far tokens", ["k", "loss", "prediction"], study.ks.map((k, place) => [k, nats(chosen.losses[place]),
    whole > 1e-5 ? (1 - chosen.divergences[place] / whole).toFixed(2) : "no change"]));
  if (!chosen.chosen.length) add(panel, "p", "Its tokens are not listed: losses are means of several draws.");
  else table("chosen, in order", ["token", "back", "gain"],
    chosen.chosen.map(([distance, gain, text]) => [JSON.stringify(text), distance, nats(gain)]));
  const outside = chosen.chosen.filter(([distance]) => target.at - distance < 0).length;
  if (study.groups[groups.value][2] !== "own") add(panel, "p", "They come from another document: none is marked.");
  else if (outside) add(panel, "p", outside + " of them lie before this excerpt.");
}

function light(target) {
  for (const span of lit) span.classList.remove("near", "border", "needed", "active");
  lit = [];
  if (!target) return;
  const mark = (at, name) => {
    if (at >= 0) lit.push(target.spans[at]);
    target.spans[at]?.classList.add(name);
    return target.spans[at];
  };
  mark(target.at, "active");
  for (let back = 1; back <= study.near; back += 1) mark(target.at - back, "near");
  mark(target.at - study.near, "border");
  const chosen = target.selections[groups.value];
  if (!chosen || study.groups[groups.value][2] !== "own") return;
  const most = Math.max(...chosen.chosen.map(([, gain]) => gain), 1e-9);
  for (const [distance, gain] of chosen.chosen) {
    mark(target.at - distance, "needed")?.style.setProperty("--gain-share", Math.max(0, gain / most).toFixed(3));
  }
}

function activate(span) {
  const target = targets.get(span);
  if (!target || !shown(target)) return;
  if (active) active.tabIndex = -1;
  active = span;
  active.tabIndex = 0;
  describe(target);
  light(target);
}

function refresh() {
  const open = [];
  for (const [span, target] of targets) {
    span.classList.toggle("filtered", !shown(target));
    span.tabIndex = -1;
    if (shown(target)) open.push(span);
  }
  document.getElementById("count").textContent = open.length + " of " + targets.size + " targets shown.";
  const next = open.includes(active) ? active : open[0];
  active = null;
  panel.replaceChildren();
  light(null);
  if (next) activate(next);
  else add(panel, "p", "No target of this kind is shown.");
}

function move(event) {
  const open = [...targets.keys()].filter((span) => shown(targets.get(span)));
  const at = open.indexOf(active);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0,
    End: open.length - 1 }[event.key];
  if (next === undefined || !targets.has(event.target)) return;
  event.preventDefault();
  if (open[next]) open[next].focus();
}

for (const text of study.documents) {
  const section = add(texts, "section");
  add(section, "h2", text.name + ", from token " + text.start);
  const body = add(section, "div", undefined, "text");
  body.dir = "auto";
  const spans = text.tokens.map((token) => add(body, "span", token, token === "" ? "empty"
    : /^[\\r\\n]/.test(token) ? "line" : /[\\u202a-\\u202e\\u2066-\\u2069]/.test(token) ? "turned" : ""));
  for (const target of text.targets) {
    const span = spans[target.place - text.start], gap = target.loss_short - target.loss_long;
    targets.set(span, Object.assign(target, { spans, at: target.place - text.start }));
    span.classList.add("target");
    span.classList.toggle("vague", !target.clear);
    span.setAttribute("role", "button");
    span.setAttribute("aria-label", "target " + JSON.stringify(span.textContent));
    span.style.setProperty("--gap-share", Math.min(1, Math.max(0, gap / 4)).toFixed(3));
  }
}
study.groups.forEach((group, place) => { add(groups, "option", group.join(", ")).value = place; });
study.kinds.forEach((kind, place) => { add(filter, "option", kind).value = place; });
groups.value = study.first;
document.getElementById("title").textContent = document.title = "Influence in " + study.model;
for (const line of study.notes) add(document.getElementById("notes"), "p", line);
texts.addEventListener("mouseover", (event) => activate(event.target));
texts.addEventListener("focusin", (event) => activate(event.target));
texts.addEventListener("keydown", move);
groups.addEventListener("change", refresh);
filter.addEventListener("change", refresh);
refresh();
"""

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Influence</title><style>{style}</style></head>
<body>
<h1 id="title">Influence</h1>
<p>Underlined tokens are targets: the thicker the line, the more far context lowers their loss (full at 4 nats; dotted:
no clear gap). Point at one, or reach one with Tab and go on with the arrow keys: the far tokens chosen for it light up,
stronger for more gain, and its near tokens are shaded.</p>
<form>
<label>Selection (mode, knows, from, measure) <select id="group"></select></label>
<label>Kind <select id="kind"><option value="">all kinds</option></select></label>
</form>
<div id="notes"></div>
<p id="count" role="status"></p>
<noscript><p>This page needs its own script, which was not run.</p></noscript>
<div id="columns"><main id="texts"></main><aside id="panel" aria-live="polite" aria-label="the target"></aside></div>
<script type="application/json" id="study">{study}</script>
<script>{script}</script>
</body></html>
"""


def page(
    rows: Iterable[Mapping[str, Any]],
    excerpts: Excerpts,
    *,
    ks: Sequence[int],
    near: int,
    answer: str = "",
    max_targets: int = 2000,
) -> str:
    """The page of those rows of ``influence.jsonl`` that lie in the excerpts, as ASCII; it loads nothing else.

    An excerpt is the index of its first token in the document and the texts of its tokens. The page begins with the
    ``answer``, and says how many targets are left out.
    """
    found = _Found(excerpts, max_targets)
    for row in rows:
        found.add(row)
    names = [list(group) for group in found.groups]
    first = [names.index(group) for headline in HEADLINES for group in names if group[:3] == headline]
    study = {
        "model": found.model,
        "ks": list(ks),
        "near": near,
        "groups": names,
        "first": (first or [0])[0],
        "kinds": list(found.kinds),
        "notes": [*([answer] if answer else []), *found.notes()],
        "documents": [
            {"name": name, "start": start, "tokens": list(tokens), "targets": found.ordered(name)}
            for name, (start, tokens) in excerpts.items()
        ],
    }
    try:
        text = json.dumps(study, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise SettingError("a row holds a number that is not finite; measure its target in float32") from None
    # No text may end the element or open another; in JSON these occur within strings alone.
    for each in "<>&":
        text = text.replace(each, f"\\u{ord(each):04x}")
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src '{_sha(STYLE)}'; "
    return PAGE.format(policy=f"{policy}script-src '{_sha(SCRIPT)}'", style=STYLE, study=text, script=SCRIPT)


class _Found:
    """The rows that lie in the excerpts, as the page's script reads them."""

    def __init__(self, excerpts: Excerpts, max_targets: int) -> None:
        self.excerpts, self.max_targets = excerpts, max_targets
        self.model, self.shown, self.elsewhere, self.too_many = "no model", 0, 0, 0
        self.groups: dict[tuple[str, ...], int] = {}
        self.kinds: dict[str, int] = {}
        self.targets: dict[str, list[dict[str, Any]]] = {name: [] for name in excerpts}

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a row, or count it among those left out."""
        self.model = row["model"]
        start, tokens = self.excerpts.get(row["document"], (0, ()))
        if not start <= row["place"] < start + len(tokens):
            self.elsewhere += 1
        elif self.shown == self.max_targets:
            self.too_many += 1
        else:
            self.shown += 1
            self.targets[row["document"]].append(
                {name: row[name] for name in ("place", "loss_short", "loss_long", "divergence_short", "clear")}
                | {"loss_other": row["controls"]["other"]["loss"]}
                | {"kinds": [self.kinds.setdefault(kind, len(self.kinds)) for kind in row["kinds"]]}
                | {"selections": dict(map(self._selection, row["selections"]))}
            )

    def _selection(self, selection: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        group = self.groups.setdefault(tuple(selection[name] for name in GROUP), len(self.groups))
        chosen = [[token["distance"], token["gain"], token["text"]] for token in selection["chosen"]]
        return group, {name: selection[name] for name in ("losses", "divergences")} | {"chosen": chosen}

    def ordered(self, name: str) -> list[dict[str, Any]]:
        """A document's targets as the arrow keys reach them."""
        return sorted(self.targets[name], key=lambda target: int(target["place"]))

    def notes(self) -> list[str]:
        """What the page leaves out."""
        counts = {"outside of the excerpts": self.elsewhere, "over the page's limit": self.too_many}
        left_out = [f"{number:,} targets {where}" for where, number in counts.items() if number]
        return [f"Left out: {', '.join(left_out)}."] if left_out else []


def _sha(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
