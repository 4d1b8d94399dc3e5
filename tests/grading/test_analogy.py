"""Answers that follow from the visible ones, and which values are left to tell a fix from a guess."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.grading.analogy import predictions
from woodshed.grading.pytest_given import literals
from woodshed.grading.reshape import reordered, reshaped
from woodshed.grading.telling import Known, Reference, reference_of, told_in, without


def text(value: object) -> str:
    return json.dumps(value)


@pytest.mark.parametrize(
    ("visible", "changes", "wanted"),
    [
        ("DeviceType", [("device_type", "device_typf")], "DeviceTypf"),
        ("DEVICE-TYPE", [("device_type", "device_typf")], "DEVICE-TYPF"),
        ("a [abc] b", [("abc", "abd")], "a [abd] b"),
        ("dlrow", [("world", "worle")], "elrow"),
        ("ab12", [("ab", "ac"), ("12", "13")], "ac13"),
    ],
)
def test_a_known_change_is_carried_over(visible: str, changes: list[tuple[str, str]], wanted: str) -> None:
    assert text(wanted) in predictions(text(visible), changes, None, None)


def test_numbers_bytes_and_hybrids_of_the_given_code() -> None:
    assert "[3,4]" in predictions("[2,4]", [(2, 3)], None, None)
    assert "[f2.5,f2.0,3]" in predictions("[f1.5,f2.0,2]", [(1.5, 2.5), (2, 3)], None, None)
    assert f"b{b'kez'.hex()}" in predictions(f"b{b'key'.hex()}", [("key", "kez")], None, None)
    # the given code keeps a letter that the solution replaces: the replacement can be read off the visible input
    assert text("abd ss") in predictions(text("abc ss"), [("abc ß", "abd ß")], text("abc ß"), text("abd ß"))
    assert text("xz") in predictions(None, [], text("a"), text("xz"))


def test_another_structure_is_not_predicted() -> None:
    changes = [("device_type", "tkype_devic_mo")]
    assert text("TkypeDevicMo") not in predictions(text("DeviceType"), changes, text("device_type"), text("tkype"))


def test_inputs_and_predictions_tell_nothing() -> None:
    test, visible = "t_with_other_strings.py::t", "t_with_same.py::t"
    values = {test: ['"back"', '"DeviceTypf"', '"new"', '"given"']}
    known = Known(
        given={test: ["0", "0", "0", '"given"']},
        visible={visible: ['"x"', '"DeviceType"', '"old"', '"y"']},
        inputs={test: frozenset({'"back"'})},
        changes={test: [("device_type", "device_typf")]},
    )
    found = reference_of(values, values, known)
    assert found.values == values and found.telling == {test: [None, None, '"new"', None]}
    assert told_in(found) == {"t.py::t": ['"new"']}
    assert told_in(without(found, {test: ["", "", '"new"']})) == {}


def test_a_test_that_fails_on_the_solution_is_compared_with_nothing() -> None:
    """What the code does with such inputs is not for the solution to say."""
    test = "t_with_other_shapes.py::t"
    values = {test: ["status failed"]}
    assert reference_of(values, values, Known()) == Reference({test: [None]}, {test: [None]})


SOURCE = """
CASES = [("shared", 7)]


class TestIt:
    def test_one(self):
        assert f("mine", [8, 9]) == True


def test_two():
    assert f("other")
"""


def test_what_is_written_out_is_known_by_test() -> None:
    found = literals(SOURCE)
    assert {"shared", 7, "mine", 8, 9} <= {v for v in found["TestIt::test_one"] if not isinstance(v, (list, tuple))}
    assert [8, 9] in found["TestIt::test_one"] and "other" not in found["TestIt::test_one"]
    assert {"mine", "other", "shared"} <= {v for v in found[""] if isinstance(v, str)}
    assert not [v for v in found[""] if v is True] and literals("def (") == {}


@given(st.text(st.sampled_from("abcXYZ019 _-:/.@"), max_size=40), st.text(max_size=3))
def test_other_texts_keep_their_kinds_of_characters(value: str, seed: str) -> None:
    made = reshaped(value, seed)
    assert made == reshaped(value, seed)
    for kind in (str.isalpha, str.isdigit):
        assert any(map(kind, made)) == any(map(kind, value))
    assert set(filter(lambda c: not c.isalnum(), made)) == set(filter(lambda c: not c.isalnum(), value))


def test_other_inputs_have_another_length_and_order() -> None:
    made = {reshaped("one_two_three", str(seed)) for seed in range(40)}
    assert len(made) > 10 and len({len(text) for text in made}) > 5
    numbers = {reshaped(12, str(seed)) for seed in range(40)}
    assert min(numbers) < 0 < 36 < max(numbers) + 10 and len(numbers) > 4
    orders = [reordered([1, 2, 3], str(seed)) for seed in range(40)]
    assert [0, 1, 2] in orders and any(len(order) == 4 for order in orders) and reordered([1, "a"], "s") == [0, 1]
    assert all(set(order) == {0, 1, 2} for order in orders)
