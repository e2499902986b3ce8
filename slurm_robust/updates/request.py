"""``srobust update`` and ``srobust rollback``: what is wished is checked, taken, asked for and followed."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import structs
from rich.console import Group

from slurm_robust.config.changes import with_file
from slurm_robust.config.container import BadOption
from slurm_robust.config.job import JobConfig
from slurm_robust.config.plan import load_plan
from slurm_robust.config.reader import read_file
from slurm_robust.diagnostics.live import ANSWER_S, LiveJob, requester, unanswered
from slurm_robust.evidence.updates import result
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record
from slurm_robust.model.release import Release, ReleaseState, When
from slurm_robust.model.state import JobState
from slurm_robust.model.updates import UpdateRow, update_rows
from slurm_robust.releases.compare import ReleaseDiff, summary
from slurm_robust.releases.compiles import compiled
from slurm_robust.releases.contents import stored
from slurm_robust.releases.roots import code_folders, without_nested
from slurm_robust.releases.select import CopyLimits
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.terminal.console import Bar, Screen, Wrapped, show
from slurm_robust.trainings.find import load_events
from slurm_robust.trainings.slurmview import ask_slurm
from slurm_robust.updates import screen
from slurm_robust.updates.follow import UpdateFollower, UpdatePhase, UpdateProgress, request_of
from slurm_robust.updates.listing import good_before, history, release_named
from slurm_robust.updates.views import difference
from slurm_robust.updates.wish import CannotUpdate, UpdateWish, arguments, checked_message, environment
from slurm_robust.util.text import count, first_sentence, one_line
from slurm_robust.util.text import message as indented
from slurm_robust.util.trust import user_name
from slurm_robust.wire.epochs import newest_epoch
from slurm_robust.wire.keys import load_client
from slurm_robust.wire.messages import Ping, Pong, UpdateJob, UpdateReply
from slurm_robust.wire.sockets import ask

SILENT_S = 60.0
"""How long to ask a controller that does not answer: the next one may be about to start."""

POLL_S = 0.2
STEPLESS_S = 60.0
"""A release is not waited for longer if the job has never made a step that it could make, too."""

SLURM_S = 30.0
"""Between two questions to Slurm whether the job still runs."""

MAX_WARNINGS = 5
"""Files that do not compile that are shown."""

NOT_DONE = 1
"""Exit code if the update was refused or rolled back, or did not come to be."""


class UpdateAnswer(Record):
    """All that ``srobust update --json`` and ``srobust rollback --json`` print."""

    job_id: int
    update: int
    """Its number; 0 if an update that waited was withdrawn before there was one."""
    release: str
    before: str
    """The release that ran when it was asked for."""
    phase: UpdatePhase
    when: When
    text: str
    """What the controller said."""
    changes: tuple[str, ...] = ()
    deadline: float | None = None
    node: str = ""
    """Where the trial failed."""
    reason: str = ""
    traceback: str = ""
    untried: tuple[str, ...] = ()
    step: int | None = None
    """The first step of the release, once it is made; None if it does not report its steps."""
    applied_s: float | None = None
    repeated: int | None = None
    undone: int | None = None
    recovery: bool = False


class OwnJob:
    """A running job with releases, of who asks.

    Raises ``NoSuchJob``, ``JournalDamaged``, ``NotLive`` for one that does not run, :class:`CannotUpdate` for
    one of another user, and for one without releases.
    """

    def __init__(self, name: str, job_dir: str | None) -> None:
        self.live = LiveJob(name, job_dir, "submit the code as a new job: sbatch")
        self.directory, self.events, self.state = self.live.directory, self.live.events, self.live.state
        self.job_id, self.updates = self.state.job_id, update_rows(self.events)
        self.store = ReleaseStore(self.directory.releases)
        owner = os.stat(self.directory.path).st_uid
        if owner != os.geteuid():
            raise CannotUpdate(
                f"job {self.job_id} belongs to {user_name(owner)}: only its owner updates it",
                fix="ask its owner, or run the command as its owner",
                code=ExitCode.REFUSED,
            )
        view = ask_slurm(self.live.slurm, self.job_id)
        if view.is_over or (view.job is not None and not view.job.is_running):
            raise unanswered(self.job_id, self.live.epoch, self.live.slurm)
        self.plan = load_plan(self.directory, self.state.run_id)
        if not self.state.release:
            raise self._no_releases()
        self.running = self.store.read(self.state.release)
        self.configuration, self.config_text = self.plan.config, ""
        """With which the running release was taken, and the text of what it brings of its own."""
        if self.state.configures(self.running.name):
            self._configure(self.store.config_text(self.running.name))

    def _configure(self, text: str) -> None:
        """Take the configuration of the running release; the controller, too, leaves out what is no good."""
        name = f"the configuration of release {self.running.name}"
        try:
            self.configuration, self.config_text = with_file(self.plan.config, text.encode(), name), text
        except SrobustError as error:
            _say(f"{name} is left out: {error}")

    def judging(self) -> screen.Judging:
        """Return when the release that runs now is good, and what comes back before."""
        updates, candidate = self.configuration.updates, self.live.read().candidate
        return screen.Judging(
            good_steps=updates.good_steps,
            good_s=updates.good_s,
            before=candidate.before if candidate is not None and updates.rollback else "",
        )

    def _no_releases(self) -> CannotUpdate:
        why = "the copy of its code could not be taken when it began; its log says why"
        if not self.plan.config.code.releases:
            why = "code.releases is false, so its ranks read the code in its place"
        return CannotUpdate(
            f"job {self.job_id} has no releases: {why}",
            fix=f"'scontrol requeue {self.job_id}' starts it again with the code as it is then",
        )


# -- update ------------------------------------------------------------------------------------------


def update(name: str, wish: UpdateWish, *, job_dir: str | None) -> int:
    """Take a release and have a job run it. Raises ``SrobustError`` if it is not asked for."""
    job = OwnJob(name, job_dir)
    message = checked_message(wish.message)
    asked: set[str] = set()
    taking = _taking(job, wish)
    _say_source(job, wish, taking)
    try:
        with Bar("taking the code", quiet=wish.json):
            release = take(job.store, taking)
        _check_compiles(job, release)
        order = _order(job, wish, release, message)
        asked.add(order.release)
        return _ordered(job, order, wait=wish.wait, json=wish.json)
    finally:
        _prune(job, asked)


def _order(job: OwnJob, wish: UpdateWish, release: Release, message: str) -> UpdateJob:
    """Return what to ask for, and say what is worth knowing before. Raises :class:`CannotUpdate`."""
    waiting, changed = job.state.update, _difference(job, release)
    if changed.is_empty and wish.from_step < 0 and not wish.discard_optimizer:
        roots = ", ".join(root.source for root in release.roots)
        withdraw = (
            f", or 'srobust rollback {job.job_id} --withdraw' for the update that waits" if waiting else ""
        )
        raise CannotUpdate(
            f"nothing has changed: the code in {roots}, the arguments and the environment are those of "
            f"release {job.running.name}, which runs",
            fix=f"change something first, or give --code, --args, --env or --config{withdraw}",
        )
    for text in release.left_out:
        if text not in job.running.left_out:
            _say(f"left out of the copy: {text}")
    if job.state.releases.get(release.name) is ReleaseState.BAD:
        _say(f"release {release.name} was rolled back before")
    if waiting is not None and waiting.release != release.name:
        _say(f"update {waiting.update}, which waits, is replaced; nothing of it is part of this one")
    return UpdateJob(
        release=release.name,
        when=wish.when,
        by=requester(),
        deadline_s=wish.deadline_s,
        message=message,
        changes=summary(changed),
        from_step=wish.from_step,
        discard_optimizer=wish.discard_optimizer,
        token=secrets.token_hex(8),
        running=job.running.name,
        updates=job.state.updates,
    )


def _say(text: str) -> None:
    print(one_line(text), file=sys.stderr)


def _difference(job: OwnJob, release: Release) -> ReleaseDiff:
    return difference(job.directory, job.state, job.running.name, release.name)


# -- rollback ----------------------------------------------------------------------------------------


def rollback(
    name: str,
    wanted: str | None,
    *,
    when: When,
    withdraw: bool,
    from_step: int,
    message: str,
    wait: bool,
    json: bool,
    job_dir: str | None,
) -> int:
    """Have a job run a release that it has run before, or withdraw the update that waits.

    ``withdraw``: only the latter. Raises ``SrobustError`` if nothing is asked for.
    """
    job = OwnJob(name, job_dir)
    message = checked_message(message)
    ran, waiting = history(job.events), job.state.update
    if withdraw or (wanted is None and waiting is not None):
        return _withdrawn(job, message, ran, from_step=from_step, json=json)
    target = release_named(wanted, job.state, ran) if wanted is not None else good_before(job.state, ran)
    if not target:
        raise CannotUpdate(
            f"job {job.job_id} has no good release before {job.running.name}, which runs",
            fix=f"name one: 'srobust releases {job.job_id}' lists them",
        )
    if target == job.running.name and from_step < 0:
        waits = f"; update {waiting.update} waits" if waiting is not None else ", and no update waits"
        raise CannotUpdate(
            f"release {target} runs already{waits}",
            fix=f"'srobust rollback {job.job_id} --withdraw' withdraws it"
            if waiting is not None
            else f"'srobust releases {job.job_id}' lists the others",
        )
    release = job.store.read(target)
    order = UpdateJob(
        release=target,
        when=when,
        by=requester(),
        message=message,
        changes=summary(_difference(job, release)),
        rollback=True,
        from_step=from_step,
        token=secrets.token_hex(8),
        running=job.running.name,
        updates=job.state.updates,
    )
    return _ordered(job, order, wait=wait, json=json)


def _withdrawn(job: OwnJob, message: str, ran: Sequence[str], *, from_step: int, json: bool) -> int:
    """Withdraw the update that waits. Raises :class:`CannotUpdate` if none does, or it is applied now."""
    running, waiting = job.running.name, job.state.update
    if waiting is None:
        became = f": {_became(job.updates[-1])}" if job.updates else ""
        raise CannotUpdate(
            f"no update waits{became}",
            fix=f"'srobust releases {job.job_id}' shows what runs; 'srobust rollback {job.job_id}' goes back",
        )
    if from_step >= 0:
        raise CannotUpdate(
            f"update {waiting.update} waits, and --from is of a release that is to run",
            fix=f"name the release, e.g. 'running', or withdraw the update: "
            f"'srobust rollback {job.job_id} --withdraw'",
        )
    order = UpdateJob(
        release=running,
        when=When.NOW,
        by=requester(),
        message=message,
        token=secrets.token_hex(8),
        withdraw=True,
        running=running,
        updates=job.state.updates,
    )
    number, text = _ask(job, order)
    answer = _answer(job, order, number, text, UpdatePhase.WITHDRAWN)
    back = good_before(job.state, ran)
    hint = f"'srobust rollback {job.job_id} {back}' goes back to the good release before {running}"
    show(answer, lambda said: "\n".join([one_line(said.text), *([hint] if back else [])]), json=json)
    return ExitCode.SUCCESS


def _became(row: UpdateRow) -> str:
    if row.applied is None:
        return f"update {row.number}: {first_sentence(result(row))}"
    at = f" at step {row.step}" if row.step is not None and row.step >= 0 else ""
    return f"update {row.number} was applied{at}"


# -- the release -------------------------------------------------------------------------------------


def _taking(job: OwnJob, wish: UpdateWish) -> Taking:
    """Return what the wish makes of the running release."""
    running, plan = job.running, job.plan
    config, config_text = _configured(job, wish)
    code = config.code
    places = tuple(root.path for root in running.roots)
    if code.paths != job.configuration.code.paths:
        own = code_folders(running.kind, running.command, plan.cwd, code.paths)
        places = without_nested((*own, *places[1:]))
    source = _source(wish, running, places, plan.cwd)
    never = (
        str(job.directory.path.parent),
        str(job.directory.path),
        str(plan.storage(job.directory)),
        plan.output,
        *(os.path.join(plan.cwd, place) for place in plan.config.checkpoint.places.values()),
    )
    return Taking(
        kind=running.kind,
        command=arguments(wish, running.command),
        cwd=plan.cwd,
        roots=places if source is None else (source, *places[1:]),
        stands_for={} if source is None else {source: places[0]},
        never=tuple(os.path.realpath(path) for path in never if path),
        env=environment(wish, job.store.env(running.name), os.environ),
        config_text=config_text,
        image=_image(job, wish, config),
        workdir=code.workdir == "release",
        limits=CopyLimits.of(code),
    )


def _say_source(job: OwnJob, wish: UpdateWish, taking: Taking) -> None:
    """Say from which folder the code is taken, and if the newest update had taken another one."""
    if not taking.roots:
        return
    source = taking.roots[0]
    _say(f"the code is taken from {source}")
    newest = next((row for row in reversed(job.updates) if not row.rollback), None)
    known = job.state.taken.get(newest.release) if newest is not None else None
    if wish.code is None and newest is not None and known is not None and known.release.roots:
        other = known.release.roots[0].source
        if other != source:
            again = f"--code {shlex.quote(other)} does so again"
            _say(f"update {newest.number} took its code from {other}; {again}")


def _check_compiles(job: OwnJob, release: Release) -> None:
    """Raise :class:`CannotUpdate` if a file that is executed in any case does not compile."""
    found = compiled(stored(job.store, release.name), job.plan.cwd)
    for one in found.warnings[:MAX_WARNINGS]:
        _say(f"does not compile: {one.path}, line {one.line}")
    if found.errors:
        texts = [indented(one.text) for one in found.errors[:MAX_WARNINGS]]
        if more := found.errors[MAX_WARNINGS:]:
            texts.append(f"and {count(len(more), 'file')} more")
        said = "\n".join(texts)
        raise CannotUpdate(
            f"the code does not compile, so nothing was asked for:\n{said}",
            fix="mend it and give the command again; the job trains on",
            code=NOT_DONE,
        )


def _configured(job: OwnJob, wish: UpdateWish) -> tuple[JobConfig, str]:
    """Return the configuration with which the release runs, and the text of its own file, "" for none."""
    if wish.config is None:
        return job.configuration, job.config_text
    content = read_file(wish.config)
    try:
        return with_file(job.plan.config, content, str(wish.config)), content.decode()
    except UnicodeDecodeError as error:
        raise CannotUpdate(f"--config {wish.config} is not UTF-8", fix="save it as UTF-8") from error


def _source(wish: UpdateWish, running: Release, places: tuple[str, ...], cwd: str) -> str | None:
    """Return from where the first folder is taken instead: as wished, else as for the running release."""
    said = f"--code {wish.code}"
    if wish.code is None:
        said = next((root.taken_from for root in running.roots if root.path in places[:1]), "")
        if not said:
            return None
    folder = Path(wish.code or said)
    if not folder.is_dir():
        raise CannotUpdate(
            f"{said} is no folder", fix="name the folder with the code: --code DIR", code=ExitCode.NO_INPUT
        )
    if not places:
        raise CannotUpdate(
            f"release {running.name} has no copy of code that --code could replace",
            fix="name the folders of the job's code in code.paths of a --config file",
        )
    source = folder.resolve()
    if running.kind is CommandKind.SCRIPT:
        script = Path(cwd, running.command[0]).resolve()
        own = script.relative_to(places[0]) if script.is_relative_to(places[0]) else None
        if own is not None and not (source / own).is_file():
            raise CannotUpdate(
                f"{said} has no {own}: it would take the place of {places[0]}",
                fix="name a folder that is laid out like that one, such as another checkout of it",
            )
    return str(source) if str(source) != places[0] else None


def _image(job: OwnJob, wish: UpdateWish, config: JobConfig) -> str:
    """Return the image of the new release, "" for that of the job's configuration."""
    if wish.image is None:
        return job.running.image
    if not config.agents.is_contained:
        raise CannotUpdate(
            "--image: the job runs in no container, and its nodes cannot change to one",
            fix="submit a new job (of this training, or with --from) with agents.srun_options or "
            "agents.wrapper",
        )
    image = Path(wish.image).absolute()
    if not os.access(image, os.R_OK):
        raise CannotUpdate(
            f"--image {image}: it is not there, or may not be read",
            fix="give the path of an image on storage that all nodes share",
            code=ExitCode.NO_INPUT,
        )
    try:
        config.agents.in_image(str(image))
    except BadOption as error:
        key = "wrapper" if config.agents.wrapper else "srun_options"
        raise CannotUpdate(f"--image: agents.{key} {error}", fix=error.fix) from error
    return str(image)


# -- asking ------------------------------------------------------------------------------------------


def _ordered(job: OwnJob, order: UpdateJob, *, wait: bool, json: bool) -> int:
    """Ask for an update and follow it; returns the exit code."""
    try:
        number, text = _ask(job, order)
    except KeyboardInterrupt:
        _say(f"whether it was accepted is not known: 'srobust releases {job.job_id}' shows the update if so")
        return ExitCode.INTERRUPTED
    answer = _answer(job, order, number, text, UpdatePhase.ASKED)
    lines = (one_line(text), *(f"  {one_line(change)}" for change in order.changes))
    accepted = Group(*(Wrapped(line, "    ") for line in lines))
    if not wait:
        show(answer, lambda _: accepted, json=json)
        return ExitCode.SUCCESS
    if not json:
        show(answer, lambda _: accepted, json=False)
    try:
        known = _follow(job, number)
    except KeyboardInterrupt:
        _say(
            f"update {number} stays in force: 'srobust releases {job.job_id}' shows it, "
            f"'srobust rollback {job.job_id} --withdraw' withdraws it while it waits"
        )
        return ExitCode.INTERRUPTED
    told = "\n".join(screen.outcome(known, str(job.job_id), job.judging())).split("\n")
    outcome = Group(*(Wrapped(line, "    ") for line in told))
    show(_completed(answer, known), lambda _: outcome, json=json)
    return NOT_DONE if known.is_over else ExitCode.SUCCESS


def _answer(job: OwnJob, order: UpdateJob, number: int, text: str, phase: UpdatePhase) -> UpdateAnswer:
    return UpdateAnswer(
        job_id=job.job_id,
        update=number,
        release=order.release,
        before=job.running.name,
        phase=phase,
        when=order.when,
        text=text,
        changes=order.changes,
    )


def _ask(job: OwnJob, order: UpdateJob) -> tuple[int, str]:
    """Return the number of the update and what the controller said. Raises ``SrobustError``.

    It is asked again while it is silent: the next controller, or one that takes over, may be starting. The
    token lets it recognise a request that it has.
    """
    until = time.monotonic() + SILENT_S
    with Screen(stderr=True).status("asking the controller") as status:
        while True:
            epoch = newest_epoch(job.directory.epochs) or job.live.epoch
            answer = ask(epoch.endpoints, load_client(job.directory.keys), order, timeout_s=ANSWER_S)
            if isinstance(answer, UpdateReply):
                break
            if answer is not None:
                raise job.live.failed(answer)
            if (found := request_of(load_events(job.directory, quiet=True), order.token)) is not None:
                return found.update, f"update {found.update}: the journal shows it"
            trouble = unanswered(job.job_id, epoch, job.live.slurm)
            if time.monotonic() > until or not _may_answer(job):
                raise SrobustError(
                    f"{trouble}. Nothing was changed: the journal shows no request",
                    fix=trouble.fix,
                    code=trouble.exit_code,
                )
            status.update(f"the controller ({epoch.host}) does not answer; asking again")
    if not answer.ok:
        raise CannotUpdate(one_line(answer.text), fix=answer.fix or "'srobust status' shows what runs")
    return answer.update, answer.text


def _may_answer(job: OwnJob) -> bool:
    """Return whether the job's run goes on, as far as Slurm says."""
    view = ask_slurm(job.live.slurm, job.job_id)
    return view.job.is_running if view.job is not None else not view.is_over


def _prune(job: OwnJob, asked: Collection[str]) -> None:
    """Remove old releases, also such that were taken and not asked for; that it fails harms nothing.

    ``asked``: what was asked for. The journal may not show it yet, and it need not be the newest: the same
    code may have been taken long ago.
    """
    with suppress(OSError, SrobustError):
        job.store.prune(job.configuration.updates.keep, needed(job.live.read()).union(asked))


def needed(state: JobState) -> frozenset[str]:
    """Return the releases that are never removed: what runs, is good, waits, or may come back."""
    candidate, waiting = state.candidate, state.update
    names = (
        state.release,
        state.last_good,
        candidate.before if candidate is not None else "",
        waiting.release if waiting is not None else "",
    )
    return frozenset(filter(None, names))


def _follow(job: OwnJob, number: int) -> UpdateProgress:
    """Follow an update until there is no more to wait for."""
    follower = UpdateFollower(job.directory, number)
    asked, told = (starting := time.monotonic()), ""
    with Screen(stderr=True).status(f"update {number}") as status:
        while True:
            with suppress(OSError):  # storage may answer next time
                follower.look()
            known = follower.progress
            if known.phase is not UpdatePhase.STARTING or known.has_stepped:
                starting = time.monotonic()
            if known.is_done or time.monotonic() - starting > STEPLESS_S:
                return known
            doing = follower.doing() if known.phase is UpdatePhase.TRYING else ""
            status.update(screen.line(known, doing))
            if time.monotonic() - asked > SLURM_S:
                asked = time.monotonic()
                if (blocked := _blocked(job)) not in ("", told):
                    told = blocked
                    _say(f"update {number} waits: {blocked}; free space under {job.directory.path}")
                view = ask_slurm(job.live.slurm, job.job_id)
                if view.is_over:
                    return structs.replace(known, end=f"Slurm says {view.describe()}")
            time.sleep(POLL_S)


def _blocked(job: OwnJob) -> str:
    """Return why the controller can do nothing now, "" if it can, or does not say."""
    epoch = newest_epoch(job.directory.epochs) or job.live.epoch
    pong = ask(epoch.endpoints, load_client(job.directory.keys), Ping(), timeout_s=ANSWER_S)
    return one_line(pong.blocked) if isinstance(pong, Pong) else ""


def _completed(answer: UpdateAnswer, known: UpdateProgress) -> UpdateAnswer:
    answer = structs.replace(answer, phase=known.phase, reason=known.reason)
    if (row := known.row) is None:
        return answer
    return structs.replace(
        answer,
        deadline=row.deadline,
        node=row.node,
        traceback=row.traceback,
        untried=row.untried,
        step=row.first_step if row.reported else None,
        applied_s=row.stopped_s,
        repeated=known.repeated,
        undone=known.undone,
        recovery=row.applied is not None and row.stopped is None,
    )
