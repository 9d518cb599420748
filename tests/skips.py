"""Lists skipped tests with their reasons at the end of a run; in CI, reasons that are not in skips.toml fail it.

A pytest plugin. `make test` and `make test-integrations` have different libraries, so that each entry names the
environments (`--environment`) in which its tests may be skipped.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

ENVIRONMENTS = ("test", "integrations")
#: Reasons of files that are not collected at all; the root conftest.py adds to it.
UNCOLLECTED = pytest.StashKey[list[str]]()


@dataclass(frozen=True)
class Entry:
    """One entry of skips.toml.

    Args:
        reason: a regular expression that the whole reason of a skip has to match.
        environments: where such a skip is accepted.
        because: why.
    """

    reason: str
    environments: tuple[str, ...]
    because: str


def read_entries(path: Path) -> list[Entry]:
    """Return the entries of a list of skips, or raise `ValueError` for one that is not valid."""
    entries = []
    for row in tomllib.loads(path.read_text(encoding="utf-8")).get("skip", []):
        if set(row) != {"reason", "environments", "because"} or not row["because"]:
            raise ValueError(f"an entry of {path.name} needs reason, environments and because, got {row}")
        if not row["environments"] or not set(row["environments"]) <= set(ENVIRONMENTS):
            raise ValueError(f"environments of {path.name} must be of {ENVIRONMENTS}, got {row['environments']}")
        try:
            re.compile(row["reason"])
        except re.error as error:
            raise ValueError(f"reason of {path.name} is not a regular expression: {row['reason']!r}: {error}") from None
        entries.append(Entry(row["reason"], tuple(row["environments"]), row["because"]))
    return entries


def entry_of(reason: str, entries: list[Entry], environment: str) -> Entry | None:
    """Return the entry that accepts a skip in an environment, or None."""
    matching = (e for e in entries if environment in e.environments and re.fullmatch(e.reason, reason, re.DOTALL))
    return next(matching, None)


def is_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true"}


def count_reasons(config: pytest.Config) -> Counter[str]:
    """Return how often each reason was given in this run."""
    reports = config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    if config.args_source is config.ArgsSource.TESTPATHS:
        reasons.update(config.stash.get(UNCOLLECTED, []))
    return reasons


def unlisted(config: pytest.Config) -> list[str]:
    """Return the reasons of this run that no entry accepts."""
    entries, environment = read_entries(Path(config.getoption("skips"))), config.getoption("environment")
    return [reason for reason in count_reasons(config) if entry_of(reason, entries, environment) is None]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("skips")
    group.addoption(
        "--environment", choices=ENVIRONMENTS, default="test", help="the environment whose skips are accepted in CI"
    )
    group.addoption("--skips", default=str(Path(__file__).with_suffix(".toml")), help="the list of accepted skips")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI that was fine but for a skip that no entry accepts."""
    if not session.config.pluginmanager.has_plugin("terminalreporter"):
        return  # a worker of xdist: its reports go to the process that started it
    if is_ci() and session.exitstatus == pytest.ExitCode.OK and unlisted(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reasons = count_reasons(config)
    if not reasons:
        return
    entries, environment = read_entries(Path(config.getoption("skips"))), config.getoption("environment")
    terminalreporter.section("skipped")
    for reason, count in sorted(reasons.items()):
        entry = entry_of(reason, entries, environment)
        because = f"not in {Path(config.getoption('skips')).name}" if entry is None else entry.because
        terminalreporter.write_line(f"{count:4}  {reason}", red=entry is None and is_ci())
        terminalreporter.write_line(f"      {because}")
    if is_ci() and (missing := unlisted(config)):
        terminalreporter.write_line(
            f"{len(missing)} reasons are not in {config.getoption('skips')} for the environment {environment!r}: "
            "make the tests run, or add the reason with why it is accepted",
            red=True,
        )
