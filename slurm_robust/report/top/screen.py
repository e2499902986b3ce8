"""The lines of ``srobust top``, for a width: pure, and without a library for terminals.

A line is made of pieces, each a text and the name of its style. No style is needed to understand a line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TypeAlias

from rich.cells import cell_len, set_cell_size

from slurm_robust.evidence.incident_text import IncidentRow
from slurm_robust.evidence.incidents import IncidentStatus
from slurm_robust.evidence.updates import release_text, waiting_text
from slurm_robust.model.live_status import LiveNode, LiveStatus, NodeState
from slurm_robust.model.release import ReleaseState
from slurm_robust.report.situation import WORKING, JobSize, Tone, none_left_text, state_text, tone_of
from slurm_robust.report.top.feed import LiveView
from slurm_robust.util.hostlist import fold as fold_nodes
from slurm_robust.util.text import count, date_and_time, duration, one_line

Piece: TypeAlias = tuple[str, str]
"""A text, and one of :data:`STYLES` or ""."""

Line: TypeAlias = tuple[Piece, ...]

STYLES = {
    "": "",
    "label": "dim",
    "strong": "bold",
    "good": "green",
    "doing": "cyan",
    "warn": "yellow",
    "bad": "bold red",
    "heads": "bold underline",
}
"""Names of styles, as rich and its colors of 16 have them."""

MAX_TEXT = 600
"""Characters of one text."""

_LABEL = 9
_MAX_WRAPPED = 2
_NODE_STYLES = {
    NodeState.TRAINING: "good",
    NodeState.STANDBY: "doing",
    NodeState.SILENT: "warn",
    NodeState.DEAD: "bad",
    NodeState.ASIDE: "warn",
    NodeState.EVICTED: "bad",
}
_TONE_STYLES = {Tone.GOOD: "good", Tone.WARNING: "warn", Tone.BAD: "bad", Tone.PLAIN: ""}


# -- pieces ----------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Return ``text`` in one line of :data:`MAX_TEXT` characters or less, without what a terminal obeys."""
    text = text[:MAX_TEXT]
    return text if text.isprintable() else one_line(text)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Return ``text`` in exactly ``width`` columns; ``…`` marks a cut."""
    text = plain(text)
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 1)) + "…"[:width]
    gap = " " * (width - cell_len(text))
    return gap + text if right else text + gap


def wrapped(text: str, width: int, most: int = _MAX_WRAPPED) -> list[str]:
    """Return ``text`` in up to ``most`` lines of ``width`` columns, cut at spaces if there are some."""
    lines, words = [""], plain(text).split(" ")
    while words:
        word = words.pop(0)
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        elif len(lines) < most:
            lines.append(word)
        else:
            lines[-1] = " ".join((longer, *words))
            break
    return [fit(line, width).rstrip() for line in lines]


def age(seconds: float | None) -> str:
    """Return ``0.4``, ``12``, ``5m``, ``3h``, ``4d``: in up to four columns; ``-`` for what is not known."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f}"
    for limit, unit, each in ((600, "", 1), (6000, "m", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / each:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def _step(step: int) -> str:
    return f"{step:,}" if step >= 0 else "-"


def _percent(value: float | None) -> str:
    return f"{value:.1%}" if value is not None else "-"


# -- the head of one job ---------------------------------------------------------------------------


def head(view: LiveView, width: int, trouble: str = "") -> list[Line]:
    """Return all about the job as a whole.

    ``trouble``: of the reader, such as storage that does not answer.
    """
    moment = view.moment
    ettr = "-"
    if moment.ettr is not None:
        ettr = f"{_percent(moment.ettr)}, of the last hour {_percent(moment.ettr_hour)}"
    if moment.left_s is not None:
        ettr += f"; time left: {duration(moment.left_s) if moment.left_s > 0 else 'nothing'}"
    lines = [_title(view, width), _training(moment), ((fit("ETTR", _LABEL) + " ", "label"), (ettr, ""))]

    lines += _situation(view, width)
    lines += _release(moment, width)
    tiers = (
        f"{tier.tier.value} {_step(tier.step)}"
        + (f" ({duration(tier.age_s)} ago)" if tier.age_s is not None else "")
        for tier in moment.tiers
    )
    restored = f"; restored {_step(moment.restored_step)}" if moment.restored_step >= 0 else ""
    lines += _labelled("copies", (", ".join(tiers) or "none yet") + restored, width, "")
    if instead_of_nodes(view, width) is None:
        lines += _labelled("nodes", _nodes(view), width, "")

    source = "" if view.live else view.source
    if not view.live:
        if moment.nodes and view.source != "the controller has ended":
            source += "; states of nodes are what the journal says"
        if view.age_s:
            source += f"; its newest event is {duration(view.age_s)} old"
        source += f"; Slurm: {view.slurm}" if view.slurm and view.waiting is None else ""
    for text in filter(None, (trouble, source, view.trouble)):
        lines += _labelled("note", text, width, "warn")
    return lines


def _labelled(label: str, text: str, width: int, style: str) -> list[Line]:
    rows = wrapped(text, width - _LABEL - 1)
    return [
        ((fit(label if not number else "", _LABEL) + " ", "label"), (row, style))
        for number, row in enumerate(rows)
    ]


def _title(view: LiveView, width: int) -> Line:
    moment = view.moment
    name = f"job {moment.job_id}" if moment.job_id else view.folder
    state = plain(state_text(view.state, moment.code))
    fresh = f"live, {age(view.age_s)} s ago" if view.age_s < 9.95 else f"live, {age(view.age_s)} ago"
    right = fresh if view.live else "by the journal alone"
    more = f"generation {moment.generation}, run {moment.run}"
    if moment.host:
        more += f", controller {moment.epoch} on {moment.host}"
    if moment.mode == "observe":
        more += ", observe mode"
    room = max(0, width - cell_len(plain(name)) - cell_len(state) - cell_len(right) - 6)
    return (
        (plain(name), "strong"),
        ("  ", ""),
        (state, _TONE_STYLES[tone_of(view.state)]),
        ("  ", ""),
        (fit(more, room), ""),
        ("  ", ""),
        (right, "good" if view.live else "warn"),
    )


def _training(moment: LiveStatus) -> Line:
    parts = [f"step {_step(moment.step)}"]
    if not moment.reports and moment.step >= 0:
        parts = [f"{moment.step + 1:,} optimizer steps of this generation"]
    if moment.step_age_s is not None:
        parts[0] += f", {duration(moment.step_age_s)} ago"
    if moment.step_s is not None or moment.usual_step_s is not None:
        usual = f" (p50 {moment.usual_step_s:.3g})" if moment.usual_step_s is not None else ""
        now = f"{moment.step_s:.3g}" if moment.step_s is not None else "-"
        parts.append(f"{now} s/step{usual}")
    line: list[Piece] = [(fit("training", _LABEL) + " ", "label"), (", ".join(parts), "")]
    if moment.non_finite:
        line.append((", loss NaN or infinite", "bad"))
    elif moment.loss is not None:
        line.append((f", loss {moment.loss:.4g}", ""))
    if moment.grad_norm is not None:
        line.append((f", grad {moment.grad_norm:.3g}", ""))
    return tuple(line)


def _situation(view: LiveView, width: int) -> list[Line]:
    """Return what is wrong, what is done about it, and what a person can do."""
    found, moment = view.situation, view.moment
    style = "bad" if found.grave else "warn"
    lines: list[Line] = []
    for text in found.wrong:
        lines += _labelled("" if lines else "wrong", text, width, style)
    if not lines:
        past = f"; {count(moment.closed, 'incident')} over" if moment.closed else ""
        lines = _labelled("wrong", f"nothing{past}", width, "")
    lines += _labelled("doing", found.doing, width, "doing") if found.doing else []
    if (advice := found.advice) is not None:
        lines += _labelled("next", advice.text, width, "")
        rows = wrapped(advice.command, width - _LABEL - 3, 6) if advice.command else []
        more = [f"{row} \\" for row in rows[:-1]] + rows[-1:]  # as a shell takes it
        lines += [((" " * (_LABEL + 1), "label"), (row, "strong")) for row in more]
    return lines


def _release(moment: LiveStatus, width: int) -> list[Line]:
    """Return the release of a job that was ever updated, and the update that waits."""
    if moment.release is None or not moment.updates:
        return []
    is_candidate = moment.release.state == ReleaseState.CANDIDATE.value
    lines = _labelled("release", release_text(moment.release), width, "doing" if is_candidate else "")
    if moment.update is not None:
        lines += _labelled("update", waiting_text(moment.update), width, "doing")
    return lines


def _nodes(view: LiveView) -> str:
    """Return ``1,200 with slots: 1,199 training, 1 silent; 2 standbys: 1 rehearsed; 1 evicted``."""
    moment = view.moment
    slots = Counter(node.state.value for node in moment.nodes if node.slot >= 0)
    text = f"{sum(slots.values()):,}"
    if slots:
        text += f": {_counts(slots)}"
    standbys = [n for n in moment.nodes if n.slot < 0 and n.state is not NodeState.EVICTED]
    # How far each is, without the reason.
    how = Counter(
        n.why.partition(":")[0] if n.state is NodeState.STANDBY and n.why else n.state.value for n in standbys
    )
    if standbys:
        text += f"; standbys: {_counts(how)}"
    elif view.live and slots and not moment.companions:
        text += f"; {none_left_text(moment.lost_node)}"
    else:
        text += "; no standby"
    evicted = sum(node.state is NodeState.EVICTED for node in moment.nodes)
    if evicted:
        text += f"; {evicted} evicted"
    if alerted := sum(bool(node.alerts) for node in moment.nodes):
        text += f"; {alerted} with alerts"
    for companion in moment.companions:
        where = f"lends {companion.node}" if companion.node else f"waits for a node from {companion.source}"
        text += f"; companion {companion.job_id} {where}"
    now = JobSize(ranks=moment.world, standbys=len(standbys))
    return (
        text if view.began in (None, now) or not view.live else f"{text}; now {now}, began with {view.began}"
    )


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common())


# -- the table of nodes ----------------------------------------------------------------------------


class NodeOrder(str, Enum):
    """What nodes are sorted by."""

    SLOT = "slot"
    WRONG = "wrong first"
    STEP = "step"
    AGE = "age of step"
    PACE = "s/step"
    NAME = "name"

    @property
    def next(self) -> NodeOrder:
        """The one after it; the first after the last."""
        orders = tuple(NodeOrder)
        return orders[(orders.index(self) + 1) % len(orders)]


def _slot(node: LiveNode) -> int:
    return node.slot if node.slot >= 0 else 1 << 40


_KEYS: dict[NodeOrder, Callable[[LiveNode], tuple[object, ...]]] = {
    NodeOrder.SLOT: lambda n: (_slot(n),),
    NodeOrder.WRONG: lambda n: (not n.is_wrong, _slot(n)),
    NodeOrder.STEP: lambda n: (n.slot < 0, n.step, _slot(n)),
    NodeOrder.AGE: lambda n: (n.step_age_s is None, -(n.step_age_s or 0.0), _slot(n)),
    NodeOrder.PACE: lambda n: (n.step_s is None, -(n.step_s or 0.0), _slot(n)),
    NodeOrder.NAME: lambda n: (n.node,),
}


def arranged(nodes: Sequence[LiveNode], order: NodeOrder, *, wrong: bool) -> list[LiveNode]:
    """Return ``nodes`` in ``order``; ``wrong``: only those that a person should look at."""
    return sorted((node for node in nodes if node.is_wrong or not wrong), key=_KEYS[order])


class Columns:
    """Which columns of the table of nodes there is room for."""

    def __init__(self, nodes: Sequence[LiveNode], width: int) -> None:
        longest = max((cell_len(plain(n.node)) for n in nodes), default=4)
        self._name = min(max(longest, 6), 16 if width < 100 else 28)
        self._width = width
        self._extra = [
            (title, attribute)
            for title, attribute, least in (("peer", "peer_step", 104), ("disk", "local_step", 116))
            if width >= least
        ]
        self._is_wide = width >= 100  # else the line of the job says how fresh nodes are, and their copies

    def heads(self) -> Line:
        """Return the line above the table."""
        cells = [fit("slot", 5, right=True), fit("node", self._name), fit("state", 9)]
        cells += [fit(title, 9, right=True) for title in ("step",)]
        cells += [fit("age", 4, right=True), fit("s/step", 6, right=True)]
        if self._is_wide:
            cells += [fit("heard", 5, right=True), fit("memory", 9, right=True)]
        cells += [fit(title, 9, right=True) for title, _ in self._extra]
        return ((fit(" ".join((*cells, "what it does, what is wrong")), self._width), "heads"),)

    def row(self, node: LiveNode) -> Line:
        """Return one node."""
        slot = str(node.slot) if node.slot >= 0 else "-"
        style = _NODE_STYLES.get(node.state, "doing")
        figures = [
            fit(_step(node.step), 9, right=True),
            fit(age(node.step_age_s), 4, right=True),
            fit(f"{node.step_s:.3g}" if node.step_s is not None else "-", 6, right=True),
            *([fit(age(node.heard_s), 5, right=True)] if self._is_wide else ()),
            *([fit(_step(node.memory_step), 9, right=True)] if self._is_wide else ()),
            *(fit(_step(getattr(node, attribute)), 9, right=True) for _, attribute in self._extra),
        ]
        before = f"{fit(slot, 5, right=True)} {fit(node.node, self._name)} "
        after = f" {' '.join(figures)} "
        text = "; ".join(told(node))
        room = max(0, self._width - cell_len(before) - 9 - cell_len(after))
        if node.is_wrong and cell_len(plain(text)) > room:
            text = ""  # it stands below
        return (
            (before, "strong" if node.is_wrong else ""),
            (fit(node.state.value, 9), style),
            (after, ""),
            (fit(text, room), "bad" if node.is_wrong else ""),
        )

    def below(self, node: LiveNode) -> list[Line]:
        """Return what a node with which something is wrong has to say, if its row has no room for it."""
        text = "; ".join(told(node))
        used = cell_len("".join(piece for piece, _ in self.row(node)[:3]))
        if not node.is_wrong or cell_len(plain(text)) <= self._width - used:
            return []
        return [((f"        {row}", "bad"),) for row in wrapped(text, self._width - 8, 3)]


def told(node: LiveNode) -> Iterator[str]:
    """Yield what there is to say of a node, the most important first."""
    if node.failed:
        yield f"{count(node.failed, 'worker')} failed"
    yield from filter(None, (*node.alerts, node.why, node.phase))


def matching(nodes: Sequence[LiveNode], words: str) -> Sequence[LiveNode]:
    """Return the nodes whose name, state or text has ``words``."""
    if not words:
        return nodes
    return [
        node
        for node in nodes
        if words.lower() in " ".join((node.node, node.state.value, *told(node))).lower()
    ]


def ranks_of(node: LiveNode, moment: LiveStatus) -> range:
    """Return the ranks of a node; none without a slot."""
    slots = sum(each.slot >= 0 for each in moment.nodes)
    each = moment.world // slots if slots and node.slot >= 0 else 0
    return range(node.slot * each, node.slot * each + each)


def node_lines(node: LiveNode, moment: LiveStatus, tail: Sequence[str], width: int) -> list[Line]:
    """Return all about a node: its state, copies and alerts, and the last output of its first rank."""
    lines = [*foot(node, moment, width, 30), ()]
    for label, value in (
        (
            "step",
            _step(node.step) + (f", {duration(node.step_age_s)} ago" if node.step_age_s is not None else ""),
        ),
        ("s/step", f"{node.step_s:.3g}" if node.step_s is not None else ""),
        ("failed", count(node.failed, "worker") if node.failed else ""),
    ):
        lines += _labelled(label, value, width, "") if value else []
    for alert in node.alerts:
        lines += _labelled("alert", alert, width, "bad")
    if ranks := ranks_of(node, moment):
        heading = f"last output of rank {ranks[0]}" if tail else f"rank {ranks[0]} has written nothing"
        lines += [(), ((heading, "strong"),), *(((fit(line, width).rstrip(), ""),) for line in tail)]
    return lines


def foot(node: LiveNode | None, moment: LiveStatus, width: int, lines: int = 3) -> list[Line]:
    """Return all about the selected node."""
    if node is None:
        return [(("no node is selected", "label"),)]
    where = f"slot {node.slot}" if node.slot >= 0 else "no slot"
    if node.slot >= 0 and (slots := sum(each.slot >= 0 for each in moment.nodes)):
        each = moment.world // slots
        where += (
            f", ranks {node.slot * each}-{node.slot * each + each - 1}" if each > 1 else f", rank {node.slot}"
        )
    heard = f"heard {duration(node.heard_s)} ago" if node.heard_s is not None else "not heard"
    held = ", ".join(
        f"{name} {_step(step)}"
        for name, step in (("memory", node.memory_step), ("peer", node.peer_step), ("disk", node.local_step))
        if step >= 0
    )
    first = (
        (plain(node.node), "strong"),
        (f"  {where}: ", ""),
        (node.state.value, _NODE_STYLES.get(node.state, "doing")),
        (f"; {heard}", ""),
    )
    text = "; ".join((*told(node), *((f"copies: {held}",) if held else ())))
    rest = wrapped(text, width - 2, lines - 1) if text else []
    return [first, *((("  " + row, "bad" if node.is_wrong else ""),) for row in rest)]


# -- other screens ---------------------------------------------------------------------------------


MIN_FIGURES = 100
"""Columns of a list of jobs that has room for the pace and the loss beside what is wrong."""


def job_heads(width: int) -> Line:
    """Return the line above the list of jobs."""
    cells = [fit("job", 10), fit("state", 11), fit("nodes", 6, right=True), fit("step", 11, right=True)]
    if width >= MIN_FIGURES:
        cells += [fit("s/step", 6, right=True), fit("loss", 8, right=True)]
    cells.append(fit("ETTR", 6, right=True))
    return ((fit(" ".join((*cells, "what is wrong, what is done")), width), "heads"),)


def job_row(view: LiveView, width: int) -> Line:
    """Return one job."""
    moment, incident = view.moment, view.moment.incident
    figures = [
        fit(f"{sum(node.slot >= 0 for node in moment.nodes):,}", 6, right=True),
        fit(_step(moment.step), 11, right=True),
    ]
    pace = [
        fit(f"{moment.step_s:.3g}" if moment.step_s is not None else "-", 6, right=True),
        fit(
            "NaN" if moment.non_finite else f"{moment.loss:.4g}" if moment.loss is not None else "-",
            8,
            right=True,
        ),
    ]
    figures += [*(pace if width >= MIN_FIGURES else ()), fit(_percent(moment.ettr), 6, right=True)]
    if incident is not None:
        text = f"incident {incident.number}: {incident.actions or incident.sign or incident.symptom}"
    elif view.trouble:
        text = view.trouble
    elif (wrong := sum(node.is_wrong for node in moment.nodes)) and moment.code is None:
        text = f"{count(wrong, 'node')} wrong"
    else:
        text = view.reason
    if not view.live and moment.code is None:
        text = f"not live{': ' + text if text else ''}" + (f" (Slurm: {view.slurm})" if view.slurm else "")
    name = view.folder.rpartition("/")[2] or str(moment.job_id)
    before, after = f"{fit(name, 10)} ", f" {' '.join(figures)} "
    room = max(0, width - cell_len(before) - 11 - cell_len(after))
    return (
        (before, "strong"),
        (fit(view.state, 11), _TONE_STYLES[tone_of(view.state)]),
        (after, ""),
        (fit(text, room), "warn" if incident is not None or not view.live else ""),
    )


def incident_lines(rows: Sequence[IncidentRow], width: int) -> list[Line]:
    """Return the incidents, the newest first, each in a few lines."""
    lines: list[Line] = []
    for row in reversed(rows):
        style = {IncidentStatus.OPEN: "warn", IncidentStatus.ENDED: "bad"}.get(row.status, "good")
        took = f", {duration(row.lost_s)} lost" if row.lost_s is not None else ""
        lines.append(
            (
                (f"{row.number:>4}  {date_and_time(row.t)}  ", "strong"),
                (row.status.value, style),
                (f"  blamed: {plain(row.blamed)}{took}", ""),
            )
        )
        for label, text in (("seen", f"{row.symptom}: {row.signs[0]}"), ("done", row.done or "nothing yet")):
            for number, part in enumerate(wrapped(text, width - 12)):
                lines.append(((f"      {label if not number else '':<4}  ", "label"), (part, "")))
        lines.append(())
    return lines or [(("no incident so far", "label"),)]


_BLOCKS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float], width: int) -> str:
    """Return ``values`` as blocks, the newest on the right; each shows the greatest of its values."""
    if not values:
        return ""
    each = max(1, -(-len(values) // max(1, width)))
    peaks = [max(values[at : at + each]) for at in range(0, len(values), each)]
    least, most = min(peaks), max(peaks)
    scale = (len(_BLOCKS) - 1) / (most - least) if most > least else 0.0
    return "".join(_BLOCKS[round((value - least) * scale)] for value in peaks)


def more(view: LiveView, width: int, height: int) -> list[Line]:
    """Return what a tall screen has room for: curves, the newest incidents, the output of rank 0."""
    lines: list[Line] = [()]
    for label, values in (("loss", view.losses), ("s/step", view.step_times)):
        if len(values) > 1:
            span = f" {min(values):.3g} to {max(values):.3g}, now {values[-1]:.3g}"
            curve = spark(values, width - _LABEL - 2 - len(span))
            lines.append(((fit(label, _LABEL) + " ", "label"), (curve, "doing"), (span, "")))
    for row in reversed(view.incidents[-3:]):
        text = f"incident {row.number}, {date_and_time(row.t)}, {row.status.value}: {row.symptom}: "
        text += row.signs[0] + (f": {row.done}" if row.done else "")
        lines.append(((fit("", _LABEL) + " ", "label"), (fit(text, width - _LABEL - 1).rstrip(), "")))
    tail = view.tail[-max(0, height - len(lines) - 2) :] if height > len(lines) + 2 else ()
    if tail:
        lines += [(), (("output of rank 0", "strong"),)]
        lines += [((fit(line, width).rstrip(), ""),) for line in tail]
    return lines[:height] if len(lines) > 1 else []


def instead_of_nodes(view: LiveView, width: int) -> list[Line] | None:
    """Return what is shown of a job whose nodes are others' now; None for one that has nodes."""
    if view.state in WORKING or view.state in ("saving", "requeueing") or view.live:
        return None
    lines: list[Line] = []
    if view.waiting is not None:
        found = view.waiting.places
        for label, nodes in (
            ("free", found.free),
            ("dead", found.dead),
            ("drained", found.drained),
            ("busy", found.busy),
            ("left out", found.left_out),
        ):
            if nodes:
                lines += _labelled(label, f"{count(len(nodes), 'node')}: {fold_nodes(nodes)}", width, "")
        lines.append(())
    return [*lines, *incident_lines(view.incidents, width)]


HELP: tuple[Line, ...] = tuple(
    ((fit(key, 20), "strong"), (text, ""))
    for key, text in (
        ("arrows, j k", "select a node, or a job"),
        ("PgUp PgDn", "a page up or down; Home, End: the first, the last"),
        ("Enter", "open the selected job or node: ranks, alerts, last output"),
        ("/", "only nodes with what you type; Enter keeps it, Esc ends it"),
        ("Esc", "back"),
        ("s", "sort: slot, wrong first, step, age of step, s/step, name"),
        ("w", "only nodes with which something is wrong, or all"),
        ("i", "incidents"),
        ("q, Ctrl-C", "quit"),
        ("", ""),
        ("age", "since its last rank completed its newest step"),
        ("heard", "since the controller heard the node's agent"),
        ("memory, peer, disk", "newest step of copies: own, of others, on disk"),
        ("", ""),
        ("", "0.4 and 12 are seconds, 5m minutes, 3h hours, 4d days"),
        ("", "'srobust incident JOB N' has the report on an incident"),
    )
)
