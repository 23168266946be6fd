"""The numbers of claims come from result rows."""

import re
from pathlib import Path

import pytest
from claim_sentences import NOT_FROM_ROWS, NUMBER, PAGES, Runs, add_claims, differing_sentences, one_line, put_numbers

from lengthwise.evaluation.result_rows import label_without_variant
from lengthwise.experiments.reproduction import folders_by_claim, load_claim
from lengthwise.experiments.run_folder import read_rows

ROOT = Path(__file__).parents[2]
PATTERNS = ("README.md", "docs/*.md", "benchmarks/*.md", "benchmarks/claims/*/README.md")
CLAIM_PAGES = [path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]
# Names with a number, seeds, commits, thresholds, links, code, and "one", which is often no number.
NO_RESULT = re.compile(
    r"OLMo 2|Theorem 4\.3|ICML 2025|Python 3\.11|arXiv \d+\.\d+|et al\. \d{4}|section \d\.\d|AVX-512|SHA-256"
    r"|\]\([^)]*\)|`[^`]*`|\bcommit [0-9a-f]{7,}|\bseeds? \d{4,}(?:(?:,| to| and) \d{4,})*"
    r"|\b9\d% (?:Wilson )?intervals?|\b0\.9 or more|\bK = \d(?:(?:,| and) \d)*|\bcounts as 0"
    r"|\b(?:contain|exclude|below|above) 0(?!\.\d)|\bone of four needles\b|\bone\b|\bnone\b",
    re.IGNORECASE,
)
# Sections without results, tables, their titles, code, figures, headings, and the numbers of lists.
NO_CLAIMS = (
    r"^```.*?^```|^ {4}.*?$",
    r"^#+ (?:Setup|Command|Method)\b.*?(?=^#|\Z)",
    r"^\*\*Setup.*?(?:\n\n|\Z)",
    r"^\*\*[^*]+\*\*(?=\n\n\|)",
    r"^[|#!].*?$|^\d\d?\. ",
)
DOCS_SECTIONS = {"docs/which.md": "\n## Conclusions\n", "docs/diagnose.md": "\n## Example\n"}
# These pages describe single runs of a command; their claims alone are checked.
LOGS = (
    "benchmarks/doctor.md",
    "benchmarks/faults.md",
    "benchmarks/peers_tasks.md",
    "benchmarks/readability.md",
    "benchmarks/resume.md",
)


def claims_of(page):
    """The parts of a page that state results; on a page of docs, paragraphs that link to a benchmark page."""
    text = (ROOT / page).read_text()
    if page == "benchmarks/README.md":
        return "\n".join(line for line in text.splitlines() if line.startswith("|"))
    if page == "benchmarks/influence_text.md":
        text = text.split("\n## Prose\n")[0]
    section = text.split(DOCS_SECTIONS[page])[1].split("\n## ")[0] if page in DOCS_SECTIONS else ""
    if page.startswith("docs/"):
        paragraphs = re.split(r"\n\n|\n(?=[*-] )", text)
        text = "\n\n".join([each for each in paragraphs if "../benchmarks/" in each] + [section])
    for part in NO_CLAIMS:
        text = re.sub(part, "", text, flags=re.DOTALL | re.MULTILINE)
    if page in LOGS:
        return "\n".join(re.findall(r"^\*\*Claim.*?\n\n", text, flags=re.DOTALL | re.MULTILINE))
    return text


@pytest.mark.parametrize("page", PAGES)
def test_the_sentences_of_a_page_have_the_numbers_of_the_rows(page):
    assert differing_sentences(page) == []


@pytest.mark.parametrize("page", CLAIM_PAGES)
def test_every_number_of_a_claim_comes_from_rows_or_is_listed_with_its_source(page):
    text = one_line(claims_of(page))
    known = [*PAGES.get(page, lambda: ())(), *(part for part, _ in NOT_FROM_ROWS.get(page, ()))]
    for sentence in sorted(map(one_line, known), key=len, reverse=True):
        text = text.replace(sentence, "")
    assert NUMBER.findall(NO_RESULT.sub("", text)) == [], text


def test_a_listed_number_stands_in_its_page():
    for page, parts in NOT_FROM_ROWS.items():
        text = one_line((ROOT / page).read_text())
        assert all(part in text for part, _ in parts), page


def test_new_numbers_replace_old_ones_and_line_breaks_stay():
    page = "All 3 fit.\n> At 50 symbols, four of\nfive have at most 0.12 (n=1,024).\n"
    text = put_numbers(page, "At 60 symbols, none of five have at most 0.09 (n=2,048).")
    assert text == "All 3 fit.\n> At 60 symbols, none of\nfive have at most 0.09 (n=2,048).\n"
    assert put_numbers(page, "At 60 symbols, six of five fit.") == page


def test_a_claim_without_a_row_is_added_to_the_table_of_claims():
    page = (ROOT / "benchmarks/README.md").read_text()
    assert add_claims(page) == page
    without = re.sub(r"^.*\(claims/(?:ppc|scale)/README\.md\).*\n", "", page, flags=re.MULTILINE)
    added = [line for line in add_claims(without).splitlines() if line not in without.splitlines()]
    assert [line.split("| ")[-1] for line in added] == [
        f"[{name}](claims/{name}/README.md) |" for name in ("ppc", "scale")
    ]


@pytest.mark.parametrize("name", folders_by_claim())
def test_the_command_of_a_claim_trains_the_configurations_of_its_rows(name):
    experiments = load_claim(name).experiments()
    for row in read_rows(folders_by_claim()[name] / "rows.jsonl"):
        experiment = experiments[label_without_variant(row)]
        assert (row["scheme"], row["encoding"]) == (experiment.scheme.name, experiment.encoding.name), row["row"]
        assert row.get("head") in (None, experiment.decoder.head)
        assert tuple(row["train_lengths"]) == experiment.train_lengths
        assert row["steps"] <= experiment.training.steps


def rows_of(seed, **values):
    return [{"row": "a", "seed": seed, "length": int(name[1:]), "exact_match": value} for name, value in values.items()]


def test_a_seed_that_stopped_counts_as_zero_and_an_unmeasured_length_raises():
    runs = Runs([*rows_of(0, n10=1.0, n20=0.5, n40=1.0), *rows_of(1, n10=0.25, n20=0.0), *rows_of(2, n10=1.0)])
    assert runs.at(10) == [1.0, 0.25, 1.0]
    assert runs.of(seed=1).at(40) == [0.0]
    with pytest.raises(AssertionError, match="40"):
        runs.at(40)


def test_a_run_has_the_value_of_its_worst_variant():
    variants = [{**row, "row": f"a, {name}", "variant": name} for name in ("x", "y") for row in rows_of(0, n10=1.0)]
    variants[1]["exact_match"] = 0.75
    runs = Runs(variants)
    assert (runs.of("a").at(10), runs.of("a, x").at(10), runs.best(10)) == ([0.75], [1.0], 1.0)
