"""The corpus of small configurations in the shape of each tool's own: each becomes what it must, or is refused.

What a tool takes if a value is not given counts too: it is written where the rule changes it.
"""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml

from rootscale.configs import FORMATS, convert_text
from rootscale.configs.batch import read_batch_size
from rootscale.configs.convert import read_document
from rootscale.rules import RULES

CORPUS = yaml.safe_load(Path(__file__).with_name("config_corpus.yaml").read_text())
CASES = [(tool, case) for tool, cases in CORPUS.items() for case in cases]
KAPPA = 4


def expected_value(value):
    """Return the value of a case; ``beta1(0.9)`` is what the rule makes of 0.9."""
    if not isinstance(value, str):
        return float(value)
    unit, _, number = value.rstrip(")").partition("(")
    return float(RULES["sqrt"].convert(unit, float(number), KAPPA))


def outcome(tool, case):
    """Return ``right`` or ``refused``, or what is wrong."""
    text, world_size = case["text"], None if FORMATS[tool].batch.total else 8
    try:
        document, known = read_document(text)
        try:
            total = int(read_batch_size(document, known.batch, None, world_size).total)
        except ValueError:
            total = 64  # it is refused for another reason
        result = convert_text(text, KAPPA * total, world_size=world_size)
    except ValueError as error:
        return "refused" if re.search(case.get("refused", "(?!)"), str(error)) else f"wrong: {error}"
    if "refused" in case:
        return f"wrong: converted to {result.values}"
    expected = {path: pytest.approx(expected_value(value), rel=1e-9) for path, value in case["becomes"].items()}
    if (result.format.name, dict(result.values)) != (tool, expected):
        return f"wrong: {result.format.name} {dict(result.values)}"
    return "right"


@pytest.mark.parametrize(("tool", "case"), CASES, ids=[f"{tool}: {case['case']}" for tool, case in CASES])
def test_every_case_of_the_corpus_is_right_or_refused_for_its_reason(tool, case):
    assert outcome(tool, case) == ("refused" if "refused" in case else "right")


def test_the_counts_of_the_corpus_are_those_of_the_docs():
    counts = {tool: Counter(outcome(tool, case) for case in cases) for tool, cases in CORPUS.items()}
    assert set(counts) == set(FORMATS)
    page = (Path(__file__).parents[2] / "docs" / "integrations" / "configs.md").read_text()
    for tool, count in counts.items():
        right, refused = count.pop("right", 0), count.pop("refused", 0)
        assert not count, f"{tool}: {count}"
        assert f"| `{tool}` | {right} | {refused} | 0 |" in page
