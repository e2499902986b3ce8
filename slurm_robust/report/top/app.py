"""The screen of ``srobust top``, by Textual. Only rows that are seen are rendered; nothing moves by itself.

Jobs are looked at in a thread of our own, a daemon: storage that hangs holds up neither the keys nor the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from msgspec import structs
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.geometry import Size
from textual.message import Message
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from slurm_robust.model.live_status import LiveNode, LiveStatus
from slurm_robust.report.top import screen as text
from slurm_robust.report.top.feed import TAIL_LINES, JobFeed, LiveView
from slurm_robust.report.top.screen import STYLES, Columns, Line, NodeOrder, plain
from slurm_robust.util.files import read_tail
from slurm_robust.util.threads import start_thread

EVERY_S = 2.0
"""Between two looks at the jobs."""

SLOW_S = 6.0
"""Storage that takes longer for a look is reported."""

FOOT = 3

MIN_MORE = 6
"""Free lines below the nodes that are worth filling."""

_STYLES = {name: Style.parse(style or "none") for name, style in STYLES.items()}
_SELECTED = Style(reverse=True)


def strip(line: Line, width: int, style: Style | None = None) -> Strip:
    """Return a line on the screen. What a view has missed is cleaned here."""
    segments = [
        Segment(plain(piece), _STYLES[name] + (style or _STYLES[""])) for piece, name in line if piece
    ]
    return Strip(segments).adjust_cell_length(width, style)


class Lines(Widget):
    """A few lines, from the top; its height follows them unless it is fixed."""

    DEFAULT_CSS = "Lines { height: auto; width: 100%; }"

    def __init__(self, *, id: str, most: int = 16, fixed: int = 0) -> None:
        super().__init__(id=id)
        self._most, self._fixed = most, fixed
        self._lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line]) -> None:
        """Show these from now on."""
        lines = tuple(lines)[: self._most]
        if lines != self._lines:
            changes = len(lines) != len(self._lines)
            self._lines = lines
            self.refresh(layout=changes and not self._fixed)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return as many as there are lines."""
        return self._fixed or len(self._lines)

    def render_line(self, y: int) -> Strip:
        """Return the line ``y``."""
        width = self.size.width
        return strip(self._lines[y], width) if y < len(self._lines) else Strip.blank(width)


class Rows(ScrollView, can_focus=True):
    """Rows of which one may be selected. A row is made when it is seen."""

    DEFAULT_CSS = "Rows { height: 1fr; width: 100%; scrollbar-size-vertical: 1; overflow-x: hidden; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("pagedown,ctrl+f,space", "page(1)", show=False),
        Binding("home,g", "end(-1)", show=False),
        Binding("end,G", "end(1)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Moved(Message):
        """Another row is selected."""

    class Opened(Message):
        """The user opens the selected row."""

    def __init__(self, *, id: str, selects: bool = True) -> None:
        super().__init__(id=id)
        self._selects = selects
        self._count = 0
        self._make: Callable[[int], Line] = lambda index: ()
        self.cursor = 0

    def show(self, count: int, make: Callable[[int], Line], cursor: int | None = None) -> None:
        """Show ``count`` rows, of which ``make`` makes one by its number."""
        self._count, self._make = count, make
        self.cursor = max(0, min(self.cursor if cursor is None else cursor, count - 1))
        size = Size(self.size.width, count)
        if self.virtual_size != size:
            self.virtual_size = size
        self._follow()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return the row that is seen in line ``y``."""
        index, width = y + self.scroll_offset.y, self.size.width
        if index >= self._count:
            return Strip.blank(width)
        selected = self._selects and index == self.cursor
        return strip(self._make(index), width, _SELECTED if selected else None)

    def action_move(self, by: int) -> None:
        """Select the row ``by`` further down."""
        if not self._selects:
            self.scroll_relative(y=by, animate=False)
        elif (cursor := max(0, min(self.cursor + by, self._count - 1))) != self.cursor:
            self.cursor = cursor
            self._follow()
            self.refresh()
            self.post_message(self.Moved())

    def action_page(self, by: int) -> None:
        """Select the row a page further down."""
        self.action_move(by * max(1, self.size.height - 1))

    def action_end(self, to: int) -> None:
        """Select the first row or the last."""
        self.action_move(to * max(1, self._count))

    def action_open(self) -> None:
        """Open the selected row."""
        self.post_message(self.Opened())

    def on_resize(self, event: events.Resize) -> None:
        """Fit another size of the window."""
        self.virtual_size = Size(self.size.width, self._count)
        self._follow()

    def _follow(self) -> None:
        """Have the selected row seen."""
        top, height = self.scroll_offset.y, self.size.height
        if self._selects and height and not top <= self.cursor < top + height:
            self.scroll_to(y=self.cursor if self.cursor < top else self.cursor - height + 1, animate=False)


class Page(Screen[None]):
    """What all screens have: the line of keys, and the way back."""

    DEFAULT_CSS = "Page { layout: vertical; background: ansi_default; color: ansi_default; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c,ctrl+q", "app.quit", show=False),
        Binding("question_mark,h,f1", "help", show=False),
        Binding("escape,backspace", "back", show=False),
    ]

    KEYS = "q quit  Esc back"

    @property
    def top(self) -> Top:
        """The app."""
        assert isinstance(self.app, Top)
        return self.app

    def keys(self) -> str:
        """Return the line of keys."""
        return self.KEYS

    def redraw(self) -> None:
        """Show what is known now, unless the screen is still being built, or taken down already."""
        try:
            self.draw()
        except NoMatches:
            pass  # of a part that is not there

    def draw(self) -> None:
        """Show what is known now."""
        self.query_one("#keys", Lines).show([((f" {self.keys()}", "label"),)])

    def on_mount(self) -> None:
        """Show what is known, and take the keys."""
        self.query_one(Rows).focus()
        self.draw()

    def on_resize(self, event: events.Resize) -> None:
        """Fit another size of the window."""
        self.redraw()

    def action_back(self) -> None:
        """Leave this screen, unless it is the first."""
        if self is not self.top.page:
            self.app.pop_screen()

    def action_help(self) -> None:
        """Show the keys and the columns."""
        self.app.push_screen(TextPage("help", lambda width: list(text.HELP)))


class TextPage(Page):
    """A text to be read and scrolled."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,h,f1,i", "back", show=False)]

    KEYS = "q quit  Esc back  arrows scroll"

    def __init__(self, title: str, make: Callable[[int], Sequence[Line]]) -> None:
        super().__init__()
        self._heading, self._make = title, make

    def compose(self) -> ComposeResult:
        """Lay out a title, the text, the keys."""
        yield Lines(id="title", fixed=1)
        yield Rows(id="text", selects=False)
        yield Lines(id="keys", fixed=1)

    def draw(self) -> None:
        """Show the text."""
        super().draw()
        lines = self._make(self.size.width - 1)
        self.query_one("#title", Lines).show([((f"srobust top: {self._heading}", "strong"),)])
        self.query_one("#text", Rows).show(len(lines), lines.__getitem__)


class JobPage(Page):
    """One job, with its nodes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", show=False),
        Binding("w", "wrong", show=False),
        Binding("i", "incidents", show=False),
        Binding("slash", "filter", show=False),
    ]

    DEFAULT_CSS = "#filter { height: 1; border: none; padding: 0 1; display: none; }"

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self._order, self._wrong, self._filter = NodeOrder.SLOT, False, ""
        self._rows: list[LiveNode] = []
        """The node of each line: one that has a text below it stands there more than once."""

    def compose(self) -> ComposeResult:
        """Lay out the job, its nodes, the selected one, the keys."""
        yield Lines(id="head")
        yield Lines(id="heads", fixed=1)
        yield Rows(id="nodes")
        yield Lines(id="more", most=80)
        yield Lines(id="foot", fixed=FOOT)
        yield Input(id="filter", placeholder="only nodes with …", compact=True)
        yield Lines(id="keys", fixed=1)

    def keys(self) -> str:
        """Return the line of keys, with what is switched on."""
        shown = "wrong" if self._wrong else "all"
        text = f"q quit  s sort: {self._order.value}  w show: {shown}  i incidents  / filter"
        text += f": {self._filter}  ? help" if self._filter else "  ? help"
        return text + ("  Esc jobs" if len(self.top.names) > 1 else "")

    def draw(self) -> None:
        """Show the newest view of the job."""
        super().draw()
        view, width = self.top.views.get(self.number), self.size.width
        trouble = self.top.trouble()
        if view is None:
            self.query_one("#head", Lines).show([((trouble or "looking at the job", "warn"),)])
            return
        moment = view.moment
        rows = self.query_one("#nodes", Rows)
        # Asked now: the message of a key that was just pressed may still be on its way.
        selected = self._selected(rows)
        columns = Columns(moment.nodes, width - 1)  # of which the scroll bar takes one
        head = text.head(view, width, trouble)
        self.query_one("#head", Lines).show(head)
        if (instead := text.instead_of_nodes(view, width - 1)) is not None:
            rest = structs.replace(view, incidents=())  # which stand above
            self._rows, lines = [], [*instead, *text.more(rest, width - 1, self.size.height)]
            title = "what Slurm has for it, and its incidents" if view.waiting is not None else "incidents"
            self.query_one("#heads", Lines).show([((text.fit(title, width), "heads"),)])
            rows.show(len(lines), lines.__getitem__)
            self.query_one("#more", Lines).show([])
            self.query_one("#foot", Lines).show([])
            return
        found = text.arranged(text.matching(moment.nodes, self._filter), self._order, wrong=self._wrong)
        entries = [(node, part) for node in found for part in range(1 + len(columns.below(node)))]
        self._rows = [node for node, _ in entries]
        places = {node.node: place for place, (node, part) in enumerate(entries) if not part}
        self.query_one("#heads", Lines).show([columns.heads()])
        if entries:
            place = places.get(selected.node) if selected is not None else None

            def line(index: int) -> Line:
                node, part = entries[index]
                return columns.below(node)[part - 1] if part else columns.row(node)

            rows.show(len(entries), line, place)
        else:
            empty = "nothing is wrong with any node" if self._wrong else "no node is known"
            empty = f"no node has {self._filter!r}" if self._filter else empty
            rows.show(1, lambda index: ((f"      {empty}", "label"),))
        room = self.size.height - len(head) - 2 - FOOT - max(1, len(entries))
        self.query_one("#more", Lines).show(text.more(view, width, room) if room >= MIN_MORE else [])
        self._show_foot(view)

    def _show_foot(self, view: LiveView) -> None:
        node = self._selected(self.query_one("#nodes", Rows))
        self.query_one("#foot", Lines).show(text.foot(node, view.moment, self.size.width, FOOT))

    def _selected(self, rows: Rows) -> LiveNode | None:
        return self._rows[rows.cursor] if rows.cursor < len(self._rows) else None

    def on_rows_moved(self, message: Rows.Moved) -> None:
        """Show the node that is selected now."""
        if (view := self.top.views.get(self.number)) is not None:
            self._show_foot(view)

    def on_rows_opened(self, message: Rows.Opened) -> None:
        """Show all about the selected node."""
        node = self._selected(self.query_one("#nodes", Rows))
        view = self.top.views.get(self.number)
        if node is None or view is None:
            return
        tail = self.top.tail(self.number, node, view.moment)
        self.app.push_screen(
            TextPage(f"node {node.node}", lambda width: text.node_lines(node, view.moment, tail, width))
        )

    def action_filter(self) -> None:
        """Ask what nodes shall have."""
        field = self.query_one("#filter", Input)
        field.styles.display = "block"
        field.focus()

    def on_input_changed(self, message: Input.Changed) -> None:
        """Show the nodes that have what was typed so far."""
        self._filter = message.value.strip()
        self.draw()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        """Keep the filter."""
        self._leave_filter()

    def action_back(self) -> None:
        """End the filter, else leave this screen."""
        field = self.query_one("#filter", Input)
        if self._filter or field.has_focus:
            field.value = self._filter = ""
            self._leave_filter()
        else:
            super().action_back()

    def _leave_filter(self) -> None:
        self.query_one("#filter", Input).styles.display = "none"
        self.query_one("#nodes", Rows).focus()
        self.draw()

    def action_sort(self) -> None:
        """Sort by what comes next."""
        self._order = self._order.next
        self.draw()

    def action_wrong(self) -> None:
        """Show only what is wrong, or all."""
        self._wrong = not self._wrong
        self.draw()

    def action_incidents(self) -> None:
        """Show the job's incidents."""
        if (view := self.top.views.get(self.number)) is not None:
            title = f"incidents of job {view.moment.job_id}"
            self.app.push_screen(TextPage(title, lambda width: text.incident_lines(view.incidents, width)))


class JobsPage(Page):
    """Several jobs."""

    KEYS = "q quit  Enter open  ? help"

    def compose(self) -> ComposeResult:
        """Lay out a title, the jobs, the keys."""
        yield Lines(id="title", fixed=1)
        yield Lines(id="heads", fixed=1)
        yield Rows(id="jobs")
        yield Lines(id="keys", fixed=1)

    def draw(self) -> None:
        """Show the newest views."""
        super().draw()
        views, width = self.top.views, self.size.width - 1
        title = f"srobust top: {len(self.top.names)} jobs"
        if trouble := self.top.trouble():
            title += f"; {trouble}"
        self.query_one("#title", Lines).show([((title, "strong"),)])
        self.query_one("#heads", Lines).show([text.job_heads(width)])
        names = self.top.names

        def row(index: int) -> Line:
            view = views.get(index)
            return (
                text.job_row(view, width) if view is not None else ((text.fit(names[index], width), "label"),)
            )

        self.query_one("#jobs", Rows).show(len(names), row)

    def on_rows_opened(self, message: Rows.Opened) -> None:
        """Open the selected job."""
        self.app.push_screen(JobPage(self.query_one("#jobs", Rows).cursor))


class Looker:
    """Looks at the jobs again and again, in a thread; tells what it sees, job by job."""

    def __init__(
        self, feeds: Sequence[JobFeed], tell: Callable[[int, LiveView], None], every_s: float
    ) -> None:
        self._feeds, self._tell, self._every_s = feeds, tell, every_s
        self._ended = threading.Event()
        self.begun: float | None = None
        """When the look began that is under way, by the monotonic clock."""

    def start(self) -> None:
        """Begin."""
        start_thread("top", self._serve)

    def stop(self) -> None:
        """Look no more; what is under way is not waited for."""
        self._ended.set()

    def _serve(self) -> None:
        while not self._ended.is_set():
            begun, behind = time.monotonic(), False
            for number, feed in enumerate(self._feeds):
                self.begun = time.monotonic()
                view = feed.look()
                self.begun = None
                behind |= feed.is_behind
                if self._ended.is_set():
                    return
                self._tell(number, view)
            if not behind:
                # Many jobs, or slow storage: no more than a tenth of the time.
                self._ended.wait(max(self._every_s, 9 * (time.monotonic() - begun)))


class Top(App[None]):
    """``srobust top``."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, Page { background: ansi_default; color: ansi_default; }
    Rows { scrollbar-color: ansi_default; scrollbar-background: ansi_default; }
    """

    class Seen(Message):
        """A job was looked at."""

        def __init__(self, number: int, view: LiveView) -> None:
            super().__init__()
            self.number, self.view = number, view

    def __init__(self, feeds: Sequence[JobFeed], every_s: float = EVERY_S) -> None:
        # Colors of the terminal, whose background may be light; with NO_COLOR, Textual takes them away.
        super().__init__(ansi_color=True)
        self.names: tuple[str, ...] = tuple(feed.directory.path.name for feed in feeds)
        self._directories = [feed.directory for feed in feeds]
        self._views: dict[int, LiveView] = {}
        self._every_s = every_s
        self._looker = Looker(feeds, lambda number, view: self._tell(number, view), every_s)
        self.page: Page = JobsPage() if len(feeds) > 1 else JobPage(0)
        """The first, to which all others come back."""

    @property
    def views(self) -> Mapping[int, LiveView]:
        """The newest view of each job, by its place in :attr:`names`."""
        return self._views

    def on_mount(self) -> None:
        """Begin to look."""
        self.push_screen(self.page)
        self._looker.start()
        self.set_interval(SLOW_S / 2, self._watch)

    def on_unmount(self) -> None:
        """Stop looking."""
        self._looker.stop()

    def tail(self, number: int, node: LiveNode, moment: LiveStatus) -> tuple[str, ...]:
        """Return the last lines of a node's first rank: of its errors if it wrote any, else of its output."""
        ranks = text.ranks_of(node, moment)
        log = self._directories[number].worker_log
        try:
            paths = tuple(log(moment.generation, ranks[0], stream) for stream in ("err", "out") if ranks)
            return read_tail(paths, TAIL_LINES)
        except OSError:
            return ()

    def trouble(self) -> str:
        """Return why what is shown may be old; "" for no reason."""
        begun = self._looker.begun
        waited_s = time.monotonic() - begun if begun is not None else 0.0
        return f"storage has not answered for {waited_s:.0f} s" if waited_s > SLOW_S else ""

    def _tell(self, number: int, view: LiveView) -> None:
        """Pass a view on, from the thread that looks."""
        self.post_message(self.Seen(number, view))

    def on_top_seen(self, message: Seen) -> None:
        """Show a job that was looked at."""
        self._views[message.number] = message.view
        for shown in self.screen_stack[-1:]:  # none, while the app ends
            if isinstance(shown, JobsPage) or (isinstance(shown, JobPage) and shown.number == message.number):
                shown.redraw()

    def _watch(self) -> None:
        """Show that storage hangs."""
        for shown in self.screen_stack[-1:]:
            if self.trouble() and isinstance(shown, Page):
                shown.redraw()
