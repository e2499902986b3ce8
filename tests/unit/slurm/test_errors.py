"""Slurm's own texts, as printed by real releases, to types."""

from __future__ import annotations

import pytest

from slurm_robust.model.errors import ExitCode
from slurm_robust.slurm import errors
from slurm_robust.slurm.process import CompletedCommand
from tests.slurm_language import Case, cases

BUSY = """Error creating the reservation: Requested nodes are busy
Note, unless nodes are directly requested a reservation must exist in a single partition.
If no partition is requested the default partition is assumed."""


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("slurm_load_jobs error: Invalid job id specified", errors.JobNotFound),
        ("Invalid job id specified for job 999", errors.JobNotFound),
        ("Job is no longer pending execution for job 17", errors.JobNotPending),
        (
            "Job update not available right now, the DB index is being set, try again in a bit for job 3",
            errors.UpdateUnavailable,
        ),
        ("Job has already finished for job 18\nslurm_suspend error: finished", errors.JobFinished),
        ("Requested operation is presently disabled for job 17", errors.RequeueDisabled),
        ("slurm_update error: Invalid user id", errors.PermissionDenied),
        ("Access/permission denied for job 21\nslurm_suspend error: x", errors.PermissionDenied),
        ("Error creating the reservation: Invalid node name specified", errors.InvalidNode),
        ("Node n99 not found", errors.InvalidNode),
        (
            "Error creating the reservation: Invalid account or account/partition combination specified",
            errors.InvalidAccount,
        ),
        ("slurm_create error: Slurm backup controller in standby mode", errors.ControllerUnreachable),
        ("Reservation nope not found", errors.ReservationNotFound),
        ("delete_reservation x: Requested reservation is invalid", errors.ReservationNotFound),
        ("delete_reservation s1: Requested reservation is in use", errors.ReservationInUse),
        (BUSY, errors.NodesBusy),
        (
            "Error creating the reservation: Requested reservation overlaps with another reservation",
            errors.NodesBusy,
        ),
        ("Error creating the reservation: Invalid partition name specified", errors.InvalidPartition),
        ("Job step 17.7 not found", errors.StepNotFound),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", errors.ControllerUnreachable),
        ("error: Unable to contact slurm controller (connect failure)", errors.ControllerUnreachable),
        ("Requested operation not supported on this system for job 17", errors.CommandFailed),
        ("", errors.CommandFailed),
    ],
)
def test_texts_of_slurm_are_told_apart_as_errors(text: str, kind: type[errors.SlurmCommandError]) -> None:
    for done in (
        CompletedCommand(command=("scontrol", "x"), exit_code=1, stdout="", stderr=text),
        CompletedCommand(command=("scontrol", "x"), exit_code=1, stdout=text, stderr=""),
    ):
        error = errors.classify(done)
        assert type(error) is kind
        assert error.command == ("scontrol", "x")
        assert error.returncode == 1
        assert error.fix
        assert "scontrol x" in str(error)


def test_the_line_that_says_what_is_wrong_is_the_message() -> None:
    """Not the advice that scontrol prints below it."""
    done = CompletedCommand(command=("scontrol", "x"), exit_code=1, stdout="", stderr=BUSY)
    assert errors.classify(done).what == "Error creating the reservation: Requested nodes are busy"


def test_a_machine_that_belongs_to_no_cluster_is_told_in_one_sentence() -> None:
    text = (
        "sinfo: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "sinfo: error: fetch_config: DNS SRV lookup failed\n"
        "sinfo: fatal: Could not establish a configuration source"
    )
    error = errors.classify(CompletedCommand(("sinfo", "--version"), 1, "", text))
    assert isinstance(error, errors.SlurmNotConfigured)
    assert str(error) == f"{error.what}: this machine belongs to no cluster"
    assert "\n" not in str(error)


def test_every_type_of_the_tree_names_a_fix() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.SlurmError)]
    assert len(kinds) > 15
    for kind in kinds:
        if kind is not errors.SlurmError:
            assert kind.fix, kind
        assert kind.__name__ in (errors.__doc__ or "")


def test_exit_codes_follow_the_table() -> None:
    """docs/exit-codes.md: what is named and not there, and a Slurm that does not answer or refuses."""
    not_there = (errors.JobNotFound, errors.InvalidNode, errors.InvalidPartition)
    no_answer = (errors.ControllerUnreachable, errors.SlurmTimeout, errors.CommandFailed)
    assert {kind("x").exit_code for kind in not_there} == {ExitCode.NO_INPUT}
    assert {kind("x").exit_code for kind in no_answer} == {ExitCode.SLURM}


@pytest.mark.parametrize("case", cases("not_found.tsv"), ids=lambda case: case.id)
def test_not_found_in_all_spellings(case: Case) -> None:
    for done in (
        CompletedCommand(("scontrol",), 1, stdout="", stderr=case.given),
        CompletedCommand(("scontrol",), 1, stdout=case.given, stderr=""),
    ):
        assert type(errors.classify(done)).__name__ == case.expected


@pytest.mark.parametrize("case", cases("not_found.tsv"), ids=lambda case: case.id)
def test_the_same_in_json(case: Case) -> None:
    """As an entry of the list ``errors``, in the shapes of all releases."""
    for listed in (
        [{"description": case.given, "error_number": 2017, "error": "Unspecified", "source": "x"}],
        [{"description": "Failure to query", "error_number": 2017, "error": case.given, "source": "x"}],
        [{"error": case.given, "error_code": 2017}],
        [case.given],
    ):
        assert type(errors.of_document(listed)).__name__ == case.expected


@pytest.mark.parametrize(
    "listed",
    [
        [{"description": "Failure to query node gpu-worker-17", "error_number": 0, "error": "No error"}],
        [{"error_number": -1, "error": "Unspecified error"}],
        [{}],
        [None],
        ["?"],
    ],
)
def test_an_error_without_a_name_says_that_nothing_is_known(listed: list[object]) -> None:
    error = errors.of_document(listed)
    assert type(error) is errors.CommandFailed
    assert error.what
