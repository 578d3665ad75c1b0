"""The sentences of pages in Markdown; tables, code and formulas have none."""

import re

CODE = re.compile(r"^( *)(```|~~~).*?^\1\2$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
INLINE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=\S)")
ABBREVIATED = re.compile(r"\b(al|e\.g|i\.e|cf|vs|Fig|Eq|No|p|pp)\. ")
MARKUP = ("#", "|", ">", "<", "    ", "\t", "![", "---")


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs and the items of lists, each in one line, without headings, tables and code."""
    found, current = list[str](), list[str]()
    for line in [*COMMENT.sub("", CODE.sub("\n", text)).splitlines(), ""]:
        inside = bool(current) and line.startswith("  ")
        if not line.strip() or ITEM.match(line) or (line.startswith(MARKUP) and not inside):
            found.append(" ".join(current))
            current = []
        if line.strip() and (inside or ITEM.match(line) or not line.startswith(MARKUP)):
            current.append(ITEM.sub("", line).strip())
    return [paragraph for paragraph in found if paragraph]


def sentences(text: str) -> list[str]:
    """Return the sentences of a page. A piece of code in a sentence is one word, and a link is its text."""
    found = list[str]()
    for paragraph in paragraphs(text):
        plain = ABBREVIATED.sub(r"\1 ", LINK.sub(r"\1", INLINE.sub("Code", paragraph)))
        found += [sentence for sentence in END.split(plain) if words(sentence)]
    return found


def words(sentence: str) -> int:
    """Return the number of words, with numbers, without signs."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())
