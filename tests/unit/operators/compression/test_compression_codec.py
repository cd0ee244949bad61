"""Codecs as they are written in settings."""

import pytest
from pydantic import TypeAdapter, ValidationError

from dataflow.errors import ConfigError
from operators.compression import Codec, Half, Int8, OneBit, Threshold, TopK, parse_codec, pooled


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("threshold", Threshold(tau=None, density=0.03, packing="auto")),
        ("threshold:tau=0.1:packing=rice", Threshold(tau=0.1, packing="rice")),
        (
            "threshold:density=0.01:per_layer=true:most=fit:clip=4",
            Threshold(density=0.01, per_layer=True, most="fit", clip=4.0),
        ),
        ("threshold:tau=none:clip=none", Threshold()),
        ("topk:density=0.5", TopK(density=0.5)),
        ("fp16", Half()),
        ("int8", Int8()),
        ("onebit", OneBit()),
    ],
)
def test_parse_codec_of_a_kind_and_parameters_is_the_codec(text, codec):
    parsed = parse_codec(text)
    assert parsed == codec
    assert type(parsed) is type(codec)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no such codec .*known: fp16, int8, onebit, threshold, topk"),
        ("treshold", r"there is no such codec \(got treshold\); did you mean 'threshold'"),
        ("threshold:ta=1", r"no such parameter \(got ta\); did you mean 'tau'"),
        ("fp16:tau=1", r"codec fp16 has no such parameter \(got tau\); leave it out"),
        ("topk:density", "density of codec topk must be given once"),
        ("threshold:tau=1_0", r"tau of codec threshold is not valid \(got 1_0\); write numbers without underscores"),
        ("threshold:tau=" + "9" * 5000, r"tau of codec threshold is not valid \(got 9{197}\.\.\.\)"),
        ("topk:density=1:density=1", "density of codec topk must be given once"),
        ("topk:density=2", r"density of codec topk is not valid \(got 2\)"),
        ("threshold tau=0.1", r"no such codec \(got threshold tau=0.1\); write parameters behind colons"),
        ("threshold,tau=0.1", "write parameters behind colons"),
        ("threshold:tau=0", "tau of codec threshold is not valid"),
        ("threshold:tau=nan", "tau of codec threshold is not valid"),
        ("threshold:tau=1:density=0.1", "codec threshold is not valid .*leave out tau"),
        ("threshold:packing=zip", "packing of codec threshold is not valid"),
        ("threshold:kind=topk", "no such parameter"),
    ],
)
def test_parse_codec_of_nonsense_says_what_to_write(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_codec(text)


@pytest.mark.parametrize("codec", [Threshold(tau=0.5), Threshold(per_layer=True), TopK(), Half(), Int8(), OneBit()])
def test_codec_as_json_is_itself_again(codec):
    adapter = TypeAdapter(Codec)
    assert adapter.validate_json(adapter.dump_json(codec)) == codec


def test_threshold_per_layer_with_a_fixed_tau_is_refused():
    with pytest.raises(ValidationError, match="per_layer are for a tau that is adapted"):
        Threshold(tau=1.0, per_layer=True)


@pytest.mark.parametrize(
    ("density", "n_weights", "count"), [(0.003, 1000, 3), (0.003, 10, 1), (1.0, 7, 7), (0.5, 5, 3)]
)
def test_topk_count_is_a_share_of_the_weights_and_at_least_one(density, n_weights, count):
    assert TopK(density=density).count(n_weights) == count


@pytest.mark.parametrize(
    ("codec", "pooled_codec"),
    [
        (Threshold(density=0.01, most="fit"), Threshold(density=0.03, most="fit")),
        (Threshold(density=0.4), Threshold(density=0.5, most="fit")),
        (Threshold(tau=0.1), Threshold(tau=0.1, most="fit")),
        (TopK(density=0.25), TopK(density=0.75)),
        (TopK(density=0.5), TopK(density=1)),
        (Half(), Half()),
    ],
)
def test_pooled_codec_multiplies_the_density_up_to_the_largest(codec, pooled_codec):
    assert pooled(codec, 3) == pooled_codec
