"""Kinds of target tokens (spelling and repetition, in several scripts) and distances of selected tokens."""

from itertools import pairwise

import numpy as np
import pytest

from lengthwise.core.errors import SettingError
from lengthwise.influence.report.row_columns import DistanceHistogram
from lengthwise.influence.token_kinds import KINDS, token_kinds

NGRAM_KINDS = {kind for kind in KINDS if kind[-1].isdigit()}
FORMS = {"word_start", "continuation", "punctuation", "whitespace", "other"}


def spelling_kinds(*texts: str, next_texts: tuple[str, ...] = ()) -> set[str]:
    """Return the kinds of the last text that depend on spelling."""
    return set(token_kinds(texts, near=1, next_texts=next_texts)) - NGRAM_KINDS


def repetition_kinds(text: str, near: int) -> list[str]:
    """Return the kinds of the last letter that depend on repetition."""
    return [kind for kind in token_kinds(list(text), near=near) if kind in NGRAM_KINDS]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((" the", " house"), {"word_start"}),
        ((" hou", "se"), {"continuation"}),
        (("(", "see"), {"word_start"}),
        ((" don", "'t"), {"continuation"}),
        ((" said", " '", "well"), {"word_start"}),
        ((" in", " 1984"), {"word_start", "digit"}),
        ((" 19", "84"), {"continuation", "digit"}),
        ((" ½",), {"word_start", "digit"}),
        ((" so", ","), {"punctuation"}),
        ((" a", " ==="), {"punctuation"}),
        ((" so", ".\n\n"), {"punctuation", "newline"}),
        ((" a", "\n"), {"whitespace", "newline"}),
        ((" a", "\u2028"), {"whitespace", "newline"}),
        ((" a", "    "), {"whitespace"}),
        ((" a", "\nthen"), {"word_start", "newline"}),
        ((" a", "\n    "), {"whitespace", "newline", "indentation"}),
        ((":\n", "\t"), {"whitespace", "indentation"}),
        (("\r\n", "  ", "  then"), {"word_start", "indentation"}),
        (("\n", "  a", "  "), {"whitespace"}),
        (("  ",), {"whitespace"}),
        (("f", "(", "x", ")"), {"punctuation", "closing_bracket"}),
        (("f", "(", "x", " ]\n"), {"punctuation", "closing_bracket", "newline"}),
        (("f", "()"), {"punctuation"}),
        (("「", "」"), {"punctuation", "closing_bracket"}),
        ((" a", "\x00"), {"other"}),
        ((" a", "\u200b"), {"other"}),
        ((" a", ""), {"other"}),
        ((" a", "\ufffd"), {"other", "partial_character"}),
        ((" a", chr(0xD83D)), {"other", "partial_character"}),
        ((" a", " \U0001f600"), {"punctuation"}),
        # The second half of a Hindi word starts with a vowel sign, which has the category of marks.
        ((" हिन्", "दी"), {"continuation"}),
        ((" ह", "\u093f"), {"continuation"}),
        (("中", "文"), {"continuation"}),
        ((" дом", "ой"), {"continuation"}),
    ],
)
def test_form_follows_from_the_text(texts, expected):
    assert spelling_kinds(*texts) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((" met", " Anna"), True),
        ((" met", " Ан", "на"), True),
        ((" met", " An", "na"), True),
        ((" met", ' "', "Anna"), True),
        ((" met", " anna"), False),
        (("Anna",), False),
        ((".", " Anna"), False),
        (("!", '"', " Anna"), False),
        (("?", ' ("', "Anna"), False),
        (("。", "Anna"), False),
        ((" so", ":\n", "Anna"), False),
        ((" am", " I"), False),
        ((" say", " I", "'m"), False),
        ((" say", " 中文"), False),
    ],
)
def test_capitalized_words_inside_a_sentence_are_name_like(texts, expected):
    assert ("name_like" in spelling_kinds(*texts)) is expected


def test_next_tokens_distinguish_a_name_from_a_single_capital():
    assert "name_like" not in spelling_kinds(" met", " V", next_texts=(" and",))
    assert "name_like" in spelling_kinds(" met", " V", next_texts=("alk", "yria"))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ((" num", "_", "heads"), True),
        ((" self", "._", "rows"), True),
        ((" get", "Value"), True),
        ((" x", "1"), True),
        ((" utf8",), True),
        ((" __",), False),
        ((" house",), False),
        ((" NASA",), False),
        ((" 3", "rd"), False),
        ((" 1984",), False),
    ],
)
def test_identifiers_have_the_spelling_of_code(texts, expected):
    assert ("identifier" in spelling_kinds(*texts)) is expected


@pytest.mark.parametrize(
    ("text", "near", "expected"),
    [
        ("abcdefxyz", 2, ["new_1", "new_2", "new_3"]),
        ("z..xyz", 2, ["repeated_far_1", "new_2", "new_3"]),
        ("yz..xyz", 2, ["repeated_far_1", "repeated_far_2", "new_3"]),
        ("xyz..xyz", 2, ["repeated_far_1", "repeated_far_2", "repeated_far_3"]),
        ("xyz..xyz", 7, ["repeated_near_1", "repeated_near_2", "repeated_near_3"]),
        # The bigram ends in the first near token.
        ("xyz..xyz", 5, ["repeated_near_1", "repeated_near_2", "repeated_near_3"]),
        ("xyz..xyz", 4, ["repeated_far_1", "repeated_far_2", "repeated_far_3"]),
        # The unigram occurs in both parts.
        ("xyz....z.xyz", 4, ["repeated_near_1", "repeated_far_2", "repeated_far_3"]),
        # The n-gram of the target may overlap with the earlier one.
        ("zzzz", 1, ["repeated_near_1", "repeated_near_2", "repeated_near_3"]),
        ("z", 1, ["new_1", "new_2", "new_3"]),
    ],
)
def test_ngrams_count_as_near_if_their_end_is_near(text, near, expected):
    assert repetition_kinds(text, near) == expected


def test_repetition_equals_a_plain_search(rng):
    for _ in range(200):
        tokens = rng.integers(0, 3, size=int(rng.integers(1, 14)))
        near = int(rng.integers(1, 5))
        kinds = token_kinds(["x"] * len(tokens), near=near, tokens=tokens)
        border = len(tokens) - 1 - near
        for n in (1, 2, 3):
            last = tokens[-n:].tolist()
            ends = [end for end in range(n - 1, len(tokens) - 1) if tokens[end - n + 1 : end + 1].tolist() == last]
            where = "new" if not ends or len(last) < n else "repeated_near" if max(ends) >= border else "repeated_far"
            assert f"{where}_{n}" in kinds


def test_token_ids_distinguish_tokens_with_the_same_text():
    texts = ["\ufffd", " a", " b", "\ufffd"]
    assert "repeated_far_1" in token_kinds(texts, near=2)
    assert "new_1" in token_kinds(texts, near=2, tokens=np.array([7, 1, 2, 8]))


def test_last_texts_suffice_with_token_ids():
    texts = [" met", ".", *[" and"] * 30, " An", "na"]
    tokens = np.arange(len(texts))
    assert token_kinds(texts, near=3, tokens=tokens) == token_kinds(texts[-25:], near=3, tokens=tokens)


def test_every_target_has_one_form_and_one_kind_per_ngram_length(rng):
    pool = [" a", "b", "\n", ".", "7", "\ufffd", "", " É", "_x", "'", " \u200d", "\ud800", "ß", "\U0001f600"]
    for _ in range(300):
        kinds = token_kinds([pool[at] for at in rng.integers(0, len(pool), 9)], near=3)
        assert kinds == sorted(kinds, key=KINDS.index)
        assert len(FORMS.intersection(kinds)) == 1
        assert all(len([kind for kind in kinds if kind.endswith(f"_{n}")]) == 1 for n in (1, 2, 3))


def test_quantiles_and_bins_are_weighted_by_gain():
    distances = DistanceHistogram()
    for distance, gain in ((16, 1.0), (16, 1.0), (23, 1.0), (100, 5.0), (1000, 2.0), (1001, -3.0)):
        distances.add(distance, gain)
    summary = distances.summary()
    assert (summary["chosen"], summary["gain"]) == (6, 10.0)
    assert [(each["share"], each["distance"]) for each in summary["quantiles"]] == [
        (0.1, 16),
        (0.25, 23),
        (0.5, 100),
        (0.75, 100),
        (0.9, 1000),
    ]
    bins = summary["bins"]
    assert (bins[0]["from"], bins[0]["to"], bins[-1]["from"], bins[-1]["to"]) == (16, 22, 725, 1023)
    assert all(before["to"] + 1 == after["from"] for before, after in pairwise(bins))
    assert [each["gain_share"] for each in bins if each["gain_share"]] == pytest.approx([0.2, 0.1, 0.5, 0.2])
    assert sum(each["count_share"] for each in bins) == pytest.approx(1)


def test_bins_without_a_whole_number_are_omitted():
    distances = DistanceHistogram()
    for distance in (1, 9):
        distances.add(distance, 1.0)
    assert [(each["from"], each["to"]) for each in distances.summary()["bins"]] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 5),
        (6, 7),
        (8, 11),
    ]


def test_tokens_without_gain_have_no_gain_share():
    distances = DistanceHistogram()
    assert distances.summary()["bins"] == []
    distances.add(5, -1.0)
    summary = distances.summary()
    assert (summary["gain"], summary["bins"][0]["gain_share"], summary["quantiles"][2]["distance"]) == (0.0, None, None)


def test_gain_of_nan_raises():
    with pytest.raises(SettingError, match="the gain at distance 70 is nan; repeat the study in float32"):
        DistanceHistogram().add(70, float("nan"))
