"""Events come back from rows as they were."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.journal.codec import decode_arrays, encode_arrays, event_of, row_of
from longtail.types import Event

INT32 = st.integers(-(2**31), 2**31 - 1)
ANY_TEXT = st.text(st.characters(codec=None), max_size=20)  # lone surrogates and NUL too
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=10,
)
ARRAYS = (
    st.lists(INT32) | st.lists(st.floats()) | st.lists(st.floats(width=32)) | st.lists(st.integers(-(2**63), 2**63 - 1))
)


def bits(values):
    return [struct.pack("<d", v) if isinstance(v, float) else v for v in values]


@settings(max_examples=50, deadline=None)
@given(arrays=st.dictionaries(st.sampled_from(["ids", "logprobs", "versions"]), ARRAYS))
def test_arrays_come_back_bit_for_bit(arrays):
    back = decode_arrays(encode_arrays(arrays))
    assert {name: bits(values) for name, values in back.items()} == {name: bits(v) for name, v in arrays.items()}


@settings(max_examples=50, deadline=None)
@given(data=st.dictionaries(ANY_TEXT, JSON, max_size=5))
def test_payloads_come_back_even_with_lone_surrogates(data):
    event = Event(kind="note", trajectory="t", data=data, at_s=2.5)
    trajectory, kind, at_s, text, arrays = row_of(event, 1.0)
    assert event_of((7, trajectory, kind, at_s, text.encode().decode(), arrays)) == Event(
        kind="note", trajectory="t", data=data, at_s=2.5, seq=7
    )


def test_numbers_of_numpy_that_are_python_floats_are_written_as_such():
    assert json.loads(row_of(Event(kind="note", data={"target": np.float64(0.5)}), 0.0)[3]) == {"target": 0.5}


def test_an_event_without_a_time_gets_the_journals():
    assert row_of(Event(kind="note"), 12.0)[2] == 12.0


def test_not_a_number_becomes_null_because_json_has_none():
    assert json.loads(row_of(Event(kind="note", data={"loss": float("nan")}), 0.0)[3]) == {"loss": None}


@pytest.mark.parametrize(
    ("values", "most_bytes"),
    [
        (range(100), 100),
        (range(1000, 1100), 300),
        ((5,) * 1000, 1),
        (tuple(i / 8 for i in range(100)), 400),
        ((0.1,) * 100, 8),
        ((0.0,) * 1000, 4),
    ],
)
def test_arrays_are_stored_compactly(values, most_bytes):
    assert len(encode_arrays({"x": values})) <= most_bytes + 15
    assert decode_arrays(encode_arrays({"x": values})) == {"x": tuple(values)}


def test_an_integer_beyond_64_bits_is_refused():
    with pytest.raises(OverflowError):
        encode_arrays({"ids": (2**64,)})


def test_what_is_not_json_is_refused_when_it_is_given():
    with pytest.raises(TypeError):
        row_of(Event(kind="note", data={"x": object()}), 0.0)
