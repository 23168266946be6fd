"""Tests of the backgrounds of planted tasks: a Markov chain and a natural text."""

import hashlib
import json
from collections import Counter
from itertools import pairwise, product

import numpy as np
import pytest
from tests.tasks.test_planted import marginal, sets_of

from lengthwise.core.errors import SettingError, TextSourceError
from lengthwise.core.randomness import random_stream
from lengthwise.experiments.experiment import build_from_json, from_dict, to_dict
from lengthwise.experiments.recipes import recipe
from lengthwise.tasks import MarkovChain, NaturalText, PlantedCorrelations, SparseParity
from lengthwise.tasks.planted.placement import LocalPlacement, SubsetPlacement
from lengthwise.tasks.text.corpus import prepare_corpus
from lengthwise.theory.bounds.bound_inputs import BoundInputs
from lengthwise.theory.planted_task_certificate import certify_planted_task, predict_risk
from lengthwise.theory.risk.bayes import BayesPredictor, LogLoss, bayes_risk, build_bayes_attention
from lengthwise.theory.risk.exact_risk import TotalVariationLoss, enumerated_risk
from lengthwise.theory.risk.growth_curves import asymptotic_risk
from lengthwise.theory.risk.laplace_transform import laplace_risk
from lengthwise.theory.risk.risk_at_length import sampled_risk

# Row 2 of the last chain is transient: the chain leaves it forever, and its stationary probability is 0.
CHAINS = {
    "default": MarkovChain(),
    "asymmetric": MarkovChain(transitions=((0.2, 0.8), (0.5, 0.5)), num_marks=1),
    "with zeros": MarkovChain(transitions=((0.0, 1.0, 0.0), (0.5, 0.0, 0.5), (0.3, 0.3, 0.4)), num_marks=1),
    "periodic": MarkovChain(transitions=((0.0, 1.0), (1.0, 0.0)), num_marks=1),
    "transient": MarkovChain(transitions=((0.5, 0.5, 0.0), (0.9, 0.1, 0.0), (0.4, 0.3, 0.3))),
}
over_chains = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)


def law_of(chain: MarkovChain, placement=None) -> PlantedCorrelations:
    """Return a planted law with noisy labels; token 1 is planted, and a mark if there is one."""
    last = chain.num_tokens - 1
    return PlantedCorrelations(
        background=chain,
        tuples=((1, 0), (last, last), (0, 1)),
        probabilities=(0.5, 0.2, 0.3),
        labels=((0.9, 0.1), (0.0, 1.0), (0.35, 0.65)),
        placement=LocalPlacement(shapes=((0, 1), (0, 3)), weights=(0.7, 0.3)) if placement is None else placement,
    )


LAWS = {name: law_of(chain) for name, chain in CHAINS.items() if chain.num_tokens > 2 or name == "default"}
LAWS["all sets"] = law_of(CHAINS["asymmetric"], SubsetPlacement(num_planted=2))
over_laws = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


def joint_by_definition(law: PlantedCorrelations, length: int) -> dict:
    """Return ``P(x, S, y)`` by enumeration of all chains, whose tokens at S are then replaced."""
    chain, size = law.background, law.background.num_background
    start = chain.stationary_distribution
    outcomes: dict = {}
    for hidden in product(range(size), repeat=length):
        of_hidden = start[hidden[0]]
        for token, following in pairwise(hidden):
            of_hidden *= chain.transitions[token][following]
        for planted_set, of_set in sets_of(law.placement, length).items():
            for planted, of_tuple, labels in zip(law.tuples, law.probabilities, law.labels, strict=True):
                x = list(hidden)
                for index, token in zip(planted_set, planted, strict=True):
                    x[index] = token
                for label, of_label in enumerate(labels):
                    probability = of_hidden * of_set * of_tuple * of_label
                    if probability > 0:
                        key = (tuple(x), planted_set, label)
                        outcomes[key] = outcomes.get(key, 0.0) + probability
    return outcomes


def joint_from_law(law: PlantedCorrelations, length: int) -> dict:
    tokens = np.array(list(product(range(law.num_tokens), repeat=length)))
    sets, ratios = law.planted_set_weights(tokens)
    labels = law.label_probabilities[law.tuple_codes(tokens[:, sets])]
    probability = (ratios * law.sequence_probabilities.reference_probability(tokens)[:, None])[:, :, None] * labels
    return {
        (tuple(tokens[row].tolist()), tuple(sets[place].tolist()), int(label)): float(probability[row, place, label])
        for row, place, label in np.argwhere(probability > 0)
    }


@over_laws
def test_the_probability_of_a_sequence_equals_the_sum_over_all_chains(law):
    assert joint_from_law(law, 5) == pytest.approx(joint_by_definition(law, 5), abs=1e-14)


def test_equal_rows_are_an_independent_background():
    background = (0.3, 0.7)
    chain, plain = law_of(MarkovChain(transitions=(background,) * 2)), law_of(CHAINS["default"])
    plain = PlantedCorrelations(
        **{**{name: getattr(plain, name) for name in to_dict(plain) if name != "name"}, "background": background}
    )
    assert joint_from_law(chain, 5) == pytest.approx(joint_from_law(plain, 5), abs=1e-14)


@over_chains
def test_the_start_is_stationary(chain):
    stationary = chain.stationary_distribution[: chain.num_background]
    assert stationary @ np.array(chain.transitions) == pytest.approx(stationary, abs=1e-12)
    assert chain.stationary_distribution.sum() == pytest.approx(1.0)
    assert len(chain.stationary_distribution) == chain.num_tokens


@over_chains
def test_sampled_transitions_and_starts_match_the_matrix(chain):
    tokens = chain.sample(6, 40_000, random_stream(0, "chain"))
    for index in (0, 5):
        frequencies = np.bincount(tokens[:, index], minlength=chain.num_tokens) / len(tokens)
        assert frequencies == pytest.approx(chain.stationary_distribution, abs=0.012)
    for index in (1, 5):
        for token in np.flatnonzero(chain.stationary_distribution):
            following = tokens[tokens[:, index - 1] == token, index]
            frequencies = np.bincount(following, minlength=chain.num_background) / len(following)
            assert frequencies == pytest.approx(chain.transitions[token], abs=0.03)
    impossible = np.array(chain.transitions) == 0
    assert not impossible[tokens[:, :-1], tokens[:, 1:]].any()


@over_laws
def test_samples_have_the_joint_probabilities(law):
    tokens, sets, labels = law.sample_arrays(4, 30_000, random_stream(1, "planted"))
    outcomes = zip(map(tuple, tokens.tolist()), map(tuple, sets.tolist()), labels.tolist(), strict=True)
    frequencies = Counter(outcomes)
    expected = joint_by_definition(law, 4)
    assert set(frequencies) <= set(expected)
    for outcome, probability in expected.items():
        deviation = 5 * np.sqrt(probability * (1 - probability) / 30_000) + 1e-9
        assert frequencies[outcome] / 30_000 == pytest.approx(probability, abs=deviation)


@over_laws
def test_the_background_does_not_change_planted_tokens_and_labels(law):
    actual = marginal(joint_from_law(law, 5), lambda each: (tuple(each[0][token] for token in each[1]), each[2]))
    expected = {
        (planted, label): of_tuple * of_label
        for planted, of_tuple, labels in zip(law.tuples, law.probabilities, law.labels, strict=True)
        for label, of_label in enumerate(labels)
        if of_label > 0
    }
    assert actual == pytest.approx(expected, abs=1e-12)


def test_the_bayes_predictor_is_exact_with_a_markov_background():
    law = law_of(CHAINS["asymmetric"])
    joint, tokens = joint_by_definition(law, 5), [(1, 1, 2, 2, 0), (0, 1, 1, 0, 1), (1, 0, 1, 1, 0)]
    for x in tokens:
        of_label = np.zeros(2)
        for (sequence, _, label), probability in joint.items():
            of_label[label] += probability * (sequence == x)
        (posterior,) = BayesPredictor(law).predict(np.array([x]))
        assert posterior == pytest.approx(of_label / of_label.sum(), abs=1e-12)
    # At long lengths, the ratios neither overflow nor vanish.
    long_tokens = law.sample_arrays(1_000, 2, random_stream(0, "long"))[0]
    assert BayesPredictor(law).predict(long_tokens).sum(axis=1) == pytest.approx([1.0, 1.0])


def test_enumerated_and_sampled_risks_agree_with_a_markov_background():
    law = law_of(CHAINS["asymmetric"])
    exact = enumerated_risk(law, BayesPredictor(law), 5, TotalVariationLoss()).mean
    assert 0.05 < exact < 0.9
    joint, by_sequence = joint_by_definition(law, 5), {}
    for (x, planted_set, _), probability in joint.items():
        key = (x, planted_set)
        by_sequence[key] = by_sequence.get(key, 0.0) + probability
    predictions = {x: BayesPredictor(law).predict(np.array([x]))[0] for x in {x for x, _ in by_sequence}}
    labels = dict(zip(law.tuples, law.labels, strict=True))
    by_hand = sum(
        probability * (1 - predictions[x] @ labels[tuple(x[index] for index in planted_set)])
        for (x, planted_set), probability in by_sequence.items()
    )
    assert exact == pytest.approx(by_hand, abs=1e-12)
    sampled = sampled_risk(law, BayesPredictor(law), 5, TotalVariationLoss(), 4_000, random_stream(0, "risk"))
    assert sampled.mean == pytest.approx(exact, abs=0.03)
    assert bayes_risk(PlantedCorrelations(), 6, TotalVariationLoss()) == pytest.approx(
        enumerated_risk(PlantedCorrelations(), BayesPredictor(PlantedCorrelations()), 6, TotalVariationLoss()).mean,
        abs=1e-12,
    )


REFUSED = {
    "the Bayes attention": lambda law: build_bayes_attention(law, 5),
    "the Bayes risk": lambda law: bayes_risk(law, 5, LogLoss()),
    "laplace_risk": lambda law: laplace_risk(
        law, build_bayes_attention(PlantedCorrelations(), 5), 5, TotalVariationLoss()
    ),
    "asymptotic_risk": lambda law: asymptotic_risk(law, build_bayes_attention(PlantedCorrelations(), 5)),
    "a bound": lambda law: BoundInputs(
        law=law, predictor=build_bayes_attention(PlantedCorrelations(), 8), train_length=8, test_length=16
    ),
    "a certificate": lambda law: certify_planted_task(law, trained=(4, 8), lengths=(16,)),
}


@pytest.mark.parametrize("computation", REFUSED.values(), ids=REFUSED)
def test_theory_for_independent_tokens_refuses_other_backgrounds(computation):
    for background in (MarkovChain(num_marks=2), NaturalText(num_frequent=2, num_marks=2)):
        with pytest.raises(SettingError, match=r"^this computation needs independent background tokens, but the backg"):
            computation(PlantedCorrelations(background=background))


def test_predictions_of_the_risk_refuse_other_backgrounds():
    prediction = predict_risk(
        PlantedCorrelations(background=MarkovChain(num_marks=2)), build_bayes_attention(PlantedCorrelations(), 8), 8, 16
    )
    assert prediction.odds is None
    assert prediction.refused.startswith("this computation needs independent background tokens")


def test_a_natural_text_has_no_probabilities():
    law = PlantedCorrelations(background=NaturalText(num_frequent=2, num_marks=2))
    with pytest.raises(SettingError, match=r"^the background 'natural' has no known probabilities; use independent"):
        law.planted_set_weights(np.zeros((1, 5), dtype=np.int64))


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcabcabdabc " * 30 + "ccccddddcccc" * 8)
    return path


def test_a_text_file_is_sampled_as_consecutive_tokens(text_file):
    background = NaturalText(num_frequent=4, corpus=str(text_file))
    content = text_file.read_text()
    border = round(0.8 * len(content))
    ranked = [letter for letter, _ in Counter(content[:border]).most_common()]
    assert set(ranked[:3]) == set("abc")
    for part, text in ((background, content[:border]), (background.held_out(), content[border:])):
        # The end token of the document comes last.
        expected = [min(ranked.index(letter), 3) for letter in text] + [3]
        assert part.tokens().tolist() == expected
        windows = part.sample(20, 5, random_stream(0, "text")).tolist()
        assert all("".join(map(str, window)) in "".join(map(str, expected)) for window in windows)


def test_planted_tokens_replace_tokens_of_the_text(text_file):
    law = PlantedCorrelations(background=NaturalText(num_frequent=4, num_marks=0, corpus=str(text_file)))
    tokens, sets, labels = law.sample_arrays(12, 50, random_stream(0, "natural"))
    text = "".join(map(str, law.background.tokens().tolist()))
    for x, planted_set, label in zip(tokens.tolist(), sets.tolist(), labels.tolist(), strict=True):
        planted = tuple(x[index] for index in planted_set)
        assert planted in law.tuples
        assert law.labels[law.tuples.index(planted)][label] == 1.0
        # Outside of the set, the sequence is a window of the text.
        assert any(
            all(x[index] == int(text[start + index]) for index in range(12) if index not in planted_set)
            for start in range(len(text) - 11)
        )


def test_variants_use_the_held_out_text(text_file):
    background = NaturalText(num_frequent=8, corpus=str(text_file))
    task = SparseParity(coding="letters", num_letters=8, background=background, tested=(1, 2))
    assert all(variant.background.split == "held_out" for variant in task.variants().values())
    law = PlantedCorrelations(background=background)
    assert law.variants() == {"held-out": PlantedCorrelations(background=background.held_out())}
    assert PlantedCorrelations(background=MarkovChain(num_marks=2)).variants() == {}


def test_flagged_bits_and_their_parity_do_not_depend_on_the_background():
    # Flags, bits and their places come first in the stream of random numbers.
    plain = SparseParity(coding="letters", num_letters=8, most=3)
    uniform = MarkovChain(transitions=((1 / 8,) * 8,) * 8)
    skewed = MarkovChain(transitions=((0.93, *(0.01,) * 7), *((0.79, *(0.03,) * 7),) * 7))
    samples = [
        SparseParity(coding="letters", num_letters=8, most=3, background=background).sample(
            length=30, size=64, rng=random_stream(0, "parity")
        )
        for background in (None, uniform, skewed, NaturalText(num_frequent=8))
    ]
    first = plain.sample(length=30, size=64, rng=random_stream(0, "parity"))
    assert (samples[0].tokens == first.tokens).all()
    is_flagged = first.tokens[:, :30] < 2
    for sample in samples[1:]:
        assert ((sample.tokens[:, :30] < 2) == is_flagged).all()
        assert (sample.tokens[:, :30][is_flagged] == first.tokens[:, :30][is_flagged]).all()
        assert (sample.tokens[:, 30:] == first.tokens[:, 30:]).all()


def test_a_corpus_is_a_background(tmp_path):
    (tmp_path / "prose").mkdir()
    for number in range(4):
        (tmp_path / "prose" / f"{number}.txt").write_text(f"the number {number} is a number of the text " * 40)
    prepare_corpus([f"prose={tmp_path / 'prose'}"], tmp_path / "corpus", vocabulary_size=300)
    background = NaturalText(num_frequent=12, corpus=str(tmp_path / "corpus"), kind="prose")
    assert background.tokens().max() == 11
    metadata = (tmp_path / "corpus" / "corpus.json").read_bytes()
    assert background.data_source()["corpus_sha256"] == hashlib.sha256(metadata).hexdigest()


def test_the_standard_library_is_a_text():
    background = NaturalText(corpus="stdlib:pydoc_data/topics.py")
    assert len(background.tokens()) > 100_000
    assert background.data_source()["corpus"] == "stdlib:pydoc_data/topics.py"


def test_an_experiment_saves_its_background_and_the_digest_of_the_text(text_file):
    experiment = recipe("planted")
    for background in (CHAINS["with zeros"], NaturalText(num_frequent=4, corpus=str(text_file))):
        changed = PlantedCorrelations(background=background)
        saved = json.loads(json.dumps(to_dict(experiment)))
        saved["task"] = json.loads(json.dumps(to_dict(changed)))
        assert from_dict(saved).task == changed
    digest = hashlib.sha256(text_file.read_bytes()).hexdigest()
    assert saved["task"]["background"]["corpus_sha256"] == digest
    assert build_from_json("background", {"name": "markov", "num_marks": 1}) == MarkovChain(num_marks=1)
    # A run loads without the text, but its examples need the same text.
    text_file.write_text("another text")
    task = from_dict(saved).task
    assert len(task.placeholder_example()) == 1
    with pytest.raises(
        TextSourceError, match=r"text\.txt has changed since the task was defined \(its digest differs\)"
    ):
        task.sample(length=4, size=1, rng=random_stream(0, "changed"))
    text_file.unlink()
    from_dict(saved)
    with pytest.raises(
        TextSourceError, match=r"text\.txt cannot be read \(No such file or directory\); use a text file"
    ):
        task.sample(length=4, size=1, rng=random_stream(0, "missing"))


def test_invalid_texts_raise_an_error(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00" * 20)
    with pytest.raises(TextSourceError, match=r"bytes is no UTF-8 text \("):
        NaturalText(corpus=str(tmp_path / "bytes")).tokens()
    with pytest.raises(
        TextSourceError, match=r"^the train split of the background has only [\d,]+ tokens, fewer than the l"
    ):
        NaturalText().sample(10**6, 1, random_stream(0, "long"))


INVALID = {
    "row 1 of transitions has 1 numbers; use 2": lambda: MarkovChain(transitions=((0.5, 0.5), (1.0,))),
    "row 0 have the sum 0.9 instead of 1": lambda: MarkovChain(transitions=((0.5, 0.4), (0.5, 0.5))),
    "transitions have 2 stationary distributions instead of 1": lambda: MarkovChain(
        transitions=((1.0, 0.0), (0.0, 1.0))
    ),
    "invalid num_marks -1; use 0 or more": lambda: MarkovChain(num_marks=-1),
    "num_frequent 1 is too small; use at least 2": lambda: NaturalText(num_frequent=1),
    "unknown split 'test' of the background; use one of": lambda: NaturalText(split="test"),
    "background 'markov' needs letters; set coding to letters": lambda: SparseParity(background=MarkovChain()),
    "background 'markov' has 2 tokens but num_letters is 8": lambda: SparseParity(
        coding="letters", background=MarkovChain()
    ),
}


@pytest.mark.parametrize("text", INVALID)
def test_invalid_backgrounds_raise_an_error(text):
    with pytest.raises(SettingError) as error:
        INVALID[text]()
    assert text in str(error.value)
