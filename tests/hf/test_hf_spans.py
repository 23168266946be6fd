"""Spans of characters as groups of tokens, with a real byte-level tokenizer."""

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from lengthwise.core.errors import FeatureError
from lengthwise.hf.dataset_columns import groups_of_spans

TEXT = "The sum of 12 and 34, said Zoë, is 46."


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Byte-level BPE with merges over words and numbers alike, and a start token without characters."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["The sum of 12 and 34, said Jo, is 46.", "The sum of 12 and 56 is 68."] * 4, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", pad_token="<pad>")


def marked(text: str, **groups: int) -> list[list[int]]:
    """Where each of some words stands in a text, with its group."""
    words = {name.removeprefix("n"): group for name, group in groups.items()}
    return [[text.index(word), text.index(word) + len(word), group] for word, group in words.items()]


def test_a_token_has_the_group_of_the_span_it_shares_a_character_with(tokenizer):
    made = tokenizer(TEXT, return_offsets_mapping=True)
    groups = groups_of_spans(marked(TEXT, n12=70, n34=80, n46=90, Zoë=60), made["offset_mapping"])
    for (start, end), group in zip(made["offset_mapping"], groups, strict=True):
        shared = {
            number
            for word, number in (("12", 70), ("34", 80), ("46", 90), ("Zoë", 60))
            if start < end and start < TEXT.index(word) + len(word) and end > TEXT.index(word)
        }
        assert shared <= {group}
    # The two bytes of a letter are tokens of one character.
    letters = [
        group for (start, _), group in zip(made["offset_mapping"], groups, strict=True) if start == TEXT.index("ë")
    ]
    assert letters == [60, 60]


def test_what_no_span_covers_counts_on_from_the_token_before_it(tokenizer):
    made = tokenizer(TEXT, return_offsets_mapping=True)["offset_mapping"]
    groups = groups_of_spans(marked(TEXT, n12=70, n34=40), made)
    touched = [start < end and ((start < 13 and end > 11) or (start < 20 and end > 18)) for start, end in made]
    assert any(touched)
    assert groups[0] == 0
    for before, (group, covered) in enumerate(zip(groups[1:], touched[1:], strict=True)):
        assert covered or group == groups[before] + 1
    assert groups_of_spans([], made) == list(range(len(made)))


def test_a_prompt_has_the_same_groups_without_its_response(tokenizer):
    whole = tokenizer(TEXT, return_offsets_mapping=True)["offset_mapping"]
    spans = marked(TEXT, n12=7, n46=3)
    for seq in range(1, len(whole)):
        assert groups_of_spans(spans, whole[:seq], truncated=True) == groups_of_spans(spans, whole)[:seq]


REFUSED = [
    (
        [[0, 3, 4], [3, 5, 2]],
        [[0, 0], [0, 2], [2, 5]],
        r"^token 2 \(characters 2 to 5\) belongs to the groups 2 and 4; move the spans, or part the text there",
    ),
    ([[0, 2, 1], [1, 2, 3]], [[0, 2]], r"token 0 \(characters 0 to 2\) belongs to the groups 1 and 3"),
    ([[2, 3, 1]], [[0, 2], [3, 5]], r"^no token has a character of the span 2 to 3 \(group 1\); mark characters that"),
    ([[3, 3, 1]], [[0, 5]], r"^span \[3, 3, 1\] is none; give \[start, end, group\] with start below end, and gro"),
    ([[0, 3, -1]], [[0, 5]], r"^span \[0, 3, -1\] is none"),
    ([[0, 3]], [[0, 5]], r"^spans is \[\[0, 3\]\]; give a list of \[start, end, group\] each, in characters$"),
    ([[0, 3, 1]], [0, 5], r"^offset_mapping is \[0, 5\]; give a list of \[start, end\] of each token, as the"),
    ([[0, 5000, 1]], [[0, 2], [2, 5]], r"^the span 0 to 5000 \(group 1\) goes beyond the last token.*ends at 5; mark"),
    ([[4000, 5000, 1]], [[0, 5]], r"^the span 4000 to 5000 \(group 1\) goes beyond the last token"),
    ([[0, 1, 1]], [], r"^the span 0 to 1 \(group 1\) goes beyond the last token, which ends at 0"),
    ([[0, 2, 1]], [[5, 2]], r"^offset_mapping has \[5, 2\] for token 0; give \[start, end\] with 0 <= start <= end"),
    ([[0, 2, 1]], [[-3, 2]], r"^offset_mapping has \[-3, 2\] for token 0"),
    (
        [[0, 2, 1]],
        [[0, 0], [0, 2], [2, 5], [0, 0], [0, 2]],
        r"^offset_mapping falls from 2 to 0 at token 4, .*; tokenize prompt and response as one text$",
    ),
    ("ab", [[0, 5]], r"^spans is 'ab'; give a list"),
    ([[0, "b", 1]], [[0, 5]], r"^spans is \[\[0, 'b', 1\]\]; give a list"),
]


@pytest.mark.parametrize(("spans", "offsets", "message"), REFUSED)
def test_spans_that_give_no_group_are_refused_in_one_line(spans, offsets, message):
    with pytest.raises(FeatureError, match=message) as caught:
        groups_of_spans(spans, offsets)
    assert "\n" not in str(caught.value)


def test_spans_of_what_was_truncated_are_left_out():
    spans, offsets = [[0, 2, 5], [2, 4, 9], [7, 9, 1], [9, 12, 3]], [[2, 4], [4, 8]]
    assert groups_of_spans(spans, offsets, truncated=True) == [9, 1]
    with pytest.raises(FeatureError, match=r"the span 7 to 9 \(group 1\) goes beyond the last token, which ends at 8;"):
        groups_of_spans(spans, offsets)
    with pytest.raises(FeatureError, match=r"no token has a character of the span 0 to 2"):
        groups_of_spans(spans[:2], offsets)
