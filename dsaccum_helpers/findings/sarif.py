"""Findings as SARIF 2.1.0, which code hosts and editors show beside the code."""

from __future__ import annotations

from dsaccum_helpers.findings.github import is_file, remedies
from dsaccum_helpers.findings.text import short

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from dsaccum_helpers.findings import Finding, Report
    from dsaccum_helpers.job import Source

__all__ = ["as_sarif"]

HOME = "https://github.com/dsaccum/dsaccum"
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(reports: dict[int, Report], entries: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The log of one run. ``entries``: what explains each code that was found, by code (``mismatches``)."""
    codes = list(entries)
    results = [
        _result(finding, f"On {size} processes: " if size else "", codes)
        for size, report in reports.items()
        for finding in report.findings
    ]
    driver = {
        "name": "dsaccum",
        "version": version,
        "informationUri": HOME,
        "rules": [_rule(code, entries[code]) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "invocations": [
            {
                "executionSuccessful": not any(report.faults for report in reports.values()),
                "toolExecutionNotifications": [
                    {"level": "note", "message": {"text": words}}
                    for words in dict.fromkeys(words for report in reports.values() for words in report.missing)
                ],
            }
        ],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(code: str, entry: Any) -> dict[str, Any]:
    parts = {
        "What you see": entry.symptom,
        "Cause": entry.cause,
        "What it does": entry.consequence,
        "Fix": entry.remedy,
    }
    return {
        "id": code,
        "name": code.title().replace("-", ""),
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.cause},
        "help": {
            "text": "\n".join(f"{name}: {words}" for name, words in parts.items()),
            "markdown": "\n\n".join(f"**{name}:** {words}" for name, words in parts.items()),
        },
        "helpUri": f"{HOME}/blob/main/{entry.learn}",
        "defaultConfiguration": {"level": entry.severity},
    }


def _result(finding: Finding, on: str, codes: list[str]) -> dict[str, Any]:
    message = [on + short(finding), finding.consequence, *remedies(finding)]
    places = [_location(source) for source in finding.where if is_file(source.file)]
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": finding.severity,
        "message": {"text": "\n".join(filter(None, message))},
        "locations": places[:1],
        # The further places: SARIF takes several locations as "the change is needed in each", which is not so here.
        **({"relatedLocations": places[1:]} if places[1:] else {}),
        "properties": {"fixes": [fix.to_dict() for fix in finding.fixes], "because_of": finding.because_of},
    }


def _location(source: Source) -> dict[str, Any]:
    region = {"startLine": source.line, "startColumn": source.column if source.line else None}
    region = {name: number for name, number in region.items() if number}
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(str(source.file))}}
    return {"physicalLocation": {**physical, **({"region": region} if region else {})}}


def _uri(name: str) -> str:
    """Relative to the folder the command runs in, where the file lies inside it."""
    import os
    from urllib.parse import quote

    if os.path.isabs(name):
        inside = os.path.relpath(name)
        if inside.startswith(".."):
            return "file://" + quote(name, errors="surrogateescape")
        name = inside
    # A colon in the first part of a relative reference would read as a scheme; quote() writes it as %3A.
    return quote(os.path.normpath(name).replace(os.sep, "/"), errors="surrogateescape")
