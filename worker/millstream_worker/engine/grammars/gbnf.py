"""Converts a grammar in GBNF, llama.cpp's form, to Lark: with llguidance's parser and names, in time in
proportion to the length. Its own `gbnf_to_lark` looks at all rules again for each that is found to be a
terminal, and copies all comments for each comment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from llguidance.gbnf_to_lark import ASTNode, GrammarParser, RuleNode, RuleRefNode, resolve

ROOT = "root"


class _Parser(GrammarParser):
    """Without comments."""

    @property
    def curr_comment(self) -> str:
        return ""

    @curr_comment.setter
    def curr_comment(self, comment: str) -> None:
        pass


def lark_from_gbnf(text: str) -> str:
    """Raises Exception, of no narrower type, for text that is no GBNF; RecursionError."""
    rules = _Parser().parse(text)
    _mark_terminals(rules)
    resolve(rules)
    ordered = sorted(rules.values(), key=lambda rule: rule.order)
    return "\n".join(["%llguidance {}\n", *(f"{rule}\n" for rule in ordered)])


def _mark_terminals(rules: dict[str, RuleNode]) -> None:
    """A terminal has only terminals in it, and is not the root."""
    named_in: defaultdict[str, list[str]] = defaultdict(list)
    open_names = {}
    for name, rule in rules.items():
        names = {node.name for node in _nodes(rule) if isinstance(node, RuleRefNode)}
        open_names[name] = len(names)
        for one in names:
            named_in[one].append(name)
    found = [name for name, count in open_names.items() if not count and name != ROOT]
    while found:
        name = found.pop()
        rules[name].rule_is_terminal = True
        for outer in named_in[name]:
            open_names[outer] -= 1
            if not open_names[outer] and outer != ROOT:
                found.append(outer)


def _nodes(rule: RuleNode) -> Iterator[ASTNode]:
    open_nodes: list[ASTNode] = [rule]
    while open_nodes:
        node = open_nodes.pop()
        yield node
        open_nodes += node.children()
