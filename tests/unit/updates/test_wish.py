"""What is wished of an update, beside the release that runs."""

from __future__ import annotations

import pytest

from slurm_robust.updates.wish import CannotUpdate, UpdateWish, arguments, checked_message, environment

RUNNING = ("train.py", "--lr", "3e-4", "--batch", "8")


def test_arguments_are_split_as_by_a_shell_and_the_script_stays() -> None:
    wish = UpdateWish(args="--lr 1e-4 --name 'run two'")
    assert arguments(wish, RUNNING) == ("train.py", "--lr", "1e-4", "--name", "run two")


def test_words_are_taken_as_they_are() -> None:
    wish = UpdateWish(words=("--name", "a  b", "--x="))
    assert arguments(wish, RUNNING) == ("train.py", "--name", "a  b", "--x=")


def test_no_arguments_at_all_can_be_wished_and_otherwise_they_stay() -> None:
    assert arguments(UpdateWish(args=""), RUNNING) == ("train.py",)
    assert arguments(UpdateWish(), RUNNING) == RUNNING


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (UpdateWish(args="--name 'x"), "no closing quotation"),
        (UpdateWish(args="", words=()), "exclude"),
        (UpdateWish(args="--name \udcff"), "is not UTF-8"),
        (UpdateWish(words=("\udcff",)), "is not UTF-8"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(wish: UpdateWish, says: str) -> None:
    with pytest.raises(CannotUpdate, match=says):
        arguments(wish, RUNNING)


def test_variables_are_set_over_those_that_run_and_a_name_alone_takes_the_own_value() -> None:
    wish = UpdateWish(env=("A=1", "TOKEN", "URL=http://x/?a=b"), unset=("OLD",))
    found = environment(wish, {"OLD": "x", "KEPT": "y"}, {"TOKEN": "s3cret"})
    assert found == {"KEPT": "y", "A": "1", "TOKEN": "s3cret", "URL": "http://x/?a=b"}


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        (UpdateWish(env=("TOKEN",)), "there is no such variable here"),
        (UpdateWish(env=("=s3cret",)), "no name of a variable"),
        (UpdateWish(env=("A B=s3cret",)), "no name of a variable"),
        (UpdateWish(env=("WORLD_SIZE=8",)), "sets it for each rank"),
        (UpdateWish(env=("SROBUST_RANK=s3cret",)), "sets it for each rank"),
        (UpdateWish(env=("A=s3cret\0",)), "has a NUL"),
        (UpdateWish(env=("A=s3cret\udcff",)), "A: its value is not UTF-8"),
        (UpdateWish(env=("A=s3cret",), unset=("A",)), "both name A"),
        (UpdateWish(unset=("HOME",)), "does not set it"),
    ],
)
def test_variables_that_cannot_be_set_are_refused_without_their_values(wish: UpdateWish, says: str) -> None:
    with pytest.raises(CannotUpdate, match=says) as caught:
        environment(wish, {}, {})
    assert "s3cret" not in caught.value.in_full()


def test_a_message_is_one_line_of_bounded_length() -> None:
    assert checked_message("smaller\nlr \x1b[31mred") == "smaller lr red"
    with pytest.raises(CannotUpdate, match="401 characters"):
        checked_message("x" * 401)
