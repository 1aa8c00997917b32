"""Lines of a log without what stands around them: ranks, timestamps, levels, boxes, colours (pure).

A log of many megabytes is only searched for telling words; lines are looked at one by one only around a hit.
"""

from __future__ import annotations

import re
from collections import namedtuple

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Frame", "Line", "Log", "Window"]

Line = namedtuple("Line", "rank body start end begin")
Line.__doc__ = """One line: the prefix that names its rank or host (empty without), its own text, where the raw line
starts and ends in the log, and where its own text begins."""

Frame = namedtuple("Frame", "path function code")
Frame.__doc__ = "One level of a traceback: file, function and the code line shown (empty without)."

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\^\[\[[0-9;]*m")
_RANK = re.compile(
    r"\s*(?:\[(?:rank|default|trainer|worker|node|gpu|proc|local_rank)?[ _:]?\d{1,6}\](?::|(?=\s|$))"
    r"|\[\d+,\s*(?:mpirank:)?\d+\]<\w+>:?|\d{1,5}:(?=\s)|\((?:[^()\n]{1,80}\s)?pid=\d+(?:,[^()\n]{1,60})?\)"
    r"|\d{1,3}(?:\.\d{1,3}){3}:\s|(?:rank|Rank|RANK)[ _]?\d+:|[a-z][\w.-]*\d[\w.-]{0,40}:(?=\s)"
    r"|[\w.-]+-\d+\s+\|(?=\s)|\d{1,5}\|(?=\s))",
    re.IGNORECASE,
)
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
_NOISE = re.compile(
    r"\s*(?:\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,:]\d+)?(?:Z|\s?[+-]\d\d:?\d\d)?\]?(?:,(?=\s))?"
    r"|\[?\d\d?/\d\d?/\d{2,4},? \d\d:\d\d:\d\d(?:[.,]\d+)?\]?|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?=\s)"
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d[.\d]*\s+\d+ [^\]\s]+\]"
    rf"|\[[^\]\n]{{0,60}}?{_LEVEL}[^\]\n]{{0,80}}\]|{_LEVEL}(?::[\w.]+:|\s*[-:|])"
    r"|\[[\w./-]+:\d+(?::\w+)?\]|\[Rank -?\d+\]|\[[a-z_][\w]*(?:\.\w+)+\]|[\w.]+(?=\s-\s)|-(?=\s)|>>?(?=\s|$)"
    r"|E(?=\s{3})|(?:stderr|stdout|err|out)\s*[|:]|[\u2502\u2503\u2551|])"
)
_BOX_END = re.compile(r"\s*[\u2502\u2503\u2551|]?\s*$")
_RULE = re.compile(r"^\s*[\u2500-\u257f+=*_-]{6,}")
_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^-+ Traceback|Error in sys\.excepthook")
_FILE = re.compile(r'File "([^"\n]{1,400})", line \d+(?:, in (\S{1,200}))?')
_RICH = re.compile(r"^(\S{1,400}\.pyx?):\d+ in (\S{0,200})")
_CELL = re.compile(r"^(?:File )?(\S{1,300}?\.py|<ipython[^>\n]*>)(?::\d+)?,? in (\w+)")
_ARROW = re.compile(r"^(?:\u2771|-+>|>)\s*\d+\s*[\u2502|]?\s*(.*)")
_FAR = 6000  # characters of one line that are looked at on each side of a hit
_BACK = 60_000  # characters before an error in which its traceback must begin


class Window:
    """Neighbouring lines of one rank as one text. ``ranks``: the prefix of the line that was hit."""

    def __init__(self, lines: list[Line], hit: Line) -> None:
        self.lines, self.hit = lines, hit
        self.text = "\n".join(line.body for line in lines)

    def place(self, at: int) -> int:
        """The place in the log of a place in the text."""
        for line in self.lines:
            if at <= len(line.body):
                return line.begin + at
            at -= len(line.body) + 1
        return self.hit.start


class Log:
    """The text of a log. ``text`` has one line where a terminal would have shown one, progress bars included."""

    def __init__(self, text: str) -> None:
        if "\x1b" in text or "^[[" in text:
            text = _COLOUR.sub("", text)
        self._numbered = text
        if "\r" in text:
            text = text.replace("\r\n", " \n").replace("\r", "\n")
        if "\\n" in text:  # logs that are kept as JSON
            text = text.replace("\\n", " \n").replace('\\"', ' "')
        self.text = text

    def number(self, at: int) -> int:
        """The line, from 1, of a place."""
        return self._numbered.count("\n", 0, at) + 1

    def column(self, at: int) -> int:
        """The column, from 1, of a place."""
        return at - self._numbered.rfind("\n", 0, at)

    def hits(self, word: str, most: int) -> Iterator[int]:
        """The places of a word, at most so many."""
        at = self.text.find(word)
        while at >= 0 and most > 0:
            yield at
            most -= 1
            at = self.text.find(word, at + len(word))

    def line(self, at: int, far: int = _FAR) -> Line:
        """The line of a place, cut where it is longer than anyone reads."""
        start = self.text.rfind("\n", max(0, at - far), at) + 1 or max(0, at - far)
        end = self.text.find("\n", at, at + far)
        end = end if end >= 0 else min(len(self.text), at + far)
        rank, begin = _without_prefix(self.text[start:end])
        body = _BOX_END.sub("", self.text[start + begin : end])
        return Line(rank, body, start, end, start + begin)

    def before(self, line: Line, most: int, reach: int = _BACK) -> Iterator[Line]:
        """The lines of the same rank before a line, the nearest first."""
        first, seen = max(0, line.start - reach), 0
        at = line.start - 1
        while at > first and seen < most:
            one = self.line(at, 2000)
            at = one.start - 1
            if one.rank == line.rank:
                seen += 1
                yield one

    def after(self, line: Line, most: int, reach: int = 20_000) -> Iterator[Line]:
        """The lines of the same rank behind a line."""
        last, seen = min(len(self.text), line.end + reach), 0
        at = line.end + 1
        while at < last and seen < most:
            one = self.line(at, 4000)
            at = one.end + 1
            if one.rank == line.rank:
                seen += 1
                yield one

    def window(self, at: int, back: int = 2, ahead: int = 6) -> Window:
        """The lines of one rank around a place; rules of boxes are left out."""
        hit = self.line(at, 1500)
        lines = [*reversed(list(self.before(hit, back, 2000))), hit, *self.after(hit, ahead, 4000)]
        return Window([line for line in lines if line is hit or not _RULE.match(line.body)], hit)

    def frames(self, at: int) -> list[Frame]:
        """The traceback that ends at a place, outermost first."""
        hit = self.line(at)
        lines: list[str] = []
        for line in self.before(hit, 300):
            if _TRACEBACK.search(line.body):
                break
            if not _RULE.match(line.body):
                lines.append(line.body.strip())
        return _frames(lines[::-1])


def _without_prefix(line: str) -> tuple[str, int]:
    """What names the rank at the start of a line, and where the line's own text begins."""
    ranks, at = [], 0
    for _ in range(8):
        match = _RANK.match(line, at)
        if match:
            ranks.append(match[0].strip())
        else:
            match = _NOISE.match(line, at)
        if not match or match.end() == at:
            break
        at = match.end()
    return " ".join(ranks), at


def _frames(lines: list[str]) -> list[Frame]:
    """The levels of a traceback in Python's, rich's or IPython's form."""
    frames: list[Frame] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        found = _FILE.search(line) or _RICH.match(line)
        if not found and line.startswith(("/", "~", "C:")) and " in " not in line and len(line) > 40:
            found = _RICH.match(line + following)  # a path that the box has broken
        found = found or _CELL.match(line)
        if found:
            frames.append(Frame(found[1], found[2] or (following.split() or [""])[0], ""))
        elif frames and (arrow := _ARROW.match(line)):
            frames[-1] = frames[-1]._replace(code=arrow[1])
        elif frames and not frames[-1].code and line and not line.startswith(("^", "~")) and not line[0].isdigit():
            frames[-1] = frames[-1]._replace(code=line)
    return frames
