"""docs/glossary.md is sorted and has only words that the project uses."""

import re

from tests.conftest import ROOT
from tests.layers.test_imports import files

GLOSSARY = ROOT / "docs/glossary.md"
TERMS = re.findall(r"^- \*\*(.+?)\*\*: ", GLOSSARY.read_text(), re.MULTILINE)


def unused(terms: list[str], texts: list[str]) -> list[str]:
    """The terms that occur in no text, in the singular or the plural, on one line or over two."""

    def occurs(term: str) -> bool:
        pattern = r"\s+".join(map(re.escape, term.split()))
        return any(re.search(rf"\b{pattern}s?\b", text, re.IGNORECASE) for text in texts)

    return [term for term in terms if not occurs(term)]


def test_terms_are_sorted_and_defined_once():
    assert len(TERMS) > 25
    assert sorted(set(TERMS), key=str.lower) == TERMS


def test_every_term_is_used():
    paths = [p for p in files() if p.suffix in {".md", ".py", ".h", ".cc", ".cu", ".cuh"}]
    texts = [p.read_text() for p in paths if p not in (GLOSSARY, ROOT / "tests/docs/test_glossary.py")]
    assert len(texts) > 200
    assert unused(TERMS, texts) == []
    assert unused(["warpgroup of zebras"], texts) == ["warpgroup of zebras"]
