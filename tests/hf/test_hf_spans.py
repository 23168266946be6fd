"""Tests of coupling groups from spans of characters, with a real byte-level tokenizer."""

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from lengthwise.core.errors import TokenizedRowError
from lengthwise.hf.collators import coupling_groups_from_spans

TEXT = "The sum of 12 and 34, said Zoë, is 46."


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Return byte-level BPE with merged words and numbers, and a start token without characters."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["The sum of 12 and 34, said Jo, is 46.", "The sum of 12 and 56 is 68."] * 4, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", pad_token="<pad>")


def marked(text: str, **groups: int) -> list[list[int]]:
    """Return the spans of words in a text, with their groups."""
    words = {name.removeprefix("n"): group for name, group in groups.items()}
    return [[text.index(word), text.index(word) + len(word), group] for word, group in words.items()]


def test_a_token_has_the_group_of_the_span_with_which_it_shares_a_character(tokenizer):
    offsets = tokenizer(TEXT, return_offsets_mapping=True)["offset_mapping"]
    groups = coupling_groups_from_spans(marked(TEXT, n12=70, n34=80, n46=90, Zoë=60), offsets)
    for (start, end), group in zip(offsets, groups, strict=True):
        shared = {
            number
            for word, number in (("12", 70), ("34", 80), ("46", 90), ("Zoë", 60))
            if start < end and start < TEXT.index(word) + len(word) and end > TEXT.index(word)
        }
        assert shared <= {group}
    # The two bytes of a letter are tokens of one character.
    letters = [group for (start, _), group in zip(offsets, groups, strict=True) if start == TEXT.index("ë")]
    assert letters == [60, 60]


def test_a_token_outside_all_spans_has_the_previous_group_plus_one(tokenizer):
    offsets = tokenizer(TEXT, return_offsets_mapping=True)["offset_mapping"]
    groups = coupling_groups_from_spans(marked(TEXT, n12=70, n34=40), offsets)
    covered_tokens = [
        start < end and ((start < 13 and end > 11) or (start < 20 and end > 18)) for start, end in offsets
    ]
    assert any(covered_tokens)
    assert groups[0] == 0
    for before, (group, covered) in enumerate(zip(groups[1:], covered_tokens[1:], strict=True)):
        assert covered or group == groups[before] + 1
    assert coupling_groups_from_spans([], offsets) == list(range(len(offsets)))


def test_a_prompt_has_the_same_groups_with_and_without_its_response(tokenizer):
    whole = tokenizer(TEXT, return_offsets_mapping=True)["offset_mapping"]
    spans = marked(TEXT, n12=7, n46=3)
    for seq in range(1, len(whole)):
        assert (
            coupling_groups_from_spans(spans, whole[:seq], truncated=True)
            == coupling_groups_from_spans(spans, whole)[:seq]
        )


INVALID = [
    (
        [[0, 3, 4], [3, 5, 2]],
        [[0, 0], [0, 2], [2, 5]],
        r"^token 2 \(characters 2 to 5\) belongs to the groups 2 and 4; change the spans, or insert a space",
    ),
    ([[0, 2, 1], [1, 2, 3]], [[0, 2]], r"token 0 \(characters 0 to 2\) belongs to the groups 1 and 3"),
    (
        [[2, 3, 1]],
        [[0, 2], [3, 5]],
        r"^no token contains a character of the span 2 to 3 \(group 1\); move the span to characters that",
    ),
    (
        [[3, 3, 1]],
        [[0, 5]],
        r"^invalid span \[3, 3, 1\]; use \[start, end, group\] with 0 <= start < end and 0 <= group < 1073741824",
    ),
    ([[0, 3, -1]], [[0, 5]], r"^invalid span \[0, 3, -1\]"),
    ([[0, 3]], [[0, 5]], r"^invalid spans \[\[0, 3\]\]; use a list of \[start, end, group\] in characters$"),
    ([[0, 3, 1]], [0, 5], r"^invalid offset_mapping \[0, 5\]; use a list of \[start, end\] per token, as returned"),
    (
        [[0, 5000, 1]],
        [[0, 2], [2, 5]],
        r"^the span 0 to 5000 \(group 1\) ends after the last token, which ends at 5; fix",
    ),
    ([[4000, 5000, 1]], [[0, 5]], r"^the span 4000 to 5000 \(group 1\) ends after the last token"),
    ([[0, 1, 1]], [], r"^the span 0 to 1 \(group 1\) ends after the last token, which ends at 0"),
    ([[0, 2, 1]], [[5, 2]], r"^invalid offset_mapping \[5, 2\] of token 0; use \[start, end\] with 0 <= start <= end"),
    ([[0, 2, 1]], [[-3, 2]], r"^invalid offset_mapping \[-3, 2\] of token 0"),
    (
        [[0, 2, 1]],
        [[0, 0], [0, 2], [2, 5], [0, 0], [0, 2]],
        r"^offset_mapping decreases from 2 to 0 at token 4, .*; tokenize prompt and response as one text$",
    ),
    ("ab", [[0, 5]], r"^invalid spans 'ab'; use a list"),
    ([[0, "b", 1]], [[0, 5]], r"^invalid spans \[\[0, 'b', 1\]\]; use a list"),
]


@pytest.mark.parametrize(("spans", "offsets", "message"), INVALID)
def test_invalid_spans_raise_a_one_line_error(spans, offsets, message):
    with pytest.raises(TokenizedRowError, match=message) as caught:
        coupling_groups_from_spans(spans, offsets)
    assert "\n" not in str(caught.value)


def test_spans_outside_a_truncated_text_are_ignored():
    spans, offsets = [[0, 2, 5], [2, 4, 9], [7, 9, 1], [9, 12, 3]], [[2, 4], [4, 8]]
    assert coupling_groups_from_spans(spans, offsets, truncated=True) == [9, 1]
    with pytest.raises(
        TokenizedRowError, match=r"the span 7 to 9 \(group 1\) ends after the last token, which ends at 8;"
    ):
        coupling_groups_from_spans(spans, offsets)
    with pytest.raises(TokenizedRowError, match=r"no token contains a character of the span 0 to 2"):
        coupling_groups_from_spans(spans[:2], offsets)
