"""How a request names its model, read in time that grows with what came and no quicker."""

from __future__ import annotations

import pytest

from proxy.wire.naming import LOOK_BACK, Repeats, Unclear, in_form, in_json, in_part, in_target
from proxy.wire.weight import PARSED_BYTES, PARSED_VALUES, SLIGHT_VALUES, SURELY_SLIGHT, is_light, is_slight

KIND = "multipart/form-data; boundary=b"


def check(form: list[bytes]) -> None:
    """Look for another model in what follows of a form."""
    repeats = Repeats()
    for piece in form:
        repeats.check(piece)


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("/v1/models/m:predict", ["m"]),
        ("/v1beta1/models/m:generateContent", ["m"]),
        ("/v1/models/m/versions/3:predict", ["m"]),
        ("/v1/models/m/metadata", ["m"]),
        ("/v1/models/a/b", ["a/b"]),
        ("/v1/models/v1/models/m:predict", ["m"]),
        ("/v1/models/v2x/models/", ["v2x/models/"]),
        ("/pre/v1/models/m", ["m"]),
        ("/v2/models/m/infer", ["m"]),
        ("/openai/deployments/m/chat/completions", ["m"]),
        ("/model/m/invoke", ["m"]),
        ("/predictions/m/1.0", ["m"]),
        ("/v1/models", []),
        ("/v" + "1" * 16_000 + "/models/m", ["m"]),
        ("/v" + "1" * 16_000, []),
        ("/v1/models/x" * 1_300 + ":!", []),
        ("/v1/models/m?model=m&deployment=m", ["m", "m", "m"]),
    ],
)
def test_names_in_a_target(target: str, names: list[str]) -> None:
    assert [found.name for found in in_target(target)] == names


def test_a_place_may_name_its_model_a_few_times_and_no_more() -> None:
    assert len(in_target("/x?" + "&model=m" * 16)) == 16
    assert len(in_form(b"&".join([b"model=m"] * 16))) == 16
    with pytest.raises(Unclear):
        in_target("/x?" + "&model=m" * 17)
    with pytest.raises(Unclear):
        in_form(b"&".join([b"model=m"] * 17))
    with pytest.raises(Unclear):
        in_form(b"a=b&model=" + b"m" * 20_000)


@pytest.mark.parametrize("step", [1, 5, 7, 8, 9, 1_000])
def test_a_form_read_in_steps_names_what_the_whole_one_does(step: int) -> None:
    body = b"model=a+b&x=%26model=3&xmodel=4&model=c%20d&mode=5&model="
    steps = [found for start in range(0, len(body), step) for found in in_form(body, start, start + step)]
    assert [(found.name, found.start, found.end) for found in steps] == [
        (found.name, found.start, found.end) for found in in_form(body)
    ]
    assert [found.name for found in steps] == ["a b", "c d", ""]


@pytest.mark.parametrize(
    "pad",
    [b"", b"Content-Type: text/plain\r\n", b"X: y\r\n" * 100, b"X: %b\r\n" % (b"y" * 4_000)],
)
def test_a_field_of_a_form_is_found_behind_others_and_with_other_fields(pad: bytes) -> None:
    part = b'Content-Disposition: form-data; name="model"\r\n' + pad + b"\r\nm\r\n--b"
    before = b'--b\r\nContent-Disposition: form-data; name="models"\r\n\r\nx\r\n--b\r\n'
    found = in_part(KIND, before + part + b"\r\n")
    assert found is not None
    assert (before + part)[found.start : found.end] == b"m"
    with pytest.raises(Unclear, match="twice"):
        in_part(KIND, before + part + b"\r\n" + part)


@pytest.mark.parametrize("size", [1, 50, 1_000, 5_000])
@pytest.mark.parametrize("pad", [0, 2_000, 4_000])
def test_a_second_field_is_found_however_it_is_cut(size: int, pad: int) -> None:
    part = b'\r\nContent-Disposition: form-data; name="model"\r\nX: %b\r\n\r\nm' % (b"y" * pad)
    data = b"a" * 3_000 + part + b"\r\n--b"
    with pytest.raises(Unclear, match="twice"):
        check([data[at : at + size] for at in range(0, len(data), size)])


@pytest.mark.parametrize(
    "head",
    [
        b"\r\nContent-Disposition: form-data; x=%b; name=model\r\n\r\nm" % (b"y" * 9_000),
        b"\r\nContent-Disposition: form-data; x=%b" % (b"y" * 9_000),
        b"\r\nContent-Disposition: form-data; name=model\r\nX: %b\r\n\r\nm" % (b"y" * 5_000),
        b"\r\nContent-Disposition: form-data; name=model\r\n" + b"X: y\r\n" * 2_000,
    ],
)
def test_a_head_too_long_to_be_followed_hides_no_model(head: bytes) -> None:
    assert len(head) < LOOK_BACK
    with pytest.raises(Unclear, match="head"):
        in_part(KIND, b"--b" + head)
    with pytest.raises(Unclear, match="head"):
        check([head[at : at + 100] for at in range(0, len(head), 100)])


@pytest.mark.parametrize(
    "dull", [b'"a":1,', b'"a":[[]],', b'"a":"model",', b'"x" : {"model":[1,"]"]} ,', b'"models":0,']
)
def test_members_of_other_names_hide_no_model(dull: bytes) -> None:
    for count in (0, 1, 3_000):
        body = b"{" + dull * count + b'"model":"m"}'
        found = in_json(body)
        assert found is not None
        assert body[found.start : found.end] == b'"m"'
        for second in (b'"mod\\u0065l":"n"', b'"MODEL":"n"', b'"model":"m"'):
            with pytest.raises(Unclear):
                in_json(b"{" + dull * count + second + b',"model":"m"}')
            with pytest.raises(Unclear):
                in_json(b'{"model":"m",' + dull * count + second + b"}")


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"1,", b'"a":1,', b"[[[[]]]],"])
def test_what_is_parsed_has_so_many_values_at_most_whatever_its_size(piece: bytes) -> None:
    for size in (10_000, SURELY_SLIGHT + 100, 60_000, 200_000, PARSED_BYTES):
        body = piece * (size // len(piece))
        values = sum(map(body.count, (b",", b"[", b"{")))
        assert is_slight(body) is (size <= SURELY_SLIGHT or values <= SLIGHT_VALUES)
        assert is_light(body) is (size <= SURELY_SLIGHT or values <= PARSED_VALUES)
    text = b'{"messages":[{"content":"%b"}]}' % (b"word " * 200_000)
    assert is_slight(text)
    assert not is_light(text + b" " * PARSED_BYTES)
